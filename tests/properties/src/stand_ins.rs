// SPDX-License-Identifier: GPL-2.0

//! Stand-ins for modules of `rust/` that depend on many functions of the kernel.

#[macro_use]
#[path = "shared.rs"]
mod shared;

pub(crate) use shared::{
    deferred,
    range_tree,
    shrinker,
    table_memory,
    zeroed, //
};

/// Fault injection, used by some properties.
pub(crate) mod inject {
    use core::cell::Cell;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum FailPoint {
        Announce,
        Attributes,
        Copy,
        Dma,
        Install,
        TablePage,
    }

    thread_local! {
        /// The point that fails, at which of its next uses, and whether it does so again.
        static ARMED: Cell<Option<(FailPoint, u64, u64, bool)>> = const { Cell::new(None) };
    }

    /// Makes the next use of `point` fail.
    pub(crate) fn arm(point: Option<FailPoint>) {
        ARMED.set(point.map(|point| (point, 1, 1, false)));
    }

    pub(crate) fn fails(point: FailPoint) -> bool {
        match ARMED.get() {
            Some((armed, 1, period, again)) if armed == point => {
                ARMED.set(again.then_some((armed, period, period, again)));
                true
            }
            Some((armed, left, period, again)) if armed == point => {
                ARMED.set(Some((armed, left - 1, period, again)));
                false
            }
            _ => false,
        }
    }

    /// As that of KUnit suites, in the current thread.
    pub(crate) struct ArmedPoint;

    impl ArmedPoint {
        pub(crate) fn new(point: FailPoint, left: u64, again: bool) -> kernel::error::Result<Self> {
            ARMED.set(Some((point, left, left, again)));
            Ok(Self)
        }

        pub(crate) fn is_left(&self) -> bool {
            ARMED.get().is_some()
        }
    }

    impl Drop for ArmedPoint {
        fn drop(&mut self) {
            ARMED.set(None);
        }
    }
}

/// Identities.
pub(crate) mod identity {
    macro_rules! identities {
        ($($name:ident),*) => {$(
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub(crate) struct $name(pub(crate) usize);

            #[allow(dead_code)]
            impl $name {
                pub(crate) const NONE: Self = Self(0);

                pub(crate) fn of<T>(place: &T) -> Self {
                    Self(core::ptr::from_ref(place) as usize)
                }

                pub(crate) fn for_test(number: usize) -> Self {
                    Self(number)
                }

                pub(crate) fn number(self) -> usize {
                    self.0
                }
            }
        )*};
    }

    identities!(DeviceId, EventOwner, MemoryId, MigrationId, PgmapOwner);

    impl From<MigrationId> for EventOwner {
        fn from(migration: MigrationId) -> Self {
            Self(migration.0)
        }
    }

    impl From<PgmapOwner> for EventOwner {
        fn from(owner: PgmapOwner) -> Self {
            Self(owner.0)
        }
    }
}

/// Notifier events.
pub(crate) mod notifier {
    use super::identity::EventOwner;
    use crate::mm::addr::PageRange;
    use core::marker::PhantomData;

    /// Types of events.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum NotifierEvent {
        Unmap,
        Clear,
        ProtectionVma,
        ProtectionPage,
        SoftDirty,
        Release,
        Migrate,
        Exclusive,
    }

    pub(crate) struct NotifierRange<'a> {
        pub(crate) reason: NotifierEvent,
        pub(crate) range: PageRange,
        owner: EventOwner,
        _borrow: PhantomData<&'a ()>,
    }

    impl NotifierRange<'_> {
        pub(crate) fn is_from(&self, owner: impl Into<EventOwner>) -> bool {
            matches!(self.reason, NotifierEvent::Migrate | NotifierEvent::Exclusive)
                && self.owner == owner.into()
        }

        pub(crate) fn for_test(
            reason: NotifierEvent,
            range: PageRange,
            owner: impl Into<EventOwner>,
        ) -> Self {
            Self { reason, range, owner: owner.into(), _borrow: PhantomData }
        }
    }
}

/// Alarms.
pub(crate) mod alarm {
    /// Only for the text of KUnit suites, which is not run.
    pub(crate) struct Alarm;
    pub(crate) struct ExpectedAlarm;
}

/// Only for the text of KUnit suites, which is not run.
pub(crate) mod thread {
    pub(crate) struct Thread;
}

/// Only for the text of KUnit suites, which is not run.
pub(crate) mod within {
    pub(crate) fn is_within() -> bool {
        true
    }
}

/// Pages of the CPU, which are not used here.
pub(crate) mod folio {
    use core::marker::PhantomData;
    use kernel::error::Result;

    pub enum Effort {
        Must,
    }

    /// Page frames, which are numbers only.
    pub struct LockedFolio(usize);

    impl LockedFolio {
        pub(crate) fn alloc_system(
            _vma: Option<()>,
            _addr: usize,
            order: u32,
            _effort: Effort,
        ) -> Result<Self> {
            Ok(Self(1 << order))
        }

        pub(crate) fn pfn(&self) -> usize {
            self.0
        }
    }

    pub(crate) fn is_zero_pfn(pfn: usize) -> bool {
        pfn == 1
    }

    pub struct CpuPages<'a>(PhantomData<&'a ()>);

    impl CpuPages<'_> {
        pub(crate) unsafe fn new(_pfn: usize, _count: usize) -> Self {
            Self(PhantomData)
        }
    }

    pub struct CpuPagesMut<'a>(usize, PhantomData<&'a ()>);

    impl CpuPagesMut<'_> {
        pub(crate) unsafe fn new(_pfn: usize, count: usize) -> Self {
            Self(count, PhantomData)
        }

        pub(crate) fn bytes(&self) -> usize {
            self.0 << 12
        }
    }
}

/// Pinned pages.
pub(crate) mod pin {
    pub struct PinnedPages(pub(crate) usize);

    impl PinnedPages {
        pub(crate) fn count(&self) -> usize {
            self.0
        }

        pub(crate) fn pfn(&self, index: usize) -> Option<usize> {
            Some(index + 1)
        }
    }
}

/// Device memory.
pub(crate) mod device_pages {
    pub struct DeviceRange(());
}

/// Locations of page contents.
pub(crate) mod location {
    use crate::mm::{
        device_pages::DeviceRange,
        folio, //
    };

    pub enum PageMemory<'a> {
        Cpu(folio::CpuPages<'a>),
        Device(DeviceRange),
    }

    pub enum PageMemoryMut<'a> {
        Cpu(folio::CpuPagesMut<'a>),
        Device(DeviceRange),
    }
}

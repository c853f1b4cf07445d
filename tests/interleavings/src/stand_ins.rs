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

/// Fault injection, which never injects a failure here.
pub(crate) mod inject {
    pub(crate) enum FailPoint {
        Announce,
        Attributes,
        Copy,
        DevicePage,
        Dma,
        Grow,
        Install,
        Region,
        Retry,
        TablePage,
        InFlightMigration,
        MmapLock,
    }

    pub(crate) fn fails(_point: FailPoint) -> bool {
        false
    }
}

/// Cancellation.
pub(crate) mod cancel {
    pub(crate) struct CancelToken;

    impl CancelToken {
        pub(crate) fn is_set(&self) -> bool {
            false
        }
    }
}

/// Identities.
pub(crate) mod identity {
    use kernel::{
        ffi,
        mm::MmWithUser, //
    };

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MemoryId(pub(crate) usize);

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DeviceId(pub(crate) usize);

    impl DeviceId {
        pub(crate) const NONE: Self = Self(0);
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MigrationId(pub(crate) usize);

    impl MigrationId {
        pub(crate) fn number(self) -> usize {
            self.0
        }
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct EventOwner(usize);

    impl EventOwner {
        pub const NONE: Self = Self(0);
    }

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

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MmId(pub(crate) usize);

    impl MmId {
        pub(crate) fn of_user(mm: &MmWithUser) -> Self {
            Self(mm.as_raw() as usize)
        }
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PgmapOwner(pub(crate) usize);

    impl PgmapOwner {
        pub(crate) fn as_ptr(self) -> *mut ffi::c_void {
            self.0 as *mut ffi::c_void
        }
    }
}

/// Folios.
pub(crate) mod folio {
    use core::marker::PhantomData;

    pub(crate) fn is_zero_pfn(_pfn: usize) -> bool {
        false
    }

    /// An allocated folio; drop frees it.
    pub struct LockedFolio(pub(crate) usize);

    impl LockedFolio {
        pub(crate) unsafe fn from_raw(pfn: usize, _order: u32) -> Self {
            Self(pfn)
        }
    }

    pub struct CpuPages<'a>(pub(crate) usize, PhantomData<&'a ()>);

    impl CpuPages<'_> {
        pub(crate) unsafe fn new(pfn: usize, _count: usize) -> Self {
            Self(pfn, PhantomData)
        }
    }

    pub struct CpuPagesMut<'a>(pub(crate) usize, usize, PhantomData<&'a ()>);

    impl CpuPagesMut<'_> {
        pub(crate) unsafe fn new(pfn: usize, count: usize) -> Self {
            Self(pfn, count, PhantomData)
        }

        pub(crate) fn bytes(&self) -> usize {
            self.1 << 12
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

/// An object that each execution of a test sets anew, because those of the model end with it.
pub(crate) struct PerExecution<T: 'static>(kernel::model::Hidden<Option<&'static T>>);

impl<T> PerExecution<T> {
    pub(crate) const fn new() -> Self {
        Self(kernel::model::Hidden::new(None))
    }

    /// Must be called at the start of each execution.
    pub(crate) fn set(&self, value: T) {
        self.0.with(|place| *place = Some(Box::leak(Box::new(value))));
    }

    pub(crate) fn get(&self) -> &'static T {
        self.0.with(|place| place.expect("set by the test"))
    }
}

/// Tracepoints.
pub(crate) mod events {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum EvictReason {
        All,
        Room,
    }
}

/// The thrashing detection, which has locks only.
pub(crate) mod bounces {
    pub struct Bounces;

    impl Bounces {
        pub(crate) fn new() -> kernel::init::Ready<Self> {
            kernel::init::Ready(Self)
        }
    }
}

/// Results of migrations.
pub(crate) mod migrate {
    use core::marker::PhantomData;

    pub struct Moved<'a>(PhantomData<&'a ()>);
}

/// The address space of a process.
pub(crate) mod range_fault {
    use kernel::mm::MmWithUser;

    pub struct AddressSpace(pub(crate) &'static MmWithUser);

    impl AddressSpace {
        pub(crate) fn mm(&self) -> &MmWithUser {
            self.0
        }
    }
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

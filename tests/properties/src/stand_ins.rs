// SPDX-License-Identifier: GPL-2.0

//! Stand-ins for modules of `rust/` that depend on many functions of the kernel.

#[macro_use]
#[path = "shared.rs"]
mod shared;

pub(crate) use shared::{deferred, shrinker, table_memory, zeroed};

/// Fault injection, used by some properties.
pub(crate) mod inject {
    use core::cell::Cell;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum FailPoint {
        Attributes,
        Copy,
        Dma,
        Install,
        TablePage,
    }

    thread_local! {
        static ARMED: Cell<Option<FailPoint>> = const { Cell::new(None) };
    }

    /// Makes the next use of `point` fail.
    pub(crate) fn arm(point: Option<FailPoint>) {
        ARMED.set(point);
    }

    pub(crate) fn fails(point: FailPoint) -> bool {
        let fails = ARMED.get() == Some(point);
        if fails {
            ARMED.set(None);
        }
        fails
    }

    /// Only for the text of KUnit suites, which is not run.
    pub(crate) struct ArmedPoint;
}

/// Identities.
pub(crate) mod identity {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct DeviceId(pub(crate) usize);

    impl DeviceId {
        pub(crate) const NONE: Self = Self(0);

        /// Only for the text of KUnit suites, which is not run.
        pub(crate) fn for_test(number: usize) -> Self {
            Self(number)
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
    use crate::mm::{device_pages::DeviceRange, folio};

    pub enum PageMemory<'a> {
        Cpu(page::CpuPages<'a>),
        Device(DeviceRange),
    }

    pub enum PageMemoryMut<'a> {
        Cpu(page::CpuPagesMut<'a>),
        Device(DeviceRange),
    }
}

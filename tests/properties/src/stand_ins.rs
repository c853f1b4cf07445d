// SPDX-License-Identifier: GPL-2.0

//! Stands in for modules of `rust/` that reach deep into the kernel.

#[macro_use]
#[path = "shared.rs"]
mod shared;

pub(crate) use shared::{deferred, overhead, shrinker, table_memory, zeroed};

/// Injects failures, where a property says so.
pub(crate) mod inject {
    use core::cell::Cell;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Point {
        Attributes,
        Copy,
        Dma,
        Install,
        TablePage,
    }

    thread_local! {
        static ARMED: Cell<Option<Point>> = const { Cell::new(None) };
    }

    /// The next use of `point` fails.
    pub(crate) fn arm(point: Option<Point>) {
        ARMED.set(point);
    }

    pub(crate) fn fails(point: Point) -> bool {
        let fails = ARMED.get() == Some(point);
        if fails {
            ARMED.set(None);
        }
        fails
    }

    /// For the text of KUnit suites, which is not run.
    pub(crate) struct Armed;
}

/// Names.
pub(crate) mod notifier {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Cookie(pub(crate) usize);

    impl Cookie {
        pub(crate) const NONE: Self = Self(0);

        /// For the text of KUnit suites, which is not run.
        pub(crate) fn of_driver(place: *const core::ffi::c_void) -> Self {
            Self(place as usize)
        }
    }
}

/// Alarms.
pub(crate) mod alarm {
    /// For the text of KUnit suites, which is not run.
    pub(crate) struct Alarm;
    pub(crate) struct Expected;
}

/// For the text of KUnit suites, which is not run.
pub(crate) mod thread {
    pub(crate) struct Thread;
}

/// For the text of KUnit suites, which is not run.
pub(crate) mod within {
    pub(crate) fn is_within() -> bool {
        true
    }
}

/// Pages of the CPU, which nothing here uses.
pub(crate) mod page {
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

/// Where contents are.
pub(crate) mod mirror {
    use crate::mm::{device_pages::DeviceRange, page};

    pub enum Place<'a> {
        Cpu(page::CpuPages<'a>),
        Device(DeviceRange),
    }

    pub enum PlaceMut<'a> {
        Cpu(page::CpuPagesMut<'a>),
        Device(DeviceRange),
    }
}

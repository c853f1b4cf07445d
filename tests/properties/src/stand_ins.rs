// SPDX-License-Identifier: GPL-2.0

//! Stands in for modules of `rust/` that reach deep into the kernel.

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

/// Alarms.
pub(crate) mod alarm {
    /// For the text of KUnit suites, which is not run.
    pub(crate) struct Alarm;
    pub(crate) struct Expected;
}

/// An alarm is a failure, unless it follows from one.
#[macro_export]
macro_rules! alarm {
    ($alarm:ident, $($format:tt)+) => {
        if !::std::thread::panicking() {
            panic!("ALARM {}: {}", stringify!($alarm), ::core::format_args!($($format)+))
        }
    };
}

/// Accounts of memory.
pub(crate) mod overhead {
    pub(crate) fn add(_pages: i64, _bytes: i64) {}
}

/// For the text of KUnit suites, which is not run.
pub(crate) mod thread {
    pub(crate) struct Thread;
}

/// Objects are dropped in place.
pub(crate) mod deferred {
    use core::ops::Deref;
    use kernel::{alloc::Flags, prelude::*};

    pub(crate) trait DropWaits {}

    pub(crate) struct Deferred<T: DropWaits>(KBox<T>);

    impl<T: DropWaits> Deferred<T> {
        pub(crate) fn new(make: impl FnOnce() -> Result<T>, flags: Flags) -> Result<Self> {
            Ok(Self(KBox::new(make()?, flags)?))
        }

        pub(crate) fn pinned(object: impl PinInit<T, Error>, flags: Flags) -> Result<Self> {
            Ok(Self(KBox::new(object.make()?, flags)?))
        }
    }

    impl<T: DropWaits> Deref for Deferred<T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.0
        }
    }
}

/// Nothing shrinks but what a property has shrunk.
pub(crate) mod shrinker {
    use core::marker::PhantomData;
    use kernel::{prelude::*, sync::Arc};

    pub trait Shrink {
        fn count(&self) -> usize;
        fn scan(&self, objects: usize) -> usize;
    }

    pub struct Shrinker<T>(PhantomData<T>);

    impl<T> Shrinker<T> {
        pub fn new(_name: &'static CStr, _data: Arc<T>) -> Result<Self> {
            Ok(Self(PhantomData))
        }
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

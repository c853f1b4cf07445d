// SPDX-License-Identifier: GPL-2.0

//! Stand-ins for modules of `rust/` that these tests and those of `tests/properties` share.

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

/// Nothing shrinks but what a test has shrunk.
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

// SPDX-License-Identifier: GPL-2.0

//! Small parts of the kernel crate.

pub use core::ffi::CStr;

/// What the kernel's `CStr` has besides.
pub trait CStrExt {
    /// The pointer.
    fn as_char_ptr(&self) -> *const core::ffi::c_char;
}

impl CStrExt for CStr {
    fn as_char_ptr(&self) -> *const core::ffi::c_char {
        self.as_ptr()
    }
}

/// Messages go nowhere.
#[macro_export]
macro_rules! pr_warn {
    ($($format:tt)*) => { { let _ = ::core::format_args!($($format)*); } };
}

#[macro_export]
macro_rules! pr_err {
    ($($format:tt)*) => { { let _ = ::core::format_args!($($format)*); } };
}

#[macro_export]
macro_rules! pr_info {
    ($($format:tt)*) => { { let _ = ::core::format_args!($($format)*); } };
}

/// As `kernel::page`.
pub mod page {
    pub const PAGE_SHIFT: usize = 12;
    pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;
    pub const PAGE_MASK: usize = !(PAGE_SIZE - 1);
}

/// As `kernel::task`.
pub mod task {
    /// The part of `task_struct` that is read.
    #[repr(C)]
    pub struct RawTask {
        pub start_time: u64,
    }

    /// A task.
    pub struct Task;

    impl Task {
        /// The current task.
        pub fn current_raw() -> *mut RawTask {
            crate::model::current_task()
        }
    }
}

/// As `kernel::time`. No time passes.
pub mod time {
    pub type Jiffies = core::ffi::c_ulong;

    /// A span of time.
    #[derive(Clone, Copy, PartialEq, PartialOrd)]
    pub struct Delta(i64);

    impl Delta {
        pub const ZERO: Self = Self(0);

        pub const fn from_millis(ms: i64) -> Self {
            Self(ms * 1_000_000)
        }

        pub const fn from_micros(us: i64) -> Self {
            Self(us * 1000)
        }
    }

    /// Pauses.
    pub mod delay {
        /// Lets other threads run.
        pub fn fsleep(_time: super::Delta) {
            crate::model::yield_now();
        }
    }
}

/// As `kernel::types`.
pub mod types {
    use core::{cell::UnsafeCell, marker::PhantomData, mem::MaybeUninit};

    /// What must not be sent.
    pub type NotThreadSafe = PhantomData<*mut ()>;

    /// The value of [`NotThreadSafe`].
    #[allow(non_upper_case_globals)]
    pub const NotThreadSafe: NotThreadSafe = PhantomData;

    /// An object of C.
    #[repr(transparent)]
    pub struct Opaque<T>(UnsafeCell<MaybeUninit<T>>);

    impl<T> Opaque<T> {
        pub fn ffi_init(init: impl FnOnce(*mut T)) -> Self {
            let this = Self::zeroed();
            init(this.get());
            this
        }

        pub fn zeroed() -> Self {
            Self(UnsafeCell::new(MaybeUninit::zeroed()))
        }

        pub fn get(&self) -> *mut T {
            self.0.get().cast()
        }

        pub fn cast_from(raw: *const T) -> *const Self {
            raw.cast()
        }
    }
}

/// As `kernel::revocable`, with the same orderings.
pub mod revocable {
    use crate::sync::{
        atomic::{ordering::Relaxed, AtomicFlag},
        rcu,
    };
    use core::{cell::UnsafeCell, mem::MaybeUninit, ops::Deref};

    /// An object that can be dropped while others use it.
    pub struct Revocable<T> {
        is_available: AtomicFlag,
        data: UnsafeCell<MaybeUninit<T>>,
    }

    // SAFETY: As the kernel's.
    unsafe impl<T: Send> Send for Revocable<T> {}
    // SAFETY: As the kernel's.
    unsafe impl<T: Send + Sync> Sync for Revocable<T> {}

    /// Access to the object.
    pub struct RevocableGuard<'a, T>(&'a T, rcu::Guard);

    impl<T> Deref for RevocableGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0
        }
    }

    impl<T> Revocable<T> {
        #[allow(clippy::new_ret_no_self)]
        pub fn new(data: T) -> Self {
            Self {
                is_available: AtomicFlag::new(true),
                data: UnsafeCell::new(MaybeUninit::new(data)),
            }
        }

        pub fn try_access(&self) -> Option<RevocableGuard<'_, T>> {
            let guard = rcu::read_lock();
            if !self.is_available.load(Relaxed) {
                return None;
            }
            // SAFETY: Available, and not dropped before the section has ended.
            Some(RevocableGuard(
                unsafe { (*self.data.get()).assume_init_ref() },
                guard,
            ))
        }

        pub fn revoke(&self) -> bool {
            let revoke = self.is_available.xchg(false, Relaxed);
            if revoke {
                rcu::synchronize_rcu();
                // SAFETY: Nobody uses it any more.
                unsafe { (*self.data.get()).assume_init_drop() };
            }
            revoke
        }
    }

    impl<T> Drop for Revocable<T> {
        fn drop(&mut self) {
            if self.is_available.load(Relaxed) {
                // SAFETY: Available.
                unsafe { self.data.get_mut().assume_init_drop() };
            }
        }
    }
}

/// As `kernel::device`: no driver is bound to anything.
pub mod device {
    use core::marker::PhantomData;

    pub struct Core<'a>(PhantomData<&'a ()>);
    pub struct Device<C>(PhantomData<C>);
}

/// As `kernel::devres`.
pub mod devres {
    use crate::prelude::*;

    pub fn register<C, T>(
        _device: &super::device::Device<C>,
        _object: T,
        _flags: crate::alloc::Flags,
    ) -> Result {
        Ok(())
    }
}

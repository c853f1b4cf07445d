// SPDX-License-Identifier: GPL-2.0

//! Small modules of the kernel crate.

pub use core::ffi::CStr;

/// Methods of the kernel's `CStr` that `core` does not have.
pub trait CStrExt {
    /// The pointer.
    fn as_char_ptr(&self) -> *const core::ffi::c_char;
}

impl CStrExt for CStr {
    fn as_char_ptr(&self) -> *const core::ffi::c_char {
        self.as_ptr()
    }
}

/// Discards the message.
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

/// The current task.
#[macro_export]
macro_rules! current {
    () => {
        $crate::task::Current
    };
}

/// Stand-in for `kernel::page`, with pages of 4 KiB, or of 16 KiB with `--cfg hmm_pages_16k`.
pub mod page {
    pub const PAGE_SHIFT: usize = if cfg!(hmm_pages_16k) { 14 } else { 12 };
    pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;
    pub const PAGE_MASK: usize = !(PAGE_SIZE - 1);
}

/// Stand-in for `kernel::mm`.
pub mod mm {
    use crate::model::Memory;

    /// An address space.
    pub struct MmWithUser {
        /// The tree of its notifiers, which has no value until it is created.
        pub tree: Memory,
    }

    impl MmWithUser {
        pub fn as_raw(&self) -> *mut Self {
            core::ptr::from_ref(self).cast_mut()
        }
    }
}

/// Stand-in for `kernel::task`.
pub mod task {
    /// The fields of `task_struct` that are read.
    #[repr(C)]
    pub struct RawTask {
        pub start_time: u64,
    }

    /// Number of a task.
    pub type Pid = i32;

    /// The current task.
    pub struct Current;

    impl Current {
        /// Its number.
        pub fn pid(&self) -> Pid {
            crate::model::thread() as Pid + 1
        }
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

/// Stand-in for `kernel::time`. Time does not pass.
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

/// Stand-in for `kernel::types`.
pub mod types {
    use core::{
        cell::UnsafeCell,
        marker::PhantomData,
        mem::MaybeUninit, //
    };

    /// Marker of a type that is neither `Send` nor `Sync`.
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

        pub const fn uninit() -> Self {
            Self(UnsafeCell::new(MaybeUninit::uninit()))
        }

        pub fn get(&self) -> *mut T {
            self.0.get().cast()
        }

        pub fn cast_from(raw: *const T) -> *const Self {
            raw.cast()
        }
    }
}

/// Stand-in for `kernel::revocable`, with the same orderings.
pub mod revocable {
    use crate::sync::{
        atomic::{
            ordering::Relaxed,
            AtomicFlag, //
        },
        rcu, //
    };
    use core::{
        cell::UnsafeCell,
        mem::MaybeUninit,
        ops::Deref, //
    };

    /// An object that can be dropped while it is in use.
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
            // SAFETY: The object is available, and is dropped only after this read section has
            // ended.
            Some(RevocableGuard(
                unsafe { (*self.data.get()).assume_init_ref() },
                guard,
            ))
        }

        pub fn revoke(&self) -> bool {
            let revoke = self.is_available.xchg(false, Relaxed);
            if revoke {
                rcu::synchronize_rcu();
                // SAFETY: It was revoked, and all read sections that could use it have ended.
                unsafe { (*self.data.get()).assume_init_drop() };
            }
            revoke
        }
    }

    impl<T> Drop for Revocable<T> {
        fn drop(&mut self) {
            if self.is_available.load(Relaxed) {
                // SAFETY: It is available, and there is no other reference.
                unsafe { self.data.get_mut().assume_init_drop() };
            }
        }
    }
}

/// Stand-in for `kernel::device`: no driver is bound to a device.
pub mod device {
    use core::marker::PhantomData;

    pub struct Core<'a>(PhantomData<&'a ()>);
    pub struct Device<C>(PhantomData<C>);
}

/// Stand-in for `kernel::devres`.
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

// SPDX-License-Identifier: GPL-2.0

//! Stand-in for `kernel::sync::SetOnce`, with the same orderings.

use super::atomic::{
    ordering::{
        Acquire,
        Relaxed,
        Release, //
    },
    Atomic, //
};
use core::{
    cell::UnsafeCell,
    mem::MaybeUninit, //
};

/// A value that is set once.
pub struct SetOnce<T> {
    /// 0: empty, 1: being filled, 2: filled.
    init: Atomic<u32>,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: As the kernel's.
unsafe impl<T: Send> Send for SetOnce<T> {}
// SAFETY: As the kernel's.
unsafe impl<T: Send + Sync> Sync for SetOnce<T> {}

impl<T> SetOnce<T> {
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self {
            init: Atomic::new(0),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    pub fn as_ref(&self) -> Option<&T> {
        // SAFETY: Filled.
        (self.init.load(Acquire) == 2).then(|| unsafe { (*self.value.get()).assume_init_ref() })
    }

    pub fn populate(&self, value: T) -> bool {
        if self.init.cmpxchg(0, 1, Relaxed).is_err() {
            return false;
        }
        // SAFETY: Only this thread has changed the state from 0 to 1.
        unsafe { (*self.value.get()).write(value) };
        self.init.store(2, Release);
        true
    }
}

impl<T> Drop for SetOnce<T> {
    fn drop(&mut self) {
        if self.as_ref().is_some() {
            // SAFETY: The value is set, and there is no other reference.
            unsafe { self.value.get_mut().assume_init_drop() };
        }
    }
}

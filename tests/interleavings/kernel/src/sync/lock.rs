// SPDX-License-Identifier: GPL-2.0

//! Stand-in for `kernel::sync::lock`.

use super::LockClassKey;
use core::{
    ffi::CStr,
    marker::PhantomData,
    ops::{
        Deref,
        DerefMut, //
    },
    pin::Pin, //
};
#[cfg(feature = "explore")]
use loom::sync as imp;
#[cfg(not(feature = "explore"))]
use std::sync as imp;

/// Stand-in for `kernel::sync::lock::mutex`.
pub mod mutex {
    pub struct MutexBackend;
}

/// Stand-in for `kernel::sync::lock::spinlock`.
pub mod spinlock {
    pub struct SpinLockBackend;
}

/// A lock.
pub struct Lock<T, B> {
    inner: imp::Mutex<T>,
    _backend: PhantomData<B>,
}

pub type Mutex<T> = Lock<T, mutex::MutexBackend>;
pub type SpinLock<T> = Lock<T, spinlock::SpinLockBackend>;
pub type MutexGuard<'a, T> = Guard<'a, T, mutex::MutexBackend>;

// SAFETY: It serializes accesses.
unsafe impl<T: Send, B> Sync for Lock<T, B> {}
// SAFETY: As above.
unsafe impl<T: Send, B> Send for Lock<T, B> {}

/// The guard of a held lock.
pub struct Guard<'a, T, B> {
    lock: &'a Lock<T, B>,
    pub(super) inner: Option<imp::MutexGuard<'a, T>>,
}

impl<T, B> Lock<T, B> {
    #[allow(clippy::new_ret_no_self)]
    pub fn new(value: T, _name: &'static CStr, _key: Pin<&'static LockClassKey>) -> Self {
        Self {
            inner: imp::Mutex::new(value),
            _backend: PhantomData,
        }
    }

    #[track_caller]
    pub fn lock(&self) -> Guard<'_, T, B> {
        Guard {
            lock: self,
            inner: Some(self.inner.lock().unwrap()),
        }
    }

    #[track_caller]
    pub fn try_lock(&self) -> Option<Guard<'_, T, B>> {
        Some(Guard {
            lock: self,
            inner: Some(self.inner.try_lock().ok()?),
        })
    }
}

impl<'a, T, B> Guard<'a, T, B> {
    pub fn lock_ref(&self) -> &'a Lock<T, B> {
        self.lock
    }
}

impl<T, B> Deref for Guard<'_, T, B> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_ref().unwrap()
    }
}

impl<T, B> DerefMut for Guard<'_, T, B> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().unwrap()
    }
}

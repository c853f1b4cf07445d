// SPDX-License-Identifier: GPL-2.0

//! Stand-in for `kernel::sync::CondVar`. Time does not pass: a wait with a timeout ends only by a
//! wake-up, so that a lost wake-up is detected.

use super::{
    lock::Guard,
    LockClassKey, //
};
use core::{
    ffi::CStr,
    pin::Pin, //
};
#[cfg(feature = "explore")]
use loom::sync as imp;
#[cfg(not(feature = "explore"))]
use std::sync as imp;

/// The waiting threads.
pub struct CondVar(imp::Condvar);

/// The reason for the end of a wait.
pub enum CondVarTimeoutResult {
    Timeout,
    Woken { jiffies: core::ffi::c_ulong },
    Signal { jiffies: core::ffi::c_ulong },
}

impl CondVar {
    #[allow(clippy::new_ret_no_self)]
    pub fn new(_name: &'static CStr, _key: Pin<&'static LockClassKey>) -> Self {
        Self(imp::Condvar::new())
    }

    #[track_caller]
    pub fn wait<T, B>(&self, guard: &mut Guard<'_, T, B>) {
        let inner = guard.inner.take().unwrap();
        guard.inner = Some(self.0.wait(inner).unwrap());
    }

    #[track_caller]
    pub fn wait_interruptible_timeout<T, B>(
        &self,
        guard: &mut Guard<'_, T, B>,
        jiffies: core::ffi::c_ulong,
    ) -> CondVarTimeoutResult {
        self.wait(guard);
        CondVarTimeoutResult::Woken { jiffies }
    }

    #[track_caller]
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    #[track_caller]
    pub fn notify_one(&self) {
        self.0.notify_one();
    }
}

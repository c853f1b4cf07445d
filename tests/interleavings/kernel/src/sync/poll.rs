// SPDX-License-Identifier: GPL-2.0

//! Stand-in for `kernel::sync::poll`, without waiting tasks.

use super::LockClassKey;
use core::{
    ffi::CStr,
    pin::Pin, //
};

/// The waiting tasks of a poll table.
pub struct PollCondVar;

impl PollCondVar {
    #[allow(clippy::new_ret_no_self)]
    pub fn new(_name: &'static CStr, _key: Pin<&'static LockClassKey>) -> Self {
        Self
    }

    pub fn notify_all(&self) {}
}

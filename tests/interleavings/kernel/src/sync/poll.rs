// SPDX-License-Identifier: GPL-2.0

//! As `kernel::sync::poll`: tasks that poll, of which none waits in a test.

use super::LockClassKey;
use core::{ffi::CStr, pin::Pin};

/// Tasks that poll.
pub struct PollCondVar;

impl PollCondVar {
    #[allow(clippy::new_ret_no_self)]
    pub fn new(_name: &'static CStr, _key: Pin<&'static LockClassKey>) -> Self {
        Self
    }

    pub fn notify_all(&self) {}
}

// SPDX-License-Identifier: GPL-2.0

//! Stand-in for `kernel::sync::Completion`.

#[cfg(feature = "explore")]
use loom::sync as imp;
#[cfg(not(feature = "explore"))]
use std::sync as imp;

/// A completion.
pub struct Completion {
    done: imp::Mutex<bool>,
    wake: imp::Condvar,
}

impl Completion {
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self {
            done: imp::Mutex::new(false),
            wake: imp::Condvar::new(),
        }
    }

    pub fn complete_all(&self) {
        *self.done.lock().unwrap() = true;
        self.wake.notify_all();
    }

    pub fn wait_for_completion(&self) {
        let mut done = self.done.lock().unwrap();
        while !*done {
            done = self.wake.wait(done).unwrap();
        }
    }
}

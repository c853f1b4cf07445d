// SPDX-License-Identifier: GPL-2.0

//! Stand-in for `kernel::sync::Completion`.

#[cfg(feature = "explore")]
use loom::sync as imp;
#[cfg(not(feature = "explore"))]
use std::sync as imp;

/// A `struct completion`. Time does not pass: a wait ends only by a completion, so that a lost
/// wake-up is detected.
pub struct RawCompletion {
    done: imp::Mutex<u32>,
    wake: imp::Condvar,
}

impl RawCompletion {
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self {
            done: imp::Mutex::new(0),
            wake: imp::Condvar::new(),
        }
    }

    pub fn complete(&self) {
        let mut done = self.done.lock().unwrap();
        *done = done.saturating_add(1);
        self.wake.notify_one();
    }

    pub fn complete_all(&self) {
        *self.done.lock().unwrap() = u32::MAX;
        self.wake.notify_all();
    }

    pub fn wait(&self) {
        let mut done = self.done.lock().unwrap();
        while *done == 0 {
            done = self.wake.wait(done).unwrap();
        }
        if *done != u32::MAX {
            *done -= 1;
        }
    }
}

/// A completion.
pub struct Completion(RawCompletion);

impl Completion {
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self(RawCompletion::new())
    }

    pub fn complete_all(&self) {
        self.0.complete_all();
    }

    pub fn wait_for_completion(&self) {
        self.0.wait();
    }
}

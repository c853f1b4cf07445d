// SPDX-License-Identifier: GPL-2.0

//! Stand-in for `kernel::sync::Refcount`, with the orderings of `refcount_t`.

use super::atomic::{
    ordering::{
        Acquire,
        Relaxed,
        Release, //
    },
    Atomic, //
};

/// A reference count.
pub struct Refcount(Atomic<i32>);

impl Refcount {
    pub fn new(value: i32) -> Self {
        Self(Atomic::new(value))
    }

    #[track_caller]
    pub fn inc(&self) {
        assert_ne!(self.0.fetch_add(1, Relaxed), 0, "the reference count was 0");
    }

    /// As `refcount_inc_not_zero()`.
    #[track_caller]
    pub fn inc_not_zero(&self) -> bool {
        let mut old = self.0.load(Relaxed);
        while old != 0 {
            match self.0.cmpxchg(old, old + 1, Relaxed) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
        false
    }

    #[track_caller]
    pub fn dec_and_test(&self) -> bool {
        let old = self.0.fetch_sub(1, Release);
        assert_ne!(old, 0, "the reference count was 0");
        if old == 1 {
            self.0.load(Acquire);
        }
        old == 1
    }

    /// As [`Self::dec_and_test`], without orderings.
    #[track_caller]
    pub fn dec_and_test_relaxed(&self) -> bool {
        self.0.fetch_sub(1, Relaxed) == 1
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Rate limit of log messages.
//!
//! A driver that makes a mistake often makes it for each page, which would flood the kernel log.
//! The kernel's own rate limit (`___ratelimit()`) has no safe binding.

use crate::kernel::completion::ktime_get_ns;
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
use kernel::prelude::*;
use kernel::sync::atomic::{
    ordering::Relaxed,
    Atomic, //
};

/// Length of a period, in ns.
const LIMIT_PERIOD_NS: u64 = 5_000_000_000;

/// Limits one kind of message to `burst` lines in each period of 5 seconds.
pub(crate) struct RateLimit {
    burst: u32,
    /// Start of the period in which `logged` messages were counted, in ns.
    start: Atomic<u64>,
    logged: Atomic<u32>,
}

impl RateLimit {
    /// Creates a limit of `burst` messages.
    pub(crate) const fn new(burst: u32) -> Self {
        Self {
            burst,
            start: Atomic::new(0),
            logged: Atomic::new(0),
        }
    }

    /// Counts a message, and returns whether it may be logged. Concurrent calls at the start of a
    /// period may exceed the limit.
    ///
    /// # Context
    ///
    /// Any but NMI.
    pub(crate) fn allows(&self) -> bool {
        self.allows_at(ktime_get_ns())
    }

    fn allows_at(&self, now: u64) -> bool {
        if now.saturating_sub(self.start.load(Relaxed)) >= LIMIT_PERIOD_NS {
            self.start.store(now, Relaxed);
            self.logged.store(0, Relaxed);
        }
        // The count does not wrap: there are fewer than 2^32 messages in a period.
        self.logged.fetch_add(1, Relaxed) < self.burst
    }
}

/// Returns the number of lines in the kernel log that contain both texts. Tests run one at a time.
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
pub(crate) fn logged_lines(text: &CStr, other: &CStr) -> u32 {
    // SAFETY: Both are C strings. Only one test runs at a time, as the helper requires.
    unsafe { crate::bindings::rust_hmm_kunit_log_lines(text.as_char_ptr(), other.as_char_ptr()) }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_limit)]
mod tests {
    use super::*;

    #[test]
    fn messages_beyond_the_burst_wait_for_the_next_period() {
        let limit = RateLimit::new(10);
        let count = |now| (0..100).filter(|_| limit.allows_at(now)).count();
        assert_eq!(count(3 * LIMIT_PERIOD_NS / 2), 10);
        assert_eq!(count(5 * LIMIT_PERIOD_NS / 2 - 1), 0);
        assert_eq!(count(5 * LIMIT_PERIOD_NS / 2), 10);
    }
}

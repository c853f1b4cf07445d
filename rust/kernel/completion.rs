// SPDX-License-Identifier: GPL-2.0

//! Completions that a waiter uses more than once.
//!
//! C header: [`include/linux/completion.h`](srctree/include/linux/completion.h)

use crate::bindings;
use kernel::{
    prelude::*,
    time::Jiffies,
    types::Opaque, //
};

/// Result of [`TimedCompletion::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitResult {
    /// The completion was completed, which counts for this wait only.
    Completed,
    /// The timeout has passed.
    TimedOut,
    /// A fatal signal is pending.
    Killed,
}

/// A `struct completion`. The waiter checks its condition each time it is woken. A call of
/// [`Self::complete`] that precedes the wait is not lost: each call completes one wait.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::time::msecs_to_jiffies;
/// use rust_hmm::kernel::completion::TimedCompletion;
///
/// let completion = KBox::pin_init(TimedCompletion::new(), GFP_KERNEL)?;
/// completion.complete();
/// // Returns immediately, because it is completed.
/// completion.wait_timeout(msecs_to_jiffies(1000));
/// # Ok::<(), Error>(())
/// ```
#[pin_data]
pub struct TimedCompletion {
    #[pin]
    inner: Opaque<bindings::completion>,
}

// SAFETY: A completion may be used and dropped by any task.
unsafe impl Send for TimedCompletion {}
// SAFETY: `struct completion` has a lock of its own, and may be used by several tasks concurrently.
unsafe impl Sync for TimedCompletion {}

impl TimedCompletion {
    /// Returns a completion that has not been completed.
    ///
    /// # Context
    ///
    /// Any.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- Opaque::ffi_init(|slot: *mut bindings::completion| {
                // SAFETY: `slot` is valid for writes, and the completion is pinned.
                unsafe { bindings::init_completion(slot) };
            }),
        })
    }

    pub(super) fn as_raw(&self) -> *mut bindings::completion {
        self.inner.get()
    }

    /// Wakes one waiter: the first that waits now, or the next one to wait.
    ///
    /// # Context
    ///
    /// Any, including hard interrupts.
    pub fn complete(&self) {
        // SAFETY: `inner` was initialized by `new` and is pinned.
        unsafe { bindings::complete(self.as_raw()) };
    }

    /// Wakes all waiters. Later waits return immediately.
    ///
    /// # Context
    ///
    /// Any, including hard interrupts.
    pub(crate) fn complete_all(&self) {
        // SAFETY: `inner` was initialized by `new` and is pinned.
        unsafe { bindings::complete_all(self.as_raw()) };
    }

    /// Waits until the completion is completed or `timeout` has passed. With `killable`, a fatal
    /// signal ends the wait, too.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn wait(&self, timeout: Jiffies, killable: bool) -> WaitResult {
        if !killable {
            // SAFETY: `inner` was initialized by `new` and is pinned.
            return match unsafe { bindings::wait_for_completion_timeout(self.as_raw(), timeout) } {
                0 => WaitResult::TimedOut,
                _ => WaitResult::Completed,
            };
        }
        // SAFETY: `inner` was initialized by `new` and is pinned.
        match unsafe { bindings::wait_for_completion_killable_timeout(self.as_raw(), timeout) } {
            0 => WaitResult::TimedOut,
            1.. => WaitResult::Completed,
            _ => WaitResult::Killed,
        }
    }

    /// Waits until the completion is completed, or a signal is pending.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn wait_interruptible(&self) {
        // SAFETY: `inner` was initialized by `new` and is pinned.
        unsafe { bindings::wait_for_completion_interruptible(self.as_raw()) };
    }

    /// Waits until the completion is completed.
    ///
    /// # Errors
    ///
    /// - `EINTR`: a fatal signal is pending.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn wait_killable(&self) -> Result {
        // SAFETY: `inner` was initialized by `new` and is pinned.
        match unsafe { bindings::wait_for_completion_killable(self.as_raw()) } {
            0 => Ok(()),
            _ => Err(EINTR),
        }
    }

    /// Waits until the completion is completed. No signal ends the wait.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn wait_uninterruptible(&self) {
        // SAFETY: `inner` was initialized by `new` and is pinned.
        unsafe { bindings::wait_for_completion(self.as_raw()) };
    }

    /// Whether a wait would return immediately.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(crate) fn is_completed(&self) -> bool {
        // SAFETY: `inner` was initialized by `new` and is pinned.
        unsafe { bindings::completion_done(self.as_raw()) }
    }

    /// Waits until the completion is completed, or `timeout` has passed.
    ///
    /// # Context
    ///
    /// May sleep. Meant for kernel threads, because a pending signal ends the wait.
    pub fn wait_timeout(&self, timeout: Jiffies) {
        // SAFETY: `inner` was initialized by `new` and is pinned.
        unsafe { bindings::wait_for_completion_interruptible_timeout(self.as_raw(), timeout) };
    }
}

/// Calls `schedule()`, so that other runnable tasks can run.
///
/// # Context
///
/// May sleep.
#[cfg(CONFIG_RUST_HMM_QUEUE)]
pub(crate) fn cond_resched() {
    // SAFETY: `schedule()` only requires a context that may sleep. The state of the task is
    // `TASK_RUNNING`, so that it is not dequeued.
    unsafe { bindings::schedule() };
}

/// Returns `CLOCK_MONOTONIC` in nanoseconds.
///
/// # Context
///
/// Any.
pub fn ktime_get_ns() -> u64 {
    // SAFETY: `ktime_get()` has no preconditions.
    u64::try_from(unsafe { bindings::ktime_get() }).unwrap_or(0)
}

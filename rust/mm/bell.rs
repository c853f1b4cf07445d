// SPDX-License-Identifier: GPL-2.0

//! A bell: who waits for it is woken by whoever rings, from any context, and no ring is lost.
//!
//! C header: [`include/linux/completion.h`](srctree/include/linux/completion.h)

use crate::bindings;
use kernel::{prelude::*, time::Jiffies, types::Opaque};

/// A bell for one who waits. It looks around for what has changed each time it is woken, which may be
/// once for each ring.
#[pin_data]
pub struct Bell {
    #[pin]
    inner: Opaque<bindings::completion>,
}

// SAFETY: A completion may be used and dropped anywhere.
unsafe impl Send for Bell {}
// SAFETY: It is made to be used by several tasks.
unsafe impl Sync for Bell {}

impl Bell {
    /// A bell that has not been rung.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- Opaque::ffi_init(|slot: *mut bindings::completion| {
                // SAFETY: `slot` may be written, and is pinned.
                unsafe { bindings::init_completion(slot) };
            }),
        })
    }

    pub(super) fn as_raw(&self) -> *mut bindings::completion {
        self.inner.get()
    }

    /// Wakes who waits, or who waits next. Context: any, also interrupts.
    pub fn ring(&self) {
        // SAFETY: Initialized and pinned.
        unsafe { bindings::complete(self.as_raw()) };
    }

    /// Wakes all who wait, and all who wait later. Context: any, also interrupts.
    pub(crate) fn ring_for_good(&self) {
        // SAFETY: Initialized and pinned.
        unsafe { bindings::complete_all(self.as_raw()) };
    }

    /// Waits for a ring. Any signal ends that. Context: may sleep.
    pub(crate) fn wait_interruptible(&self) {
        // SAFETY: As above.
        unsafe { bindings::wait_for_completion_interruptible(self.as_raw()) };
    }

    /// Whether a wait would end at once.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) fn is_rung(&self) -> bool {
        // SAFETY: As above.
        unsafe { bindings::completion_done(self.as_raw()) }
    }

    /// Waits for a ring, or for `timeout`. Context: may sleep; a kernel thread, for signals end it.
    pub fn wait(&self, timeout: Jiffies) {
        // SAFETY: As above.
        unsafe { bindings::wait_for_completion_interruptible_timeout(self.as_raw(), timeout) };
    }
}

/// Lets other tasks run before this one goes on. Context: may sleep.
pub(crate) fn let_others_run() {
    // SAFETY: No preconditions but the context; the task stays runnable.
    unsafe { bindings::schedule() };
}

/// The monotonic clock, in ns, as user space reads it. Context: any.
pub fn monotonic_ns() -> u64 {
    // SAFETY: No preconditions.
    u64::try_from(unsafe { bindings::ktime_get() }).unwrap_or(0)
}

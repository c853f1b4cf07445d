// SPDX-License-Identifier: GPL-2.0

//! Code of KUnit tests that runs in interrupt context.

use super::*;
use crate::kernel::test_timer::{
    DriverMode,
    TestTimer, //
};
use kernel::{
    sync::atomic::ordering::Acquire,
    time::{
        delay::fsleep,
        hrtimer::HrTimerPointer,
        Delta, //
    }, //
};

/// Calls `run` in the context of an interrupt handler of a driver: a hard interrupt, or a thread
/// with `PREEMPT_RT`. Returns its result.
///
/// # Errors
///
/// - `ENOMEM`
/// - `ETIMEDOUT`: there was no interrupt.
pub(super) fn in_interrupt<R: Copy + Unpin + Send + 'static>(
    mut run: impl FnMut() -> R + Send + 'static,
) -> Result<R> {
    let result = Arc::pin_init(kernel::new_spinlock!(None), GFP_KERNEL)?;
    let is_done = Arc::new(Atomic::new(false), GFP_KERNEL)?;
    let theirs = result.clone();
    let done = is_done.clone();
    let timer = TestTimer::<DriverMode>::new(move |is_interrupt| {
        if !is_interrupt && !cfg!(CONFIG_PREEMPT_RT) {
            return;
        }
        let value = run();
        // Free: the test takes the lock after `is_done` was set.
        if let Some(mut result) = theirs.try_lock() {
            *result = Some(value);
        }
        done.store(true, Release);
    })?;
    let timer = timer.start(Delta::from_millis(1));
    for _ in 0..1000 {
        if is_done.load(Acquire) {
            break;
        }
        fsleep(Delta::from_millis(1));
    }
    // Waits for the handler.
    drop(timer);
    let result = *result.lock();
    result.ok_or(ETIMEDOUT)
}

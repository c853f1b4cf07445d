// SPDX-License-Identifier: GPL-2.0

//! Code of KUnit tests that runs in hard interrupt context.

use super::*;
use kernel::{
    impl_has_hr_timer,
    sync::atomic::ordering::Acquire,
    time::{
        delay::fsleep,
        hrtimer::{
            HrTimer,
            HrTimerCallback,
            HrTimerCallbackContext,
            HrTimerPointer,
            HrTimerRestart,
            RelativePinnedHardMode, //
        },
        Delta,
        Monotonic, //
    }, //
};

/// A timer whose handler calls a closure.
#[pin_data]
struct Interrupt {
    #[pin]
    timer: HrTimer<Self>,
    /// Freed by the owner of the timer.
    run: KBox<dyn FnMut() + Send>,
    is_done: Arc<Atomic<bool>>,
}

// SAFETY: Only the handler uses `run`, through an exclusive reference.
unsafe impl Sync for Interrupt {}

impl HrTimerCallback for Interrupt {
    type Pointer<'a> = Pin<KBox<Self>>;

    fn run(this: Pin<&mut Self>, _context: HrTimerCallbackContext<'_, Self>) -> HrTimerRestart {
        let this = this.project();
        // SAFETY: The helper has no preconditions.
        if unsafe { bindings::rust_hmm_kunit_in_hardirq() } {
            (this.run)();
            this.is_done.store(true, Release);
        }
        HrTimerRestart::NoRestart
    }
}

impl_has_hr_timer! {
    impl HasHrTimer<Self> for Interrupt {
        mode: RelativePinnedHardMode<Monotonic>, field: self.timer
    }
}

/// Calls `run` in hard interrupt context. Returns its result.
///
/// # Errors
///
/// - `ENOMEM`
/// - `ETIMEDOUT`: there was no hard interrupt.
pub(super) fn in_interrupt<R: Copy + Unpin + Send + 'static>(
    mut run: impl FnMut() -> R + Send + 'static,
) -> Result<R> {
    let result = Arc::pin_init(kernel::new_spinlock!(None), GFP_KERNEL)?;
    let is_done = Arc::new(Atomic::new(false), GFP_KERNEL)?;
    let theirs = result.clone();
    let done = is_done.clone();
    let store_result = move || {
        let value = run();
        // Free: the test takes the lock after `is_done` was set.
        if let Some(mut result) = theirs.try_lock() {
            *result = Some(value);
        }
    };
    let run: KBox<dyn FnMut() + Send> = KBox::new(store_result, GFP_KERNEL)?;
    let interrupt = KBox::pin_init(
        pin_init!(Interrupt {
            timer <- HrTimer::new(),
            run,
            is_done: done,
        }),
        GFP_KERNEL,
    )?;
    let timer = interrupt.start(Delta::from_millis(1));
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

// SPDX-License-Identifier: GPL-2.0

//! Timer of KUnit tests whose handler runs in hard interrupt context.

use crate::bindings;
use kernel::{
    impl_has_hr_timer,
    prelude::*,
    time::{
        hrtimer::{
            HrTimer,
            HrTimerCallback,
            HrTimerCallbackContext,
            HrTimerRestart,
            RelativePinnedHardMode, //
        },
        Monotonic, //
    }, //
};

/// A timer whose handler calls a closure once.
#[pin_data]
pub(crate) struct TestTimer {
    #[pin]
    timer: HrTimer<Self>,
    /// Freed by the owner of the timer, and not in the interrupt.
    run: KBox<dyn FnMut(bool) + Send>,
}

// SAFETY: Only the handler uses `run`, through an exclusive reference.
unsafe impl Sync for TestTimer {}

impl TestTimer {
    /// Creates a timer that calls `run`, and passes whether it does so in hard interrupt context.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    pub(crate) fn new(run: impl FnMut(bool) + Send + 'static) -> Result<Pin<KBox<Self>>> {
        let run: KBox<dyn FnMut(bool) + Send> = KBox::new(run, GFP_KERNEL)?;
        let timer = pin_init!(Self {
            timer <- HrTimer::new(),
            run,
        });
        KBox::pin_init(timer, GFP_KERNEL)
    }
}

impl HrTimerCallback for TestTimer {
    type Pointer<'a> = Pin<KBox<Self>>;

    fn run(this: Pin<&mut Self>, _context: HrTimerCallbackContext<'_, Self>) -> HrTimerRestart {
        // SAFETY: The helper has no preconditions.
        let is_interrupt = unsafe { bindings::rust_hmm_kunit_in_hardirq() };
        (this.project().run)(is_interrupt);
        HrTimerRestart::NoRestart
    }
}

impl_has_hr_timer! {
    impl HasHrTimer<Self> for TestTimer {
        mode: RelativePinnedHardMode<Monotonic>, field: self.timer
    }
}

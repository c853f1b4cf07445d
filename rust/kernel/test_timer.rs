// SPDX-License-Identifier: GPL-2.0

//! Timers of KUnit tests whose handlers run in interrupt context.

use crate::bindings;
use core::marker::PhantomData;
use kernel::{
    impl_has_hr_timer,
    prelude::*,
    time::{
        hrtimer::{
            HrTimer,
            HrTimerCallback,
            HrTimerCallbackContext,
            HrTimerMode,
            HrTimerRestart,
            RelativePinnedHardMode,
            RelativePinnedMode, //
        },
        Monotonic, //
    }, //
};

/// The handler runs in hard interrupt context, also with `PREEMPT_RT`. The closure takes no
/// `spinlock_t`, which sleeps there.
pub(crate) type HardMode = RelativePinnedHardMode<Monotonic>;

/// The handler is run like the interrupt handler of a driver: in hard interrupt context, or by a
/// thread with `PREEMPT_RT`. The closure may take a `spinlock_t`, as that of a DMA fence.
pub(crate) type DriverMode = RelativePinnedMode<Monotonic>;

/// A timer whose handler calls a closure once.
#[pin_data]
pub(crate) struct TestTimer<M: HrTimerMode> {
    #[pin]
    timer: HrTimer<Self>,
    /// Freed by the owner of the timer, and not in the interrupt.
    run: KBox<dyn FnMut(bool) + Send>,
    _mode: PhantomData<fn() -> M>,
}

// SAFETY: Only the handler uses `run`, through an exclusive reference.
unsafe impl<M: HrTimerMode> Sync for TestTimer<M> {}

impl<M: HrTimerMode + 'static> TestTimer<M> {
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
            _mode: PhantomData,
        });
        KBox::pin_init(timer, GFP_KERNEL)
    }
}

impl<M: HrTimerMode + 'static> HrTimerCallback for TestTimer<M> {
    type Pointer<'a> = Pin<KBox<Self>>;

    fn run(this: Pin<&mut Self>, _context: HrTimerCallbackContext<'_, Self>) -> HrTimerRestart {
        // SAFETY: The helper has no preconditions.
        let is_interrupt = unsafe { bindings::rust_hmm_kunit_in_hardirq() };
        (this.project().run)(is_interrupt);
        HrTimerRestart::NoRestart
    }
}

impl_has_hr_timer! {
    impl{M: HrTimerMode} HasHrTimer<Self> for TestTimer<M> {
        mode: M, field: self.timer
    }
}

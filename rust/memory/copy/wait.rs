// SPDX-License-Identifier: GPL-2.0

//! Actions of a task that waits for copy jobs: cancels them if the task is killed or stopped, and
//! reports late jobs.

use super::CopyState;
use crate::{
    kernel::{
        cancel::CancelToken,
        completion::ktime_get_ns,
        counted::Waiter,
        limit::RateLimit, //
    },
    mm::addr::PageRange, //
};
use kernel::{
    prelude::*,
    sync::atomic::ordering::Relaxed,
    time::Jiffies, //
};

/// Interval at which a wait checks for a stop and reports late jobs, in jiffies.
const COPY_CHECK_JIFFIES: Jiffies = 10;

/// Nanoseconds after which a wait for copy jobs is reported.
pub(super) const COPY_LATE_NS: u64 = 10_000_000_000;

/// Limits the reports of late copy jobs.
static LATE_COPY_REPORTS: RateLimit = RateLimit::new(1);

/// A driver that can cancel copies which have not begun.
pub(crate) trait Cancel {
    /// Called after jobs were cancelled, so that the driver can complete those that have not begun.
    /// Context: may sleep.
    fn cancel(&self);
}

/// The pages that the jobs of a step copy, for messages.
#[derive(Clone, Copy)]
pub(crate) struct CopyPlace {
    /// Number of the device.
    pub(crate) device: u32,
    /// ID of the process, or 0 if it has exited.
    pub(crate) process: i32,
    /// Addresses of the pages.
    pub(crate) range: PageRange,
}

/// Actions of a task while it waits for jobs. Signals do not end the wait, because the device may
/// still access the pages. A fatal signal only cancels the jobs, so that the driver completes early
/// those that have not begun.
pub(super) struct CopyWait<'a> {
    /// Driver that is called if the jobs are cancelled. `None` if they cannot be cancelled, or
    /// were.
    pub(super) driver: Option<&'a dyn Cancel>,
    pub(super) stop: Option<&'a CancelToken>,
    pub(super) place: CopyPlace,
    /// Time of the first check, in nanoseconds.
    pub(super) start: Option<u64>,
}

impl Waiter<CopyState> for CopyWait<'_> {
    const INTERVAL: Jiffies = COPY_CHECK_JIFFIES;

    fn is_killable(&self) -> bool {
        self.driver.is_some()
    }

    fn check(&mut self, state: &CopyState, left: usize, killed: bool) {
        let now = ktime_get_ns();
        let start = *self.start.get_or_insert(now);
        report_late(left, self.place, now.saturating_sub(start));
        if !killed && !self.stop.is_some_and(CancelToken::is_set) {
            return;
        }
        if let Some(driver) = self.driver.take() {
            state.cancelled.store(true, Relaxed);
            driver.cancel();
        }
    }
}

/// Logs that `left` jobs of `place` are not completed after `waited` nanoseconds, if that is at
/// least [`COPY_LATE_NS`]. The kernel's hung task detector does not see the wait, because it has a
/// time limit.
#[inline(never)]
pub(super) fn report_late(left: usize, place: CopyPlace, waited: u64) {
    if waited >= COPY_LATE_NS && LATE_COPY_REPORTS.allows() {
        let seconds = waited / 1_000_000_000;
        let CopyPlace {
            device,
            process,
            range,
        } = place;
        let start = range.start();
        let end = range.end();
        pr_warn!(
            "device {device}: {left} copy jobs of process {process}, addresses {start:#x} to {end:#x}, not completed for {seconds} s: the driver must complete or drop each CopyJob (in C: rust_hmm_copy_done()); until then the migration waits, also when its task is killed\n"
        );
    }
}

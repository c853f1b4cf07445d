// SPDX-License-Identifier: GPL-2.0

//! Migration of a mirrored range, requested by the driver.
//!
//! A migration is divided into steps of at most a block, the memory that one PMD maps, to bound the
//! time for which the mmap lock is held. A step walks the CPU page table. For each run of pages
//! that can move, it does the following with the mmap lock held for reading throughout:
//!
//! 1. Announce the step and write-protect the device PTEs, under the table lock
//!    (`mirror::announce`).
//! 2. Isolate the pages. This calls notifiers, which take the table lock, so that it is not held.
//! 3. Allocate, copy and migrate. The device keeps reading the source pages.
//! 4. Replace the device PTEs whose marks are intact, under the table lock, and flush.
//! 5. Finalize: remove the migration entries, so that CPU faults on these pages continue.

use crate::{
    debug::{
        events::{
            Event,
            MigrateReason, //
        },
        stats::Counter, //
    },
    kernel::{
        cancel::CancelToken,
        reentry, //
    },
    mirror::{
        Device,
        Mirror, //
    },
    mm::addr::PageRange, //
};
use kernel::prelude::*;
use step::MigrateStep;

mod ahead;
mod attempt;
mod drain;
mod overlap;
mod overlaps;
mod pull;
mod step;
mod survey;

pub use crate::mirror::{
    Outcome,
    PageOutcome, //
};
pub(crate) use overlaps::OverlapReport;
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
pub(crate) use overlaps::{
    counted,
    Overlap, //
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Device,
    System,
}

impl<D: Device> Mirror<D> {
    /// Prepares a migration of `range`. [`Migrate::to_device`] or [`Migrate::to_system`] starts it.
    ///
    /// # Context
    ///
    /// Any.
    pub fn migrate(&self, range: PageRange) -> Migrate<'_, D> {
        Migrate {
            mirror: self,
            range,
            faultless: true,
            evict: true,
            trigger: MigrateReason::Request,
            outcomes: None,
            stop: None,
        }
    }
}

/// A migration that has not started yet.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::migrate::PageOutcome;
/// use rust_hmm::mirror::Device;
/// use rust_hmm::mirror::Mirror;
/// use rust_hmm::mm::addr::PageRange;
///
/// /// Migrates 16 pages to the device, and returns whether all are there now.
/// fn migrate<D: Device>(mirror: &Mirror<D>, start: usize) -> Result<bool> {
///     let range = PageRange::from_pages(start, 16)?;
///     let mut outcomes = [PageOutcome::None; 16];
///     mirror.migrate(range).evict(false).outcomes(&mut outcomes).to_device()?;
///     Ok(outcomes.iter().all(|page| page.has_moved()))
/// }
/// ```
#[must_use = "it does nothing until it is started"]
pub struct Migrate<'m, D: Device> {
    mirror: &'m Mirror<D>,
    range: PageRange,
    faultless: bool,
    evict: bool,
    trigger: MigrateReason,
    outcomes: Option<&'m mut [PageOutcome]>,
    stop: Option<CancelToken>,
}

impl<'m, D: Device> Migrate<'m, D> {
    /// Sets whether the device keeps reading while pages are copied, which is the default. Without
    /// this, device PTEs are removed before the pages are isolated, so that the device faults.
    ///
    /// # Context
    ///
    /// Any.
    pub fn faultless(mut self, yes: bool) -> Self {
        self.faultless = yes;
        self
    }

    /// Sets whether other pages may be evicted from device memory to make room, which is the
    /// default.
    ///
    /// # Context
    ///
    /// Any.
    pub fn evict(mut self, yes: bool) -> Self {
        self.evict = yes;
        self
    }

    /// Sets where the outcome of each page is written. Pages beyond the end of the slice are not
    /// reported.
    ///
    /// # Context
    ///
    /// Any.
    pub fn outcomes(mut self, outcomes: &'m mut [PageOutcome]) -> Self {
        self.outcomes = Some(outcomes);
        self
    }

    /// Sets the reason that events report.
    pub(crate) fn reason(mut self, trigger: MigrateReason) -> Self {
        self.trigger = trigger;
        self
    }

    /// Sets a cancellation token. Once it is set, copies that have not begun are cancelled and no
    /// further step begins; the pages of both stay where they are.
    ///
    /// # Context
    ///
    /// Any.
    pub fn cancel_token(mut self, stop: CancelToken) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Migrates anonymous memory of the range to the device, including holes. Best effort.
    ///
    /// Pages in other tiles of the device ([`Device::tile`]) are migrated first, directly, if the
    /// tiles are connected. The [`Outcome`] counts them. Their [`PageOutcome`] is
    /// [`PageOutcome::None`], because the steps that follow find them in the destination.
    ///
    /// # Errors
    ///
    /// After an error, pages at lower addresses may have moved.
    ///
    /// - `EFAULT`: the process has exited.
    /// - `ERANGE`: the range is beyond the addresses that the device's page table covers.
    /// - `EINVAL`: not mapped, not readable, or a special, hugetlb or DAX mapping.
    /// - `ENODEV`: the device has no memory.
    /// - `EBUSY`: concurrent invalidations of the range did not end within the retries.
    /// - `EINTR`: the task was killed.
    /// - `ENOMEM`: no memory for the migration itself. Lack of device memory is in the [`Outcome`].
    /// - `EDEADLK`: called within a callback.
    ///
    /// # Context
    ///
    /// May sleep; no lock may be held.
    pub fn to_device(self) -> Result<Outcome> {
        self.run(Target::Device)
    }

    /// Migrates pages of the range from this device's memory to system memory. Best effort.
    ///
    /// # Errors
    ///
    /// Lack of system memory for a page is reported in the [`Outcome`].
    ///
    /// - Those of [`Self::to_device`].
    /// - `EINVAL` also for special, hugetlb and DAX mappings, although none of their pages can be
    ///   in the device's memory.
    ///
    /// # Context
    ///
    /// May sleep; no lock may be held.
    pub fn to_system(self) -> Result<Outcome> {
        self.run(Target::System)
    }

    fn run(self, target: Target) -> Result<Outcome> {
        // Before the first event: `Device::event` may be the caller, and would be called
        // recursively.
        reentry::may_wait()?;
        let inner = self.mirror.inner();
        let to_device = target == Target::Device;
        let trigger = self.trigger;
        inner.emit(&Event::MigrateBegin {
            range: self.range,
            to_device,
            trigger,
        });
        self.mirror.stats().add(Counter::Migrations, 1);
        let mut total = Outcome::default();
        let mut gathered = Outcome::default();
        // Only requests gather pages of other tiles. A device fault handles them by their
        // connection.
        let result = if target == Target::Device && self.trigger == MigrateReason::Request {
            self.mirror.gather(self.range, self.evict, &mut gathered)
        } else {
            Ok(())
        };
        let result = result.and_then(|()| self.run_steps(target, &mut total));
        total += gathered;
        let stayed = total.skipped + total.no_memory + total.copy_failed;
        inner.emit(&Event::MigrateEnd {
            to_device,
            trigger,
            moved: total.moved,
            switched: total.switched,
            stayed,
            result,
        });
        result.map(|()| total)
    }

    fn run_steps(mut self, target: Target, total: &mut Outcome) -> Result {
        let tally = OutcomeTally::new(self.range, self.outcomes.take());
        let stop = self.stop.take();
        let mut step =
            MigrateStep::new(self.mirror, target, self.faultless, self.evict, stop, tally)?;
        step.patient = self.trigger != MigrateReason::Fault;
        let _charge = step.space.charge();
        let result = self.run_each(&mut step);
        // After an error, pages that have moved before it are counted, too.
        *total = step.tally.total;
        total.entries = step.work.entries;
        let stats = self.mirror.stats();
        let moved = match target {
            Target::Device => Counter::ToDevice,
            Target::System => Counter::ToSystem,
        };
        stats.add(moved, total.moved as u64);
        stats.add(Counter::Skipped, (total.skipped + total.no_memory) as u64);
        if target == Target::Device {
            stats.add(Counter::Switched, total.switched as u64);
        }
        result
    }

    // Not inlined, so that the state which all steps share is not in the same stack frame.
    #[inline(never)]
    fn run_each(&self, step: &mut MigrateStep<'_, D>) -> Result {
        let mut rest = Some(self.range);
        while let Some(range) = rest.filter(|_| !step.is_stopped()) {
            step.arm(range);
            let (done, result) = step.run(range);
            step.add_outcomes(range.start(), done);
            let (end, result) = step.finish_left(result);
            result?;
            rest = range.from_address(end.map_or(done, |end| done.max(end)));
        }
        Ok(())
    }
}

/// Collects the outcomes of a migration.
struct OutcomeTally<'o> {
    range: PageRange,
    /// The caller's buffer for the outcome of each page.
    all: Option<&'o mut [PageOutcome]>,
    total: Outcome,
}

impl<'o> OutcomeTally<'o> {
    /// Creates an empty tally for `range`.
    fn new(range: PageRange, all: Option<&'o mut [PageOutcome]>) -> Self {
        Self {
            range,
            all,
            total: Outcome::default(),
        }
    }

    /// Adds the outcomes of the first pages of `part`.
    fn add(&mut self, part: PageRange, pages: &[PageOutcome]) {
        self.total.count(pages);
        let at = self.range.index_of(part.start());
        if let (Some(all), Some(at)) = (self.all.as_mut(), at) {
            for (slot, page) in all.iter_mut().skip(at).zip(pages) {
                *slot = *page;
            }
        }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Migration of a mirror's memory, at the driver's request.
//!
//! One step handles at most 2 MiB, so that nobody waits long for the mmap lock. It walks the CPU's
//! page table, and for each run of pages that can move it does the following with the mmap lock held
//! throughout:
//!
//! 1. announce the step under the table lock and write-protect the device's entries (`mirror::step`),
//! 2. isolate the pages, which calls notifiers, so without the table lock,
//! 3. allocate, copy, migrate; the device goes on reading,
//! 4. switch the entries that still belong to the step, under the table lock, and flush,
//! 5. finalize: the CPU may fault again.

use crate::{
    events::{Event, Trigger},
    mirror::{Device, Mirror},
    mm::addr::PageRange,
    queue::Stop,
    stats::Counter,
    within,
};
use kernel::prelude::*;
use step::Step;

mod ahead;
mod drain;
mod outcome;
mod overlap;
mod overlaps;
mod step;
mod survey;
mod work;

pub use outcome::{Outcome, PageOutcome};
pub(crate) use overlaps::Report;
#[cfg(CONFIG_KUNIT = "y")]
pub(crate) use overlaps::{counted, Overlap};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Device,
    System,
}

impl<D: Device> Mirror<D> {
    /// A migration of `range`, to be started by one of its methods.
    pub fn migrate(&self, range: PageRange) -> Migrate<'_, D> {
        Migrate {
            mirror: self,
            range,
            faultless: true,
            evict: true,
            trigger: Trigger::Request,
            outcomes: None,
            stop: None,
        }
    }
}

/// A migration that has not started yet.
#[must_use = "it does nothing until it is started"]
pub struct Migrate<'m, D: Device> {
    mirror: &'m Mirror<D>,
    range: PageRange,
    faultless: bool,
    evict: bool,
    trigger: Trigger,
    outcomes: Option<&'m mut [PageOutcome]>,
    stop: Option<Stop>,
}

impl<'m, D: Device> Migrate<'m, D> {
    /// Whether the device goes on reading while its pages are copied, which is the default. Else
    /// their entries are removed before, and the device faults.
    pub fn faultless(mut self, yes: bool) -> Self {
        self.faultless = yes;
        self
    }

    /// Whether other memory may leave the device to make room, which is the default.
    pub fn evict(mut self, yes: bool) -> Self {
        self.evict = yes;
        self
    }

    /// Where to write the outcome of each page. What the range has beyond the slice is not reported.
    pub fn outcomes(mut self, outcomes: &'m mut [PageOutcome]) -> Self {
        self.outcomes = Some(outcomes);
        self
    }

    /// Why, for those who trace it.
    pub(crate) fn because(mut self, trigger: Trigger) -> Self {
        self.trigger = trigger;
        self
    }

    /// Who may ask for its end: then copies that have not begun are cancelled, and their pages stay, as do those of
    /// which the migration has not begun.
    pub fn stop(mut self, stop: Stop) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Moves anonymous memory of the range to the device, holes included, best effort.
    ///
    /// Pages in other tiles of the device ([`Device::tile`]) move first, directly, if they are
    /// connected. The [`Outcome`] counts them. As [`PageOutcome`] each is [`PageOutcome::None`],
    /// because the steps that follow find it there.
    ///
    /// # Errors
    ///
    /// After an error, pages at lower addresses may have moved.
    ///
    /// - `EFAULT`: the process has exited.
    /// - `ERANGE`: mapped beyond the addresses that the device's page table has.
    /// - `EINVAL`: no mapping, or one that is not readable, special, of hugetlb or of DAX.
    /// - `ENODEV`: the device has no memory.
    /// - `EBUSY`: the range kept changing.
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

    /// Moves pages of the range that are in this device's memory to system memory, best effort.
    ///
    /// # Errors
    ///
    /// As [`Self::to_device`]. `EINVAL` is also returned for a mapping that is special, of hugetlb
    /// or of DAX, of which no page can be in the device's memory. Lack of system memory for a page
    /// is in the [`Outcome`].
    ///
    /// # Context
    ///
    /// May sleep; no lock may be held.
    pub fn to_system(self) -> Result<Outcome> {
        self.run(Target::System)
    }

    fn run(self, target: Target) -> Result<Outcome> {
        // Before anybody is told: who is told may be who calls.
        within::may_wait()?;
        let inner = self.mirror.inner();
        let (to_device, trigger) = (target == Target::Device, self.trigger);
        inner.tell(&Event::MigrateBegin {
            range: self.range,
            to_device,
            trigger,
        });
        self.mirror.stats().add(Counter::Migrations, 1);
        let (mut total, mut gathered) = (Outcome::default(), Outcome::default());
        // A fault uses pages of other tiles as their connection says.
        let result = match target == Target::Device && self.trigger == Trigger::Request {
            true => self.mirror.gather(self.range, self.evict, &mut gathered),
            false => Ok(()),
        };
        let result = result.and_then(|()| self.run_steps(target, &mut total));
        total += gathered;
        let stayed = total.skipped + total.no_memory + total.copy_failed;
        inner.tell(&Event::MigrateEnd {
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
        let tally = Tally::new(self.range, self.outcomes.take());
        let stop = self.stop.take();
        let mut step = Step::new(self.mirror, target, self.faultless, self.evict, stop, tally)?;
        step.patient = self.trigger != Trigger::Fault;
        let _charge = step.space.charge();
        let result = self.run_each(&mut step);
        // What has moved has moved, also before an error.
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

    // A stack frame of its own, while the other has what steps share.
    #[inline(never)]
    fn run_each(&self, step: &mut Step<'_, D>) -> Result {
        let mut rest = Some(self.range);
        while let Some(range) = rest.filter(|_| !step.is_stopped()) {
            step.arm(range);
            let (done, result) = step.run(range);
            step.tell(range.start(), done);
            let (end, result) = step.finish_left(result);
            result?;
            rest = range.from_address(end.map_or(done, |end| done.max(end)));
        }
        Ok(())
    }
}

/// Counts the outcomes of a migration.
struct Tally<'o> {
    range: PageRange,
    /// Where the caller wants the outcome of each page.
    all: Option<&'o mut [PageOutcome]>,
    total: Outcome,
}

impl<'o> Tally<'o> {
    /// Nothing was counted yet.
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

// SPDX-License-Identifier: GPL-2.0

//! Migration of a mirror's memory, at the driver's request.
//!
//! One step handles at most 2 MiB, so that nobody waits long for the mmap lock:
//!
//! 1. announce the step under the table lock and write-protect the device's entries (`mirror::step`),
//! 2. isolate the pages, which calls notifiers, so without the table lock,
//! 3. allocate, copy, migrate; the device goes on reading,
//! 4. switch the entries that still belong to the step, under the table lock, and flush,
//! 5. finalize: the CPU may fault again.

use crate::{
    events::{Event, Trigger},
    memory::{Copies, Turn},
    mirror::{
        transaction::{Identity, Request},
        Device, Inner, Mirror, Switched,
    },
    mm::{
        addr::{PageRange, PMD_ORDER, PMD_PAGES},
        migrate::{Batch, Entry, Isolated, Select, Source},
        notifier::Cookie,
        page::{Effort, LockedFolio},
        range_fault::AddressSpace,
        space::Vma,
    },
    pgtable::{Format, Spares},
    phases::{Lap, Phase},
    queue::Stop,
    stats::Counter,
    within,
};
use kernel::{
    mm::virt::flags,
    prelude::*,
    time::{delay::fsleep, Delta}, //
};

mod drain;
mod outcome;

pub use outcome::{Outcome, PageOutcome};

/// More tries of a step towards the device that left pages behind, though there was memory.
const RETRIES: usize = 3;

/// More tries of a step for pages that others have taken the memory of.
const ROUNDS: usize = 3;

/// Time before another try.
const PAUSE: Delta = Delta::from_millis(1);

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

    /// Who may ask for its end: then copies that have not begun are cancelled, and their pages stay.
    pub fn stop(mut self, stop: Stop) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Moves anonymous memory of the range to the device, holes included, best effort.
    ///
    /// # Errors
    ///
    /// `EFAULT`: the process is gone. `EINVAL`: no mapping, not readable, hugetlb or special;
    /// what came before has moved. `ENODEV`: the device has no memory. `EBUSY`: it kept changing.
    /// `EINTR`: killed. `ENOMEM`: out of memory for the migration itself; lack of device memory is
    /// in the [`Outcome`]. `EDEADLK`: within a callback. Context: may sleep; no lock may be held.
    pub fn to_device(self) -> Result<Outcome> {
        self.run(Target::Device)
    }

    /// Moves pages of the range that are in this device's memory to system memory, best effort.
    ///
    /// # Errors
    ///
    /// As [`Self::to_device`].
    pub fn to_system(self) -> Result<Outcome> {
        self.run(Target::System)
    }

    fn run(self, target: Target) -> Result<Outcome> {
        let inner = self.mirror.inner();
        let (to_device, trigger) = (target == Target::Device, self.trigger);
        inner.tell(&Event::MigrateBegin {
            range: self.range,
            to_device,
            trigger,
        });
        self.mirror.stats().add(Counter::Migrations, 1);
        let mut total = Outcome::default();
        let result = self.run_steps(target, &mut total);
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
        within::may_wait()?;
        let mut step = Step::new(self.mirror, target, self.faultless, self.evict)?;
        step.work.copies.until(self.stop.take());
        let _charge = step.space.charge();
        let mut rest = Some(self.range);
        while let Some(range) = rest {
            let done = step.run(range)?;
            let pages = PageRange::new(range.start(), done)?.pages();
            let at = self.range.index_of(range.start()).ok_or(EINVAL)?;
            let pages = step.work.pages.get(..pages).unwrap_or_default();
            total.count(pages);
            if let Some(all) = self.outcomes.as_mut() {
                for (slot, page) in all.iter_mut().skip(at).zip(pages) {
                    *slot = *page;
                }
            }
            rest = range.from_address(done);
        }
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
        Ok(())
    }
}

/// What the steps of one migration share.
struct Step<'m, D: Device> {
    mirror: &'m Mirror<D>,
    space: AddressSpace<'m, Inner<D>>,
    target: Target,
    faultless: bool,
    /// Device memory that was used after this does not go: what a migration brings does not make room for
    /// more of it.
    before: Turn,
    evict: bool,
    work: Work<D::Format>,
}

/// Room that steps use again.
struct Work<F: Format> {
    batch: Batch,
    copies: Copies,
    spares: Spares<F>,
    /// Outcomes of the step.
    pages: KBox<[PageOutcome; PMD_PAGES]>,
    /// Entries that moved, of all steps.
    entries: usize,
}

/// How an attempt ended.
enum Attempt {
    Done {
        /// The device lost entries of pages that moved.
        lost: bool,
    },
    /// A huge page could not be had. Nothing has moved.
    NoHuge,
}

impl<'m, D: Device> Step<'m, D> {
    fn new(mirror: &'m Mirror<D>, target: Target, faultless: bool, evict: bool) -> Result<Self> {
        let memory = mirror.device().memory().ok_or(ENODEV)?;
        Ok(Self {
            mirror,
            space: mirror.space()?,
            target,
            faultless,
            before: memory.turn(),
            evict,
            work: Work {
                batch: Batch::new()?,
                copies: Copies::new(true)?,
                spares: mirror.spares(),
                pages: KBox::new([PageOutcome::None; PMD_PAGES], GFP_KERNEL)?,
                entries: 0,
            },
        })
    }

    /// Migrates the first part of `range`, within 2 MiB and one mapping. Returns its end.
    fn run(&mut self, range: PageRange) -> Result<usize> {
        let piece = range.pmd_pieces().next().ok_or(EINVAL)?;
        self.work.pages.fill(PageOutcome::None);
        let piece = match self.target {
            Target::Device => match self.mirror.movable(&self.space, piece)? {
                (part, true) => part,
                (part, false) => return self.leave(part),
            },
            Target::System => piece,
        };
        if self.target == Target::Device {
            // What is to move there is not copied there.
            let (inner, notifier) = (self.mirror.inner(), &self.mirror.notifier);
            inner.collapse(notifier, Some(piece), None);
        }
        let full = self.target == Target::Device && !self.make_room_for(piece)?;
        let (mut end, attempt) = self.attempt(piece, true)?;
        let piece = PageRange::new(piece.start(), end)?;
        match attempt {
            Attempt::Done { .. } => {}
            Attempt::NoHuge if full => {}
            // No huge page at the destination: the same with small ones. Without COMPOUND the core
            // splits a huge page before it isolates it, also when others map it.
            Attempt::NoHuge => {
                self.work.pages.fill(PageOutcome::None);
                self.attempt(piece, false)?;
            }
        }
        for _ in 0..ROUNDS {
            let missing = self.missing(piece.pages());
            if self.target != Target::Device || full || missing == 0 {
                break;
            }
            // Others were faster. If there is room, it is not that.
            if self.has_room(missing) || !self.make_room(missing)? {
                break;
            }
            end = self.attempt(piece, missing == PMD_PAGES)?.0;
        }
        for _ in 0..RETRIES {
            if self.target != Target::Device || !self.some_stay(piece.pages()) {
                break;
            }
            // Somebody may hold a page for a moment: compaction, reclaim, a look at its contents.
            fsleep(PAUSE);
            if !matches!(self.attempt(piece, true), Ok((_, Attempt::Done { .. }))) {
                break;
            }
        }
        Ok(end)
    }

    /// Nothing of `piece` may move.
    fn leave(&mut self, piece: PageRange) -> Result<usize> {
        for page in self.work.pages.iter_mut().take(piece.pages()) {
            *page = PageOutcome::Skipped;
        }
        Ok(piece.end())
    }

    /// As [`Self::make_room`], for the pages of `piece` that are not there yet.
    fn make_room_for(&self, piece: PageRange) -> Result<bool> {
        if self.has_room(piece.pages()) {
            return Ok(true);
        }
        self.make_room(piece.pages() - self.mirror.on_device(piece))
    }

    /// Makes room in the device's memory, before any lock is taken. Returns whether there is some; what
    /// is missing then shows in the outcome.
    fn make_room(&self, pages: usize) -> Result<bool> {
        let Some(memory) = self.mirror.device().memory() else {
            return Ok(false);
        };
        match memory.grow(pages) {
            Err(error) if error != ENOMEM => return Err(error),
            _ => {}
        }
        if !self.evict {
            return Ok(memory.has_any());
        }
        match memory.make_room(pages, self.before) {
            Err(error) if error != ENOMEM => Err(error),
            _ => Ok(memory.has_any()),
        }
    }

    /// Whether so many pages are free.
    fn has_room(&self, pages: usize) -> bool {
        let memory = self.mirror.device().memory();
        memory.is_some_and(|memory| memory.has_room(pages))
    }

    /// Pages that had no memory at the destination.
    fn missing(&self, pages: usize) -> usize {
        let pages = self.work.pages.iter().take(pages);
        pages.filter(|page| **page == PageOutcome::NoMemory).count()
    }

    /// Whether pages were skipped, and none had another reason to stay.
    fn some_stay(&self, pages: usize) -> bool {
        let mut skipped = false;
        for page in self.work.pages.iter().take(pages) {
            match page {
                PageOutcome::Skipped => skipped = true,
                PageOutcome::NoMemory | PageOutcome::CopyFailed => return false,
                _ => {}
            }
        }
        skipped
    }

    /// One attempt. Returns the end of what it was about.
    fn attempt(&mut self, piece: PageRange, compound: bool) -> Result<(usize, Attempt)> {
        self.work.spares.refill()?;
        if self.target == Target::Device {
            // For the way back, where nobody can wait. Without it the device faults then, which is no error.
            let _ = self.mirror.inner().prepare(piece);
        }
        let memory = self.mirror.device().memory().ok_or(ENODEV)?;
        // Nothing else has this address while the step runs.
        let name = Cookie::of(&*self.work.pages);
        let request = Request {
            name,
            identity: match self.target {
                Target::Device => Identity::Name,
                // The kernel compares the owner with that of the pages.
                Target::System => Identity::current(memory.owner()),
            },
            range: piece,
            faultless: self.faultless,
        };
        let (mmap, piece) = self.mirror.begin(&self.space, request)?;
        let work = &mut self.work;
        let result = mmap
            .vma_lookup(piece.start())
            .filter(|vma| vma.flags() & flags::READ != 0)
            .ok_or(EINVAL)
            .and_then(|vma| {
                work.isolate_and_move(self.mirror, self.target, vma, piece, compound, name)
            });
        self.mirror.end(name);
        drop(mmap);
        let lost = matches!(result, Ok(Attempt::Done { lost: true }));
        if lost && self.target == Target::Device {
            // Somebody else's event, or the split of a huge page, took the marks: ask what is
            // there now. If that fails the device will fault, which is no error here.
            self.mirror
                .inner()
                .install_present(&self.space, piece, &mut self.work.spares)
                .or_else(|error| if error == EINTR { Err(error) } else { Ok(()) })?;
        }
        Ok((piece.end(), result?))
    }
}

/// Notes the outcome of the pages of `entry`.
fn set(pages: &mut [PageOutcome; PMD_PAGES], entry: &Entry, outcome: PageOutcome) {
    for page in pages.iter_mut().skip(entry.index).take(entry.pages) {
        *page = outcome;
    }
}

impl<F: Format> Work<F> {
    fn isolate_and_move<D: Device<Format = F>>(
        &mut self,
        mirror: &Mirror<D>,
        target: Target,
        vma: Vma<'_>,
        piece: PageRange,
        compound: bool,
        name: Cookie,
    ) -> Result<Attempt> {
        let Self {
            batch,
            copies,
            spares,
            pages,
            entries,
        } = self;
        let memory = mirror.device().memory().ok_or(ENODEV)?;
        if target == Target::Device && vma.flags() & flags::MERGEABLE != 0 {
            // A page that KSM has just merged is not in its reverse mapping yet: the core would
            // isolate it and never find its way back (B7).
            for page in pages.iter_mut().take(piece.pages()) {
                *page = PageOutcome::Skipped;
            }
            return Ok(Attempt::Done { lost: false });
        }
        let huge = compound && piece.is_pmd();
        // Coherent folios stay small: the core never collects huge ones on the way back.
        let compound = huge && memory.select() == Select::Private;
        if huge && !compound && memory.driver_fails(PMD_ORDER) {
            return Ok(Attempt::NoHuge);
        }
        let (select, cookie) = match target {
            Target::Device => (Select::System, name),
            Target::System => (memory.select(), memory.owner()),
        };
        let mut lap = Lap::start();
        let mut isolated = Isolated::new(vma, piece, select, compound, cookie, None, batch)?;
        lap.end(Phase::Unmap);

        let mut no_huge = false;
        match target {
            Target::Device => {
                let allocator = memory.allocator();
                isolated.fill(|entry| {
                    let folio = allocator.alloc(entry.order());
                    if folio.is_none() {
                        no_huge |= entry.order() == PMD_ORDER;
                        set(pages, entry, PageOutcome::NoMemory);
                    }
                    folio
                });
            }
            Target::System => {
                let (asked, refused) = (memory.allocator(), &mut *pages);
                isolated.fill_small(Some(vma), move |entry| {
                    let fails = asked.driver_fails(0);
                    if fails {
                        set(refused, entry, PageOutcome::NoMemory);
                    }
                    !fails
                });
                isolated.fill(|entry| {
                    let order = entry.order();
                    let refused = pages.get(entry.index) == Some(&PageOutcome::NoMemory);
                    // The core offers holes, too, but there is nothing to bring back.
                    if entry.source == Source::Hole || refused {
                        return None;
                    }
                    let effort = match order {
                        0 => Effort::Must,
                        _ => Effort::Try,
                    };
                    let addr = piece.address(entry.index);
                    let folio = match memory.driver_fails(order) {
                        true => None,
                        false => LockedFolio::alloc_system(Some(vma), addr, order, effort).ok(),
                    };
                    if folio.is_none() {
                        no_huge |= order == PMD_ORDER;
                        set(pages, entry, PageOutcome::NoMemory);
                    }
                    folio
                });
            }
        }
        lap.end(Phase::Allocate);
        if no_huge {
            // Puts everything back.
            return Ok(Attempt::NoHuge);
        }
        let failed = memory.copy_all(&mut isolated, copies);
        lap.end(Phase::Copy);
        if failed.any() {
            for entry in isolated.entries() {
                if failed.is(entry.index) {
                    set(pages, &entry, PageOutcome::CopyFailed);
                }
            }
        }

        let migrated = isolated.migrate();
        lap.end(Phase::Switch);
        for entry in migrated.moved() {
            *entries += usize::from(entry.source != Source::Hole);
        }
        let mut lost = false;
        let mut each = |index: usize, what: Switched| {
            let Some(page) = pages.get_mut(index) else {
                return;
            };
            let explained = matches!(page, PageOutcome::NoMemory | PageOutcome::CopyFailed);
            *page = match what {
                Switched::Yes { was_valid: true } => PageOutcome::Switched,
                Switched::Yes { was_valid: false } | Switched::NoEntry => PageOutcome::Moved,
                Switched::Lost => {
                    lost = true;
                    PageOutcome::Lost
                }
                Switched::Stays { .. } if explained || page.has_moved() => *page,
                Switched::Stays { on_device } if on_device == (target == Target::Device) => {
                    PageOutcome::None
                }
                Switched::Stays { .. } => PageOutcome::Skipped,
            };
        };
        let (flushed, result) = match target {
            Target::Device => {
                let writable = vma.flags() & flags::WRITE != 0;
                let number = memory.numbers();
                mirror.switch_to_device(name, piece, &migrated, number, writable, spares, &mut each)
            }
            Target::System => (
                mirror.switch_to_system(name, piece, &migrated, &mut each),
                Ok(()),
            ),
        };
        // The time since then has been accounted for.
        let mut lap = Lap::start();
        migrated.finalize(&flushed);
        lap.end(Phase::Finalize);
        result.map(|()| Attempt::Done { lost })
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Migration of a mirror's memory, at the driver's request.
//!
//! One step handles at most 2 MiB, so that nobody waits long for the mmap lock:
//!
//! 1. announce the step under the table lock (`Mirror::begin`),
//! 2. isolate the pages, which calls notifiers, so without the table lock,
//! 3. allocate, copy, migrate,
//! 4. switch the entries that still belong to the step, under the table lock,
//! 5. finalize: the CPU may fault again.

use crate::{
    memory::Copies,
    mirror::{Device, Inner, Mirror},
    mm::{
        addr::{PageRange, PMD_ORDER},
        migrate::{Batch, Isolated, Select, Source},
        notifier::Cookie,
        page::{Effort, LockedFolio},
        range_fault::AddressSpace,
        space::{fatal_signal_pending, MmapGuard, Vma},
    },
    pgtable::{Entry, Spares},
    stats::Counter,
};
use kernel::{
    mm::virt::flags,
    prelude::*,
    time::{delay::fsleep, Delta}, //
};

/// Tries to announce a step; each costs one collision with an invalidation, or a [`PAUSE`].
const TRIES: usize = 1024;

/// More tries of a step towards the device that left pages behind, though there was memory.
const RETRIES: usize = 3;

/// Time before another try, and to wait for one of too many migrations of a mirror to end.
const PAUSE: Delta = Delta::from_millis(1);

/// What a migration did. Partial success is success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Pages that moved.
    pub moved: usize,
    /// Entries that moved and had contents; a huge page counts once.
    pub entries: usize,
    /// Pages that could not move: pinned, shared, of a file, merged, or changed meanwhile.
    pub skipped: usize,
    /// Pages that could not move for lack of memory at the destination.
    pub no_memory: usize,
    /// Pages whose copy failed.
    pub copy_failed: usize,
}

impl Outcome {
    fn merge(&mut self, other: &Outcome) {
        self.moved += other.moved;
        self.entries += other.entries;
        self.skipped += other.skipped;
        self.no_memory += other.no_memory;
        self.copy_failed += other.copy_failed;
    }
}

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
        }
    }

    /// Announces a step and returns with the mmap lock held.
    ///
    /// Waits for the invalidations that began before: they may still remove what the step is
    /// about to isolate, and would not be told that it has begun.
    pub(crate) fn begin<'a>(
        &self,
        space: &'a AddressSpace<'_, Inner<D>>,
        cookie: Cookie,
        range: PageRange,
    ) -> Result<MmapGuard<'a>> {
        for _ in 0..TRIES {
            if fatal_signal_pending() {
                return Err(EINTR);
            }
            let seq = self.notifier.read_begin();
            let mmap = space.mmap_lock()?;
            let mut guard = self.notifier.lock();
            if self.notifier.read_retry(&guard, seq) {
                continue;
            }
            let begun = guard.transactions.begin(cookie, range);
            drop(guard);
            match begun {
                Ok(()) => return Ok(mmap),
                Err(error) if error == EBUSY => {
                    // As many as can be run already: give them time.
                    drop(mmap);
                    fsleep(PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
        Err(EBUSY)
    }
}

/// A migration that has not started yet.
#[must_use = "it does nothing until it is started"]
pub struct Migrate<'m, D: Device> {
    mirror: &'m Mirror<D>,
    range: PageRange,
}

impl<D: Device> Migrate<'_, D> {
    /// Moves anonymous memory of the range to the device, holes included, best effort.
    ///
    /// # Errors
    ///
    /// `EFAULT`: the process is gone. `EINVAL`: no mapping, not readable, hugetlb or special;
    /// what came before has moved. `ENODEV`: the device has no memory. `EBUSY`: it kept changing.
    /// `EINTR`: killed. `ENOMEM`: out of memory for the migration itself; lack of device memory is
    /// in the [`Outcome`]. Context: may sleep; no lock may be held.
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
        self.mirror.device().memory().ok_or(ENODEV)?;
        let mut step = Step {
            mirror: self.mirror,
            space: self.mirror.space()?,
            batch: Batch::new()?,
            copies: Copies::new()?,
            spares: Spares::default(),
        };
        let mut total = Outcome::default();
        let mut rest = Some(self.range);
        while let Some(range) = rest {
            let done = step.run(range, target, &mut total)?;
            rest = range.from_address(done);
        }
        let stats = self.mirror.stats();
        let moved = match target {
            Target::Device => Counter::ToDevice,
            Target::System => Counter::ToSystem,
        };
        stats.add(moved, total.moved as u64);
        stats.add(Counter::Skipped, (total.skipped + total.no_memory) as u64);
        Ok(total)
    }
}

/// What the steps of one migration share.
struct Step<'m, D: Device> {
    mirror: &'m Mirror<D>,
    space: AddressSpace<'m, Inner<D>>,
    batch: Batch,
    copies: Copies,
    spares: Spares,
}

impl<D: Device> Step<'_, D> {
    /// Migrates the first part of `range`, within 2 MiB and one mapping. Returns its end.
    fn run(&mut self, range: PageRange, target: Target, total: &mut Outcome) -> Result<usize> {
        let piece = range.pmd_pieces().next().ok_or(EINVAL)?;
        // Before any lock. What is missing then shows in the outcome.
        let full = target == Target::Device
            && match self.mirror.device().memory().map(|m| m.grow(piece.pages())) {
                Some(Err(error)) if error != ENOMEM => return Err(error),
                result => !matches!(result, Some(Ok(()))),
            };
        let (end, first) = self.attempt(piece, target, true)?;
        let piece = PageRange::new(piece.start(), end)?;
        let pages = piece.pages();
        let mut outcome = match first {
            Some(outcome) => outcome,
            None if full => Outcome {
                no_memory: pages,
                ..Outcome::default()
            },
            // No huge page at the destination: the same with small ones. Without COMPOUND the core
            // splits a huge page before it isolates it, also when others map it.
            None => self.attempt(piece, target, false)?.1.unwrap_or_default(),
        };
        for _ in 0..RETRIES {
            if target != Target::Device || outcome.no_memory + outcome.copy_failed != 0 {
                break;
            }
            if self.mirror.lock_table().present(piece) == pages {
                break;
            }
            // Somebody may hold a page for a moment: compaction, reclaim, a look at its contents.
            fsleep(PAUSE);
            let Ok((_, Some(again))) = self.attempt(piece, target, true) else {
                break;
            };
            outcome.moved += again.moved;
            outcome.entries += again.entries;
        }
        outcome.skipped =
            pages.saturating_sub(outcome.moved + outcome.no_memory + outcome.copy_failed);
        total.merge(&outcome);
        Ok(end)
    }

    /// One attempt. No outcome if a huge page could not be had.
    fn attempt(
        &mut self,
        piece: PageRange,
        target: Target,
        compound: bool,
    ) -> Result<(usize, Option<Outcome>)> {
        self.spares.refill()?;
        // Nothing else has this address while the step runs.
        let cookie = Cookie::of(&self.batch);
        let mmap = self.mirror.begin(&self.space, cookie, piece)?;
        let mut unswitched = false;
        let result = mmap
            .vma_lookup(piece.start())
            .filter(|vma| vma.flags() & flags::READ != 0)
            .ok_or(EINVAL)
            .and_then(|vma| {
                let piece = PageRange::new(piece.start(), piece.end().min(vma.end()))?;
                let outcome = isolate_and_move(
                    self.mirror,
                    vma,
                    piece,
                    target,
                    compound,
                    cookie,
                    &mut self.batch,
                    &mut self.copies,
                    &mut self.spares,
                    &mut unswitched,
                )?;
                Ok((piece.end(), outcome))
            });
        self.mirror.notifier.lock().transactions.end(cookie);
        drop(mmap);
        if unswitched {
            // Somebody else's event, or the split of a huge page, took the marks: ask what is
            // there now. If that fails the device will fault, which is no error here.
            self.mirror
                .install_present(&self.space, piece, &mut self.spares)
                .or_else(|error| if error == EINTR { Err(error) } else { Ok(()) })?;
        }
        result
    }
}

#[expect(
    clippy::too_many_arguments,
    reason = "one call site; they live in different places"
)]
fn isolate_and_move<D: Device>(
    mirror: &Mirror<D>,
    vma: Vma<'_>,
    piece: PageRange,
    target: Target,
    compound: bool,
    cookie: Cookie,
    batch: &mut Batch,
    copies: &mut Copies,
    spares: &mut Spares,
    unswitched: &mut bool,
) -> Result<Option<Outcome>> {
    let memory = mirror.device().memory().ok_or(ENODEV)?;
    let huge = compound && piece.is_pmd();
    // Coherent folios stay small: the core never collects huge ones on the way back.
    let compound = huge && memory.select() == Select::Private;
    if huge && !compound && memory.driver_fails(PMD_ORDER) {
        return Ok(None);
    }
    let (select, cookie) = match target {
        Target::Device => (Select::System, cookie),
        Target::System => (memory.select(), memory.owner()),
    };
    let mut isolated = Isolated::new(vma, piece, select, compound, cookie, None, batch)?;

    let mut outcome = Outcome::default();
    let mut no_huge = false;
    isolated.fill(|entry| {
        let order = entry.order();
        let folio = match target {
            Target::Device => memory.alloc(order),
            // The core offers these, too, but there is nothing to bring back.
            Target::System if entry.source == Source::Hole => return None,
            Target::System if memory.driver_fails(order) => None,
            Target::System => LockedFolio::alloc_system(
                Some(vma),
                piece.address(entry.index),
                order,
                if order == 0 {
                    Effort::Must
                } else {
                    Effort::Try
                },
            )
            .ok(),
        };
        if folio.is_none() {
            no_huge |= order == PMD_ORDER;
            outcome.no_memory += entry.pages;
        }
        folio
    });
    if no_huge {
        // Puts everything back.
        return Ok(None);
    }
    let asked: usize = isolated
        .entries()
        .filter(|entry| entry.destination != 0)
        .map(|entry| entry.pages)
        .sum();
    memory.copy_all(&mut isolated, copies);
    let copied: usize = isolated
        .entries()
        .filter(|entry| entry.destination != 0)
        .map(|entry| entry.pages)
        .sum();
    outcome.copy_failed = asked - copied;

    let migrated = isolated.migrate();
    for entry in migrated.moved() {
        outcome.moved += entry.pages;
        outcome.entries += usize::from(entry.source != Source::Hole);
    }
    if target == Target::Device {
        let mut guard = mirror.notifier.lock();
        let state = &mut *guard;
        let writable = vma.flags() & flags::WRITE != 0;
        let mut moved = migrated.moved().peekable();
        let transactions = &state.transactions;
        state.table.install(piece, spares, |addr, slot| {
            let Some(index) = piece.index_of(addr) else {
                return;
            };
            let behind = |entry: &crate::mm::migrate::Entry| entry.index + entry.pages <= index;
            while moved.next_if(behind).is_some() {}
            let Some(entry) = moved.peek().filter(|entry| entry.index <= index) else {
                return;
            };
            if !transactions.owns(cookie, addr) {
                *unswitched = true;
                return;
            }
            let Some(number) = memory.entry_number(entry.destination) else {
                return;
            };
            let may_write = match entry.source {
                Source::Hole => writable,
                Source::Page(_) => entry.writable,
            };
            *slot = Entry::device(number + (index - entry.index), may_write);
        })?;
    }
    drop(migrated);
    Ok(Some(outcome))
}

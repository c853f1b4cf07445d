// SPDX-License-Identifier: GPL-2.0

//! One attempt of a migration step: isolate, allocate, copy, migrate, replace device PTEs,
//! finalize.
//!
//! The mmap lock is held for reading throughout. [`submit`] isolates the pages, which locks their
//! folios, and submits the copies. [`finish`] waits for the copies, and completes the migration. In
//! between, the thread may submit another block (`overlap`). It must then not wait for an
//! invalidation or for an mmap lock, because a task that holds these may wait for the folios.
//!
//! The device PTEs of all mirrors are replaced under their table locks before the core finalizes
//! the migration. After that, the CPU can write to the new pages.

use super::{
    survey::Movable,
    PageOutcome,
    Target, //
};
use crate::{
    debug::timing::{
        Phase,
        Stopwatch, //
    },
    kernel::cancel::CancelToken,
    memory::{
        Arrival,
        CopyContext,
        Copying,
        Memory,
        MemoryOps,
        StepGuard, //
    },
    mirror::{
        Announced,
        CommitResult,
        Device,
        Mirror, //
    },
    mm::{
        addr::{
            PageRange,
            PMD_ORDER,
            PMD_PAGES, //
        },
        folio::{
            Effort,
            LockedFolio, //
        },
        migrate::{
            Batch,
            Isolated,
            MigrateEntry,
            Source, //
        },
        vma::Vma, //
    },
    pgtable::{
        Format,
        Prealloc, //
    },
    space::{
        JoinedMirrors,
        MigrationDesc,
        Readers, //
    }, //
};
use kernel::{
    mm::virt::flags,
    prelude::*, //
};

/// Buffers for one block in flight.
pub(super) struct BlockBuffers<F: Format> {
    batch: Batch,
    copies: CopyContext,
    pub(super) prealloc: Prealloc<F>,
}

impl<F: Format> BlockBuffers<F> {
    /// Allocates the buffers for blocks of up to `capacity` pages, whose copies are cancelled when
    /// `stop` is set.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    // Initialized in place, because it is large.
    pub(super) fn new(
        capacity: usize,
        prealloc: Prealloc<F>,
        stop: Option<CancelToken>,
    ) -> impl Init<Self, Error> {
        let copies = move || -> Result<CopyContext> {
            let mut copies = CopyContext::new(true)?;
            copies.until(stop);
            Ok(copies)
        };
        try_init!(Self {
            batch: Batch::with_capacity(capacity)?,
            copies: copies()?,
            prealloc,
        }? Error)
    }
}

/// Buffers and outcomes that a block in flight borrows.
pub(super) struct BorrowedBuffers<'a, F: Format> {
    pub(super) slot: &'a mut BlockBuffers<F>,
    pub(super) joined: &'a mut JoinedMirrors,
    /// Outcomes of the pages.
    pub(super) pages: &'a mut [PageOutcome],
}

/// Buffers that the steps of a migration reuse. Initialized in place, because it is large.
pub(super) struct MigrateBuffers<F: Format> {
    pub(super) slot: BlockBuffers<F>,
    /// Outcomes of the pages of the step.
    pub(super) pages: [PageOutcome; PMD_PAGES],
    /// Index in `pages` of the first page of the attempt.
    pub(super) first: usize,
    /// Number of entries that moved in all steps.
    pub(super) entries: usize,
}

/// Result of an attempt that did not fail.
pub(super) enum AttemptResult {
    Done {
        /// Whether the device has lost PTEs of pages that moved.
        lost: bool,
    },
    /// No huge page could be allocated. No page has moved.
    NoHuge,
}

/// Records the outcome of the pages of `entry`.
#[inline]
fn set(pages: &mut [PageOutcome], entry: &MigrateEntry, outcome: PageOutcome) {
    // Fast path, because most entries have one page, and `fill` compiles to a call.
    if let (1, Some(page)) = (entry.pages, pages.get_mut(entry.index)) {
        *page = outcome;
    } else if let Some(pages) = pages.get_mut(entry.index..entry.index + entry.pages) {
        pages.fill(outcome);
    }
}

/// Isolates `movable`, which was announced, and stores the isolated pages and `rest` in
/// `in_flight`.
// Not inlined: the states of a migration are large and need a stack frame of their own. For the
// same reason the result is written in place.
#[inline(never)]
fn isolate<'p, 'a, 'm, D: Device>(
    movable: Movable<'a>,
    readers: (Announced<'m, D>, Readers<'a>),
    compound: bool,
    batch: &'a mut Batch,
    rest: FinishState<'a, D>,
    in_flight: &'p mut Option<BlockInFlight<'a, 'm, D>>,
) -> Result<&'p mut BlockInFlight<'a, 'm, D>> {
    let name = readers.0.name();
    let origin = rest.memory.origin();
    let isolated = Isolated::read_by(readers, || match movable {
        Movable::System(found) => found.isolate(compound, name, batch),
        Movable::Device(vma, part) => Isolated::new(vma, part, origin, compound, None, batch),
    })?;
    let copying = Copying::new(isolated);
    Ok(in_flight.insert(BlockInFlight { copying, rest }))
}

/// Isolated pages of an attempt, whose copies were submitted. Dropping it waits for the copies and
/// restores the pages.
#[must_use = "dropping it restores the pages"]
pub(super) struct BlockInFlight<'a, 'm, D: Device> {
    copying: Copying<'a, 'a, (Announced<'m, D>, Readers<'a>)>,
    // Dropped after the destinations, so that an unplug waits for them.
    rest: FinishState<'a, D>,
}

/// State that is needed to finish an attempt.
struct FinishState<'a, D: Device> {
    arrival: Option<Arrival<'a>>,
    _departure: Option<StepGuard<'a>>,
    memory: &'a Memory<D::Memory>,
    vma: Vma<'a>,
    target: Target,
    /// Outcomes of the pages.
    pages: &'a mut [PageOutcome],
    prealloc: &'a mut Prealloc<D::Format>,
    stopwatch: Stopwatch,
}

impl<D: Device> BlockInFlight<'_, '_, D> {
    /// Stops the measurement of the copy phase until [`Self::resume`].
    pub(super) fn pause(&mut self) {
        self.rest.stopwatch.end(Phase::Copy);
    }

    /// Continues the measurement of the copy phase.
    pub(super) fn resume(&mut self) {
        self.rest.stopwatch = Stopwatch::start();
    }

    /// Returns the VMA of the pages.
    pub(super) fn vma(&self) -> Vma<'_> {
        self.rest.vma
    }

    /// Returns whether a copy is outstanding.
    pub(super) fn is_outstanding(&self) -> bool {
        self.copying.is_outstanding()
    }
}

/// Result of the first half of an attempt.
pub(super) enum Submitted {
    /// Copies are outstanding or completed.
    InFlight,
    /// No huge page could be allocated. The pages were restored.
    NoHuge,
}

/// Waits for the copies of the pages in `place`, migrates the pages, and records their outcomes.
/// Adds the number of moved entries to `entries`. Returns whether the device has lost PTEs of pages
/// that moved.
///
/// # Errors
///
/// - `ENODEV` if the device memory was unplugged. The pages were restored.
/// - `EINVAL` if `place` is empty.
/// - Those of [`Announced::switch_to_device`].
///
/// # Context
///
/// May sleep.
// Not inlined, as the functions below: the states of a migration are large and need stack frames
// of their own.
#[inline(never)]
pub(super) fn finish<D: Device>(
    place: &mut Option<BlockInFlight<'_, '_, D>>,
    entries: &mut usize,
) -> Result<bool> {
    let BlockInFlight { copying, rest } = place.as_mut().ok_or(EINVAL)?;
    let failed = copying.complete();
    rest.stopwatch.end(Phase::Copy);
    if rest.arrival.as_ref().is_some_and(Arrival::is_late) {
        // Restores the pages.
        *place = None;
        return Err(ENODEV);
    }
    if !failed.is_empty() {
        for entry in copying.isolated().entries() {
            if failed.has(entry.index) {
                set(rest.pages, &entry, PageOutcome::CopyFailed);
            }
        }
    }
    let BlockInFlight { copying, rest } = place.take().ok_or(EINVAL)?;
    migrate_and_switch(copying.into_isolated(), rest, entries)
}

/// Migrates `isolated`, whose copies have completed, and records the outcomes of its pages. Returns
/// the same as [`finish`].
#[inline(never)]
fn migrate_and_switch<D: Device>(
    isolated: Isolated<'_, (Announced<'_, D>, Readers<'_>)>,
    rest: FinishState<'_, D>,
    entries: &mut usize,
) -> Result<bool> {
    let FinishState {
        arrival: _arrival,
        _departure,
        memory,
        vma,
        target,
        pages,
        prealloc,
        mut stopwatch,
    } = rest;
    let migrated = isolated.migrate();
    stopwatch.end(Phase::Switch);
    for entry in migrated.moved().entries() {
        *entries += usize::from(entry.source != Source::Hole);
        // `each` changes the outcome if the device has a PTE.
        if target == Target::System {
            set(pages, &entry, PageOutcome::Moved);
        }
    }
    let mut lost = false;
    let mut each = |index: usize, what: CommitResult| {
        let Some(page) = pages.get_mut(index) else {
            return;
        };
        let explained = matches!(page, PageOutcome::NoMemory | PageOutcome::CopyFailed);
        *page = match what {
            CommitResult::Yes { was_valid: true } => PageOutcome::Switched,
            CommitResult::Yes { was_valid: false } | CommitResult::NoEntry => PageOutcome::Moved,
            CommitResult::Lost => {
                lost = true;
                PageOutcome::Lost
            }
            CommitResult::Stays { .. } if explained || page.has_moved() => *page,
            CommitResult::Stays { on_device } if on_device == (target == Target::Device) => {
                PageOutcome::None
            }
            CommitResult::Stays { .. } => PageOutcome::Skipped,
        };
    };
    let mut result = Ok(());
    let mut stopwatch = None;
    migrated.finalize(|(announced, readers), moved| {
        // Replace the PTEs of the other mirrors first. Otherwise this device could write to the new
        // page while another device still reads the old one.
        let others = readers.switch(moved);
        let settled = match target {
            Target::Device => {
                let writable = vma.flags() & flags::WRITE != 0;
                let number = memory.numbers();
                let settled;
                (settled, result) =
                    announced.switch_to_device(moved, number, writable, prealloc, &mut each);
                settled
            }
            Target::System => announced.switch_to_system(moved, &mut each),
        };
        // The time until here is part of other phases.
        stopwatch = Some(Stopwatch::start());
        (settled, others)
    });
    if let Some(mut stopwatch) = stopwatch {
        stopwatch.end(Phase::Finalize);
    }
    result.map(|()| lost)
}

/// Allocates destinations for `isolated`, the pages of `piece`: in device memory with an `arrival`,
/// else in system memory. Records pages without a destination. Returns whether a huge page could
/// not be allocated.
#[inline(never)]
fn fill<M: MemoryOps, R>(
    isolated: &mut Isolated<'_, R>,
    memory: &Memory<M>,
    arrival: Option<&Arrival<'_>>,
    vma: Vma<'_>,
    piece: PageRange,
    pages: &mut [PageOutcome],
) -> bool {
    let mut no_huge = false;
    match arrival {
        Some(arrival) => {
            let mut allocator = memory.allocator(isolated.count());
            isolated.fill(|entry| {
                let folio = allocator.alloc(arrival, entry.order());
                if folio.is_none() {
                    no_huge |= entry.order() == PMD_ORDER;
                    set(pages, entry, PageOutcome::NoMemory);
                }
                folio
            });
        }
        None => {
            let asked = memory.allocator(0);
            let refused = &mut *pages;
            let left = isolated.alloc_small(Some(vma), move |index| {
                let fails = asked.fails_allocation();
                if let Some(page) = refused.get_mut(index).filter(|_| fails) {
                    *page = PageOutcome::NoMemory;
                }
                !fails
            });
            if !left {
                return false;
            }
            isolated.fill(|entry| {
                let order = entry.order();
                let refused = pages.get(entry.index) == Some(&PageOutcome::NoMemory);
                // migrate_vma_setup() also collects holes, which have no page to migrate.
                if entry.source == Source::Hole || refused {
                    return None;
                }
                let effort = match order {
                    0 => Effort::Must,
                    _ => Effort::Try,
                };
                let addr = piece.address(entry.index);
                let folio = if memory.fails_allocation() {
                    None
                } else {
                    LockedFolio::alloc_system(Some(vma), addr, order, effort).ok()
                };
                if folio.is_none() {
                    no_huge |= order == PMD_ORDER;
                    set(pages, entry, PageOutcome::NoMemory);
                }
                folio
            });
        }
    }
    no_huge
}

/// Isolates the pages of `movable` that can be isolated, and submits their copies. `movable` was
/// announced for `request`. Stores the pages in `in_flight`, which must be empty. After an error
/// the caller must drop `in_flight`, because it may contain pages.
///
/// # Errors
///
/// - `ENODEV` if the device memory was unplugged.
/// - `EINVAL`, and those of the isolation and of [`Copying::submit`].
///
/// # Context
///
/// May sleep. The mmap lock is held.
#[inline(never)]
pub(super) fn submit<'a, 'm, D: Device>(
    (mirror, memory): (&Mirror<D>, &'a Memory<D::Memory>),
    movable: Movable<'a>,
    (announced, request): (Announced<'m, D>, MigrationDesc),
    compound: bool,
    place: BorrowedBuffers<'a, D::Format>,
    in_flight: &mut Option<BlockInFlight<'a, 'm, D>>,
) -> Result<Submitted> {
    let BorrowedBuffers {
        slot,
        joined,
        pages,
    } = place;
    let BlockBuffers {
        batch,
        copies,
        prealloc,
    } = slot;
    let readers = joined.join(mirror.mm_id(), request, mirror.place_in_space());
    let piece = announced.range();
    let huge = compound && piece.is_pmd();
    // Coherent folios are allocated small, because migrate_vma_setup() never collects huge ones
    // when they are migrated back.
    let compound = huge && memory.is_private();
    if huge && !compound && memory.fails_allocation() {
        return Ok(Submitted::NoHuge);
    }
    let vma = movable.vma();
    let target = movable.target();
    let rest = FinishState {
        arrival: None,
        _departure: (target == Target::System).then(|| memory.depart()),
        memory,
        vma,
        target,
        pages,
        prealloc,
        stopwatch: Stopwatch::start(),
    };
    let readers = (announced, readers);
    let BlockInFlight { copying, rest } =
        isolate(movable, readers, compound, batch, rest, in_flight)?;
    rest.stopwatch.end(Phase::Unmap);

    if target == Target::Device {
        rest.arrival = Some(memory.arrive()?);
    }
    let isolated = copying.isolated_mut().ok_or(EINVAL)?;
    let no_huge = fill(
        isolated,
        memory,
        rest.arrival.as_ref(),
        vma,
        piece,
        rest.pages,
    );
    rest.stopwatch.end(Phase::Allocate);
    if no_huge {
        // Restores the pages.
        *in_flight = None;
        return Ok(Submitted::NoHuge);
    }
    memory.submit_all(copying, copies)?;
    if target == Target::Device {
        memory.set_asynchronous(copying.is_outstanding());
    }
    Ok(Submitted::InFlight)
}

impl<F: Format> MigrateBuffers<F> {
    /// Allocates buffers for steps of up to `capacity` pages, as [`BlockBuffers::new`].
    pub(super) fn new(
        capacity: usize,
        prealloc: Prealloc<F>,
        stop: Option<CancelToken>,
    ) -> Result<KBox<Self>> {
        let work = try_init!(Self {
            slot <- BlockBuffers::new(capacity, prealloc, stop),
            pages: [PageOutcome::None; PMD_PAGES],
            first: 0,
            entries: 0,
        }? Error);
        KBox::init(work, GFP_KERNEL)
    }

    /// Migrates the pages of `movable` that can be isolated. `announced` has the announcement and
    /// its request.
    ///
    /// # Errors
    ///
    /// Those of [`submit`] and [`finish`].
    pub(super) fn isolate_and_move<D: Device<Format = F>>(
        &mut self,
        on: (&Mirror<D>, &Memory<D::Memory>),
        movable: Movable<'_>,
        announced: (Announced<'_, D>, MigrationDesc),
        compound: bool,
    ) -> Result<AttemptResult> {
        let mut joined = JoinedMirrors::new();
        let place = BorrowedBuffers {
            slot: &mut self.slot,
            joined: &mut joined,
            pages: self.pages.get_mut(self.first..).ok_or(EINVAL)?,
        };
        let mut in_flight = None;
        match submit(on, movable, announced, compound, place, &mut in_flight)? {
            Submitted::NoHuge => Ok(AttemptResult::NoHuge),
            Submitted::InFlight => {
                let lost = finish(&mut in_flight, &mut self.entries)?;
                Ok(AttemptResult::Done { lost })
            }
        }
    }
}

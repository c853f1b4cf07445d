// SPDX-License-Identifier: GPL-2.0

//! One attempt of a migration step: isolate, allocate, copy, migrate, replace device PTEs,
//! finalize.
//!
//! The mmap lock is held for reading throughout. [`submit`] and [`finish`] are the two halves of
//! the pipeline ([`crate::memory::pipeline`]). In between, the thread may submit another block
//! (`overlap`).

use super::{
    survey::Movable,
    PageOutcome,
    Target, //
};
use crate::{
    debug::timing::Stopwatch,
    kernel::cancel::CancelToken,
    memory::{
        pipeline::{
            self,
            fill_from_system,
            InFlight,
            Migration,
            MigrationOps,
            Submitted, //
        },
        Arrival,
        CopyContext,
        Memory,
        StepGuard, //
    },
    mirror::{
        Announced,
        CommitResult,
        Device,
        StepReaders, //
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
            MigrationReader,
            Moved,
            Source, //
        },
        page_set::PageSet,
        vma::Vma, //
    },
    pgtable::{
        Format,
        Prealloc, //
    },
    space::JoinedMirrors, //
};
use core::cell::Cell;
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

/// A block in flight.
pub(super) type BlockInFlight<'a, 'm, D> =
    InFlight<'a, 'a, StepReaders<'m, 'a, D>, BlockMigration<'a, D>>;

/// Operations of a step, and its results.
pub(super) struct BlockMigration<'a, D: Device> {
    /// If the destinations are in device memory.
    arrival: Option<Arrival<'a>>,
    _departure: Option<StepGuard<'a>>,
    memory: &'a Memory<D::Memory>,
    vma: Vma<'a>,
    piece: PageRange,
    target: Target,
    /// Outcomes of the pages.
    pages: &'a mut [PageOutcome],
    prealloc: &'a mut Prealloc<D::Format>,
    /// Number of entries that moved.
    entries: usize,
    /// Whether the device has lost PTEs of pages that moved.
    lost: bool,
    result: Result,
}

impl<'a, D: Device> BlockMigration<'a, D> {
    /// Returns the VMA of the pages.
    pub(super) fn vma(&self) -> Vma<'a> {
        self.vma
    }

    /// Chooses destinations in system memory. Returns whether a huge page could not be allocated.
    fn fill_from_system<R>(&mut self, isolated: &mut Isolated<'_, R>) -> bool {
        let Self {
            memory, vma, piece, ..
        } = *self;
        let mut no_huge = false;
        // Both closures record outcomes.
        let pages = Cell::from_mut(&mut *self.pages).as_slice_of_cells();
        let asked = memory.allocator(0);
        let select = move |index: usize| {
            let fails = asked.fails_allocation();
            if let Some(page) = pages.get(index).filter(|_| fails) {
                page.set(PageOutcome::NoMemory);
            }
            !fails
        };
        fill_from_system(isolated, Some(vma), select, |entry| {
            let outcomes = pages.get(entry.index..)?;
            if outcomes.first()?.get() == PageOutcome::NoMemory {
                return None;
            }
            let order = entry.order();
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
                let outcomes = outcomes.iter().take(entry.pages);
                outcomes.for_each(|page| page.set(PageOutcome::NoMemory));
            }
            folio
        });
        no_huge
    }
}

impl<'m, 'a, D: Device> MigrationOps<StepReaders<'m, 'a, D>> for BlockMigration<'a, D> {
    #[inline(never)]
    fn fill(&mut self, isolated: &mut Isolated<'_, StepReaders<'m, 'a, D>>) -> bool {
        let no_huge = match &self.arrival {
            Some(arrival) => self.memory.fill(isolated, arrival, true, |entry| {
                set(self.pages, entry, PageOutcome::NoMemory);
            }),
            None => self.fill_from_system(isolated),
        };
        !no_huge
    }

    fn arrival(&self) -> Option<&Arrival<'_>> {
        self.arrival.as_ref()
    }

    fn copied(&mut self, isolated: &Isolated<'_, StepReaders<'m, 'a, D>>, failed: &PageSet) {
        if failed.is_empty() {
            return;
        }
        for entry in isolated.entries().filter(|entry| failed.has(entry.index)) {
            set(self.pages, &entry, PageOutcome::CopyFailed);
        }
    }

    fn moved(&mut self, moved: &Moved<'_>) {
        for entry in moved.entries() {
            self.entries += usize::from(entry.source != Source::Hole);
            // `switch` changes the outcome if the device has a PTE.
            if self.target == Target::System {
                set(self.pages, &entry, PageOutcome::Moved);
            }
        }
    }

    fn switch(
        &mut self,
        readers: StepReaders<'m, 'a, D>,
        moved: &Moved<'_>,
    ) -> <StepReaders<'m, 'a, D> as MigrationReader>::Done {
        let Self {
            memory,
            vma,
            target,
            pages,
            prealloc,
            lost,
            result,
            ..
        } = self;
        let mut each = |index: usize, what: CommitResult| {
            let Some(page) = pages.get_mut(index) else {
                return;
            };
            let explained = matches!(page, PageOutcome::NoMemory | PageOutcome::CopyFailed);
            *page = match what {
                CommitResult::Yes { was_valid: true } => PageOutcome::Switched,
                CommitResult::Yes { was_valid: false } | CommitResult::NoEntry => {
                    PageOutcome::Moved
                }
                CommitResult::Lost => {
                    *lost = true;
                    PageOutcome::Lost
                }
                CommitResult::Stays { .. } if explained || page.has_moved() => *page,
                CommitResult::Stays { on_device } if on_device == (*target == Target::Device) => {
                    PageOutcome::None
                }
                CommitResult::Stays { .. } => PageOutcome::Skipped,
            };
        };
        readers.switch(moved, |announced| match target {
            Target::Device => {
                let writable = vma.flags() & flags::WRITE != 0;
                let number = memory.numbers();
                let settled;
                (settled, *result) =
                    announced.switch_to_device(moved, number, writable, prealloc, &mut each);
                settled
            }
            Target::System => announced.switch_to_system(moved, &mut each),
        })
    }
}

/// Migrates the pages in `place`, whose copies were submitted, and records their outcomes. Adds the
/// number of moved entries to `entries`. Returns whether the device has lost PTEs of pages that
/// moved.
///
/// # Errors
///
/// - Those of [`pipeline::finish`] and of [`Announced::switch_to_device`].
///
/// # Context
///
/// May sleep.
pub(super) fn finish<D: Device>(
    place: &mut Option<BlockInFlight<'_, '_, D>>,
    entries: &mut usize,
) -> Result<bool> {
    let block = pipeline::finish(place)?;
    *entries += block.entries;
    block.result.map(|()| block.lost)
}

/// Isolates the pages of `movable` that can be isolated, and submits their copies. `movable` was
/// announced as `announced`. Stores the pages in `in_flight`, which must be empty. After an error
/// the caller must drop `in_flight`, because it may contain pages.
///
/// Returns [`Submitted::Restored`] if no huge page could be allocated.
///
/// # Errors
///
/// - `ENODEV` if the device memory was unplugged.
/// - Those of [`Migration::submit`].
///
/// # Context
///
/// May sleep. The mmap lock is held.
#[inline(never)]
pub(super) fn submit<'a, 'm, D: Device>(
    memory: &'a Memory<D::Memory>,
    movable: Movable<'a>,
    announced: Announced<'m, D>,
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
    let piece = announced.range();
    let name = announced.name();
    let huge = compound && piece.is_pmd();
    // Coherent folios are allocated small, because migrate_vma_setup() never collects huge ones
    // when they are migrated back.
    let compound = huge && memory.is_private();
    if huge && !compound && memory.fails_allocation() {
        return Ok(Submitted::Restored);
    }
    let vma = movable.vma();
    let target = movable.target();
    let (arrival, departure) = match target {
        Target::Device => (Some(memory.arrive()?), None),
        Target::System => (None, Some(memory.depart())),
    };
    let migration = Migration {
        copier: memory.copier(),
        copies,
        readers: announced.join(joined),
        ops: BlockMigration {
            arrival,
            _departure: departure,
            memory,
            vma,
            piece,
            target,
            pages,
            prealloc,
            entries: 0,
            lost: false,
            result: Ok(()),
        },
        stopwatch: Stopwatch::start(),
    };
    let origin = memory.origin();
    let isolate = || match movable {
        Movable::System(found) => found.isolate(compound, name, batch),
        Movable::Device(vma, part) => Isolated::new(vma, part, origin, compound, None, batch),
    };
    let submitted = migration.submit(isolate, in_flight)?;
    if let (Some(block), Target::Device) = (in_flight, target) {
        memory.set_asynchronous(block.is_outstanding());
    }
    Ok(submitted)
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

    /// Migrates the pages of `movable` that can be isolated. It was announced as `announced`.
    ///
    /// # Errors
    ///
    /// Those of [`submit`] and [`finish`].
    // Not inlined: needs a stack frame of its own.
    #[inline(never)]
    pub(super) fn isolate_and_move<D: Device<Format = F>>(
        &mut self,
        memory: &Memory<D::Memory>,
        movable: Movable<'_>,
        announced: Announced<'_, D>,
        compound: bool,
    ) -> Result<AttemptResult> {
        let mut joined = JoinedMirrors::new();
        let place = BorrowedBuffers {
            slot: &mut self.slot,
            joined: &mut joined,
            pages: self.pages.get_mut(self.first..).ok_or(EINVAL)?,
        };
        let mut in_flight = None;
        match submit(memory, movable, announced, compound, place, &mut in_flight)? {
            Submitted::Restored => Ok(AttemptResult::NoHuge),
            Submitted::InFlight => {
                let lost = finish(&mut in_flight, &mut self.entries)?;
                Ok(AttemptResult::Done { lost })
            }
        }
    }
}

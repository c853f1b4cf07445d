// SPDX-License-Identifier: GPL-2.0

//! Memory connections: how a device accesses the memory of another one, and direct migration
//! between devices. A driver requests the latter by [`Mirror::pull`].
//!
//! Both drivers report what their hardware supports. The library uses the lesser of the two
//! answers, so that both ends of a connection agree.

use crate::{
    debug::{
        stats::Counter,
        timing::Stopwatch, //
    },
    kernel::identity::{
        MemoryId,
        MigrationId, //
    },
    memory::{
        pipeline::{
            Migration,
            MigrationOps, //
        },
        Arrival,
        CopyContext,
        Memory,
        StepGuard, //
    },
    mirror::{
        Announced,
        Attempt,
        CommitResult,
        Device,
        InstallFilter,
        Mirror,
        Outcome,
        StepReaders, //
    },
    mm::{
        addr::{
            PageRange,
            PMD_PAGES, //
        },
        migrate::{
            Batch,
            Isolated,
            MigrationReader,
            Moved,
            PageClass, //
        },
        page_set::PageSet,
        range_fault::AddressSpace,
        vma::{
            MmapGuard,
            Vma, //
        }, //
    },
    pgtable::Prealloc,
    space::{
        Destination,
        EventMatch,
        JoinedMirrors,
        MigrationDesc, //
    }, //
};
use kernel::{
    mm::virt::flags,
    prelude::*, //
};

mod tiles;

pub use crate::memory::Connection;

/// Buffers that the steps of a pull reuse, and its outcome.
struct PullBuffers<'m, D: Device> {
    batch: Batch,
    copies: CopyContext,
    prealloc: Prealloc<D::Format>,
    outcome: &'m mut Outcome,
}

/// Result of an attempt that did not fail.
enum PullResult {
    Done,
    /// No huge page could be allocated. No page has moved.
    NoHuge,
}

/// Finds the first contiguous pages of `piece` that are in device memory `tile`, within the first
/// VMA of `piece`. Returns the end of the walk, and the pages if any were found. `piece` must lie
/// within a block.
///
/// # Errors
///
/// - `EINVAL` if there is no VMA at the start of `piece`, or if the VMA is not readable, special or
///   hugetlb.
///
/// # Context
///
/// May sleep.
pub(crate) fn first_of_tile(
    mmap: &MmapGuard<'_>,
    piece: PageRange,
    tile: MemoryId,
) -> Result<(usize, Option<PageRange>)> {
    let vma = mmap
        .vma_lookup(piece.start())
        .filter(|vma| vma.flags() & flags::READ != 0)
        .ok_or(EINVAL)?;
    let piece = PageRange::new(piece.start(), piece.end().min(vma.end()))?;
    let mut rest = Some(piece);
    while let Some(left) = rest {
        let (kind, part) = vma.uniform_prefix(left, tile)?;
        if kind == PageClass::Device {
            return Ok((part.end(), Some(part)));
        }
        rest = left.from_address(part.end());
    }
    Ok((piece.end(), None))
}

impl<D: Device> Mirror<D> {
    /// Returns the connection between the memory of `other`'s device and that of this one. It is
    /// the same in both directions, and does not change as long as both devices exist, unless a
    /// driver calls [`Memory::invalidate_connections`]. Mirrors of different address spaces have no
    /// connection.
    ///
    /// # Context
    ///
    /// May sleep. The first call queries the drivers, see [`MemoryOps::connection`].
    ///
    /// [`MemoryOps::connection`]: crate::memory::MemoryOps::connection
    pub fn connection(&self, other: &Self) -> Connection {
        if self.mm_id() != other.mm_id() {
            return Connection::None;
        }
        match (self.device().memory(), other.device().memory()) {
            (Some(mine), Some(theirs)) => mine.connection(theirs),
            _ => Connection::None,
        }
    }

    /// Migrates pages of `range` from `theirs` to the memory of this device, copied by the engine
    /// of `theirs`. With `evict`, other pages of this device may be evicted to make room.
    ///
    /// # Errors
    ///
    /// Those of [`Self::pull`].
    ///
    /// # Context
    ///
    /// May sleep; no lock may be held.
    pub(crate) fn pull_directly(
        &self,
        range: PageRange,
        theirs: &Memory<D::Memory>,
        evict: bool,
        outcome: &mut Outcome,
    ) -> Result {
        let mine = self.device().memory().ok_or(ENODEV)?;
        let space = self.space()?;
        let mut buffers = PullBuffers {
            batch: Batch::with_capacity(range.pages().min(PMD_PAGES))?,
            copies: CopyContext::new(true)?,
            prealloc: self.prealloc(),
            outcome,
        };
        // Pages that this call has migrated are not evicted to make room for more of them.
        let before = mine.turn();
        let tile = theirs.tile();
        let mut rest = Some(range);
        while let Some(left) = rest {
            let piece = left.pmd_pieces().next().ok_or(EINVAL)?;
            let (end, run) = first_of_tile(&space.mmap_lock_here()?, piece, tile)?;
            let Some(run) = run else {
                rest = left.from_address(end);
                continue;
            };
            // Before any lock is taken. Pages that cannot be allocated later are counted in the
            // outcome.
            match mine.add_chunks(run.pages()) {
                Err(error) if error != ENOMEM => return Err(error),
                _ => {}
            }
            if evict {
                match mine.make_room(run.pages(), before) {
                    Err(error) if error != ENOMEM => return Err(error),
                    _ => {}
                }
            }
            let (mut end, attempt) = self.pull_run(&space, &mut buffers, run, theirs, true)?;
            if let PullResult::NoHuge = attempt {
                (end, _) = self.pull_run(&space, &mut buffers, run, theirs, false)?;
            }
            rest = left.from_address(end);
        }
        self.stats()
            .add(Counter::ToDevice, buffers.outcome.moved as u64);
        self.stats()
            .add(Counter::Switched, buffers.outcome.switched as u64);
        Ok(())
    }

    /// Attempts to migrate the first contiguous pages of `run` that are still on the source device.
    /// Only these are announced. Returns their end.
    fn pull_run(
        &self,
        space: &AddressSpace,
        buffers: &mut PullBuffers<'_, D>,
        run: PageRange,
        theirs: &Memory<D::Memory>,
        compound: bool,
    ) -> Result<(usize, PullResult)> {
        buffers.prealloc.refill()?;
        let mut lost = false;
        let start = run.start();
        let (end, pulled) = self.announce_with_retries(space, start, true, |mmap, ticket| {
            let (end, part) = first_of_tile(&mmap, run, theirs.tile())?;
            let Some(part) = part else {
                return Ok(Attempt::Done((end, None)));
            };
            let request = MigrationDesc {
                // Unique while the step runs: no other object has this address.
                name: MigrationId::of(&buffers.batch),
                // The kernel isolates only device pages with the same owner.
                identity: EventMatch::current(theirs.owner()),
                range: part,
                faultless: true,
                destination: Destination::Any,
            };
            let Some(ticket) = ticket else {
                return Ok(Attempt::Again);
            };
            // The result of the walk is valid as long as the mmap lock is held.
            let Some(announced) = ticket.announce(self, request)? else {
                return Ok(Attempt::Again);
            };
            let vma = mmap.vma_lookup(part.start()).ok_or(EINVAL)?;
            let result = self.pull_announced(buffers, vma, announced, theirs, compound, &mut lost);
            Ok(Attempt::Done((part.end(), Some((part, result)))))
        })?;
        let Some((part, result)) = pulled else {
            return Ok((end, PullResult::Done));
        };
        if lost {
            // A foreign event has removed marks. Install device PTEs for the present pages.
            self.inner().try_install_present(
                space,
                part,
                InstallFilter::All,
                &mut buffers.prealloc,
            )?;
        }
        result.map(|attempt| (end, attempt))
    }

    /// Migrates the announced pages from `theirs`. Sets `lost` if this device has lost PTEs of
    /// pages that moved.
    // Not inlined: needs a stack frame of its own.
    #[inline(never)]
    fn pull_announced(
        &self,
        buffers: &mut PullBuffers<'_, D>,
        vma: Vma<'_>,
        announced: Announced<'_, D>,
        theirs: &Memory<D::Memory>,
        compound: bool,
        lost: &mut bool,
    ) -> Result<PullResult> {
        let PullBuffers {
            batch,
            copies,
            prealloc,
            outcome,
        } = buffers;
        let mine = self.device().memory().ok_or(ENODEV)?;
        let piece = announced.range();
        let whole = compound && piece.is_pmd() && theirs.is_private() && mine.is_private();
        let mut joined = JoinedMirrors::new();
        let migration = Migration {
            copier: theirs.copier_to(mine),
            copies,
            readers: announced.join(&mut joined),
            ops: PullMigration {
                arrival: mine.arrive()?,
                _departure: theirs.depart(),
                memory: mine,
                writable: vma.flags() & flags::WRITE != 0,
                prealloc,
                outcome,
                lost: false,
                result: Ok(()),
            },
            stopwatch: Stopwatch::start(),
        };
        let origin = theirs.origin();
        let pull = migration.run(|| Isolated::new(vma, piece, origin, whole, None, batch))?;
        let Some(pull) = pull else {
            return Ok(PullResult::NoHuge);
        };
        *lost = pull.lost;
        pull.result.map(|()| PullResult::Done)
    }
}

/// Operations of a step of a pull, and its results.
struct PullMigration<'a, D: Device> {
    arrival: Arrival<'a>,
    _departure: StepGuard<'a>,
    /// Memory of the destinations.
    memory: &'a Memory<D::Memory>,
    writable: bool,
    prealloc: &'a mut Prealloc<D::Format>,
    outcome: &'a mut Outcome,
    /// Whether the device has lost PTEs of pages that moved.
    lost: bool,
    result: Result,
}

impl<'m, 'p, D: Device> MigrationOps<StepReaders<'m, 'p, D>> for PullMigration<'_, D> {
    fn fill(&mut self, isolated: &mut Isolated<'_, StepReaders<'m, 'p, D>>) -> bool {
        let mut short = 0;
        let arrival = &self.arrival;
        let no_huge = self
            .memory
            .fill(isolated, arrival, false, |entry| short += entry.pages);
        if !no_huge {
            self.outcome.no_memory += short;
        }
        !no_huge
    }

    fn arrival(&self) -> Option<&Arrival<'_>> {
        Some(&self.arrival)
    }

    fn copied(&mut self, isolated: &Isolated<'_, StepReaders<'m, 'p, D>>, failed: &PageSet) {
        for entry in isolated.entries().filter(|entry| failed.has(entry.index)) {
            self.outcome.copy_failed += entry.pages;
        }
    }

    fn moved(&mut self, moved: &Moved<'_>) {
        for entry in moved.entries() {
            self.outcome.moved += entry.pages;
            self.outcome.entries += 1;
        }
    }

    fn switch(
        &mut self,
        readers: StepReaders<'m, 'p, D>,
        moved: &Moved<'_>,
    ) -> <StepReaders<'m, 'p, D> as MigrationReader>::Done {
        let Self {
            memory,
            writable,
            prealloc,
            outcome,
            lost,
            result,
            ..
        } = self;
        let each = |_, what| match what {
            CommitResult::Yes { was_valid } => outcome.switched += usize::from(was_valid),
            CommitResult::Lost => *lost = true,
            CommitResult::NoEntry | CommitResult::Stays { .. } => {}
        };
        readers.switch(moved, |announced| {
            let settled;
            (settled, *result) =
                announced.switch_to_device(moved, memory.numbers(), *writable, prealloc, each);
            settled
        })
    }
}

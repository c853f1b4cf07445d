// SPDX-License-Identifier: GPL-2.0

//! Preparation of overlapping steps before the mmap lock is taken, and their completion after it
//! was released.
//!
//! Reading a notifier sequence waits for invalidations, which may wait for the mmap lock. Therefore
//! the sequences of several blocks are read in advance. A block whose sequence has changed by the
//! time of its announcement is migrated later, without overlap.

use super::{
    attempt::BlockBuffers,
    step::MigrateStep,
    PageOutcome,
    Target, //
};
use crate::{
    debug::timing::{
        Phase,
        Stopwatch, //
    },
    kernel::cancel::CancelToken,
    memory::Memory,
    mirror::{
        AnnounceTries,
        Device,
        InstallFilter,
        Mirror, //
    },
    mm::{
        addr::{
            PageRange,
            PMD_PAGES, //
        },
        notifier::Seq,
        range_fault::AddressSpace, //
    },
    pgtable::Format,
    space::{
        JoinedMirrors,
        WindowUser, //
    }, //
};
use kernel::prelude::*;

/// Maximum number of blocks whose sequences are read before the mmap lock is taken.
const MAX_BLOCKS_AHEAD: usize = 8;

/// Outcomes of the pages of a block.
pub(super) type BlockOutcomes = KBox<[PageOutcome; PMD_PAGES]>;

/// A block that has pages which did not migrate.
#[derive(Clone, Copy)]
pub(super) struct PartialBlock {
    pub(super) range: PageRange,
    /// Whether the device lost entries of pages that moved.
    pub(super) lost: bool,
}

/// A block whose sequence was read.
pub(super) struct SequencedBlock {
    pub(super) range: PageRange,
    pub(super) window: WindowUser,
    pub(super) seq: Seq,
}

impl SequencedBlock {
    /// Prepares `range`, which lies in one block.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if its pages are in the memory of the device already, or may not be migrated
    ///   there.
    /// - The errors of a step without overlap.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    fn new<D: Device>(mirror: &Mirror<D>, space: &AddressSpace, range: PageRange) -> Result<Self> {
        mirror.check_reach(space, range)?;
        if mirror.movable(space, range)? != (range, true) || mirror.has_device_entry(range.start())
        {
            return Err(EBUSY);
        }
        // Best effort, as for a step without overlap.
        let _ = mirror.inner().prepare(range);
        let mut stopwatch = Stopwatch::start();
        let window = mirror.window(space, range.start())?;
        let seq = AnnounceTries::new().next(mirror, &window)?;
        stopwatch.end(Phase::Wait);
        Ok(Self { range, window, seq })
    }
}

/// Memory of one call for the blocks after the first one.
pub(super) struct AheadBuffers<F: Format> {
    pub(super) slot: BlockBuffers<F>,
    /// For the first block, and alternately for the following ones.
    pub(super) joined: [JoinedMirrors; 2],
    /// Outcomes of blocks, used alternately.
    pub(super) pages: [BlockOutcomes; 2],
    /// Prepared blocks, in descending order of addresses.
    pub(super) ahead: KVec<SequencedBlock>,
    /// An additional use of the window of each block, held while the mmap lock is held.
    ///
    /// Without it, a worker could remove a window between the end of a step's use and the drop of
    /// its reference. That drop would then be the last one, and would wait for all invalidations of
    /// the address space.
    windows: KVec<WindowUser>,
    /// End of the last block that was isolated here.
    pub(super) end: Option<usize>,
    /// Blocks in `pages` that have pages which did not migrate.
    pub(super) left: [Option<PartialBlock>; 2],
}

impl<F: Format> AheadBuffers<F> {
    /// Allocates the buffers.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    // Not inlined, to keep the caller's stack frame small. Initialised in place, because it is
    // large.
    #[inline(never)]
    pub(super) fn new<D: Device<Format = F>>(
        mirror: &Mirror<D>,
        stop: Option<CancelToken>,
    ) -> Result<KBox<Self>> {
        let pages = || KBox::new([PageOutcome::None; PMD_PAGES], GFP_KERNEL);
        let buffers = try_init!(Self {
            slot <- BlockBuffers::new(PMD_PAGES, mirror.prealloc(), stop),
            joined: [JoinedMirrors::new(), JoinedMirrors::new()],
            pages: [pages()?, pages()?],
            ahead: KVec::with_capacity(MAX_BLOCKS_AHEAD, GFP_KERNEL)?,
            windows: KVec::with_capacity(1 + MAX_BLOCKS_AHEAD, GFP_KERNEL)?,
            end: None,
            left: [None; 2],
        }? Error);
        KBox::init(buffers, GFP_KERNEL)
    }

    /// Prepares the block at `first` and the first blocks of `rest`, which follow it. Best effort.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    pub(super) fn look_ahead<D: Device<Format = F>>(
        &mut self,
        mirror: &Mirror<D>,
        space: &AddressSpace,
        first: usize,
        rest: PageRange,
    ) {
        self.release();
        self.end = None;
        self.left = [None; 2];
        // After an error, or if the buffers are full, fewer blocks overlap.
        let _ = self.try_look_ahead(mirror, space, first, rest);
        // Blocks are popped from the end.
        self.ahead.reverse();
    }

    fn try_look_ahead<D: Device<Format = F>>(
        &mut self,
        mirror: &Mirror<D>,
        space: &AddressSpace,
        first: usize,
        rest: PageRange,
    ) -> Result {
        let window = mirror.window(space, first)?;
        self.windows.push_within_capacity(window)?;
        for range in rest.pmd_pieces().take(MAX_BLOCKS_AHEAD) {
            let ahead = SequencedBlock::new(mirror, space, range)?;
            let window = mirror.window(space, range.start())?;
            self.windows.push_within_capacity(window)?;
            self.ahead.push_within_capacity(ahead)?;
        }
        Ok(())
    }

    /// Ends the use of all windows.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    fn release(&mut self) {
        self.ahead.clear();
        self.windows.clear();
    }
}

impl<D: Device> MigrateStep<'_, D> {
    /// Prepares the blocks of `range` after the first one for overlap, if copies are asynchronous.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    #[inline(never)]
    pub(super) fn arm(&mut self, range: PageRange) {
        self.armed = false;
        let first = range.pmd_pieces().next();
        let Some(rest) = first.and_then(|piece| range.from_address(piece.end())) else {
            return;
        };
        let memory = self.mirror.device().memory();
        if self.target == Target::System || !memory.is_some_and(Memory::is_asynchronous) {
            return;
        }
        // A block that is in device memory already has no copies to overlap with.
        let blocks = [range.start(), rest.start()];
        if blocks.map(|start| self.mirror.has_device_entry(start)) != [false; 2] {
            return;
        }
        if self.ahead_buffers.is_none() {
            self.ahead_buffers = AheadBuffers::new(self.mirror, self.stop.clone()).ok();
        }
        if let Some(buffers) = &mut self.ahead_buffers {
            buffers.look_ahead(self.mirror, &self.space, range.start(), rest);
            self.armed = true;
        }
    }

    /// Retries, without overlap, the overlapping blocks that have pages which did not migrate, and
    /// counts their outcomes. If `result` is an error, the blocks are not retried.
    ///
    /// Returns the end of the last overlapping block, if any, and the first error.
    #[inline(never)]
    pub(super) fn finish_left(&mut self, mut result: Result) -> (Option<usize>, Result) {
        let end = self.ahead_buffers.as_mut().and_then(|buffers| {
            buffers.release();
            buffers.end
        });
        if end.is_none() {
            return (None, result);
        }
        while let Some(PartialBlock { range, lost }) = self.take_left() {
            if lost && result.is_ok() {
                result = self.install(range, InstallFilter::All);
            }
            let mut rest = Some(range);
            while let Some(left) = rest {
                let mut done = left.start();
                if result.is_ok() {
                    (done, result) = self.run_again(left);
                }
                // Pages that the retry has not reached keep their first outcome.
                let all = done == left.start() || result.is_err();
                let end = if all { left.end() } else { done };
                self.add_outcomes(left.start(), end);
                rest = left.from_address(end);
                let index = left.index_of(end).unwrap_or(PMD_PAGES);
                self.work.pages.copy_within(index.., 0);
            }
        }
        (end, result)
    }

    /// Takes a block that has pages which did not migrate. Its outcomes become those of the step.
    fn take_left(&mut self) -> Option<PartialBlock> {
        let buffers = self.ahead_buffers.as_deref_mut()?;
        let mut each = buffers.left.iter_mut().zip(&mut buffers.pages);
        let (left, outcomes) = each.find(|(left, _)| left.is_some())?;
        core::mem::swap(&mut **outcomes, &mut self.work.pages);
        left.take()
    }
}

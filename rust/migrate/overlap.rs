// SPDX-License-Identifier: GPL-2.0

//! Overlapping steps: while one block is copied, the next one is announced and isolated.
//!
//! `Documentation/overlap.rst` lists the operations that must not block meanwhile, with the
//! reasons.
//! In short: nothing here waits for an invalidation, a folio lock or the mmap lock, and nothing is
//! evicted.

use super::{
    ahead::{
        AheadBuffers,
        BlockOutcomes,
        PartialBlock,
        SequencedBlock, //
    },
    attempt::{
        finish,
        submit,
        AttemptResult,
        BlockBuffers,
        BlockInFlight,
        BorrowedBuffers, //
    },
    overlaps::{
        self,
        Overlap, //
    },
    survey::{
        Movable,
        Surveyor, //
    },
    OutcomeTally,
    PageOutcome, //
};
use crate::{
    kernel::{
        cancel::CancelToken,
        identity::MigrationId, //
    },
    memory::{
        pipeline::Submitted,
        Memory, //
    },
    mirror::{
        AnnounceTries,
        Announced,
        Device,
        Mirror, //
    },
    mm::{
        addr::PageRange,
        vma::{
            fatal_signal_pending,
            MmapGuard, //
        }, //
    },
    space::{
        Destination,
        EventMatch,
        JoinedMirrors,
        MigrationDesc, //
    }, //
};
use kernel::prelude::*;

/// A block in flight. Boxed, because it is too large to be moved on the stack.
type BoxedInFlight<'a, 'm, D> = KBox<Option<BlockInFlight<'a, 'm, D>>>;

/// A block in flight that overlaps with the previous one, and its range.
type OverlappingBlock<'a, 'm, D> = (BoxedInFlight<'a, 'm, D>, PageRange);

/// The result of a block, and its range.
type FinishedBlock = (Result<bool>, PageRange);

/// The blocks that overlap within one hold of the mmap lock.
pub(super) struct BlockChain<'c, 'm, D: Device> {
    pub(super) mirror: &'m Mirror<D>,
    pub(super) memory: &'c Memory<D::Memory>,
    pub(super) mmap: &'c MmapGuard<'c>,
    pub(super) surveyor: Surveyor,
    pub(super) destination: Destination,
    pub(super) faultless: bool,
    pub(super) stop: Option<&'c CancelToken>,
    pub(super) entries: &'c mut usize,
    pub(super) tally: &'c mut OutcomeTally<'m>,
}

impl<'c, 'm, D: Device> BlockChain<'c, 'm, D> {
    /// Migrates the first block, and the blocks prepared in `buffers` that can overlap. Returns the
    /// result of the first block, or the first error of any block.
    #[inline(never)]
    pub(super) fn run(
        mut self,
        first: (Movable<'c>, Announced<'m, D>, bool),
        one: &mut BlockBuffers<D::Format>,
        pages: &mut [PageOutcome],
        buffers: &mut AheadBuffers<D::Format>,
    ) -> Result<AttemptResult> {
        let (movable, announced, compound) = first;
        let AheadBuffers {
            slot: two,
            joined: [joined_one, joined_two],
            pages: [even, odd],
            ahead,
            end,
            left: [left_even, left_odd],
            ..
        } = buffers;
        let place = BorrowedBuffers {
            slot: &mut *one,
            joined: &mut *joined_one,
            pages,
        };
        let mut block = KBox::new(None, GFP_KERNEL)?;
        match submit(self.memory, movable, announced, compound, place, &mut block)? {
            Submitted::InFlight => {}
            Submitted::Restored => return Ok(AttemptResult::NoHuge),
        }
        let slot = (&mut *two, &mut *joined_two);
        let mut next = self.next(&mut block, ahead, end, slot, even);
        let result = finish(&mut block, self.entries);
        drop(block);
        if result.is_err() {
            ahead.clear();
        }
        let mut failed = Ok(());
        loop {
            let slot = (&mut *one, &mut *joined_one);
            let Some((finished, after)) = self.advance(next, ahead, end, slot, odd) else {
                break;
            };
            self.record_result(finished, even, left_even, ahead, &mut failed);
            let slot = (&mut *two, &mut *joined_two);
            let Some((finished, then)) = self.advance(after, ahead, end, slot, even) else {
                break;
            };
            self.record_result(finished, odd, left_odd, ahead, &mut failed);
            next = then;
        }
        let lost = result?;
        failed.map(|()| AttemptResult::Done { lost })
    }

    /// Starts the next block, if there is one that can overlap, and finishes `block`. Returns the
    /// result of `block`, and the next block.
    #[inline(never)]
    fn advance<'a>(
        &mut self,
        block: Option<OverlappingBlock<'_, 'm, D>>,
        ahead: &mut KVec<SequencedBlock>,
        end: &mut Option<usize>,
        slot: (&'a mut BlockBuffers<D::Format>, &'a mut JoinedMirrors),
        pages: &'a mut BlockOutcomes,
    ) -> Option<(FinishedBlock, Option<OverlappingBlock<'a, 'm, D>>)>
    where
        'c: 'a,
    {
        let (mut block, range) = block?;
        let next = self.next(&mut block, ahead, end, slot, pages);
        Some(((finish(&mut block, self.entries), range), next))
    }

    /// Records the result of a block. After an error, or if pages did not migrate, no other block
    /// overlaps.
    fn record_result(
        &mut self,
        (result, range): FinishedBlock,
        pages: &BlockOutcomes,
        left: &mut Option<PartialBlock>,
        ahead: &mut KVec<SequencedBlock>,
        failed: &mut Result,
    ) {
        let outcomes = pages.get(..range.pages()).unwrap_or_default();
        let explained = |page: &PageOutcome| page.has_moved() || *page == PageOutcome::CopyFailed;
        match result {
            Ok(false) if outcomes.iter().all(explained) => {
                self.tally.add(range, outcomes);
                return;
            }
            Ok(lost) => *left = Some(PartialBlock { range, lost }),
            Err(error) => {
                self.tally.add(range, outcomes);
                *failed = failed.and(Err(error));
            }
        }
        ahead.clear();
    }

    /// Takes the next block of `ahead`. If it can overlap with `previous`, announces and isolates
    /// it, submits its copies, and sets `end` to its end. Otherwise the block starts again later
    /// without overlap, and no other block overlaps.
    #[inline(never)]
    fn next<'a>(
        &mut self,
        previous: &mut Option<BlockInFlight<'_, 'm, D>>,
        ahead: &mut KVec<SequencedBlock>,
        end: &mut Option<usize>,
        slot: (&'a mut BlockBuffers<D::Format>, &'a mut JoinedMirrors),
        pages: &'a mut BlockOutcomes,
    ) -> Option<OverlappingBlock<'a, 'm, D>>
    where
        'c: 'a,
    {
        let previous = previous.as_mut()?;
        let next = ahead.pop()?;
        let range = next.range;
        previous.pause();
        let result = self.overlap(previous, next, slot, pages);
        previous.resume();
        overlaps::count(
            result
                .as_ref()
                .map_or_else(|why| *why, |_| Overlap::Isolated),
        );
        let block = result.ok()?;
        *end = Some(range.end());
        Some((block, range))
    }

    /// Puts the block `next` in flight while `previous` is, or returns the reason why it cannot
    /// overlap.
    #[inline(never)]
    fn overlap<'a>(
        &mut self,
        previous: &BlockInFlight<'_, 'm, D>,
        next: SequencedBlock,
        (slot, joined): (&'a mut BlockBuffers<D::Format>, &'a mut JoinedMirrors),
        pages: &'a mut BlockOutcomes,
    ) -> Result<BoxedInFlight<'a, 'm, D>, Overlap>
    where
        'c: 'a,
    {
        let SequencedBlock { range, window, seq } = next;
        if self.stop.is_some_and(CancelToken::is_set) || fatal_signal_pending() {
            return Err(Overlap::Stopped);
        }
        if !previous.is_outstanding() {
            return Err(Overlap::Copied);
        }
        // A waiter for the write lock waits for two blocks at most.
        if self.mmap.is_contended() {
            return Err(Overlap::Contended);
        }
        let failed = |_| Overlap::Failed;
        slot.prealloc.refill().map_err(failed)?;
        let mut block = KBox::new(None, GFP_KERNEL).map_err(|_| Overlap::Failed)?;
        let mut tries = AnnounceTries::new();
        pages.fill(PageOutcome::None);
        let survey = self.surveyor.survey(self.mmap, range, &mut pages[..]);
        let (survey, movable) = survey.map_err(|_| Overlap::Pages)?;
        let movable = movable.filter(|_| survey.found == Some(range));
        let movable = movable.ok_or(Overlap::Pages)?;
        // Huge pages of coherent memory are split, which takes folio locks.
        let compound = self.memory.is_private();
        if movable.vma().start() != previous.ops().vma().start()
            || movable.may_wait_for_folios(compound)
        {
            return Err(Overlap::Pages);
        }
        if !self.memory.has_room(range.pages()) {
            return Err(Overlap::Room);
        }
        let request = MigrationDesc {
            // Unique: this address is not reused while the block is in flight.
            name: MigrationId::of(&**pages),
            identity: EventMatch::Name,
            range,
            faultless: self.faultless,
            destination: self.destination,
        };
        // Compares the sequence, and does not wait if an invalidation has changed it: that
        // invalidation may wait for `previous`.
        let announced = self.mirror.announce(window, seq, &mut tries, request);
        let announced = announced.map_err(failed)?.map_err(|_| Overlap::Changed)?;
        let place = BorrowedBuffers {
            slot,
            joined,
            pages: &mut pages[..],
        };
        match submit(self.memory, movable, announced, true, place, &mut block) {
            Ok(Submitted::InFlight) => Ok(block),
            Ok(Submitted::Restored) | Err(_) => Err(Overlap::Failed),
        }
    }
}

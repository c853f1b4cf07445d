// SPDX-License-Identifier: GPL-2.0

//! Steps that overlap: while one block is copied, the next one is announced and isolated.
//!
//! `Documentation/engine-design.rst`, "Overlapping steps", lists what may not block meanwhile, and
//! why. In short: nothing here waits for an invalidation, a folio lock or the mmap lock, and nothing
//! is evicted.

use super::{
    survey::{Movable, Surveyor},
    work::{finish, submit, InFlight, Slot, Submitted},
    PageOutcome,
    Tally, //
};
use crate::{
    memory::Memory,
    mirror::{Announced, Device, Mirror, Tries},
    mm::{
        addr::{PageRange, PMD_PAGES},
        notifier::{Cookie, Seq},
        range_fault::AddressSpace,
        space::{fatal_signal_pending, MmapGuard},
    },
    pgtable::Spares,
    queue::Stop,
    space::{Destination, Identity, Request, WindowUser},
};
use kernel::prelude::*;

/// Blocks whose sequences are read before the mmap lock is taken.
const AHEAD: usize = 8;

/// Outcomes of the pages of a block.
pub(super) type Pages = KBox<[PageOutcome; PMD_PAGES]>;

/// A block whose sequence was read.
struct Ahead {
    range: PageRange,
    window: WindowUser,
    seq: Seq,
    tries: Tries,
}

/// Room for the blocks after the first one, of one call.
pub(super) struct Overlap {
    slot: Slot,
    /// Outcomes of blocks, in turn.
    pages: [Pages; 2],
    /// Of rising addresses.
    ahead: KVec<Ahead>,
    /// End of the last block that was begun here.
    end: usize,
    /// Blocks in `pages` that have pages left behind.
    left: [Option<PageRange>; 2],
}

impl Overlap {
    /// Allocates the room. `ENOMEM`.
    pub(super) fn new(stop: Option<Stop>) -> Result<Self> {
        let pages = || KBox::new([PageOutcome::None; PMD_PAGES], GFP_KERNEL);
        let mut slot = Slot::new(PMD_PAGES)?;
        slot.copies.until(stop);
        Ok(Self {
            slot,
            pages: [pages()?, pages()?],
            ahead: KVec::with_capacity(AHEAD, GFP_KERNEL)?,
            end: 0,
            left: [None; 2],
        })
    }

    /// Prepares the blocks of `rest` that may follow. Best effort. Context: may sleep; no lock may be
    /// held.
    pub(super) fn look_ahead<D: Device>(
        &mut self,
        mirror: &Mirror<D>,
        space: &AddressSpace,
        rest: PageRange,
    ) {
        self.ahead.clear();
        self.end = 0;
        self.left = [None; 2];
        for range in rest.pmd_pieces().take(AHEAD) {
            let Ok(ahead) = Ahead::new(mirror, space, range) else {
                break;
            };
            if self.ahead.push_within_capacity(ahead).is_err() {
                break;
            }
        }
        // Taken from the end.
        self.ahead.reverse();
    }

    /// End of the last block that was begun here, if any.
    pub(super) fn end(&self) -> Option<usize> {
        (self.end != 0).then_some(self.end)
    }

    /// Takes a block with pages left behind. Puts its outcomes to `pages`.
    pub(super) fn take_left(&mut self, pages: &mut Pages) -> Option<PageRange> {
        let starts = self
            .left
            .map(|left| left.map_or(usize::MAX, |left| left.start()));
        let index = usize::from(starts[1] < starts[0]);
        let range = self.left.get_mut(index)?.take()?;
        core::mem::swap(self.pages.get_mut(index)?, pages);
        Some(range)
    }
}

impl Ahead {
    fn new<D: Device>(mirror: &Mirror<D>, space: &AddressSpace, range: PageRange) -> Result<Self> {
        mirror.check_reach(space, range)?;
        if mirror.movable(space, range)? != (range, true) || mirror.has_device_entry(range.start())
        {
            return Err(EBUSY);
        }
        // As for a block that does not overlap.
        let _ = mirror.inner().prepare(range);
        let window = mirror.window(space, range.start())?;
        let mut tries = Tries::new();
        Ok(Self {
            range,
            seq: tries.next(mirror, &window)?,
            window,
            tries,
        })
    }
}

/// A hold of the mmap lock in which blocks overlap.
pub(super) struct Chain<'c, 'm, D: Device> {
    pub(super) mirror: &'m Mirror<D>,
    pub(super) memory: &'c Memory<D::Memory>,
    pub(super) mmap: &'c MmapGuard<'c>,
    pub(super) surveyor: Surveyor,
    pub(super) destination: Destination,
    pub(super) faultless: bool,
    pub(super) stop: Option<&'c Stop>,
    pub(super) spares: &'c mut Spares<D::Format>,
    pub(super) entries: &'c mut usize,
    /// Blocks that are done.
    pub(super) tally: &'c mut Tally<'m>,
}

impl<'c, 'm, D: Device> Chain<'c, 'm, D> {
    /// Migrates `movable`, the first block, and those that can follow. Returns how that of the first
    /// one ended, or the first error of any.
    #[inline(never)]
    pub(super) fn run(
        mut self,
        first: (Movable<'c>, Announced<'m, D>, Request, bool),
        one: &mut Slot,
        pages: &mut [PageOutcome],
        overlap: &mut Overlap,
    ) -> Result<Submitted<bool>> {
        let (movable, announced, request, compound) = first;
        let Overlap {
            slot: two,
            pages: [even, odd],
            ahead,
            end,
            left: [left_even, left_odd],
        } = overlap;
        let begun = self.submit(movable, announced, request, compound, one, pages)?;
        let Submitted::InFlight(block) = begun else {
            return Ok(Submitted::NoHuge);
        };
        let mut next = self.next(&block, ahead, end, two, even);
        let result = finish(block, self.spares, self.entries);
        let mut failed = Ok(());
        loop {
            let Some((block, range)) = next else { break };
            let after = self.next(&block, ahead, end, one, odd);
            let finished = finish(block, self.spares, self.entries);
            self.note(finished, range, even, left_even, ahead, &mut failed);
            let Some((block, range)) = after else { break };
            next = self.next(&block, ahead, end, two, even);
            let finished = finish(block, self.spares, self.entries);
            self.note(finished, range, odd, left_odd, ahead, &mut failed);
        }
        let lost = result?;
        failed.map(|()| Submitted::InFlight(lost))
    }

    /// Notes how a block ended. After an error, or with pages left behind, no other block follows.
    fn note(
        &mut self,
        result: Result<bool>,
        range: PageRange,
        pages: &Pages,
        left: &mut Option<PageRange>,
        ahead: &mut KVec<Ahead>,
        failed: &mut Result,
    ) {
        let outcomes = pages.get(..range.pages()).unwrap_or_default();
        let complete = outcomes
            .iter()
            .all(|page| page.has_moved() || *page == PageOutcome::CopyFailed);
        match result {
            Ok(false) if complete => self.tally.add(range, outcomes),
            Ok(_) => {
                *left = Some(range);
                ahead.clear();
            }
            Err(error) => {
                self.tally.add(range, outcomes);
                ahead.clear();
                if failed.is_ok() {
                    *failed = Err(error);
                }
            }
        }
    }

    fn submit<'a>(
        &self,
        movable: Movable<'a>,
        announced: Announced<'m, D>,
        request: Request,
        compound: bool,
        slot: &'a mut Slot,
        pages: &'a mut [PageOutcome],
    ) -> Result<Submitted<InFlight<'a, 'm, D>>>
    where
        'c: 'a,
    {
        let (mm, here) = (self.mirror.space_name(), self.mirror.place_in_space());
        let readers = slot.joined.join(mm, request, here);
        let room = (&mut slot.batch, &mut slot.copies, pages);
        submit(self.memory, movable, announced, readers, compound, room)
    }

    /// Announces and isolates the next block, and submits its copies, if it can overlap with
    /// `previous`. Sets `end` to its end. What has failed is tried again without overlap.
    fn next<'a>(
        &mut self,
        previous: &InFlight<'_, 'm, D>,
        ahead: &mut KVec<Ahead>,
        end: &mut usize,
        slot: &'a mut Slot,
        pages: &'a mut Pages,
    ) -> Option<(InFlight<'a, 'm, D>, PageRange)>
    where
        'c: 'a,
    {
        let Ahead {
            range,
            window,
            seq,
            mut tries,
        } = ahead.pop()?;
        let stopped = self.stop.is_some_and(Stop::is_set) || fatal_signal_pending();
        if stopped || !previous.is_outstanding() || self.mmap.is_contended() {
            return None;
        }
        self.spares.refill().ok()?;
        pages.fill(PageOutcome::None);
        let (survey, movable) = self.surveyor.look(self.mmap, range, &mut pages[..]).ok()?;
        let movable = movable.filter(|_| survey.found == Some(range))?;
        let same = movable.vma().start() == previous.vma().start();
        let room = self.memory.has_room(range.pages());
        if !same || !room || movable.may_wait_for_folios() {
            return None;
        }
        let request = Request {
            // Nothing else has this address while the block is in flight.
            name: Cookie::of(&**pages),
            identity: Identity::Name,
            range,
            faultless: self.faultless,
            destination: self.destination,
        };
        // Compares the sequence; does not wait for the invalidation that has changed it.
        let announced = self
            .mirror
            .announce(window, seq, &mut tries, request)
            .ok()?
            .ok()?;
        let pages = pages.get_mut(..)?;
        match self
            .submit(movable, announced, request, true, slot, pages)
            .ok()?
        {
            Submitted::InFlight(block) => {
                *end = range.end();
                Some((block, range))
            }
            Submitted::NoHuge => None,
        }
    }
}

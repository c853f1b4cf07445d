// SPDX-License-Identifier: GPL-2.0

//! Memory that bounces.
//!
//! A page that the device wants again, although it was moved there not long ago, has left in
//! between: a CPU, another device or an eviction took it. If that happens a few times in a row its
//! block stays where it is for a while: the device maps it in place. So in
//! [`Parameters::thrash_pin`] ms the faults of a process on one device move a page at most
//! [`Parameters::thrash_count`] times, whoever else wants it, and everybody gets on: no thread
//! waits or spins for a page that is pinned so, since all can access it where it is. Before it
//! comes to that, the device that wants it again sleeps for [`Parameters::thrash_nap`] ms each
//! time, so that the others get something done with it.
//!
//! A page that has left and would move along with another one, because it lies in the region that a fault there brings,
//! counts in the same way; it stays behind where it would be one time too many. The bound needs
//! [`Parameters::thrash_lapse`] to be at least `thrash_pin`: what bounces more slowly does not count.
//!
//! The past of a block is kept for at least `thrash_lapse` after it has moved, whatever its address
//! is, and forgotten when the past of others is added after that. So the memory for it is bounded
//! by what moves in that time: about twice 128 bytes for each block of 2 MiB, and never less than
//! [`KEPT`] blocks. Where there is no memory for it, the block stays.
//!
//! When device memory is full, what was evicted and is wanted again does not come at the cost of other memory
//! that is in use as much: it stays at once.

use super::{block_start, density::Parameters, Mask};
use crate::mm::addr::{PageRange, PMD_PAGES, PMD_SIZE};
use core::ops::Range;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    rbtree::{RBTree, RBTreeNode}, //
};

/// Blocks whose past is kept for any time.
const KEPT: usize = 1024;

/// Pasts that are looked at, and forgotten if they are old, for each one that is added. More than
/// 1, so that old ones become fewer.
const STEPS: usize = 2;

/// What to do about a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing speaks against moving it.
    Move,
    /// It stays where it is.
    Stay,
    /// Others have it for so many ms more.
    Wait(u64),
}

/// The past of a block.
#[derive(Clone, Copy)]
struct Past {
    /// Pages that were moved to the device.
    moved: Mask,
    /// When the last one was.
    when: u64,
    /// Times that one was wanted again.
    bounces: u32,
    /// Whether the last time was a fault on the page itself, and nothing has moved because of it yet.
    is_counted: bool,
    /// It stays until then.
    pinned: u64,
    /// It is left to others until then.
    rests: u64,
}

const NONE: Past = Past {
    moved: Mask::EMPTY,
    when: 0,
    bounces: 0,
    is_counted: false,
    pinned: 0,
    rests: 0,
};

impl Past {
    /// After the time for which the block stays: another chance.
    fn begin_anew(&mut self) {
        *self = NONE;
    }

    /// Whether it changes what happens to the block from `now` on.
    fn matters(&self, now: u64, lapse: u64) -> bool {
        now < self.pinned.max(self.rests) || now.saturating_sub(self.when) <= lapse
    }

    /// The pages of `range` that were moved to the device and are not among `resident`.
    fn left(&self, range: PageRange, resident: &Mask) -> Mask {
        let mut left = self.moved;
        left.remove(0..pages(range).start);
        left.remove(pages(range).end..PMD_PAGES);
        left.remove_all(resident);
        left
    }

    /// Forgets bounces that were too long ago.
    fn lapse(&mut self, now: u64, lapse: u64) {
        if now.saturating_sub(self.when) > lapse {
            self.bounces = 0;
        }
    }
}

/// Finds memory that bounces. Times are in ms.
pub(super) struct Detector {
    /// The longest [`Parameters::thrash_lapse`] of who has asked: a past matters no longer.
    lapse: u64,
    /// By the address of the block.
    pasts: RBTree<usize, Past>,
    /// Pasts in the tree.
    count: usize,
    /// So many are kept for any time.
    kept: usize,
    /// No past of a block below this was looked at since the last round.
    hand: usize,
}

fn pages(range: PageRange) -> Range<usize> {
    let start = (range.start() - block_start(range.start())) / PAGE_SIZE;
    start..start + range.pages()
}

impl Detector {
    /// Nothing is known yet.
    pub(super) fn new() -> Self {
        Self::with_kept(KEPT)
    }

    /// As [`Self::new`], but the past of `kept` blocks is kept for any time.
    pub(super) fn with_kept(kept: usize) -> Self {
        Self {
            lapse: 0,
            pasts: RBTree::new(),
            count: 0,
            kept,
            hand: 0,
        }
    }

    /// The past of the block of `range`, if there is one.
    fn known(&mut self, range: PageRange) -> Option<&mut Past> {
        self.pasts.get_mut(&block_start(range.start()))
    }

    /// The past of the block of `range`, which begins now if there is none. `None` without memory.
    fn past(&mut self, range: PageRange, now: u64) -> Option<&mut Past> {
        let block = block_start(range.start());
        if self.pasts.get(&block).is_none() {
            self.forget(now);
            let past = Past { when: now, ..NONE };
            self.pasts
                .insert(RBTreeNode::new(block, past, GFP_KERNEL).ok()?);
            self.count += 1;
        }
        self.pasts.get_mut(&block)
    }

    /// Forgets some pasts that do not matter any more.
    fn forget(&mut self, now: u64) {
        for _ in 0..STEPS {
            if self.count < self.kept {
                return;
            }
            let next = self.pasts.cursor_lower_bound(&self.hand);
            let next = next.map(|cursor| {
                let (block, past) = cursor.current();
                (*block, past.matters(now, self.lapse))
            });
            let Some((block, matters)) = next else {
                self.hand = 0;
                continue;
            };
            self.hand = block.saturating_add(PMD_SIZE);
            if !matters && self.pasts.remove(&block).is_some() {
                self.count -= 1;
            }
        }
    }

    /// Whether a page of `range`, within a block, has moved to the device lately, and may have left.
    pub(super) fn has_moved(&mut self, range: PageRange) -> bool {
        self.known(range)
            .is_some_and(|past| past.moved.count(pages(range)) != 0)
    }

    /// Whether `range`, within a block, may move along with a page for which [`Self::fault`] has said [`Verdict::Move`].
    /// `resident` are the pages of the block that have not left the device.
    pub(super) fn comes_along(
        &mut self,
        range: PageRange,
        resident: &Mask,
        now: u64,
        by: &Parameters,
    ) -> bool {
        let Parameters {
            thrash_count,
            thrash_lapse,
            ..
        } = *by;
        let Some(past) = self.past(range, now) else {
            return false;
        };
        if now < past.pinned.max(past.rests) {
            return false;
        }
        if past.pinned != 0 {
            past.begin_anew();
        }
        let left = past.left(range, resident);
        let is_counted = core::mem::take(&mut past.is_counted);
        if left.is_empty() || is_counted {
            return true;
        }
        past.lapse(now, thrash_lapse);
        if past.bounces + 1 >= thrash_count {
            return false;
        }
        past.bounces += 1;
        past.moved.remove_all(&left);
        true
    }

    /// A device fault on `range`, within a block; `full` if device memory is. `resident` are pages of
    /// the block that have not left the device: a mirror wants them that has no entry for them.
    pub(super) fn fault(
        &mut self,
        range: PageRange,
        resident: &Mask,
        full: bool,
        now: u64,
        by: &Parameters,
    ) -> Verdict {
        let Parameters {
            thrash_count,
            thrash_lapse,
            thrash_pin,
            thrash_nap,
            ..
        } = *by;
        self.lapse = self.lapse.max(thrash_lapse);
        let Some(past) = self.past(range, now) else {
            return Verdict::Stay;
        };
        if now < past.pinned {
            return Verdict::Stay;
        }
        if past.pinned != 0 {
            past.begin_anew();
        }
        if now < past.rests {
            return Verdict::Wait(past.rests - now);
        }
        if past.left(range, resident).is_empty() {
            return Verdict::Move;
        }
        past.moved.remove(pages(range));
        past.lapse(now, thrash_lapse);
        past.bounces += 1;
        past.is_counted = true;
        if full || past.bounces >= thrash_count {
            past.pinned = now + thrash_pin;
            return Verdict::Stay;
        }
        if thrash_nap != 0 {
            past.rests = now + thrash_nap;
            return Verdict::Wait(thrash_nap);
        }
        Verdict::Move
    }

    /// The pages of `range`, within a block, have moved to the device.
    pub(super) fn moved(&mut self, range: PageRange, now: u64) {
        if let Some(past) = self.past(range, now) {
            past.moved.add(pages(range));
            past.when = now;
        }
    }
}

#[kunit_tests(rust_hmm_thrash)]
mod tests {
    use super::*;

    const PARAMETERS: Parameters = Parameters {
        thrash_count: 3,
        thrash_lapse: 100,
        thrash_pin: 1000,
        thrash_nap: 0,
        ..Parameters::DEFAULT
    };

    fn page(number: usize) -> Result<PageRange> {
        PageRange::from_pages(0x4000_0000 + number * PAGE_SIZE, 1)
    }

    #[test]
    fn a_page_that_bounces_stays_for_a_while() -> Result {
        let mut detector = Detector::new();
        let mut moves = 0;
        // A page that leaves at once, wanted each ms for 10 s of a fake clock.
        for now in 0..10_000u64 {
            if detector.fault(page(5)?, &Mask::EMPTY, false, now, &PARAMETERS) == Verdict::Move {
                detector.moved(page(5)?, now);
                moves += 1;
            }
        }
        // The stated bound: so many for each time that it is pinned, the first one counted.
        assert!(moves <= 3 * (10_000 / 1000 + 1) && moves >= 10);
        Ok(())
    }

    #[test]
    fn what_comes_along_counts_as_what_is_wanted() -> Result {
        let mut detector = Detector::new();
        // A fault on a new page, along with which all before it would come. Whether they have.
        let mut fault = |number, resident: Range<usize>, now| {
            let part = PageRange::from_pages(page(0)?.start(), number + 1)?;
            let mut mask = Mask::EMPTY;
            mask.add(resident);
            assert_eq!(
                detector.fault(page(number)?, &Mask::EMPTY, false, now, &PARAMETERS),
                Verdict::Move
            );
            let comes = detector.comes_along(part, &mask, now, &PARAMETERS);
            detector.moved(if comes { part } else { page(number)? }, now);
            Ok::<_, Error>(comes)
        };
        // What has not left may come as often as it wants to.
        for number in 20..30 {
            assert!(fault(number, 0..number, 0)?);
        }
        // All have left: they come the second time and the third, but not once more.
        assert!(fault(30, 0..0, 1)?);
        assert!(fault(31, 0..0, 2)?);
        assert!(!fault(32, 0..0, 3)?);
        // Too long ago to count.
        assert!(fault(33, 0..0, 104)?);
        Ok(())
    }

    #[test]
    fn what_was_wanted_and_what_comes_along_with_it_count_once() -> Result {
        let mut detector = Detector::new();
        let napping = Parameters {
            thrash_nap: 5,
            ..PARAMETERS
        };
        let part = PageRange::from_pages(page(0)?.start(), 16)?;
        detector.moved(part, 0);
        for now in [0, 10] {
            assert_eq!(
                detector.fault(page(5)?, &Mask::EMPTY, false, now, &napping),
                Verdict::Wait(5)
            );
            assert!(!detector.comes_along(part, &Mask::EMPTY, now, &napping));
            assert_eq!(
                detector.fault(page(5)?, &Mask::EMPTY, false, now + 5, &napping),
                Verdict::Move
            );
            assert!(detector.comes_along(part, &Mask::EMPTY, now + 5, &napping));
            detector.moved(part, now + 5);
        }
        assert_eq!(
            detector.fault(page(5)?, &Mask::EMPTY, false, 20, &napping),
            Verdict::Stay
        );
        assert!(!detector.comes_along(part, &Mask::EMPTY, 1019, &napping));
        // Another chance, and nothing is known of the time before.
        assert!(detector.comes_along(part, &Mask::EMPTY, 1020, &napping));
        detector.moved(part, 1020);
        assert_eq!(
            detector.fault(page(5)?, &Mask::EMPTY, false, 1021, &napping),
            Verdict::Wait(5)
        );
        Ok(())
    }

    #[test]
    fn others_get_a_page_that_bounces_for_a_moment() -> Result {
        let mut detector = Detector::new();
        let napping = Parameters {
            thrash_nap: 5,
            ..PARAMETERS
        };
        detector.moved(page(5)?, 10);
        assert_eq!(
            detector.fault(page(5)?, &Mask::EMPTY, false, 12, &napping),
            Verdict::Wait(5)
        );
        // So long, for all who want something of the block, and it counts once.
        assert_eq!(
            detector.fault(page(5)?, &Mask::EMPTY, false, 14, &napping),
            Verdict::Wait(3)
        );
        assert_eq!(
            detector.fault(page(6)?, &Mask::EMPTY, false, 16, &napping),
            Verdict::Wait(1)
        );
        assert_eq!(
            detector.fault(page(5)?, &Mask::EMPTY, false, 17, &napping),
            Verdict::Move
        );
        detector.moved(page(5)?, 17);
        assert_eq!(
            detector.fault(page(5)?, &Mask::EMPTY, false, 18, &napping),
            Verdict::Wait(5)
        );
        assert_eq!(
            detector.fault(page(5)?, &Mask::EMPTY, false, 23, &napping),
            Verdict::Move
        );
        detector.moved(page(5)?, 23);
        assert_eq!(
            detector.fault(page(5)?, &Mask::EMPTY, false, 24, &napping),
            Verdict::Stay
        );
        Ok(())
    }

    #[test]
    fn what_another_mirror_has_there_does_not_bounce() -> Result {
        let mut detector = Detector::new();
        let mut there = Mask::EMPTY;
        there.add(5..6);
        detector.moved(page(5)?, 0);
        for now in 0..10 {
            let verdict = detector.fault(page(5)?, &there, false, now, &PARAMETERS);
            assert_eq!(verdict, Verdict::Move);
        }
        // It has left: whoever wants it.
        for (now, expected) in [Verdict::Move, Verdict::Move, Verdict::Stay]
            .into_iter()
            .enumerate()
        {
            let verdict = detector.fault(page(5)?, &Mask::EMPTY, false, now as u64, &PARAMETERS);
            assert_eq!(verdict, expected);
            detector.moved(page(5)?, now as u64);
        }
        Ok(())
    }

    #[test]
    fn slow_bounces_are_none() -> Result {
        let mut detector = Detector::new();
        for round in 0..100 {
            let now = round * 101;
            assert_eq!(
                detector.fault(page(5)?, &Mask::EMPTY, false, now, &PARAMETERS),
                Verdict::Move
            );
            detector.moved(page(5)?, now);
        }
        Ok(())
    }

    #[test]
    fn other_pages_of_a_block_are_no_bounce() -> Result {
        let mut detector = Detector::new();
        for number in 0..512 {
            assert_eq!(
                detector.fault(page(number)?, &Mask::EMPTY, true, 0, &PARAMETERS),
                Verdict::Move
            );
            detector.moved(page(number)?, 0);
        }
        Ok(())
    }

    #[test]
    fn what_was_evicted_from_full_memory_stays_at_once() -> Result {
        let mut detector = Detector::new();
        detector.moved(PageRange::from_pages(0x4000_0000, 512)?, 0);
        assert_eq!(
            detector.fault(page(7)?, &Mask::EMPTY, true, 50, &PARAMETERS),
            Verdict::Stay
        );
        // The whole block, until its time is over.
        assert_eq!(
            detector.fault(page(8)?, &Mask::EMPTY, false, 1049, &PARAMETERS),
            Verdict::Stay
        );
        assert_eq!(
            detector.fault(page(8)?, &Mask::EMPTY, false, 1050, &PARAMETERS),
            Verdict::Move
        );
        // With room it comes again.
        detector.moved(page(8)?, 1050);
        assert_eq!(
            detector.fault(page(8)?, &Mask::EMPTY, false, 1051, &PARAMETERS),
            Verdict::Move
        );
        Ok(())
    }

    #[test]
    fn each_block_has_a_past_of_its_own() -> Result {
        const BLOCKS: usize = 3 * KEPT;
        let mut detector = Detector::new();
        // 2 GiB apart.
        let far = |block| page(block * 1024 * PMD_PAGES + 5);
        for now in [0, 1] {
            for block in 0..BLOCKS {
                assert_eq!(
                    detector.fault(far(block)?, &Mask::EMPTY, false, now, &PARAMETERS),
                    Verdict::Move
                );
                detector.moved(far(block)?, now);
            }
        }
        for block in 0..BLOCKS {
            assert_eq!(
                detector.fault(far(block)?, &Mask::EMPTY, true, 2, &PARAMETERS),
                Verdict::Stay
            );
        }
        assert_eq!(detector.count, BLOCKS);
        Ok(())
    }

    #[test]
    fn what_was_long_ago_is_forgotten() -> Result {
        let mut detector = Detector::new();
        for now in 0..20 * KEPT {
            let range = page(now * PMD_PAGES)?;
            // 10 blocks each ms.
            let now = now as u64 / 10;
            assert_eq!(
                detector.fault(range, &Mask::EMPTY, false, now, &PARAMETERS),
                Verdict::Move
            );
            detector.moved(range, now);
            assert!(detector.count <= 3 * KEPT);
        }
        Ok(())
    }
}

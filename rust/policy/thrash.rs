// SPDX-License-Identifier: GPL-2.0

//! Thrashing detection.
//!
//! A fault on a page that was recently migrated to the device means that the page has left it:
//! because of a CPU access, another device, or eviction. After a few such faults in a row, the
//! block of the page is pinned: for some time it stays in place, and the device maps it there. So
//! in [`Parameters::thrash_pin`] ms the faults of a process on one device move a page at most
//! [`Parameters::thrash_count`] times, regardless of other accesses. All users make progress,
//! because each of them can access a pinned page in place, and no thread waits for it. Until the
//! block is pinned, each such fault sleeps for [`Parameters::thrash_delay`] ms, so that other users
//! can access the page meanwhile.
//!
//! A page that has left and would be migrated again because of a fault on a page nearby counts in
//! the same way. It is left out if it would exceed the limit. The bound requires that
//! [`Parameters::thrash_lapse`] is at least `thrash_pin`, because slower repetitions are not
//! counted.
//!
//! The history of a block is kept for at least `thrash_lapse` after its last migration. After that,
//! it is removed when others are added. So the number of histories is bounded by the amount of
//! memory that is migrated in that time, or by [`MIN_KEPT_HISTORIES`] blocks if that is more. It
//! takes about twice 128 bytes for each block with pages of 4 KiB. A block for whose history no
//! memory is available stays in place.
//!
//! When device memory is full, an evicted page that faults again is pinned immediately. Otherwise
//! it would replace memory that is used as much.

use super::{
    block_start,
    density::Parameters,
    PageSet, //
};
use crate::mm::addr::{
    PageRange,
    PMD_PAGES,
    PMD_SIZE, //
};
use core::ops::Range;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    }, //
};

/// Number of histories that are kept regardless of their age.
const MIN_KEPT_HISTORIES: usize = 1024;

/// Number of histories that are checked, and removed if they have expired, for each one that is
/// added. More than 1, so that the number of expired histories decreases.
const EXPIRY_CHECKS: usize = 2;

/// Decision for a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThrashHint {
    /// Migrate the range.
    Move,
    /// Leave the range in place.
    Stay,
    /// Sleep for this time in ms, and retry. Other users may access the range meanwhile.
    Wait(u64),
}

/// History of a block.
#[derive(Clone, Copy)]
struct BlockHistory {
    /// Pages that were migrated to the device.
    moved: PageSet,
    /// Time of the last migration.
    when: u64,
    /// Number of faults on pages that were migrated and have left.
    bounces: u32,
    /// Whether the last counted event was a fault on the page itself, and no page was migrated for
    /// it yet.
    is_counted: bool,
    /// Time until which the block is pinned in place.
    pinned: u64,
    /// Time until which faults on the block sleep.
    rests: u64,
}

const NONE: BlockHistory = BlockHistory {
    moved: PageSet::EMPTY,
    when: 0,
    bounces: 0,
    is_counted: false,
    pinned: 0,
    rests: 0,
};

impl BlockHistory {
    /// Resets the history after the block was pinned.
    fn begin_anew(&mut self) {
        *self = NONE;
    }

    /// Returns whether the history affects decisions after `now`.
    fn matters(&self, now: u64, lapse: u64) -> bool {
        now < self.pinned.max(self.rests) || now.saturating_sub(self.when) <= lapse
    }

    /// Returns the pages of `range` that were migrated to the device and are not in `resident`.
    fn left(&self, range: PageRange, resident: &PageSet) -> PageSet {
        let mut left = self.moved;
        left.remove(0..pages(range).start);
        left.remove(pages(range).end..PMD_PAGES);
        left.remove_all(resident);
        left
    }

    /// Resets the count if the last migration was too long ago.
    fn lapse(&mut self, now: u64, lapse: u64) {
        if now.saturating_sub(self.when) > lapse {
            self.bounces = 0;
        }
    }
}

/// Thrashing detector. Times are in ms.
pub(super) struct ThrashDetector {
    /// Maximum of [`Parameters::thrash_lapse`] of all callers. A history expires after this time.
    lapse: u64,
    /// Histories by address of the block.
    pasts: RBTree<usize, BlockHistory>,
    /// Number of histories in the tree.
    count: usize,
    /// Number of histories that are kept regardless of their age.
    kept: usize,
    /// Address of the next block whose history is checked for expiry.
    hand: usize,
}

fn pages(range: PageRange) -> Range<usize> {
    let start = (range.start() - block_start(range.start())) / PAGE_SIZE;
    start..start + range.pages()
}

impl ThrashDetector {
    /// Creates an empty detector.
    pub(super) fn new() -> Self {
        Self::with_kept(MIN_KEPT_HISTORIES)
    }

    /// Like [`Self::new`], but keeps the histories of `kept` blocks regardless of their age.
    pub(super) fn with_kept(kept: usize) -> Self {
        Self {
            lapse: 0,
            pasts: RBTree::new(),
            count: 0,
            kept,
            hand: 0,
        }
    }

    /// Returns the history of the block of `range`, if there is one.
    fn history(&mut self, range: PageRange) -> Option<&mut BlockHistory> {
        self.pasts.get_mut(&block_start(range.start()))
    }

    /// Returns the history of the block of `range`, and creates it if there is none. Returns `None`
    /// if there is no memory for it.
    fn past(&mut self, range: PageRange, now: u64) -> Option<&mut BlockHistory> {
        let block = block_start(range.start());
        if self.pasts.get(&block).is_none() {
            self.expire(now);
            let past = BlockHistory { when: now, ..NONE };
            self.pasts
                .insert(RBTreeNode::new(block, past, GFP_KERNEL).ok()?);
            self.count += 1;
        }
        self.pasts.get_mut(&block)
    }

    /// Checks up to [`EXPIRY_CHECKS`] histories, if at least `kept` are in the tree, and removes
    /// those that have expired.
    fn expire(&mut self, now: u64) {
        for _ in 0..EXPIRY_CHECKS {
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

    /// Returns whether a page of `range`, which lies within a block, was recently migrated to the
    /// device. It may have left since.
    pub(super) fn has_moved(&mut self, range: PageRange) -> bool {
        self.history(range)
            .is_some_and(|past| past.moved.count(pages(range)) != 0)
    }

    /// Returns whether `range`, which lies within a block, may be migrated with a page for which
    /// [`Self::fault`] returned [`ThrashHint::Move`]. `resident` are the pages of the block that
    /// are on the device.
    pub(super) fn comes_along(
        &mut self,
        range: PageRange,
        resident: &PageSet,
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

    /// Records a device fault on `range`, which lies within a block. `full` is whether device
    /// memory is full. `resident` are the pages of the block that are on the device, for which the
    /// faulting mirror only has no entry.
    pub(super) fn fault(
        &mut self,
        range: PageRange,
        resident: &PageSet,
        full: bool,
        now: u64,
        by: &Parameters,
    ) -> ThrashHint {
        let Parameters {
            thrash_count,
            thrash_lapse,
            thrash_pin,
            thrash_delay,
            ..
        } = *by;
        self.lapse = self.lapse.max(thrash_lapse);
        let Some(past) = self.past(range, now) else {
            return ThrashHint::Stay;
        };
        if now < past.pinned {
            return ThrashHint::Stay;
        }
        if past.pinned != 0 {
            past.begin_anew();
        }
        if now < past.rests {
            return ThrashHint::Wait(past.rests - now);
        }
        if past.left(range, resident).is_empty() {
            return ThrashHint::Move;
        }
        past.moved.remove(pages(range));
        past.lapse(now, thrash_lapse);
        past.bounces += 1;
        past.is_counted = true;
        if full || past.bounces >= thrash_count {
            past.pinned = now + thrash_pin;
            return ThrashHint::Stay;
        }
        if thrash_delay != 0 {
            past.rests = now + thrash_delay;
            return ThrashHint::Wait(thrash_delay);
        }
        ThrashHint::Move
    }

    /// Records that the pages of `range`, which lies within a block, have moved to the device.
    pub(super) fn moved(&mut self, range: PageRange, now: u64) {
        if let Some(past) = self.past(range, now) {
            past.moved.add(pages(range));
            past.when = now;
        }
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_thrash)]
mod tests {
    use super::*;

    const PARAMETERS: Parameters = Parameters {
        thrash_count: 3,
        thrash_lapse: 100,
        thrash_pin: 1000,
        thrash_delay: 0,
        ..Parameters::DEFAULT
    };

    fn page(number: usize) -> Result<PageRange> {
        PageRange::from_pages(0x4000_0000 + number * PAGE_SIZE, 1)
    }

    #[test]
    fn thrashing_page_is_pinned_for_a_while() -> Result {
        let mut detector = ThrashDetector::new();
        let mut moves = 0;
        // A page that leaves the device immediately, with a fault each ms for 10 s of a fake clock.
        for now in 0..10_000u64 {
            if detector.fault(page(5)?, &PageSet::EMPTY, false, now, &PARAMETERS)
                == ThrashHint::Move
            {
                detector.moved(page(5)?, now);
                moves += 1;
            }
        }
        // The bound: this number of migrations for each time that the page is pinned, including the
        // first time.
        assert!(moves <= 3 * (10_000 / 1000 + 1) && moves >= 10);
        Ok(())
    }

    #[test]
    fn prefetched_pages_count_like_faulted_pages() -> Result {
        let mut detector = ThrashDetector::new();
        // A fault on a new page, with which all pages before it would be migrated. Returns whether
        // they are.
        let mut fault = |number, resident: Range<usize>, now| {
            let part = PageRange::from_pages(page(0)?.start(), number + 1)?;
            let mut mask = PageSet::EMPTY;
            mask.add(resident);
            assert_eq!(
                detector.fault(page(number)?, &PageSet::EMPTY, false, now, &PARAMETERS),
                ThrashHint::Move
            );
            let comes = detector.comes_along(part, &mask, now, &PARAMETERS);
            detector.moved(if comes { part } else { page(number)? }, now);
            Ok::<_, Error>(comes)
        };
        // Pages that have not left the device can be included any number of times.
        for number in 20..30 {
            assert!(fault(number, 0..number, 0)?);
        }
        // All pages have left. They are included the second and third time, but not again.
        assert!(fault(30, 0..0, 1)?);
        assert!(fault(31, 0..0, 2)?);
        assert!(!fault(32, 0..0, 3)?);
        // The previous events are too old to be counted.
        assert!(fault(33, 0..0, 104)?);
        Ok(())
    }

    #[test]
    fn faulted_and_prefetched_pages_count_once() -> Result {
        let mut detector = ThrashDetector::new();
        let napping = Parameters {
            thrash_delay: 5,
            ..PARAMETERS
        };
        let part = PageRange::from_pages(page(0)?.start(), 16)?;
        detector.moved(part, 0);
        for now in [0, 10] {
            assert_eq!(
                detector.fault(page(5)?, &PageSet::EMPTY, false, now, &napping),
                ThrashHint::Wait(5)
            );
            assert!(!detector.comes_along(part, &PageSet::EMPTY, now, &napping));
            assert_eq!(
                detector.fault(page(5)?, &PageSet::EMPTY, false, now + 5, &napping),
                ThrashHint::Move
            );
            assert!(detector.comes_along(part, &PageSet::EMPTY, now + 5, &napping));
            detector.moved(part, now + 5);
        }
        assert_eq!(
            detector.fault(page(5)?, &PageSet::EMPTY, false, 20, &napping),
            ThrashHint::Stay
        );
        assert!(!detector.comes_along(part, &PageSet::EMPTY, 1019, &napping));
        // After the pin has expired, the history begins anew.
        assert!(detector.comes_along(part, &PageSet::EMPTY, 1020, &napping));
        detector.moved(part, 1020);
        assert_eq!(
            detector.fault(page(5)?, &PageSet::EMPTY, false, 1021, &napping),
            ThrashHint::Wait(5)
        );
        Ok(())
    }

    #[test]
    fn fault_on_a_thrashing_page_waits_briefly() -> Result {
        let mut detector = ThrashDetector::new();
        let napping = Parameters {
            thrash_delay: 5,
            ..PARAMETERS
        };
        detector.moved(page(5)?, 10);
        assert_eq!(
            detector.fault(page(5)?, &PageSet::EMPTY, false, 12, &napping),
            ThrashHint::Wait(5)
        );
        // All faults on the block sleep until the same time, and they count as one.
        assert_eq!(
            detector.fault(page(5)?, &PageSet::EMPTY, false, 14, &napping),
            ThrashHint::Wait(3)
        );
        assert_eq!(
            detector.fault(page(6)?, &PageSet::EMPTY, false, 16, &napping),
            ThrashHint::Wait(1)
        );
        assert_eq!(
            detector.fault(page(5)?, &PageSet::EMPTY, false, 17, &napping),
            ThrashHint::Move
        );
        detector.moved(page(5)?, 17);
        assert_eq!(
            detector.fault(page(5)?, &PageSet::EMPTY, false, 18, &napping),
            ThrashHint::Wait(5)
        );
        assert_eq!(
            detector.fault(page(5)?, &PageSet::EMPTY, false, 23, &napping),
            ThrashHint::Move
        );
        detector.moved(page(5)?, 23);
        assert_eq!(
            detector.fault(page(5)?, &PageSet::EMPTY, false, 24, &napping),
            ThrashHint::Stay
        );
        Ok(())
    }

    #[test]
    fn pages_resident_for_another_mirror_do_not_thrash() -> Result {
        let mut detector = ThrashDetector::new();
        let mut there = PageSet::EMPTY;
        there.add(5..6);
        detector.moved(page(5)?, 0);
        for now in 0..10 {
            let verdict = detector.fault(page(5)?, &there, false, now, &PARAMETERS);
            assert_eq!(verdict, ThrashHint::Move);
        }
        // Now the page has left, and faults of any mirror count.
        for (now, expected) in [ThrashHint::Move, ThrashHint::Move, ThrashHint::Stay]
            .into_iter()
            .enumerate()
        {
            let verdict = detector.fault(page(5)?, &PageSet::EMPTY, false, now as u64, &PARAMETERS);
            assert_eq!(verdict, expected);
            detector.moved(page(5)?, now as u64);
        }
        Ok(())
    }

    #[test]
    fn slow_moves_are_not_thrashing() -> Result {
        let mut detector = ThrashDetector::new();
        for round in 0..100 {
            let now = round * 101;
            assert_eq!(
                detector.fault(page(5)?, &PageSet::EMPTY, false, now, &PARAMETERS),
                ThrashHint::Move
            );
            detector.moved(page(5)?, now);
        }
        Ok(())
    }

    #[test]
    fn moves_of_other_pages_are_not_thrashing() -> Result {
        let mut detector = ThrashDetector::new();
        for number in 0..PMD_PAGES {
            assert_eq!(
                detector.fault(page(number)?, &PageSet::EMPTY, true, 0, &PARAMETERS),
                ThrashHint::Move
            );
            detector.moved(page(number)?, 0);
        }
        Ok(())
    }

    #[test]
    fn pages_evicted_from_full_memory_stay_at_once() -> Result {
        let mut detector = ThrashDetector::new();
        detector.moved(PageRange::from_pages(0x4000_0000, PMD_PAGES)?, 0);
        assert_eq!(
            detector.fault(page(7)?, &PageSet::EMPTY, true, 50, &PARAMETERS),
            ThrashHint::Stay
        );
        // The whole block stays until the pin expires.
        assert_eq!(
            detector.fault(page(8)?, &PageSet::EMPTY, false, 1049, &PARAMETERS),
            ThrashHint::Stay
        );
        assert_eq!(
            detector.fault(page(8)?, &PageSet::EMPTY, false, 1050, &PARAMETERS),
            ThrashHint::Move
        );
        // With free memory, the page is migrated again.
        detector.moved(page(8)?, 1050);
        assert_eq!(
            detector.fault(page(8)?, &PageSet::EMPTY, false, 1051, &PARAMETERS),
            ThrashHint::Move
        );
        Ok(())
    }

    #[test]
    fn each_block_has_its_own_history() -> Result {
        const BLOCKS: usize = 3 * MIN_KEPT_HISTORIES;
        let mut detector = ThrashDetector::new();
        // The blocks are 1024 blocks apart, 2 GiB with pages of 4 KiB.
        let far = |block| page(block * 1024 * PMD_PAGES + 5);
        for now in [0, 1] {
            for block in 0..BLOCKS {
                assert_eq!(
                    detector.fault(far(block)?, &PageSet::EMPTY, false, now, &PARAMETERS),
                    ThrashHint::Move
                );
                detector.moved(far(block)?, now);
            }
        }
        for block in 0..BLOCKS {
            assert_eq!(
                detector.fault(far(block)?, &PageSet::EMPTY, true, 2, &PARAMETERS),
                ThrashHint::Stay
            );
        }
        assert_eq!(detector.count, BLOCKS);
        Ok(())
    }

    #[test]
    fn old_history_is_discarded() -> Result {
        let mut detector = ThrashDetector::new();
        for now in 0..20 * MIN_KEPT_HISTORIES {
            let range = page(now * PMD_PAGES)?;
            // 10 blocks are migrated each ms.
            let now = now as u64 / 10;
            assert_eq!(
                detector.fault(range, &PageSet::EMPTY, false, now, &PARAMETERS),
                ThrashHint::Move
            );
            detector.moved(range, now);
            assert!(detector.count <= 3 * MIN_KEPT_HISTORIES);
        }
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: dense subtrees, and decisions about series of faults.

use super::{
    tree::LEAF_PAGES,
    *, //
};
use crate::{
    mm::addr::{
        PMD_ORDER,
        PMD_SIZE, //
    },
    policy::Bounces, //
};
use core::ops::Range;

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_density)]
mod suite {
    use super::*;

    /// A multiple of [`PMD_SIZE`].
    const BASE: usize = 0x4000_0000;

    fn pages(first: usize, count: usize) -> Result<PageRange> {
        PageRange::from_pages(BASE + first * PAGE_SIZE, count)
    }

    fn bounces() -> Result<Pin<KBox<Bounces>>> {
        KBox::pin_init(Bounces::new(), GFP_KERNEL)
    }

    fn mask(pages: Range<usize>) -> PageSet {
        let mut mask = PageSet::EMPTY;
        mask.add(pages);
        mask
    }

    /// Pages of a leaf and of a tree.
    const L: usize = LEAF_PAGES;
    const T: usize = TREE_PAGES;

    #[test]
    fn fault_expands_to_its_leaf() {
        assert_eq!(region(&PageSet::EMPTY, 0..1, 51), 0..L);
        assert_eq!(region(&PageSet::EMPTY, 7 * L - 1..7 * L, 51), 6 * L..7 * L);
        assert_eq!(region(&PageSet::EMPTY, T - 1..T, 51), T - L..T);
        assert_eq!(
            region(&PageSet::EMPTY, PMD_PAGES - 1..PMD_PAGES, 51),
            PMD_PAGES - L..PMD_PAGES
        );
        // A range that crosses the border of two leaves.
        assert_eq!(region(&PageSet::EMPTY, L / 2..L + 1, 51), 0..2 * L);
    }

    #[test]
    fn dense_subtree_migrates_whole() {
        // Two leaves of two are dense enough for the next level, then three of four, and so on.
        assert_eq!(region(&mask(0..L), L..L + 1, 51), 0..2 * L);
        assert_eq!(region(&mask(0..2 * L), 2 * L..2 * L + 1, 51), 0..4 * L);
        assert_eq!(region(&mask(0..4 * L), 4 * L..4 * L + 1, 51), 0..8 * L);
        assert_eq!(region(&mask(0..T / 2), T / 2..T / 2 + 1, 51), 0..T);
        // Exactly the threshold is not above it.
        assert_eq!(region(&mask(0..L), 2 * L..2 * L + 1, 50), 2 * L..3 * L);
        assert_eq!(region(&mask(0..L), 2 * L..2 * L + 1, 49), 0..4 * L);
        // Distant pages do not matter.
        assert_eq!(region(&mask(T / 2..T / 4 * 3), 0..1, 51), 0..L);
        // Thresholds for always and for never.
        assert_eq!(region(&PageSet::EMPTY, 4 * L + 1..4 * L + 2, 1), 0..T);
        assert_eq!(region(&mask(0..T - 1), T - 1..T, 101), T - L..T);
        // A tree is not larger, although a PMD may map more.
        assert_eq!(
            region(&mask(0..PMD_PAGES), PMD_PAGES - 1..PMD_PAGES, 51),
            PMD_PAGES - T..PMD_PAGES
        );
    }

    #[test]
    fn tree_matches_a_plain_count() {
        let mut random = 1u64;
        for _ in 0..60 {
            let mut used = PageSet::EMPTY;
            let mut plain = [false; PMD_PAGES];
            for _ in 0..20 {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
                let at = (random >> 33) as usize % PMD_PAGES;
                let len = (random >> 50) as usize % 40;
                used.add(at..at + len);
                plain
                    .iter_mut()
                    .skip(at)
                    .take(len)
                    .for_each(|page| *page = true);
            }
            let touched = (random >> 20) as usize % PMD_PAGES;
            let mut expected =
                touched / LEAF_PAGES * LEAF_PAGES..touched / LEAF_PAGES * LEAF_PAGES + LEAF_PAGES;
            plain
                .iter_mut()
                .skip(expected.start)
                .take(LEAF_PAGES)
                .for_each(|page| *page = true);
            for size in [1, 2, 4, 8, 16, 32].map(|leaves| leaves * LEAF_PAGES) {
                let start = touched / size * size;
                let count = plain
                    .iter()
                    .skip(start)
                    .take(size)
                    .filter(|page| **page)
                    .count();
                if count * 100 > 51 * size {
                    expected = start..start + size;
                }
            }
            assert_eq!(region(&used, touched..touched + 1, 51), expected);
        }
    }

    fn fault_info<'a>(
        range: PageRange,
        resident: &'a dyn Fn(usize) -> PageSet,
        bounces: &'a Bounces,
    ) -> FaultInfo<'a> {
        FaultInfo {
            range,
            write: false,
            limits: range,
            attributes: crate::attributes::Attributes::DEFAULT,
            free: 4 * PMD_PAGES,
            total: 64 * TREE_PAGES,
            now: 0,
            resident,
            bounces,
        }
    }

    #[test]
    fn stream_needs_at_most_one_fault_per_block() -> Result {
        const BLOCKS: usize = 64;
        let policy = Density::new(Parameters::DEFAULT)?;
        let bounces = bounces()?;
        let all = PageRange::from_pages(BASE, BLOCKS * TREE_PAGES)?;
        let mut faults = 0;
        let mut next = all.start();
        let none = |_| PageSet::EMPTY;
        while next < all.end() {
            let mut fault = fault_info(PageRange::from_pages(next, 1)?, &none, &bounces);
            fault.limits = all;
            let Decision::Move { range, .. } = policy.place(&fault) else {
                return Err(EINVAL);
            };
            assert!(range.start() <= next && range.end() <= all.end());
            bounces.moved(range, 0);
            policy.moved(range, 0);
            next = range.end();
            faults += 1;
        }
        assert!(faults <= BLOCKS);
        // The amount ahead is limited to a share of the memory.
        let mut last = fault_info(PageRange::from_pages(all.end(), 1)?, &none, &bounces);
        last.limits = PageRange::from_pages(all.end(), BLOCKS * TREE_PAGES)?;
        last.total = 8 * TREE_PAGES;
        let Decision::Move { range, .. } = policy.place(&last) else {
            return Err(EINVAL);
        };
        assert!(range.pages() <= 2 * TREE_PAGES);
        Ok(())
    }

    /// Returns the pages that are migrated by `faults` on single pages of `all`, all at the same
    /// time. No page stays on the device.
    fn moves(
        (policy, bounces): (&Density, &Bounces),
        all: PageRange,
        faults: &[usize],
    ) -> Result<KVec<Range<usize>>> {
        let none = |_| PageSet::EMPTY;
        let mut moves = KVec::new();
        for number in faults {
            let touched = PageRange::from_pages(all.address(*number), 1)?;
            let mut fault = fault_info(touched, &none, bounces);
            fault.limits = all;
            if let Decision::Move { range, .. } = policy.place(&fault) {
                bounces.moved(range, 0);
                policy.moved(range, 0);
                let first = all.index_of(range.start()).ok_or(EINVAL)?;
                moves.push(first..first + range.pages(), GFP_KERNEL)?;
            }
        }
        Ok(moves)
    }

    #[test]
    fn prefetched_pages_do_not_move_more_often() -> Result {
        const P: usize = PMD_PAGES;
        let policy = Density::new(Parameters {
            thrash_delay: 0,
            ..Parameters::DEFAULT
        })?;
        let all = PageRange::from_pages(BASE, 4 * PMD_PAGES)?;
        let moves = moves((&policy, &*bounces()?), all, &[P - 1, P, P + L, P, P])?;
        let times = moves.iter().filter(|pages| pages.contains(&P)).count();
        assert_eq!(times, 3);
        Ok(())
    }

    #[test]
    fn stream_prefetches_no_immovable_block() -> Result {
        let policy = Density::new(Parameters {
            thrash_delay: 0,
            ..Parameters::DEFAULT
        })?;
        let all = PageRange::from_pages(BASE, 8 * PMD_PAGES)?;
        // Block 2 thrashes until it is pinned. Then a stream reaches it.
        let bounces = bounces()?;
        let bounced = moves((&policy, &bounces), all, &[2 * PMD_PAGES + 6; 4])?;
        assert_eq!(bounced.len(), 3);
        // Two trees before the block.
        let first = 2 * PMD_PAGES - 2 * T;
        let faults = [0, L, 2 * L, T, 2 * T].map(|page| first + page);
        let stream = moves((&policy, &bounces), all, &faults)?;
        let ends = [L, 2 * L, T, 2 * T].map(|page| first + page);
        assert!(stream.iter().map(|pages| pages.end).eq(ends));
        Ok(())
    }

    #[test]
    fn limits_and_granularity_are_respected() -> Result {
        let policy = Density::new(Parameters::DEFAULT)?;
        let bounces = bounces()?;
        let none = |_| PageSet::EMPTY;
        let mut fault = fault_info(pages(2, 1)?, &none, &bounces);
        fault.limits = pages(1, 2)?;
        let placed = |fault: &FaultInfo<'_>| match policy.place(fault) {
            Decision::Move { range, .. } => Ok(range),
            _ => Err(EINVAL),
        };
        // Both ends of the leaf are beyond the limits.
        assert_eq!(placed(&fault)?, pages(1, 2)?);
        fault.range = pages(5, 1)?;
        fault.limits = pages(0, 2 * PMD_PAGES)?;
        fault.attributes.set_granularity(Some(2))?;
        assert_eq!(placed(&fault)?, pages(4, 4)?);
        fault.attributes.set_granularity(Some(PMD_ORDER))?;
        assert_eq!(placed(&fault)?, pages(0, PMD_PAGES)?);
        assert_eq!(block_start(BASE + PMD_SIZE - 1), BASE);
        Ok(())
    }
}

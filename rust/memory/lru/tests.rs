// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: choice of the coldest block.

use super::*;
use core::cell::Cell;

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_lru)]
mod suite {
    use super::*;

    fn lru(blocks: usize) -> Result<Lru> {
        let lru = Lru::new(blocks)?;
        for first in (0..blocks).step_by(GROUP_BLOCKS) {
            lru.prepare(first)?;
        }
        Ok(lru)
    }

    /// Claims the coldest of `blocks`, of which `partly` is partially used.
    fn choose(
        lru: &Lru,
        blocks: core::ops::Range<usize>,
        partly: Option<usize>,
        before: LruStamp,
    ) -> Result<Claim<'_>, NoClaim> {
        for block in blocks.clone() {
            lru.allocated(block, partly != Some(block));
        }
        let usage = |block| match (blocks.contains(&block), partly == Some(block)) {
            (false, _) => BlockUsage::Empty,
            (true, true) => BlockUsage::Partial,
            (true, false) => BlockUsage::Full,
        };
        lru.coldest(&usage, blocks.len(), before)
    }

    /// Like [`choose`], but drops the claim.
    fn coldest(
        lru: &Lru,
        blocks: core::ops::Range<usize>,
        partly: Option<usize>,
        before: LruStamp,
    ) -> Option<usize> {
        let claim = choose(lru, blocks, partly, before).ok()?;
        Some(claim.block())
    }

    #[test]
    fn concurrent_evictors_choose_different_blocks() -> Result {
        let lru = lru(3)?;
        for block in [1, 2, 0] {
            lru.mark_accessed(block);
        }
        let now = lru.now();
        let choose = || choose(&lru, 0..3, None, now);
        let mut claims = KVec::new();
        for expected in [1, 2, 0] {
            let claim = choose().map_err(|_| EINVAL)?;
            assert_eq!(claim.block(), expected);
            claims.push(claim, GFP_KERNEL)?;
        }
        assert_eq!(choose().err(), Some(NoClaim::Busy));
        assert_eq!(lru.claim(1).err(), Some(NoClaim::Busy));
        assert_eq!(lru.claim(3).err(), Some(NoClaim::Nothing));
        // The eviction did not happen, so that the block is as cold as before.
        claims.pop();
        assert!(choose().is_ok_and(|claim| claim.block() == 0));
        drop(claims);
        let claim = lru.claim(1);
        assert!(claim.is_ok());
        assert_eq!(coldest(&lru, 0..3, None, now), Some(2));
        drop(claim);
        assert_eq!(coldest(&lru, 0..3, None, now), Some(1));
        assert_eq!(lru.now(), now);
        Ok(())
    }

    #[test]
    fn eviction_order_is_access_order() -> Result {
        let lru = lru(4)?;
        for block in [2, 0, 3, 1, 2] {
            lru.mark_accessed(block);
        }
        let now = lru.now();
        assert_eq!(coldest(&lru, 0..4, None, now), Some(0));
        lru.mark_accessed(0);
        assert_eq!(coldest(&lru, 0..4, None, lru.now()), Some(3));
        // Only blocks in use are candidates.
        assert_eq!(coldest(&lru, 0..3, None, lru.now()), Some(1));
        assert_eq!(coldest(&lru, 0..0, None, lru.now()), None);
        // Blocks that were used after `now` are not candidates.
        lru.mark_accessed(3);
        lru.mark_accessed(1);
        assert_eq!(coldest(&lru, 0..4, None, now), Some(2));
        lru.mark_accessed(2);
        assert_eq!(coldest(&lru, 0..4, None, now), None);
        Ok(())
    }

    #[test]
    fn accesses_to_one_block_do_not_advance_time() -> Result {
        let lru = lru(2)?;
        lru.mark_accessed(0);
        let now = lru.now();
        for _ in 0..100 {
            lru.mark_accessed(0);
        }
        assert_eq!(lru.now(), now);
        lru.mark_accessed(1);
        assert!(lru.now() > now);
        // A block number beyond the end is ignored.
        lru.mark_accessed(2);
        Ok(())
    }

    #[test]
    fn partial_blocks_are_evicted_first() -> Result {
        let lru = lru(8)?;
        for block in 0..8 {
            lru.mark_accessed(block);
        }
        assert_eq!(coldest(&lru, 0..8, Some(2), lru.now()), Some(2));
        // A block that is being filled is not preferred.
        assert_eq!(coldest(&lru, 0..8, Some(7), lru.now()), Some(0));
        Ok(())
    }

    #[test]
    fn random_accesses_agree_with_a_list() -> Result {
        const BLOCKS: usize = 16;
        let lru = lru(BLOCKS)?;
        // Blocks in the order of their last use, the oldest first.
        let mut list: [usize; BLOCKS] = core::array::from_fn(|block| block);
        let mut random = 12345u64;
        for block in list {
            lru.mark_accessed(block);
        }
        for _ in 0..1000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            let block = (random >> 33) as usize % BLOCKS;
            lru.mark_accessed(block);
            let at = list
                .iter()
                .position(|other| *other == block)
                .ok_or(EINVAL)?;
            if let Some(rest) = list.get_mut(at..) {
                rest.rotate_left(1);
            }
            assert_eq!(
                coldest(&lru, 0..BLOCKS, None, lru.now()),
                list.first().copied()
            );
        }
        Ok(())
    }

    #[test]
    fn blocks_that_become_partial_are_evicted_first() -> Result {
        let lru = lru(8)?;
        for block in 0..8 {
            lru.mark_accessed(block);
        }
        let full = |_| BlockUsage::Full;
        for block in 0..8 {
            lru.allocated(block, true);
        }
        let first = lru.coldest(&full, 8, lru.now());
        assert!(first.is_ok_and(|claim| claim.block() == 0));
        // Some pages of the block are freed.
        lru.freed(2);
        let usage = |block| match block {
            2 => BlockUsage::Partial,
            _ => BlockUsage::Full,
        };
        let second = lru.coldest(&usage, 8, lru.now());
        assert!(second.is_ok_and(|claim| claim.block() == 2));
        // The block is filled again, and then emptied.
        let third = lru.coldest(&full, 8, lru.now());
        assert!(third.is_ok_and(|claim| claim.block() == 0));
        let empty = |_| BlockUsage::Empty;
        assert_eq!(
            lru.coldest(&empty, 8, lru.now()).err(),
            Some(NoClaim::Nothing)
        );
        Ok(())
    }

    #[test]
    fn order_is_exact_for_16_tib() -> Result {
        // 16 TiB, with blocks in use in three places.
        let lru = Lru::new(1 << 23)?;
        let blocks = [0, 70, 5000, 5001, (1 << 23) - 1];
        for block in blocks {
            lru.prepare(block)?;
            lru.mark_accessed(block);
            lru.allocated(block, true);
        }
        let full = |_| BlockUsage::Full;
        for expected in [0, 70, 5000, 5001, (1 << 23) - 1, 0] {
            let claim = lru.coldest(&full, 5, lru.now());
            assert!(claim.is_ok_and(|claim| claim.block() == expected));
            lru.mark_accessed(expected);
        }
        // Blocks without allocated state are ignored.
        assert_eq!(lru.claim(1 << 22).err(), Some(NoClaim::Nothing));
        lru.mark_accessed(1 << 22);
        Ok(())
    }

    /// Creates a memory of `blocks` blocks of which `count` groups are full, each block accessed
    /// once, in ascending order. The groups are spread over the memory.
    fn full(blocks: usize, count: usize) -> Result<Lru> {
        let lru = Lru::new(blocks)?;
        let step = blocks.div_ceil(GROUP_BLOCKS) / count;
        for group in 0..count {
            let first = group * step * GROUP_BLOCKS;
            lru.prepare(first)?;
            for block in first..blocks.min(first + GROUP_BLOCKS) {
                lru.mark_accessed(block);
                lru.allocated(block, true);
            }
        }
        Ok(lru)
    }

    /// Returns the number of nodes and of candidates that `searches` searches visit, each of which
    /// finds the block that was accessed first. That block is then accessed again.
    fn visits(lru: &Lru, blocks: usize, searches: usize) -> (u64, usize) {
        let candidates = Cell::new(0);
        let usage = |_| {
            candidates.set(candidates.get() + 1);
            BlockUsage::Full
        };
        let before = lru.bounds.visits();
        for expected in 0..searches {
            let claim = lru.coldest(&usage, blocks, lru.now());
            assert!(claim.is_ok_and(|claim| claim.block() == expected));
            lru.mark_accessed(expected);
        }
        (lru.bounds.visits() - before, candidates.get())
    }

    #[test]
    fn victim_search_visits_as_many_nodes_for_1_gib_and_16_tib() -> Result {
        // All blocks of 1 GiB once; of 16 TiB 512 GiB are in use.
        const SEARCHES: usize = 1 << 9;
        const SMALL: usize = 1 << 9;
        const LARGE: usize = 1 << 23;
        let small = visits(&full(SMALL, 1)?, SMALL, SEARCHES);
        let large = visits(&full(LARGE, 64)?, LARGE, SEARCHES);
        pr_info!("cost: {SEARCHES} victim searches: nodes, blocks {small:?}, {large:?}\n");
        // A visit of a node costs the same for any size: it loads 64 bounds or access times.
        assert!(large.0 * 10 <= small.0 * 11 && large.1 * 10 <= small.1 * 11);
        Ok(())
    }

    #[test]
    fn victim_search_visits_at_most_64_lowest_nodes() -> Result {
        const BLOCKS: usize = 1 << 23;
        const GROUPS: usize = 4;
        let lru = full(BLOCKS, GROUPS)?;
        // All bounds become too low, and their order is the opposite of that of the blocks.
        let step = BLOCKS / GROUPS;
        let mut used = (0..GROUPS).flat_map(|group| (0..GROUP_BLOCKS).map(move |at| (group, at)));
        while let Some((group, at)) = used.next_back() {
            lru.mark_accessed(group * step + at);
        }
        let before = lru.bounds.visits();
        let claim = lru.coldest(&|_| BlockUsage::Full, GROUPS * GROUP_BLOCKS, lru.now());
        assert!(claim.is_ok());
        // Each tree has a root, and three nodes above each lowest one. The tree of partially used
        // blocks is empty.
        let visits = lru.bounds.visits() - before;
        pr_info!("cost: victim search beside outdated bounds: {visits} nodes\n");
        assert!((64..=2 + 64 + 64 * 2).contains(&visits));
        Ok(())
    }
}

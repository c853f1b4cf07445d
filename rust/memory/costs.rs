// SPDX-License-Identifier: GPL-2.0

//! Measures the search for an eviction victim, for several sizes of device memory.

use super::lru::{
    BlockUsage,
    Lru,
    GROUP_BLOCKS, //
};
use crate::kernel::completion::ktime_get_ns;
use kernel::prelude::*;

/// Number of searches. The fastest one counts, because interrupts disturb the others.
const TIMED_SEARCHES: usize = 50;

/// Returns the nanoseconds of a search in a memory of `blocks` blocks, `count` groups of which are
/// full. In a VM whose clock counts instructions, the result is a number of instructions.
fn search(blocks: usize, groups: usize) -> Result<u64> {
    let lru = Lru::new(blocks)?;
    let step = blocks.div_ceil(GROUP_BLOCKS) / groups;
    for group in 0..groups {
        let first = group * step * GROUP_BLOCKS;
        lru.prepare(first)?;
        for block in first..blocks.min(first + GROUP_BLOCKS) {
            lru.mark_accessed(block);
            lru.allocated(block, true);
        }
    }
    let full = |_| BlockUsage::Full;
    let mut least = u64::MAX;
    for expected in 0..TIMED_SEARCHES {
        let begin = ktime_get_ns();
        let claim = lru.coldest(&full, blocks, lru.now());
        let end = ktime_get_ns();
        assert!(claim.is_ok_and(|claim| claim.block() == expected));
        lru.mark_accessed(expected);
        least = least.min(end.saturating_sub(begin));
    }
    Ok(least)
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_memory_costs)]
mod tests {
    use super::*;

    #[test]
    fn victim_search_costs_the_same_for_1_gib_and_16_tib() -> Result {
        let small = search(1 << 9, 1)?;
        let large = search(1 << 23, 64)?;
        pr_info!("cost: victim search: 1 GiB {small} ns, 16 TiB {large} ns\n");
        // The costs should be equal. The bound is loose, because wall time in a VM varies. A search
        // that visits each block would exceed it by far.
        assert!(large <= small + small / 2);
        Ok(())
    }
}

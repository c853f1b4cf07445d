// SPDX-License-Identifier: GPL-2.0

//! What the search for a victim costs, whatever the size of the memory.

use super::lru::{Lru, Usage, GROUP};
use crate::mm::bell::monotonic_ns;
use kernel::prelude::*;

/// Searches of which the cheapest counts: others are disturbed by interrupts.
const SEARCHES: usize = 50;

/// Nanoseconds of a search in memory of `blocks` blocks, `count` groups of which are full. Where
/// the clock counts instructions these are what is measured.
fn search(blocks: usize, groups: usize) -> Result<u64> {
    let lru = Lru::new(blocks)?;
    let step = blocks.div_ceil(GROUP) / groups;
    for group in 0..groups {
        let first = group * step * GROUP;
        lru.prepare(first)?;
        for block in first..blocks.min(first + GROUP) {
            lru.touch(block);
            lru.allocated(block, true);
        }
    }
    let full = |_| Usage::Full;
    let mut least = u64::MAX;
    for expected in 0..SEARCHES {
        let begin = monotonic_ns();
        let claim = lru.coldest(&full, blocks, lru.now());
        let end = monotonic_ns();
        assert!(claim.is_ok_and(|claim| claim.block() == expected));
        lru.touch(expected);
        least = least.min(end.saturating_sub(begin));
    }
    Ok(least)
}

#[kunit_tests(rust_hmm_memory_costs)]
mod tests {
    use super::*;

    #[test]
    fn victim_search_costs_the_same_for_1_gib_and_16_tib() -> Result {
        let (small, large) = (search(1 << 9, 1)?, search(1 << 23, 64)?);
        pr_info!("cost: victim search: 1 GiB {small} ns, 16 TiB {large} ns\n");
        // Exactly: within 10 %, see Documentation/memory.rst. This is for any clock.
        assert!(large <= small + small / 2);
        Ok(())
    }
}

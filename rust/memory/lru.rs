// SPDX-License-Identifier: GPL-2.0

//! Which block of device memory the device has not used for the longest time.
//!
//! Each block of 2 MiB has the time of its last access, in *turns*: a turn passes when the device goes
//! from one block to another. So the cost of an access is two loads, no lock, and the order is that of
//! accesses, not that of allocations.

use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::{Acquire, Relaxed, Release},
        Atomic,
        AtomicFlag, //
    },
};

/// A moment, in turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn(u64);

/// What is known of a block that could be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Number of the block.
    pub(super) block: usize,
    /// Whether all of its pages are in use.
    pub(super) full: bool,
}

/// What is known of a block.
struct Block {
    /// Turn of the last access.
    last: Atomic<u64>,
    /// Whether a task evicts the block, see [`Claim`].
    claimed: AtomicFlag,
}

/// Times of access of all blocks.
pub(super) struct Lru {
    now: Atomic<u64>,
    blocks: KVVec<Block>,
}

/// A block that the current task evicts. No other task chooses it until this is dropped.
///
/// # Invariants
///
/// The flag was set for this value.
pub(super) struct Claim<'a> {
    claimed: &'a AtomicFlag,
    block: usize,
}

impl Claim<'_> {
    /// Number of the block.
    pub(super) fn block(&self) -> usize {
        self.block
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claimed.store(false, Release);
    }
}

/// Why there is no block to evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoClaim {
    /// Other tasks evict all blocks that could be chosen.
    Busy,
    /// There is none.
    Nothing,
}

impl Lru {
    /// For `blocks` blocks, none of which was used. Context: may sleep. `ENOMEM`.
    pub(super) fn new(blocks: usize) -> Result<Self> {
        let mut all = KVVec::with_capacity(blocks, GFP_KERNEL)?;
        for _ in 0..blocks {
            let block = Block {
                last: Atomic::new(0),
                claimed: AtomicFlag::new(false),
            };
            all.push(block, GFP_KERNEL)?;
        }
        Ok(Self {
            // Before the first turn, all were used at 0.
            now: Atomic::new(1),
            blocks: all,
        })
    }

    /// The device uses `block` now. Context: any.
    #[inline]
    pub(super) fn touch(&self, block: usize) {
        if let Some(Block { last, .. }) = self.blocks.get(block) {
            if last.load(Relaxed) != self.now.load(Relaxed) {
                self.advance(last);
            }
        }
    }

    /// Moves `block`, which could not be evicted, behind all others, even if it is the most
    /// recently used one. Context: any.
    pub(super) fn put_off(&self, block: usize) {
        if let Some(Block { last, .. }) = self.blocks.get(block) {
            self.advance(last);
        }
    }

    #[inline]
    fn advance(&self, last: &Atomic<u64>) {
        last.store(self.now.fetch_add(1, Relaxed) + 1, Relaxed);
    }

    /// Now. Blocks that are used from here on are not older.
    pub(super) fn now(&self) -> Turn {
        Turn(self.now.load(Relaxed))
    }

    /// Claims `block` for the current task to evict it.
    pub(super) fn claim(&self, block: usize) -> Result<Claim<'_>, NoClaim> {
        let known = self.blocks.get(block).ok_or(NoClaim::Nothing)?;
        let claimed = &known.claimed;
        if claimed.xchg(true, Acquire) {
            return Err(NoClaim::Busy);
        }
        // INVARIANT: Set just now, by us.
        Ok(Claim { claimed, block })
    }

    /// Claims the block to evict: of those that were not used after `before` and that no other task evicts, first one
    /// that is used in part only and was not used lately, then the one that was not used for the longest time.
    ///
    /// Lately is, in as many turns as half of the candidates take in turn; `count` is how many there are. What is used in part costs
    /// less to evict, and makes as much room for a huge page.
    pub(super) fn coldest(
        &self,
        candidates: &mut dyn Iterator<Item = Candidate>,
        count: usize,
        before: Turn,
    ) -> Result<Claim<'_>, NoClaim> {
        let now = self.now.load(Relaxed);
        let mut best: Option<((bool, u64), usize)> = None;
        let mut busy = false;
        for candidate in candidates {
            let Some(block) = self.blocks.get(candidate.block) else {
                continue;
            };
            let last = block.last.load(Relaxed);
            if last > before.0 {
                continue;
            }
            if block.claimed.load(Relaxed) {
                busy = true;
                continue;
            }
            let age = now.saturating_sub(last);
            let key = (!candidate.full && age > count as u64 / 2, age);
            if best.is_none_or(|(other, _)| key >= other) {
                best = Some((key, candidate.block));
            }
        }
        match best {
            // Another task may be faster.
            Some((_, block)) => self.claim(block),
            None if busy => Err(NoClaim::Busy),
            None => Err(NoClaim::Nothing),
        }
    }
}

#[kunit_tests(rust_hmm_lru)]
mod tests {
    use super::*;

    /// The coldest of `blocks`, of which `partly` is used in part.
    fn coldest(
        lru: &Lru,
        blocks: core::ops::Range<usize>,
        partly: Option<usize>,
        before: Turn,
    ) -> Option<usize> {
        let count = blocks.len();
        let mut candidates = blocks.map(|block| Candidate {
            block,
            full: partly != Some(block),
        });
        let claim = lru.coldest(&mut candidates, count, before).ok()?;
        Some(claim.block())
    }

    #[test]
    fn concurrent_evictors_choose_different_blocks() -> Result {
        let lru = Lru::new(3)?;
        for block in [1, 2, 0] {
            lru.touch(block);
        }
        let now = lru.now();
        let choose = || {
            let mut candidates = (0..3).map(|block| Candidate { block, full: true });
            lru.coldest(&mut candidates, 3, now)
        };
        let mut claims = KVec::new();
        for expected in [1, 2, 0] {
            let claim = choose().map_err(|_| EINVAL)?;
            assert_eq!(claim.block(), expected);
            claims.push(claim, GFP_KERNEL)?;
        }
        assert_eq!(choose().err(), Some(NoClaim::Busy));
        assert_eq!(lru.claim(1).err(), Some(NoClaim::Busy));
        assert_eq!(lru.claim(3).err(), Some(NoClaim::Nothing));
        // Not evicted after all: it is as cold as before.
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
    fn order_is_that_of_accesses() -> Result {
        let lru = Lru::new(4)?;
        for block in [2, 0, 3, 1, 2] {
            lru.touch(block);
        }
        let now = lru.now();
        assert_eq!(coldest(&lru, 0..4, None, now), Some(0));
        lru.touch(0);
        assert_eq!(coldest(&lru, 0..4, None, lru.now()), Some(3));
        // Of those only that are there.
        assert_eq!(coldest(&lru, 0..3, None, lru.now()), Some(1));
        assert_eq!(coldest(&lru, 0..0, None, lru.now()), None);
        // Nothing that was used since.
        lru.touch(3);
        lru.touch(1);
        assert_eq!(coldest(&lru, 0..4, None, now), Some(2));
        lru.touch(2);
        assert_eq!(coldest(&lru, 0..4, None, now), None);
        Ok(())
    }

    #[test]
    fn staying_in_a_block_passes_no_time() -> Result {
        let lru = Lru::new(2)?;
        lru.touch(0);
        let now = lru.now();
        for _ in 0..100 {
            lru.touch(0);
        }
        assert_eq!(lru.now(), now);
        lru.touch(1);
        assert!(lru.now() > now);
        // Beyond the last block: nothing happens.
        lru.touch(2);
        Ok(())
    }

    #[test]
    fn what_is_used_in_part_goes_first() -> Result {
        let lru = Lru::new(8)?;
        for block in 0..8 {
            lru.touch(block);
        }
        assert_eq!(coldest(&lru, 0..8, Some(2), lru.now()), Some(2));
        // But not what is being filled now.
        assert_eq!(coldest(&lru, 0..8, Some(7), lru.now()), Some(0));
        Ok(())
    }

    #[test]
    fn random_accesses_agree_with_a_list() -> Result {
        const BLOCKS: usize = 16;
        let lru = Lru::new(BLOCKS)?;
        // The oldest first.
        let mut list: [usize; BLOCKS] = core::array::from_fn(|block| block);
        let mut random = 12345u64;
        for block in list {
            lru.touch(block);
        }
        for _ in 0..1000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            let block = (random >> 33) as usize % BLOCKS;
            lru.touch(block);
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
}

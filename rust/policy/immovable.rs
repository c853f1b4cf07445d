// SPDX-License-Identifier: GPL-2.0

//! Cache of memory that cannot move, so that faults on it need no survey.

use crate::mm::addr::{
    PageRange,
    PMD_SIZE, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

/// Number of blocks in the cache. Blocks with the same slot replace each other.
const CACHE_SLOTS: usize = 64;

/// Size of a part in bytes. The default policy migrates at least that much for a fault.
const PART_SIZE: usize = 64 << 10;

/// Parts of a block. The set of them is one word.
const PARTS_PER_BLOCK: usize = u32::BITS as usize;

/// Size of a block of the cache in bytes, 2 MiB.
const BLOCK_SIZE: usize = PART_SIZE * PARTS_PER_BLOCK;

// A range that PMDs map as a whole is one of whole blocks.
const _: () = assert!(PMD_SIZE % BLOCK_SIZE == 0);

/// Returns the start of the block of the cache that contains `addr`.
fn block_start(addr: usize) -> usize {
    addr & !(BLOCK_SIZE - 1)
}

/// Lifetime of an entry in ms. Some changes, for example the release of a pin, cause no notifier
/// event.
const LIFETIME_MS: u64 = 500;

#[derive(Clone, Copy)]
struct ImmovableBlock {
    block: usize,
    /// Parts in which no page can move to the device. A page that is there already counts as such a
    /// page.
    parts: u32,
    until: u64,
}

impl ImmovableBlock {
    const EMPTY: Self = Self {
        block: 0,
        parts: 0,
        until: 0,
    };
}

/// Parts of the address space in which no page can move to the device. An entry is valid for a
/// limited time, and until a notifier event in its range. The cache has [`CACHE_SLOTS`] entries.
pub(crate) struct Immovable {
    /// Empty until the first entry is added.
    places: KVec<ImmovableBlock>,
    /// Whether an entry was added since the cache was empty.
    any: bool,
}

/// Returns the set of the parts from `first` to `end`, exclusive.
fn parts(first: usize, end: usize) -> u32 {
    // CAST: Parts are at most 32.
    let count = end.saturating_sub(first) as u32;
    let bits = u32::MAX.checked_shr(u32::BITS - count.min(u32::BITS));
    // CAST: Parts are at most 32.
    bits.unwrap_or(0).checked_shl(first as u32).unwrap_or(0)
}

impl Immovable {
    /// Minimum number of consecutive pages for an entry.
    pub(crate) const MIN_PAGES: usize = PART_SIZE / PAGE_SIZE;

    /// Creates an empty cache.
    pub(crate) const fn new() -> Self {
        Self {
            places: KVec::new(),
            any: false,
        }
    }

    fn place(&mut self, block: usize) -> Option<&mut ImmovableBlock> {
        self.places.get_mut(block / BLOCK_SIZE % CACHE_SLOTS)
    }

    /// Returns whether the block at `addr` was surveyed, and the result is still valid at time
    /// `now`.
    pub(crate) fn has_block(&mut self, addr: usize, now: u64) -> bool {
        let block = block_start(addr);
        self.any
            && self
                .place(block)
                .is_some_and(|place| place.block == block && place.until > now)
    }

    /// Records at time `now` that no page of `range` can move. Parts that are not completely in
    /// `range` are left out. The expiry of existing information about the block is not extended.
    /// Does nothing if there is no memory.
    ///
    /// # Context
    ///
    /// Any. Does not wait for memory.
    pub(crate) fn add(&mut self, range: PageRange, now: u64) {
        if self.places.is_empty()
            && self
                .places
                .resize(CACHE_SLOTS, ImmovableBlock::EMPTY, GFP_NOWAIT)
                .is_err()
        {
            return;
        }
        for piece in range.pieces(BLOCK_SIZE) {
            let block = block_start(piece.start());
            let first = (piece.start() - block).div_ceil(PART_SIZE);
            let parts = parts(first, (piece.end() - block) / PART_SIZE);
            let Some(place) = self.place(block).filter(|_| parts != 0) else {
                continue;
            };
            if place.block != block || place.until <= now {
                *place = ImmovableBlock {
                    block,
                    parts: 0,
                    until: now.saturating_add(LIFETIME_MS),
                };
            }
            place.parts |= parts;
            self.any = true;
        }
    }

    /// Returns the contiguous immovable parts around `range`, of the blocks that it overlaps.
    /// Returns `None` if a page of `range` may be movable, according to the entries that are valid
    /// at time `now`.
    pub(crate) fn around(&mut self, range: PageRange, now: u64) -> Option<PageRange> {
        if !self.any {
            return None;
        }
        let mut all = range;
        for piece in range.pieces(BLOCK_SIZE) {
            all = all.union(&self.around_piece(piece, now)?);
        }
        Some(all)
    }

    /// As [`Self::around`], for a range within a block.
    fn around_piece(&mut self, range: PageRange, now: u64) -> Option<PageRange> {
        let block = block_start(range.start());
        let place = self.place(block)?;
        let is_immovable = |part: usize| place.parts & parts(part, part + 1) != 0;
        let mut first = (range.start() - block) / PART_SIZE;
        let mut end = (range.end() - block).div_ceil(PART_SIZE);
        if place.block != block || place.until <= now || !(first..end).all(is_immovable) {
            return None;
        }
        while first != 0 && is_immovable(first - 1) {
            first -= 1;
        }
        while end != PARTS_PER_BLOCK && is_immovable(end) {
            end += 1;
        }
        PageRange::new(block + first * PART_SIZE, block + end * PART_SIZE).ok()
    }

    /// Removes the entries of blocks that overlap `range`, because of a change there.
    pub(crate) fn remove(&mut self, range: PageRange) {
        if !self.any {
            return;
        }
        self.any = false;
        for place in self.places.iter_mut().filter(|place| place.parts != 0) {
            // OVERFLOW: The block is in user space, and the minimum keeps the difference from being
            // negative.
            if place.block < range.end()
                && range.start() - place.block.min(range.start()) < BLOCK_SIZE
            {
                *place = ImmovableBlock::EMPTY;
            } else {
                self.any = true;
            }
        }
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_immovable)]
mod tests {
    use super::*;
    use kernel::page::PAGE_MASK;

    /// Pages of a part and of a block.
    const P: usize = PART_SIZE / PAGE_SIZE;
    const B: usize = BLOCK_SIZE / PAGE_SIZE;

    fn pages(first: usize, count: usize) -> Result<PageRange> {
        PageRange::from_pages(0x4000_0000 + first * PAGE_SIZE, count)
    }

    impl Immovable {
        fn has(&mut self, range: PageRange, now: u64) -> bool {
            self.around(range, now).is_some()
        }
    }

    #[test]
    fn whole_parts_are_remembered_until_they_expire() -> Result {
        let mut cache = Immovable::new();
        assert!(!cache.has(pages(0, 1)?, 0));
        // Half of a part, a whole part, and half of another.
        cache.add(pages(P / 2, 2 * P)?, 100);
        assert!(cache.has(pages(P, P)?, 100) && cache.has(pages(2 * P - 1, 1)?, 599));
        assert!(cache.has_block(pages(B - 1, 1)?.start(), 599));
        assert!(!cache.has_block(pages(B, 1)?.start(), 100));
        assert!(!cache.has_block(pages(P, 1)?.start(), 600));
        assert!(!cache.has(pages(P - 1, 1)?, 100) && !cache.has(pages(2 * P, 1)?, 100));
        assert!(!cache.has(pages(2 * P - 1, 2)?, 100));
        assert_eq!(cache.around(pages(P + 1, 1)?, 100), Some(pages(P, P)?));
        assert!(!cache.has(pages(P, 1)?, 600));
        // Adding to the same block does not extend the lifetime of its entry.
        cache.add(pages(3 * P, P)?, 400);
        assert!(cache.has(pages(3 * P, 1)?, 599) && !cache.has(pages(3 * P, 1)?, 600));
        assert!(!cache.has(pages(P, 1)?, 600));
        // An expired entry is replaced as a whole.
        cache.add(pages(4 * P, P)?, 600);
        assert!(cache.has(pages(4 * P, 1)?, 700) && !cache.has(pages(P, 1)?, 700));
        // A range of two whole blocks.
        cache.add(pages(0, 2 * B)?, 700);
        assert!(cache.has(pages(0, B)?, 700) && cache.has(pages(B, B)?, 700));
        assert!(!cache.has(pages(2 * B, 1)?, 700));
        assert_eq!(cache.around(pages(B - 1, 1)?, 700), Some(pages(0, B)?));
        assert_eq!(cache.around(pages(B - 1, 2)?, 700), Some(pages(0, 2 * B)?));
        // The second block may be movable.
        assert!(!cache.has(pages(2 * B - 1, 2)?, 700));
        Ok(())
    }

    #[test]
    fn changed_blocks_are_removed() -> Result {
        let mut cache = Immovable::new();
        cache.add(pages(0, 4 * B)?, 0);
        cache.remove(pages(2 * B - 1, 2)?);
        assert!(cache.has(pages(0, 1)?, 0) && cache.has(pages(3 * B, 1)?, 0));
        assert!(!cache.has(pages(B, 1)?, 0) && !cache.has(pages(2 * B, 1)?, 0));
        cache.remove(PageRange::new(0, usize::MAX & PAGE_MASK)?);
        assert!(!cache.has(pages(0, 1)?, 0) && !cache.any);
        Ok(())
    }

    #[test]
    fn blocks_in_one_slot_replace_each_other() -> Result {
        let mut cache = Immovable::new();
        cache.add(pages(0, B)?, 0);
        cache.add(pages(CACHE_SLOTS * B, P)?, 0);
        assert!(!cache.has(pages(0, 1)?, 0) && cache.has(pages(CACHE_SLOTS * B, 1)?, 0));
        assert!(!cache.has(pages(CACHE_SLOTS * B + P, 1)?, 0));
        Ok(())
    }
}

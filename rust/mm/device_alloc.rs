// SPDX-License-Identifier: GPL-2.0

//! Which pages of a piece of device memory are free.
//!
//! A bitmap of atomics, without a lock: pages are freed in any context, also from interrupts, when
//! the last reference to a coherent page goes at the end of an I/O. Single pages are taken from the
//! bottom and 2 MiB blocks from the top, so that they keep out of each other's way.

use super::addr::{PMD_ORDER, PMD_PAGES};
use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::{Acquire, Full, Relaxed},
        Atomic, //
    },
};

const WORD_PAGES: usize = u64::BITS as usize;
const BLOCK_WORDS: usize = PMD_PAGES / WORD_PAGES;

/// Free pages of one piece, by index.
pub(super) struct FreeMap {
    /// A set bit is a free page.
    words: KVVec<Atomic<u64>>,
    /// No word below this one has a free page, unless one was freed just now.
    low: Atomic<usize>,
    used: Atomic<usize>,
}

impl FreeMap {
    /// All of `pages` are free; a multiple of 512.
    pub(super) fn new(pages: usize) -> Result<Self> {
        let count = pages / WORD_PAGES;
        let mut words = KVVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            words.push(Atomic::new(u64::MAX), GFP_KERNEL)?;
        }
        Ok(Self {
            words,
            low: Atomic::new(0),
            used: Atomic::new(0),
        })
    }

    /// Pages in use.
    pub(super) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Whether any page of `first..first + 512` is in use.
    pub(super) fn block_used(&self, first: usize) -> bool {
        let word = first / WORD_PAGES;
        self.words
            .get(word..word.saturating_add(BLOCK_WORDS))
            .is_some_and(|words| words.iter().any(|word| word.load(Relaxed) != u64::MAX))
    }

    /// Takes a page or a block of 512, by order 0 or 9. Returns the index of its first page.
    pub(super) fn take(&self, order: u32) -> Option<usize> {
        let (index, pages) = match order {
            0 => (self.take_page()?, 1),
            PMD_ORDER => (self.take_block()?, PMD_PAGES),
            _ => return None,
        };
        self.used.fetch_add(pages, Relaxed);
        Some(index)
    }

    fn take_page(&self) -> Option<usize> {
        let start = self.low.load(Relaxed);
        let found = self.scan(start, self.words.len());
        found.or_else(|| self.scan(0, start))
    }

    fn scan(&self, from: usize, to: usize) -> Option<usize> {
        for (index, word) in self.words.get(from..to)?.iter().enumerate() {
            let mut value = word.load(Relaxed);
            while value != 0 {
                let bit = value.trailing_zeros();
                match word.cmpxchg(value, value & (value - 1), Acquire) {
                    Ok(_) => {
                        self.low.store(from + index, Relaxed);
                        return Some((from + index) * WORD_PAGES + bit as usize);
                    }
                    Err(now) => value = now,
                }
            }
        }
        None
    }

    fn take_block(&self) -> Option<usize> {
        for (block, words) in self.words.chunks_exact(BLOCK_WORDS).enumerate().rev() {
            let taken = words
                .iter()
                .take_while(|word| word.cmpxchg(u64::MAX, 0, Acquire).is_ok())
                .count();
            if taken == BLOCK_WORDS {
                return Some(block * PMD_PAGES);
            }
            for word in words.iter().take(taken) {
                word.xchg(u64::MAX, Full);
            }
        }
        None
    }

    /// Gives `pages` pages back. Context: any.
    pub(super) fn give_back(&self, index: usize, pages: usize) {
        let mut at = index;
        let end = index.saturating_add(pages);
        while at < end {
            let Some(word) = self.words.get(at / WORD_PAGES) else {
                return;
            };
            let bits = (end - at).min(WORD_PAGES - at % WORD_PAGES);
            let mask = (u64::MAX >> (WORD_PAGES - bits)) << (at % WORD_PAGES);
            // The bits are clear until here, so that adding sets them.
            word.fetch_add(mask, Full);
            at += bits;
        }
        self.used.fetch_sub(pages, Relaxed);
        if index / WORD_PAGES < self.low.load(Relaxed) {
            self.low.store(index / WORD_PAGES, Relaxed);
        }
    }
}

#[kunit_tests(rust_hmm_device_alloc)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_blocks_do_not_overlap() -> Result {
        let map = FreeMap::new(2 * PMD_PAGES)?;
        assert_eq!(map.take(0), Some(0));
        assert_eq!(map.take(0), Some(1));
        assert_eq!(map.take(PMD_ORDER), Some(PMD_PAGES));
        // The other block has pages in use.
        assert_eq!(map.take(PMD_ORDER), None);
        assert_eq!(map.used(), PMD_PAGES + 2);
        for index in 2..PMD_PAGES {
            assert_eq!(map.take(0), Some(index));
        }
        assert_eq!(map.take(0), None);
        Ok(())
    }

    #[test]
    fn freed_pages_come_back() -> Result {
        let map = FreeMap::new(PMD_PAGES)?;
        assert_eq!(map.take(PMD_ORDER), Some(0));
        assert!(map.block_used(0));
        // A block may be freed page by page, after it was split.
        for index in 0..PMD_PAGES {
            map.give_back(index, 1);
        }
        assert_eq!(map.used(), 0);
        assert!(!map.block_used(0));
        assert_eq!(map.take(PMD_ORDER), Some(0));
        map.give_back(0, PMD_PAGES);
        assert_eq!(map.take(0), Some(0));
        assert_eq!(map.take(1), None);
        Ok(())
    }
}

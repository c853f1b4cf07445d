// SPDX-License-Identifier: GPL-2.0

//! Page allocator of one piece of device memory: a lock-free bitmap from which folios of order 0 to
//! [`PMD_ORDER`] are allocated, in blocks of [`PMD_PAGES`]. The last block may have fewer pages.
//!
//! Pages are freed in any context: under page-table locks, and from interrupts, when the last
//! reference to a coherent page is dropped at the end of an I/O. A bitmap of atomics needs no lock
//! for that. The kernel's `gpu::buddy` is not suitable: it takes a mutex, allocates memory when it
//! frees, and frees only whole allocations, whereas the core splits huge folios and frees them page
//! by page. It also requires `CONFIG_GPU_BUDDY`, which few kernels enable.
//!
//! Splitting and merging cost nothing in a bitmap: a free folio of order `n` is an aligned run of
//! `2^n` set bits. Small folios are allocated from the block with the fewest free pages that
//! suffice, so that whole blocks remain for huge folios.
//!
//! `bits` changes the words of the bitmap. `release` frees pages, and withdraws them.

use super::addr::{
    PMD_ORDER,
    PMD_PAGES, //
};
use crate::kernel::word::{
    peek_u64,
    peek_usize, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::Relaxed,
        Atomic,
        AtomicFlag, //
    }, //
};

mod bits;
mod release;

use bits::{
    bits,
    count,
    fits,
    take_bits,
    take_page,
    WORD_ORDER,
    WORD_PAGES, //
};
pub(crate) use bits::{
    clear,
    set, //
};

const BLOCK_WORDS: usize = PMD_PAGES / WORD_PAGES;

/// Bitmaps of the free, withdrawn and hidden pages of one piece.
///
/// # Invariants
///
/// The bitmaps cover whole blocks. Bits from `len` on are those of withdrawn and hidden pages, and
/// never change: the device has no such pages.
pub(in crate::mm) struct FreeMap {
    /// Number of pages.
    len: usize,
    /// A set bit is a free page.
    words: KVVec<Atomic<u64>>,
    /// A set bit is a page that is withdrawn: when it is freed, it is hidden.
    out: KVVec<Atomic<u64>>,
    /// A set bit is a withdrawn page that is neither free nor in use.
    hidden: KVVec<Atomic<u64>>,
    /// Block of the most recent allocation of a small folio.
    block: Atomic<usize>,
    used: Atomic<usize>,
    /// Number of hidden pages.
    withdrawn: Atomic<usize>,
    /// Whether `out` or `hidden` may have set bits.
    some_out: AtomicFlag,
}

impl FreeMap {
    /// Creates a map of `pages` pages. All pages are withdrawn until [`Self::online`].
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    pub(in crate::mm) fn new(pages: usize) -> Result<Self> {
        let map = |value: u64| -> Result<KVVec<Atomic<u64>>> {
            let count = pages.div_ceil(PMD_PAGES) * BLOCK_WORDS;
            let mut words = KVVec::with_capacity(count, GFP_KERNEL)?;
            for _ in 0..count {
                words.push(Atomic::new(value), GFP_KERNEL)?;
            }
            Ok(words)
        };
        // INVARIANT: All pages are withdrawn and hidden.
        Ok(Self {
            len: pages,
            words: map(0)?,
            out: map(u64::MAX)?,
            hidden: map(u64::MAX)?,
            block: Atomic::new(0),
            used: Atomic::new(0),
            withdrawn: Atomic::new(pages),
            some_out: AtomicFlag::new(true),
        })
    }

    /// Returns the number of pages in use.
    pub(in crate::mm) fn used(&self) -> usize {
        peek_usize(&self.used)
    }

    /// Returns the number of hidden pages.
    pub(in crate::mm) fn withdrawn(&self) -> usize {
        peek_usize(&self.withdrawn)
    }

    /// Returns an upper bound of the number of free pages: pages that are allocated, freed or
    /// hidden concurrently are counted as free.
    fn free(&self) -> usize {
        let gone = self.used().saturating_add(self.withdrawn());
        self.len().saturating_sub(gone)
    }

    /// Returns the number of pages of the piece.
    pub(in crate::mm) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of pages of the block that begins at `first`.
    pub(in crate::mm) fn pages_in_block(&self, first: usize) -> usize {
        self.len.saturating_sub(first).min(PMD_PAGES)
    }

    fn block(&self, number: usize) -> Option<&[Atomic<u64>]> {
        let first = number.checked_mul(BLOCK_WORDS)?;
        self.words.get(first..first.checked_add(BLOCK_WORDS)?)
    }

    /// Returns the number of pages in use of `first..first + PMD_PAGES`.
    pub(in crate::mm) fn used_in_block(&self, first: usize) -> usize {
        let pairs = self.words.iter().zip(&self.hidden);
        pairs
            .skip(first / WORD_PAGES)
            .take(BLOCK_WORDS)
            .map(|(free, hidden)| (!(peek_u64(free) | peek_u64(hidden))).count_ones())
            .sum::<u32>() as usize
    }

    /// Returns whether page `index` is in use.
    pub(in crate::mm) fn is_used(&self, index: usize) -> bool {
        let word = index / WORD_PAGES;
        let free = self.words.get(word).zip(self.hidden.get(word));
        free.is_some_and(|(free, hidden)| {
            (peek_u64(free) | peek_u64(hidden)) >> (index % WORD_PAGES) & 1 == 0
        })
    }

    /// Allocates a folio of `order`, 0 to [`PMD_ORDER`]. Returns the index of its first page.
    /// Context: any.
    pub(in crate::mm) fn take(&self, order: u32) -> Option<usize> {
        // Do not search a full piece: if there are many pieces, most are full.
        if self.free() < 1 << order.min(PMD_ORDER) {
            return None;
        }
        let index = match order {
            PMD_ORDER => self.take_block(),
            0..PMD_ORDER => self.take_small(order),
            _ => None,
        }?;
        self.used.fetch_add(1 << order, Relaxed);
        Some(index)
    }

    /// Allocates the folio of `order` at `index`, if it is free. Returns whether it was. Context:
    /// any.
    pub(in crate::mm) fn take_at(&self, index: usize, order: u32) -> bool {
        let pages = 1 << order.min(PMD_ORDER);
        if order > PMD_ORDER || index % pages != 0 || !self.claim(index, pages) {
            return false;
        }
        self.used.fetch_add(pages, Relaxed);
        true
    }

    /// Allocates consecutive free pages from `index` on: at most `most`, and at most 64. Returns
    /// their number; 0 if the page at `index` is not free. Context: any.
    pub(in crate::mm) fn take_row(&self, index: usize, most: usize) -> usize {
        let Some(word) = self.words.get(index / WORD_PAGES) else {
            return 0;
        };
        let bit = index % WORD_PAGES;
        // CAST: At most 64.
        let row = |value: u64| most.min((value >> bit).trailing_ones() as usize);
        let taken = take_bits(word, |value| match row(value) {
            0 => 0,
            pages => bits(bit, pages),
        });
        // CAST: As above.
        let pages = taken.count_ones() as usize;
        self.used.fetch_add(pages, Relaxed);
        pages
    }

    /// Clears the bits of `pages` free pages from `index` on, so that the caller owns the pages.
    /// `pages` is a power of 2, and `index` a multiple of it. Returns false, with no bits cleared,
    /// if any of the pages is not free.
    fn claim(&self, index: usize, pages: usize) -> bool {
        let first = index / WORD_PAGES;
        let Some(words) = self.words.get(first..first + pages.div_ceil(WORD_PAGES)) else {
            return false;
        };
        let mask = bits(index % WORD_PAGES, pages.min(WORD_PAGES));
        let all = |value: u64| if value & mask == mask { mask } else { 0 };
        let taken = words.iter().take_while(|word| take_bits(word, all) != 0);
        let taken = taken.count();
        if taken == words.len() {
            return true;
        }
        for word in words.iter().take(taken) {
            set(word, mask);
        }
        false
    }

    fn take_small(&self, order: u32) -> Option<usize> {
        let last = peek_usize(&self.block);
        if let Some(index) = self.take_from(last, order) {
            return Some(index);
        }
        // A concurrent allocation may win the race for a block. The loop is bounded, because each
        // failure means that another allocation has made progress.
        for _ in 0..self.words.len() {
            let block = self.best(order)?;
            if let Some(index) = self.take_from(block, order) {
                self.block.store(block, Relaxed);
                return Some(index);
            }
        }
        None
    }

    /// Returns the block with the fewest free pages among those that have a free folio of `order`.
    fn best(&self, order: u32) -> Option<usize> {
        let mut best = None;
        for (number, words) in self.words.chunks_exact(BLOCK_WORDS).enumerate() {
            let free: u32 = words.iter().map(|word| count(peek_u64(word))).sum();
            if free == 0 || best.is_some_and(|(fewest, _)| fewest <= free) {
                continue;
            }
            if Self::find(words, order).is_some() {
                best = Some((free, number));
            }
        }
        best.map(|(_, number)| number)
    }

    /// Returns the index in a block, given by its words, of the first free folio of `order`.
    fn find(words: &[Atomic<u64>], order: u32) -> Option<usize> {
        if order < WORD_ORDER {
            return words.iter().enumerate().find_map(|(index, word)| {
                let fits = fits(peek_u64(word), order);
                (fits != 0).then(|| index * WORD_PAGES + fits.trailing_zeros() as usize)
            });
        }
        let count = (1 << order) / WORD_PAGES;
        words
            .chunks_exact(count)
            .position(|words| words.iter().all(|word| peek_u64(word) == u64::MAX))
            .map(|place| place * count * WORD_PAGES)
    }

    fn take_from(&self, block: usize, order: u32) -> Option<usize> {
        let words = self.block(block)?;
        if order == 0 {
            return Some(block * PMD_PAGES + take_page(words)?);
        }
        loop {
            let index = block * PMD_PAGES + Self::find(words, order)?;
            if self.claim(index, 1 << order) {
                return Some(index);
            }
        }
    }

    /// Allocates a whole block. Searches from the end, because small folios are allocated from the
    /// start.
    fn take_block(&self) -> Option<usize> {
        let blocks = self.words.len() / BLOCK_WORDS;
        (0..blocks)
            .rev()
            .map(|number| number * PMD_PAGES)
            .find(|index| self.claim(*index, PMD_PAGES))
    }

    /// Returns the order, up to [`PMD_ORDER`], of the largest free folio that contains page
    /// `index`; 0 also if the page is not free.
    pub(in crate::mm) fn free_order(&self, index: usize) -> u32 {
        let Some(word) = self.words.get(index / WORD_PAGES) else {
            return 0;
        };
        let word = peek_u64(word);
        if word != u64::MAX {
            let is_free = |order: &u32| {
                let mask = bits(index % WORD_PAGES & !((1 << order) - 1), 1 << order);
                word & mask == mask
            };
            return (1..WORD_ORDER).take_while(is_free).last().unwrap_or(0);
        }
        let is_free = |order: &u32| {
            let count = (1 << order) / WORD_PAGES;
            let first = index / WORD_PAGES & !(count - 1);
            let words = self.words.get(first..first + count);
            words.is_some_and(|words| words.iter().all(|word| peek_u64(word) == u64::MAX))
        };
        let larger = (WORD_ORDER + 1..=PMD_ORDER).take_while(is_free).last();
        larger.unwrap_or(WORD_ORDER)
    }

    /// Returns whether any block of [`PMD_PAGES`] is free.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(in crate::mm) fn has_block(&self) -> bool {
        self.words
            .chunks_exact(BLOCK_WORDS)
            .any(|words| words.iter().all(|word| peek_u64(word) == u64::MAX))
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
mod tests;

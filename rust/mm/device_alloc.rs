// SPDX-License-Identifier: GPL-2.0

//! Which pages of a piece of device memory are free: a buddy allocator of folios of order 0 to 9 in
//! blocks of 2 MiB.
//!
//! A bitmap of atomics, without a lock: pages are freed in any context, under page-table locks and
//! from interrupts, when the last reference to a coherent page goes at the end of an I/O. That is why
//! it is not the kernel's `gpu::buddy`: that one has a mutex, allocates when it frees, takes back
//! only what it gave out as a whole (the core splits huge folios and frees them page by page), and is
//! there on few kernels (`CONFIG_GPU_BUDDY`).
//!
//! In a bitmap splitting and merging cost nothing: a folio of order `n` is `2^n` free bits in a row,
//! aligned. Small folios come from the block that has the fewest free pages and still room, so that
//! whole blocks are kept for huge ones.

use super::{
    addr::{PMD_ORDER, PMD_PAGES},
    word::{peek_u64, peek_usize}, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::{Acquire, Full, Relaxed, Release},
        Atomic,
        AtomicFlag, //
    },
};

const WORD_PAGES: usize = u64::BITS as usize;
const WORD_ORDER: u32 = WORD_PAGES.trailing_zeros();
const BLOCK_WORDS: usize = PMD_PAGES / WORD_PAGES;

/// Bits at which a folio of `order`, at most 6, may begin in a word.
const fn starts(order: u32) -> u64 {
    let mut mask = 0;
    let mut bit = 0;
    while bit < WORD_PAGES {
        mask |= 1 << bit;
        bit += 1 << order;
    }
    mask
}

/// [`starts`] of each order.
const STARTS: [u64; WORD_ORDER as usize + 1] = {
    let mut all = [0; WORD_ORDER as usize + 1];
    let mut order = 0;
    while order < all.len() {
        all[order] = starts(order as u32);
        order += 1;
    }
    all
};

/// The bits of `word` at which a folio of `order`, at most 6, is free.
fn fits(word: u64, order: u32) -> u64 {
    // Bit n of `free` says that 2^step pages from n on are free.
    let mut free = word;
    for step in 0..order {
        free &= free >> (1 << step);
    }
    free & STARTS.get(order as usize).copied().unwrap_or(0)
}

/// `pages` bits from `bit` on; at most 64 in all.
fn bits(bit: usize, pages: usize) -> u64 {
    (u64::MAX >> (WORD_PAGES - pages)) << bit
}

/// Free pages of one piece, by index.
pub(in crate::mm) struct FreeMap {
    /// A set bit is a free page.
    words: KVVec<Atomic<u64>>,
    /// A set bit is a page that is to be taken out of use: it does not become free.
    out: KVVec<Atomic<u64>>,
    /// A set bit is a page that was, and is neither free nor in use.
    hidden: KVVec<Atomic<u64>>,
    /// The block from which small folios were taken last.
    block: Atomic<usize>,
    used: Atomic<usize>,
    /// Pages that are hidden.
    withdrawn: Atomic<usize>,
    /// Whether there may be bits in `out` or `hidden`.
    some_out: AtomicFlag,
}

impl FreeMap {
    /// All of `pages` are out of use, until [`Self::restore`]; a multiple of 512.
    pub(in crate::mm) fn new(pages: usize) -> Result<Self> {
        let map = |value: u64| -> Result<KVVec<Atomic<u64>>> {
            let count = pages / WORD_PAGES;
            let mut words = KVVec::with_capacity(count, GFP_KERNEL)?;
            for _ in 0..count {
                words.push(Atomic::new(value), GFP_KERNEL)?;
            }
            Ok(words)
        };
        Ok(Self {
            words: map(0)?,
            out: map(u64::MAX)?,
            hidden: map(u64::MAX)?,
            block: Atomic::new(0),
            used: Atomic::new(0),
            withdrawn: Atomic::new(pages),
            some_out: AtomicFlag::new(true),
        })
    }

    /// Pages in use.
    pub(in crate::mm) fn used(&self) -> usize {
        peek_usize(&self.used)
    }

    /// Pages that were taken out of use.
    pub(in crate::mm) fn withdrawn(&self) -> usize {
        peek_usize(&self.withdrawn)
    }

    /// Free pages, or more: what is taken, given back or hidden by others meanwhile counts as free.
    fn free(&self) -> usize {
        let gone = self.used().saturating_add(self.withdrawn());
        self.len().saturating_sub(gone)
    }

    /// Pages in all.
    pub(in crate::mm) fn len(&self) -> usize {
        self.words.len() * WORD_PAGES
    }

    fn block(&self, number: usize) -> Option<&[Atomic<u64>]> {
        let first = number.checked_mul(BLOCK_WORDS)?;
        self.words.get(first..first.checked_add(BLOCK_WORDS)?)
    }

    /// Pages in use of `first..first + 512`.
    pub(in crate::mm) fn used_in_block(&self, first: usize) -> usize {
        let pairs = self.words.iter().zip(&self.hidden);
        pairs
            .skip(first / WORD_PAGES)
            .take(BLOCK_WORDS)
            .map(|(free, hidden)| (!(peek_u64(free) | peek_u64(hidden))).count_ones())
            .sum::<u32>() as usize
    }

    /// Whether page `index` is in use.
    pub(in crate::mm) fn is_used(&self, index: usize) -> bool {
        let word = index / WORD_PAGES;
        let free = self.words.get(word).zip(self.hidden.get(word));
        free.is_some_and(|(free, hidden)| {
            (peek_u64(free) | peek_u64(hidden)) >> (index % WORD_PAGES) & 1 == 0
        })
    }

    /// Takes a folio of `order`, 0 to 9. Returns the index of its first page. Context: any.
    pub(in crate::mm) fn take(&self, order: u32) -> Option<usize> {
        // Of many pieces most are full, and are not to be searched for each page.
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

    /// Takes the folio of `order` at `index`, if it is free. Context: any.
    pub(in crate::mm) fn take_at(&self, index: usize, order: u32) -> bool {
        let pages = 1 << order.min(PMD_ORDER);
        if order > PMD_ORDER || index % pages != 0 || !self.claim(index, pages) {
            return false;
        }
        self.used.fetch_add(pages, Relaxed);
        true
    }

    /// Takes free pages in a row, the first at `index`: at most `most`, and at most 64. Returns how
    /// many; 0 if the page at `index` is not free. Context: any.
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

    /// Makes `pages` pages from `index` on, free by now, ours. `pages` is a power of 2 and `index` a
    /// multiple of it.
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
        // Somebody may be faster, but then takes something each time.
        for _ in 0..self.words.len() {
            let block = self.best(order)?;
            if let Some(index) = self.take_from(block, order) {
                self.block.store(block, Relaxed);
                return Some(index);
            }
        }
        None
    }

    /// The block that has room for `order` and the fewest free pages.
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

    /// The first place for `order` in the words of a block, by index in it.
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

    /// From the top, as small folios begin at the bottom.
    fn take_block(&self) -> Option<usize> {
        let blocks = self.words.len() / BLOCK_WORDS;
        (0..blocks)
            .rev()
            .map(|number| number * PMD_PAGES)
            .find(|index| self.claim(*index, PMD_PAGES))
    }

    /// The order, up to 9, of the largest folio that is free and has page `index`; 0 also if the
    /// page is not free.
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

    /// Whether a block of 512 pages is free.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(in crate::mm) fn has_block(&self) -> bool {
        self.words
            .chunks_exact(BLOCK_WORDS)
            .any(|words| words.iter().all(|word| peek_u64(word) == u64::MAX))
    }

    /// Gives `pages` pages back, of any number and at any index. Returns whether others were in
    /// use. Context: any.
    #[inline]
    pub(in crate::mm) fn give_back(&self, index: usize, pages: usize) -> bool {
        // Before: who finds no page in use may count on it that they can be taken.
        let used = self.used.fetch_sub(pages, Relaxed);
        match pages {
            // Most often.
            1 => self.give_back_bits(index / WORD_PAGES, 1 << (index % WORD_PAGES)),
            _ => for_each_word(index, pages, |at, mask| self.give_back_bits(at, mask)),
        }
        used > pages
    }

    /// Gives back the pages of `mask` in word `at`.
    #[inline]
    fn give_back_bits(&self, at: usize, mask: u64) {
        let words = (self.words.get(at), self.out.get(at), self.hidden.get(at));
        if let (Some(word), Some(out), Some(hidden)) = words {
            let gone = peek_u64(out) & mask;
            if gone == 0 {
                set(word, mask);
            } else {
                self.give_back_out((word, out, hidden), mask, gone);
            }
        }
    }

    /// Gives back the pages of `mask` of which those of `gone` are to be taken out of use.
    #[inline(never)]
    fn give_back_out(
        &self,
        (word, out, hidden): (&Atomic<u64>, &Atomic<u64>, &Atomic<u64>),
        mask: u64,
        gone: u64,
    ) {
        self.hide(hidden, gone);
        // Somebody may have brought them back into use meanwhile.
        set(word, self.show(hidden, gone & !peek_u64(out)));
        if mask & !gone != 0 {
            set(word, mask & !gone);
        }
    }

    /// Hides pages that are not hidden.
    fn hide(&self, hidden: &Atomic<u64>, mask: u64) {
        // Before: others may show them at once. CAST: At most 64.
        self.withdrawn.fetch_add(mask.count_ones() as usize, Full);
        set(hidden, mask);
    }

    /// Shows those of `mask` that are hidden. Returns them.
    fn show(&self, hidden: &Atomic<u64>, mask: u64) -> u64 {
        let shown = clear(hidden, mask);
        // CAST: At most 64.
        self.withdrawn
            .fetch_sub(shown.count_ones() as usize, Relaxed);
        shown
    }

    /// Takes the pages out of use that are free now, of `pages` from `index` on; the others when they
    /// are given back. Returns how many are in use still: ask again. Context: any.
    pub(in crate::mm) fn withdraw(&self, index: usize, pages: usize) -> usize {
        self.some_out.store(true, Release);
        let mut left = 0;
        for_each_word(index, pages, |at, mask| {
            let words = (self.words.get(at), self.out.get(at), self.hidden.get(at));
            if let (Some(word), Some(out), Some(hidden)) = words {
                set(out, mask);
                self.hide(hidden, clear(word, mask));
                left += (mask & !peek_u64(hidden)).count_ones();
            }
        });
        // CAST: At most the pages.
        left as usize
    }

    /// Brings pages back into use. Context: any; not beside [`Self::withdraw`].
    pub(in crate::mm) fn restore(&self, index: usize, pages: usize) {
        if !self.some_out.load(Relaxed) {
            return;
        }
        if index == 0 && pages >= self.len() {
            self.some_out.store(false, Relaxed);
        }
        for_each_word(index, pages, |at, mask| {
            let words = (self.words.get(at), self.out.get(at), self.hidden.get(at));
            if let (Some(word), Some(out), Some(hidden)) = words {
                if (peek_u64(out) | peek_u64(hidden)) & mask == 0 {
                    return;
                }
                clear(out, mask);
                set(word, self.show(hidden, mask));
            }
        });
    }
}

/// Takes the first free page of `words`: what is asked for most often.
fn take_page(words: &[Atomic<u64>]) -> Option<usize> {
    words.iter().enumerate().find_map(|(index, word)| {
        let lowest = |value: u64| value & value.wrapping_neg();
        let taken = take_bits(word, lowest);
        // CAST: At most 64.
        (taken != 0).then(|| index * WORD_PAGES + taken.trailing_zeros() as usize)
    })
}

/// Clears the bits of `word` that `choose` selects of those that are set, unless it selects none.
/// Returns them.
#[inline]
fn take_bits(word: &Atomic<u64>, choose: impl Fn(u64) -> u64) -> u64 {
    let mut value = peek_u64(word);
    loop {
        let mask = choose(value);
        if mask == 0 {
            return 0;
        }
        match word.cmpxchg(value, value & !mask, Acquire) {
            Ok(_) => return mask,
            Err(now) => value = now,
        }
    }
}

/// Number of bits that are set. The kernel is compiled for processors without an instruction for
/// that; most words are all clear or all set.
#[inline]
fn count(word: u64) -> u32 {
    match word {
        0 => 0,
        u64::MAX => u64::BITS,
        word => word.count_ones(),
    }
}

/// Sets the bits of `mask`, with a full barrier.
#[inline]
pub(crate) fn set(word: &Atomic<u64>, mask: u64) {
    let mut value = peek_u64(word);
    while let Err(now) = word.cmpxchg(value, value | mask, Full) {
        value = now;
    }
}

/// Clears the bits of `mask`, with a full barrier. Returns those that were set.
pub(crate) fn clear(word: &Atomic<u64>, mask: u64) -> u64 {
    let mut value = peek_u64(word);
    while let Err(now) = word.cmpxchg(value, value & !mask, Full) {
        value = now;
    }
    value & mask
}

/// Calls `each` with the number of each word and the bits in it, of `pages` bits from `index` on.
fn for_each_word(index: usize, pages: usize, mut each: impl FnMut(usize, u64)) {
    let end = index.saturating_add(pages);
    let mut at = index;
    while at < end {
        let count = (end - at).min(WORD_PAGES - at % WORD_PAGES);
        each(at / WORD_PAGES, bits(at % WORD_PAGES, count));
        at += count;
    }
}

#[cfg(CONFIG_KUNIT = "y")]
mod tests;

// SPDX-License-Identifier: GPL-2.0

//! Words of the bitmaps: masks of pages, and atomic changes of bits.

use crate::kernel::word::peek_u64;
use kernel::sync::atomic::{
    ordering::{
        Acquire,
        Full, //
    },
    Atomic, //
};

pub(super) const WORD_PAGES: usize = u64::BITS as usize;
pub(super) const WORD_ORDER: u32 = WORD_PAGES.trailing_zeros();

/// Returns the bits at which a folio of `order`, at most 6, may begin in a word.
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

/// Returns the bits of `word` at which a free folio of `order`, at most 6, begins.
pub(super) fn fits(word: u64, order: u32) -> u64 {
    // Bit n of `free` is set if 2^step pages from n on are free.
    let mut free = word;
    for step in 0..order {
        free &= free >> (1 << step);
    }
    free & STARTS.get(order as usize).copied().unwrap_or(0)
}

/// Returns a mask of `pages` bits from `bit` on; `bit + pages` is at most 64.
pub(super) fn bits(bit: usize, pages: usize) -> u64 {
    (u64::MAX >> (WORD_PAGES - pages)) << bit
}

/// Allocates the first free page of `words`. This is the most frequent allocation.
pub(super) fn take_page(words: &[Atomic<u64>]) -> Option<usize> {
    words.iter().enumerate().find_map(|(index, word)| {
        let lowest = |value: u64| value & value.wrapping_neg();
        let taken = take_bits(word, lowest);
        // CAST: At most 64.
        (taken != 0).then(|| index * WORD_PAGES + taken.trailing_zeros() as usize)
    })
}

/// Atomically clears the bits of `word` that `choose` selects of the set ones. Returns the cleared
/// bits; 0 if `choose` selects none.
#[inline]
pub(super) fn take_bits(word: &Atomic<u64>, choose: impl Fn(u64) -> u64) -> u64 {
    let mut value = peek_u64(word);
    loop {
        let mask = choose(value);
        if mask == 0 {
            return 0;
        }
        // Pairs with `set` of the task that has freed the page: its accesses precede those of the
        // new owner. For the first allocation of a page, that task has added the page frames.
        match word.cmpxchg(value, value & !mask, Acquire) {
            Ok(_) => return mask,
            Err(now) => value = now,
        }
    }
}

/// Returns the number of set bits. The kernel is compiled for processors without a population count
/// instruction, so words that are all clear or all set, the most frequent ones, are special cases.
#[inline]
pub(super) fn count(word: u64) -> u32 {
    match word {
        0 => 0,
        u64::MAX => u64::BITS,
        word => word.count_ones(),
    }
}

/// Sets the bits of `mask`, with a full barrier.
///
/// The barrier has two purposes. It is a release for [`take_bits`]. And it orders the change before
/// later loads by the caller of a word that another task changes before it reads this one: `out`
/// against `hidden` if a withdrawn page is freed, and the hints of the owner and the bits of the
/// LRU if a free page appears or a page is used.
#[inline]
pub(crate) fn set(word: &Atomic<u64>, mask: u64) {
    let mut value = peek_u64(word);
    while let Err(now) = word.cmpxchg(value, value | mask, Full) {
        value = now;
    }
}

/// Clears the bits of `mask`, with a full barrier. Returns the bits that were set.
///
/// This is the other side of the barrier of [`set`]: the caller clears a hint and then checks the
/// pages, while another task changes a page and then checks the hint. At least one of the two sees
/// the change of the other. For the pages themselves it is an acquire, as in [`take_bits`].
pub(crate) fn clear(word: &Atomic<u64>, mask: u64) -> u64 {
    let mut value = peek_u64(word);
    while let Err(now) = word.cmpxchg(value, value & !mask, Full) {
        value = now;
    }
    value & mask
}

/// Splits `pages` bits from `index` on into words. Calls `each` with the index of each word and the
/// mask of the bits in it.
pub(super) fn for_each_word(index: usize, pages: usize, mut each: impl FnMut(usize, u64)) {
    let end = index.saturating_add(pages);
    let mut at = index;
    while at < end {
        let count = (end - at).min(WORD_PAGES - at % WORD_PAGES);
        each(at / WORD_PAGES, bits(at % WORD_PAGES, count));
        at += count;
    }
}

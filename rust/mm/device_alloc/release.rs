// SPDX-License-Identifier: GPL-2.0

//! Release of pages, and their withdrawal: free pages are hidden at once, and pages in use when
//! they are freed.

use super::{
    bits::{
        clear,
        for_each_word,
        set,
        WORD_PAGES, //
    },
    FreeMap, //
};
use crate::kernel::word::peek_u64;
use kernel::sync::atomic::{
    ordering::{
        Full,
        Relaxed,
        Release, //
    },
    Atomic, //
};

impl FreeMap {
    /// Frees `pages` pages from `index` on; both may have any value. Returns whether other pages
    /// remain in use. Context: any.
    #[inline]
    pub(in crate::mm) fn release(&self, index: usize, pages: usize) -> bool {
        // The counter is decremented before the bits are set, so that it is never too high for a
        // page that can already be allocated.
        let used = self.used.fetch_sub(pages, Relaxed);
        match pages {
            // The most frequent case.
            1 => self.give_back_bits(index / WORD_PAGES, 1 << (index % WORD_PAGES)),
            _ => for_each_word(index, pages, |at, mask| self.give_back_bits(at, mask)),
        }
        used > pages
    }

    /// Frees the pages of `mask` in word `at`.
    #[inline]
    fn give_back_bits(&self, at: usize, mask: u64) {
        if let (Some(word), Some(out)) = (self.words.get(at), self.out.get(at)) {
            let gone = peek_u64(out) & mask;
            if gone == 0 {
                set(word, mask);
            } else if let Some(hidden) = self.hidden.get(at) {
                self.give_back_out((word, out, hidden), mask, gone);
            }
        }
    }

    /// Frees the pages of `mask`, of which the pages of `gone` are withdrawn and become hidden.
    #[inline(never)]
    fn give_back_out(
        &self,
        (word, out, hidden): (&Atomic<u64>, &Atomic<u64>, &Atomic<u64>),
        mask: u64,
        gone: u64,
    ) {
        self.hide(hidden, gone);
        // A concurrent `online` may have cleared bits of `out` before the pages were hidden.
        set(word, self.show(hidden, gone & !peek_u64(out)));
        if mask & !gone != 0 {
            set(word, mask & !gone);
        }
    }

    /// Hides the pages of `mask`, which are not hidden.
    fn hide(&self, hidden: &Atomic<u64>, mask: u64) {
        // The counter is incremented before the bits are set, because a concurrent `show` may
        // decrement it at once. CAST: At most 64.
        self.withdrawn.fetch_add(mask.count_ones() as usize, Full);
        set(hidden, mask);
    }

    /// Clears the hidden bits of the pages of `mask`. Returns the pages that were hidden.
    fn show(&self, hidden: &Atomic<u64>, mask: u64) -> u64 {
        let shown = clear(hidden, mask);
        // CAST: At most 64.
        self.withdrawn
            .fetch_sub(shown.count_ones() as usize, Relaxed);
        shown
    }

    /// Withdraws `pages` pages from `index` on. Free pages are hidden now, and pages in use when
    /// they are freed. Returns the number of pages still in use; the caller may repeat the call to
    /// find out when that is 0. Context: any.
    pub(in crate::mm) fn offline(&self, index: usize, pages: usize) -> usize {
        // The caller excludes a concurrent `online`, the only reader of this flag, by a mutex. So
        // the loads there are relaxed, and the release is stronger than needed.
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

    /// Reverts [`Self::offline`]: hidden pages become free. Context: any; must not run
    /// concurrently with [`Self::offline`].
    pub(in crate::mm) fn online(&self, index: usize, pages: usize) {
        if !self.some_out.load(Relaxed) {
            return;
        }
        if index == 0 && pages >= self.len() {
            self.some_out.store(false, Relaxed);
        }
        // INVARIANT: Bits from `len` on do not change.
        let pages = pages.min(self.len().saturating_sub(index));
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

// SPDX-License-Identifier: GPL-2.0

//! Sets of the pages that one PMD maps.

use super::addr::PMD_PAGES;
use core::ops::Range;
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
use kernel::prelude::*;

const WORD_BITS: usize = u64::BITS as usize;
const SET_WORDS: usize = PMD_PAGES / WORD_BITS;

/// A set of pages of a block of [`PMD_PAGES`].
///
/// # Examples
///
/// ```
/// use rust_hmm::policy::PageSet;
///
/// let mut set = PageSet::EMPTY;
/// set.add(4..8);
/// set.remove(5..6);
/// assert_eq!(set.count(0..512), 3);
/// assert_eq!(set.run(5, 512), Some(6..8));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageSet([u64; SET_WORDS]);

impl PageSet {
    /// The empty set.
    pub const EMPTY: Self = Self([0; SET_WORDS]);

    /// Whether page `page` is in the set.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn has(&self, page: usize) -> bool {
        self.0
            .get(page / WORD_BITS)
            .is_some_and(|word| word & (1 << (page % WORD_BITS)) != 0)
    }

    /// Whether the set is empty.
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }

    /// Adds one page. A page beyond the block is ignored.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn insert(&mut self, page: usize) {
        if let Some(word) = self.0.get_mut(page / WORD_BITS) {
            *word |= 1 << (page % WORD_BITS);
        }
    }

    /// Adds all pages whose bits are set in `words`. Bit `i` of word `j` is page `64 * j + i`.
    pub(crate) fn insert_words(&mut self, words: impl IntoIterator<Item = u64>) {
        for (word, more) in self.0.iter_mut().zip(words) {
            *word |= more;
        }
    }

    /// Returns the words of the set, in the format of [`Self::insert_words`].
    pub(crate) fn words(&self) -> [u64; SET_WORDS] {
        self.0
    }

    /// Iterates over the pages below `end` that are not in the set, in ascending order.
    pub(crate) fn missing(self, end: usize) -> impl Iterator<Item = usize> {
        let words = self.0.into_iter().enumerate();
        let missing = words.flat_map(|(index, word)| {
            let mut rest = !word;
            core::iter::from_fn(move || {
                let bit = rest.trailing_zeros() as usize;
                // Clear the lowest set bit.
                rest &= rest.checked_sub(1)?;
                Some(index * WORD_BITS + bit)
            })
        });
        missing.take_while(move |page| *page < end)
    }

    /// Adds a range of pages. Pages beyond the block are ignored.
    ///
    /// # Context
    ///
    /// Any.
    pub fn add(&mut self, pages: Range<usize>) {
        self.each(pages, |word, bits| *word |= bits);
    }

    /// Removes a range of pages.
    ///
    /// # Context
    ///
    /// Any.
    pub fn remove(&mut self, pages: Range<usize>) {
        self.each(pages, |word, bits| *word &= !bits);
    }

    /// Removes all pages of `other`.
    pub(crate) fn remove_all(&mut self, other: &Self) {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word &= !other;
        }
    }

    /// Removes all pages that are not in `other`.
    pub(crate) fn keep(&mut self, other: &Self) {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word &= other;
        }
    }

    /// Returns the number of pages of `pages` that are in the set.
    ///
    /// # Context
    ///
    /// Any.
    pub fn count(&self, pages: Range<usize>) -> usize {
        let mut copy = *self;
        let mut count = 0;
        copy.each(pages, |word, bits| {
            count += (*word & bits).count_ones() as usize
        });
        count
    }

    /// Returns the first run of pages in the set within `from..end`.
    ///
    /// # Context
    ///
    /// Any.
    pub fn run(&self, from: usize, end: usize) -> Option<Range<usize>> {
        let is_in = |page: usize| {
            let word = self.0.get(page / WORD_BITS).copied().unwrap_or(0);
            word & (1 << (page % WORD_BITS)) != 0
        };
        let first = (from..end).find(|page| is_in(*page))?;
        let last = (first..end).find(|page| !is_in(*page)).unwrap_or(end);
        Some(first..last)
    }

    fn each(&mut self, pages: Range<usize>, mut f: impl FnMut(&mut u64, u64)) {
        let mut at = pages.start;
        let end = pages.end.min(PMD_PAGES);
        while at < end {
            let count = (end - at).min(WORD_BITS - at % WORD_BITS);
            if let Some(word) = self.0.get_mut(at / WORD_BITS) {
                f(word, (u64::MAX >> (WORD_BITS - count)) << (at % WORD_BITS));
            }
            at += count;
        }
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_mask)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found() {
        let mut mask = PageSet::EMPTY;
        for pages in [3..4, 60..70, PMD_PAGES - 1..PMD_PAGES] {
            mask.add(pages);
        }
        assert_eq!(mask.run(0, PMD_PAGES), Some(3..4));
        assert_eq!(mask.run(4, PMD_PAGES), Some(60..70));
        assert_eq!(mask.run(65, 68), Some(65..68));
        assert_eq!(mask.run(70, PMD_PAGES), Some(PMD_PAGES - 1..PMD_PAGES));
        assert_eq!(mask.run(70, PMD_PAGES - 1), None);
        assert_eq!(PageSet::EMPTY.run(0, PMD_PAGES), None);
    }

    #[test]
    fn missing_pages_are_found() {
        let mut mask = PageSet::EMPTY;
        assert!(mask.missing(PMD_PAGES).eq(0..PMD_PAGES));
        mask.add(0..PMD_PAGES);
        assert!(mask.missing(PMD_PAGES).next().is_none());
        mask.remove(63..66);
        mask.remove(PMD_PAGES - 1..PMD_PAGES);
        assert!(mask.missing(PMD_PAGES).eq([63, 64, 65, PMD_PAGES - 1]));
        assert!(mask.missing(65).eq([63, 64]));
        mask.insert(64);
        mask.insert(PMD_PAGES);
        assert!(mask.missing(PMD_PAGES).eq([63, 65, PMD_PAGES - 1]));
        let mut other = PageSet::EMPTY;
        other.insert_words(mask.words());
        assert!(other == mask && !other.is_empty());
    }
}

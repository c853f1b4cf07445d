// SPDX-License-Identifier: GPL-2.0
//! CPU accesses to the contents of a mapping.

use super::Mapping;
use crate::abi::PAGE_SIZE;
use crate::pattern::{
    self,
    Mismatch,
    WORDS, //
};
use std::sync::atomic::AtomicU64;

impl Mapping {
    fn word_ptr(&self, page: usize, word: usize) -> *mut u64 {
        let offset = page * PAGE_SIZE + word * 8;
        assert!(offset + 8 <= self.len, "page {page} word {word} is outside of the mapping");
        (self.addr + offset) as *mut u64
    }

    /// Returns a pointer to the first word of a page, all of which is in the mapping: one bounds
    /// check for all of its words, because tests spend much of their time in loops over them.
    fn page_ptr(&self, page: usize) -> *mut u64 {
        self.word_ptr(page, WORDS - 1).wrapping_sub(WORDS - 1)
    }

    /// Returns the first word of a page that is not `expected(word)`.
    fn check_page(&self, page: usize, expected: impl Fn(usize) -> u64) -> Result<(), Mismatch> {
        let first = self.page_ptr(page);
        for word in 0..WORDS {
            // SAFETY: the whole page is inside of the mapping, to which no references exist.
            let found = unsafe { first.add(word).read_volatile() };
            let expected = expected(word);
            if found != expected {
                return Err(Mismatch { page, word, found, expected });
            }
        }
        Ok(())
    }

    /// Reads one word with the CPU.
    pub fn get(&self, page: usize, word: usize) -> u64 {
        // SAFETY: inside of the mapping and aligned; no references to it exist.
        unsafe { self.word_ptr(page, word).read_volatile() }
    }

    /// Writes one word with the CPU.
    pub fn set(&self, page: usize, word: usize, value: u64) {
        // SAFETY: inside of the mapping and aligned; no references to it exist.
        unsafe { self.word_ptr(page, word).write_volatile(value) }
    }

    /// A word as an atomic, for concurrent writers.
    pub fn atomic(&self, page: usize, word: usize) -> &AtomicU64 {
        // SAFETY: inside of the mapping and aligned; it lives as long as
        // `self`.  Memory shared with a device is what atomics are for.
        unsafe { AtomicU64::from_ptr(self.word_ptr(page, word)) }
    }

    /// The CPU fills pages `first .. first + npages` with the pattern `seed`.
    pub fn fill_pages(&self, seed: u64, first: usize, npages: usize) {
        for page in first..first + npages {
            let to = self.page_ptr(page);
            for word in 0..WORDS {
                let value = pattern::word(seed, page, word);
                // SAFETY: the whole page is inside of the mapping, to which no references exist.
                unsafe { to.add(word).write_volatile(value) }
            }
        }
    }

    /// The CPU fills everything with the pattern `seed`.
    pub fn fill(&self, seed: u64) {
        self.fill_pages(seed, 0, self.pages());
    }

    /// The CPU checks pages `first .. first + npages` for the pattern `seed`.
    pub fn check_pages(&self, seed: u64, first: usize, npages: usize) -> Result<(), Mismatch> {
        (first..first + npages)
            .try_for_each(|page| self.check_page(page, |word| pattern::word(seed, page, word)))
    }

    /// The CPU checks everything for the pattern `seed`.
    pub fn check(&self, seed: u64) -> Result<(), Mismatch> {
        self.check_pages(seed, 0, self.pages())
    }

    /// The CPU checks that pages `first .. first + npages` are zero.
    pub fn check_zero(&self, first: usize, npages: usize) -> Result<(), Mismatch> {
        (first..first + npages).try_for_each(|page| self.check_page(page, |_| 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::HUGE_SIZE;

    #[test]
    fn contents_and_alignment() {
        let map = Mapping::anon(3).unwrap();
        assert_eq!((map.pages(), map.len()), (3, 3 * PAGE_SIZE));
        assert_eq!(map.check_zero(0, 3), Ok(()));
        map.fill(7);
        assert_eq!(map.check(7), Ok(()));
        map.set(2, crate::PAGE_WORDS - 1, 1);
        assert_eq!(map.check(7).unwrap_err().page, 2);
        let huge = Mapping::anon_aligned(1).unwrap();
        assert_eq!(huge.addr() % HUGE_SIZE, 0);
    }
}

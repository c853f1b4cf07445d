// SPDX-License-Identifier: GPL-2.0
//! Recognizable contents: each word differs by page, index and seed.

use crate::abi::PAGE_SIZE;
use std::fmt;

/// Words in a page.
pub const WORDS: usize = PAGE_SIZE / 8;

/// The word of `seed` at index `word` of page `page`.
///
/// Odd multipliers make it different for each of the three arguments, so that a page at a wrong
/// address or with old contents is detected.
pub fn word(seed: u64, page: usize, word: usize) -> u64 {
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (page as u64).wrapping_mul(0xc2b2_ae3d_27d4_eb4f)
        ^ (word as u64).wrapping_mul(0x1656_67b1_9e37_79f9)
}

/// The contents of `npages` pages from page `first` on.
pub fn buffer(seed: u64, first: usize, npages: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(npages * PAGE_SIZE);
    for page in first..first + npages {
        for index in 0..WORDS {
            bytes.extend_from_slice(&word(seed, page, index).to_ne_bytes());
        }
    }
    bytes
}

/// A word with unexpected contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The page, counted as by the caller.
    pub page: usize,
    /// The word in the page.
    pub word: usize,
    /// Contents of the word.
    pub found: u64,
    /// Expected contents.
    pub expected: u64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "page {} word {}: found {:#x}, expected {:#x}",
            self.page, self.word, self.found, self.expected
        )
    }
}

impl std::error::Error for Mismatch {}

/// Compares each page of `bytes` with the pattern of the seed that `seed` gives for it, or with
/// zeros if it gives none. The pages are counted from `first` on.
// Not generic, so that the loop is compiled in this crate, with optimization.
pub fn compare(
    bytes: &[u8],
    first: usize,
    seed: &dyn Fn(usize) -> Option<u64>,
) -> Result<(), Mismatch> {
    for (page, data) in (first..).zip(bytes.chunks_exact(PAGE_SIZE)) {
        let seed = seed(page);
        for (index, raw) in data.chunks_exact(8).enumerate() {
            let found = u64::from_ne_bytes(raw.try_into().unwrap_or_default());
            let expected = seed.map_or(0, |seed| word(seed, page, index));
            if found != expected {
                return Err(Mismatch { page, word: index, found, expected });
            }
        }
    }
    Ok(())
}

/// Compares `bytes` with the pattern of `seed`, from page `first` on.
pub fn check(seed: u64, first: usize, bytes: &[u8]) -> Result<(), Mismatch> {
    compare(bytes, first, &|_| Some(seed))
}

/// Checks that `bytes` are all zero.
pub fn check_zero(bytes: &[u8]) -> Result<(), Mismatch> {
    compare(bytes, 0, &|_| None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_matches_its_own_pattern_only() {
        let bytes = buffer(3, 5, 2);
        assert_eq!(bytes.len(), 2 * PAGE_SIZE);
        assert_eq!(check(3, 5, &bytes), Ok(()));
        assert!(check(4, 5, &bytes).is_err());
        assert!(check(3, 6, &bytes).is_err());
        assert!(check_zero(&bytes).is_err());
        assert_eq!(check_zero(&[0; 2 * PAGE_SIZE]), Ok(()));
    }

    #[test]
    fn pages_of_several_seeds_are_compared() {
        let mut bytes = buffer(3, 7, 2);
        bytes.extend_from_slice(&[0; PAGE_SIZE]);
        let seed = |page| (page < 9).then_some(3);
        assert_eq!(compare(&bytes, 7, &seed), Ok(()));
        bytes[2 * PAGE_SIZE + 8] = 5;
        let found = compare(&bytes, 7, &seed).unwrap_err();
        assert_eq!((found.page, found.word, found.found, found.expected), (9, 1, 5, 0));
    }

    #[test]
    fn one_changed_byte_is_found() {
        let mut bytes = buffer(9, 0, 3);
        bytes[2 * PAGE_SIZE + 17] ^= 1;
        let mismatch = check(9, 0, &bytes).unwrap_err();
        assert_eq!((mismatch.page, mismatch.word), (2, 2));
    }
}

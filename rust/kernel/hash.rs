// SPDX-License-Identifier: GPL-2.0

//! Multiplicative hashing of integers, as in the kernel's `include/linux/hash.h`.

/// 2^64 divided by the golden ratio, rounded to an odd number.
const GOLDEN_RATIO_64: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns a hash of `value` with `bits` bits. Consecutive values get distant hashes.
///
/// `bits` is from 1 to 64.
///
/// # Context
///
/// Any.
///
/// # Examples
///
/// ```
/// use rust_hmm::kernel::hash::hash_64;
///
/// // Index of a table with 256 places.
/// let index = hash_64(0x7fff_1234_5000, 8);
/// assert!(index < 256);
/// ```
#[inline]
pub fn hash_64(value: u64, bits: u32) -> u64 {
    value.wrapping_mul(GOLDEN_RATIO_64) >> (64 - bits)
}

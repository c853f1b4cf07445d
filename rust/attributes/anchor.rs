// SPDX-License-Identifier: GPL-2.0

//! Identity of pages with attributes, by which the pages are found again after `mremap()`, and the
//! encoding of a range's value in the map.

use super::sets::{
    SetNumber,
    Sets, //
};
use crate::kernel::hash::hash_64;
use core::num::NonZeroU64;

/// Identity of a page: the difference of its page number and its offset in the VMA, and a tag of
/// the VMA's reverse mapping. `mremap()` changes only the difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VmaAnchor {
    /// Page number minus offset, modulo 2^[`VmaAnchor::DIFFERENCE_BITS`].
    pub(crate) difference: u64,
    /// Hash of the VMA's reverse mapping. 0 if it has none, so that attributes do not follow the
    /// VMA.
    pub(crate) tag: u8,
}

impl VmaAnchor {
    /// Those of the numbers of pages of 4 KiB in the largest address space, which has 56 bits.
    const DIFFERENCE_BITS: u32 = 44;
    const TAG_BITS: u32 = 7;
    const DIFFERENCE_MASK: u64 = (1 << Self::DIFFERENCE_BITS) - 1;

    /// Returns the identity of the pages of a VMA. `first` is the number of its first page,
    /// `offset` the offset of that page, and `anon` identifies the reverse mapping.
    pub(crate) fn new(first: usize, offset: usize, anon: usize) -> Self {
        let hash = hash_64(anon as u64, Self::TAG_BITS);
        Self {
            difference: (first as u64).wrapping_sub(offset as u64) & Self::DIFFERENCE_MASK,
            tag: if anon == 0 { 0 } else { hash.max(1) as u8 },
        }
    }

    /// Returns the offset of page `number`.
    pub(super) fn offset(self, number: usize) -> usize {
        ((number as u64).wrapping_sub(self.difference) & Self::DIFFERENCE_MASK) as usize
    }
}

/// Number of bits for the number of a set, which is not 0.
const SET_NUMBER_BITS: u32 = 10;

const _: () = assert!(Sets::MAX_SETS < 1 << SET_NUMBER_BITS);
const _: () = assert!(SET_NUMBER_BITS + VmaAnchor::DIFFERENCE_BITS + VmaAnchor::TAG_BITS <= 62);

/// Encodes the number of a range's set, and the identity of its pages. Returns `None` without a
/// number.
pub(super) fn pack(number: Option<SetNumber>, anchor: VmaAnchor) -> Option<NonZeroU64> {
    let high = u64::from(anchor.tag) << VmaAnchor::DIFFERENCE_BITS | anchor.difference;
    NonZeroU64::new(high << SET_NUMBER_BITS | number? as u64)
}

/// Decodes a value of [`pack`].
pub(super) fn unpack(value: NonZeroU64) -> (Option<SetNumber>, VmaAnchor) {
    let value = value.get();
    // CAST: 10 bits.
    let number = (value & ((1 << SET_NUMBER_BITS) - 1)) as SetNumber;
    let high = value >> SET_NUMBER_BITS;
    let anchor = VmaAnchor {
        difference: high & VmaAnchor::DIFFERENCE_MASK,
        tag: (high >> VmaAnchor::DIFFERENCE_BITS) as u8,
    };
    (Some(number), anchor)
}

/// Returns the number of the set of a range. `None` stands for the default attributes.
pub(super) fn number_of(value: Option<NonZeroU64>) -> Option<SetNumber> {
    value.and_then(|value| unpack(value).0)
}

/// Current location of pages that were moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Relocated {
    /// Page number of the first page of the VMA.
    pub(crate) first: usize,
    /// Number of pages of the VMA.
    pub(crate) pages: usize,
    /// Offset of the first page of the VMA.
    pub(crate) offset: usize,
    /// Identity of the pages, see [`VmaAnchor`].
    pub(crate) anchor: VmaAnchor,
}

// SPDX-License-Identifier: GPL-2.0

//! Homes of pages with attributes, by which they are found when they have moved, and the value of a
//! range in the map.

use super::sets::{Number, Sets};
use core::num::NonZeroU64;

/// What a page belongs to: the difference between its number and its offset, and a few bits that
/// tell mappings apart. Both stay what they are when it is moved, but for the difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    /// Page number minus offset, modulo 2^[`Home::DIFFERENCE`].
    pub(crate) difference: u64,
    /// Of the mapping; 0 if there is nothing to tell it by, so that it is not followed.
    pub(crate) tag: u8,
}

impl Home {
    const DIFFERENCE: u32 = 44;
    const TAG: u32 = 7;
    const MASK: u64 = (1 << Self::DIFFERENCE) - 1;

    /// The home of a mapping whose first page has the number `first` and the offset `offset`;
    /// `anon` names its reverse mapping.
    pub(crate) fn new(first: usize, offset: usize, anon: usize) -> Self {
        let hash = (anon as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - Self::TAG);
        Self {
            difference: (first as u64).wrapping_sub(offset as u64) & Self::MASK,
            tag: if anon == 0 { 0 } else { hash.max(1) as u8 },
        }
    }

    /// The offset of page `number`.
    pub(super) fn offset(self, number: usize) -> usize {
        ((number as u64).wrapping_sub(self.difference) & Self::MASK) as usize
    }
}

/// Bits of the number of a set, which is not 0.
const NUMBER: u32 = 10;

const _: () = assert!(Sets::MOST < 1 << NUMBER);
const _: () = assert!(NUMBER + Home::DIFFERENCE + Home::TAG <= 62);

/// The value of a range: the number of its set, and where its pages are at home. Without a number
/// there is none.
pub(super) fn pack(number: Option<Number>, home: Home) -> Option<NonZeroU64> {
    let high = u64::from(home.tag) << Home::DIFFERENCE | home.difference;
    NonZeroU64::new(high << NUMBER | number? as u64)
}

/// The number and the home of a value.
pub(super) fn unpack(value: NonZeroU64) -> (Option<Number>, Home) {
    let value = value.get();
    // CAST: 10 bits.
    let number = (value & ((1 << NUMBER) - 1)) as Number;
    let high = value >> NUMBER;
    let home = Home {
        difference: high & Home::MASK,
        tag: (high >> Home::DIFFERENCE) as u8,
    };
    (Some(number), home)
}

/// The number of the set of a piece; of none, the default's.
pub(super) fn number_of(value: Option<NonZeroU64>) -> Option<Number> {
    value.and_then(|value| unpack(value).0)
}

/// Where pages are now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Number of the first page of the mapping.
    pub(crate) first: usize,
    /// Its pages.
    pub(crate) pages: usize,
    /// Its offset.
    pub(crate) offset: usize,
    /// See [`Home`].
    pub(crate) home: Home,
}

// SPDX-License-Identifier: GPL-2.0

//! Words of the library's own tree, in one encoding for all formats.
//!
//! The library reads only this tree. A device with a hardware walker reads an image of it in the
//! format of that device (`image`), which the library does not read.

use super::entry::DevicePte;
use crate::kernel::word;
use kernel::sync::atomic::Atomic;

/// Slot of a table page: holds one word.
pub(super) type PteCell = Atomic<u64>;

/// Word of an empty slot.
pub(super) const EMPTY: u64 = 0;

/// Bit that is set in the word of a table, and clear in that of a leaf.
const TABLE_BIT: u64 = 1 << 11;

/// Lowest bit of the index of a table, and of the number of a page, as in [`DevicePte`]. Not a size
/// of pages.
const NUMBER_SHIFT: u32 = 12;

/// A word, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slot {
    /// No entry.
    Empty,
    /// A table of the level below, by its index in the pool.
    Table(u32),
    /// Pages; the entry is that of the first one.
    Leaf(DevicePte),
}

/// Reads a word with acquire ordering. Context: any.
#[inline(always)]
pub(super) fn load(cell: &PteCell) -> u64 {
    word::load_u64(cell)
}

/// Writes a word with release ordering. Context: any.
#[inline(always)]
pub(super) fn store(cell: &PteCell, word: u64) {
    word::store_u64(cell, word);
}

/// Encodes the word of the table with this index.
#[inline]
pub(super) const fn table(index: u32) -> u64 {
    ((index as u64) << NUMBER_SHIFT) | TABLE_BIT
}

/// Encodes the word of a leaf. `entry` must be valid.
#[inline]
pub(super) const fn leaf(entry: DevicePte) -> u64 {
    entry.bits()
}

/// Decodes a word.
#[inline]
pub(super) const fn decode(word: u64) -> Slot {
    if word == EMPTY {
        Slot::Empty
    } else if word & TABLE_BIT != 0 {
        // CAST: Made from 32 bits.
        Slot::Table((word >> NUMBER_SHIFT) as u32)
    } else {
        Slot::Leaf(DevicePte::from_bits(word))
    }
}

/// Decodes a word of a table of level 0, which has no entries for tables.
#[inline]
pub(super) const fn entry(word: u64) -> Option<DevicePte> {
    match word {
        EMPTY => None,
        word => Some(DevicePte::from_bits(word)),
    }
}

/// Returns whether `words` are leaves of consecutive pages with the same rights that are aligned to
/// the size of all of them. Each leaf maps `1 << order` pages; their count is a power of two.
pub(super) fn is_run(words: &[PteCell], order: u32) -> bool {
    let Some(first) = words.first().map(load) else {
        return false;
    };
    let Slot::Leaf(entry) = decode(first) else {
        return false;
    };
    let step = 1u64 << (NUMBER_SHIFT + order);
    entry.number() % (words.len() << order) == 0
        && words
            .iter()
            .zip(0u64..)
            .all(|(cell, index)| load(cell) == first.wrapping_add(index * step))
}

// SPDX-License-Identifier: GPL-2.0

//! Words of the library's own tree, in one encoding for all formats.
//!
//! The tree is all that the library reads. A device with a hardware walker reads an image of it,
//! which is written in the format of that device and which nothing else reads (`image`).

use super::entry::Entry;
use crate::mm::word;
use kernel::sync::atomic::Atomic;

/// Place of a word.
pub(super) type Cell = Atomic<u64>;

/// Word of an empty place.
pub(super) const EMPTY: u64 = 0;

/// Bit of a word that names a table; a leaf has it clear.
const TABLE: u64 = 1 << 11;

/// Lowest bit of the index of a table, and of the number of a page.
const NUMBER: u32 = 12;

/// A word, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slot {
    /// No entry.
    Empty,
    /// A table of the level below, by its index in the pool.
    Table(u32),
    /// Pages; the entry is that of the first one.
    Leaf(Entry),
}

/// Reads a word. What was written before it is seen, too. Context: any.
#[inline(always)]
pub(super) fn load(cell: &Cell) -> u64 {
    word::load_u64(cell)
}

/// Writes a word. A reader that sees it sees what was written before, too. Context: any.
#[inline(always)]
pub(super) fn store(cell: &Cell, word: u64) {
    word::store_u64(cell, word);
}

/// The word for the table with this index.
#[inline]
pub(super) const fn table(index: u32) -> u64 {
    ((index as u64) << NUMBER) | TABLE
}

/// The word for a leaf. `entry` is valid.
#[inline]
pub(super) const fn leaf(entry: Entry) -> u64 {
    entry.bits()
}

/// Decodes a word.
#[inline]
pub(super) const fn decode(word: u64) -> Slot {
    if word == EMPTY {
        Slot::Empty
    } else if word & TABLE != 0 {
        // CAST: Made from 32 bits.
        Slot::Table((word >> NUMBER) as u32)
    } else {
        Slot::Leaf(Entry::from_bits(word))
    }
}

/// Decodes a word of a table of level 0, which names no tables.
#[inline]
pub(super) const fn entry(word: u64) -> Option<Entry> {
    match word {
        EMPTY => None,
        word => Some(Entry::from_bits(word)),
    }
}

/// Whether `words` are leaves of pages in a row with the same rights, aligned to all of them. Each
/// maps `1 << order` pages; their count is a power of two.
pub(super) fn is_run(words: &[Cell], order: u32) -> bool {
    let Some(first) = words.first().map(load) else {
        return false;
    };
    let Slot::Leaf(entry) = decode(first) else {
        return false;
    };
    let step = 1u64 << (NUMBER + order);
    entry.number() % (words.len() << order) == 0
        && words
            .iter()
            .zip(0u64..)
            .all(|(cell, index)| load(cell) == first.wrapping_add(index * step))
}

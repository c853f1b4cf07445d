// SPDX-License-Identifier: GPL-2.0

//! How a device's page table looks: levels, and what an entry is made of.

use super::entry::Entry;
use crate::mm::word;
use kernel::{page::PAGE_SHIFT, sync::atomic::Atomic};

/// What an entry is stored in, written and read as a whole: `u32` or `u64`.
pub trait Word: sealed::Sealed + Copy + Send + Sync + 'static {
    /// Where one is stored.
    type Cell: Send + Sync;

    /// An empty entry.
    const EMPTY: Self;

    /// A place that holds `value`.
    fn cell(value: Self) -> Self::Cell;

    /// Reads it. What was written before it is seen too.
    fn load(cell: &Self::Cell) -> Self;

    /// Writes it. Who sees it sees what was written before, too.
    fn store(cell: &Self::Cell, value: Self);
}

mod sealed {
    /// Nobody else can say how a word is stored.
    pub trait Sealed {}
}

macro_rules! impl_word {
    ($type:ty, $load:ident, $store:ident) => {
        impl sealed::Sealed for $type {}

        impl Word for $type {
            type Cell = Atomic<$type>;

            const EMPTY: Self = 0;

            fn cell(value: Self) -> Self::Cell {
                Atomic::new(value)
            }

            #[inline]
            fn load(cell: &Self::Cell) -> Self {
                word::$load(cell)
            }

            #[inline]
            fn store(cell: &Self::Cell, value: Self) {
                word::$store(cell, value);
            }
        }
    };
}

impl_word!(u32, load_u32, store_u32);
impl_word!(u64, load_u64, store_u64);

/// An entry, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// Nothing.
    Empty,
    /// A table of the level below, by its index in the pool.
    Table(u32),
    /// Pages; the entry is of the first one.
    Leaf(Entry),
}

/// The format of a device page table. Level 0 holds pages of 4 KiB; a leaf of level `n` maps
/// `1 << (n * BITS)` of them.
///
/// Hardware cannot walk the table yet: it is kernel memory without an address for a device, and entries name tables by
/// their index in the library's pool. A device with an MMU needs a table of its own beside it; see
/// `Documentation/driver-api.rst`.
///
/// [`FormatOf`](super::FormatOf) implements this trait for a format that is described by the positions of its bits, in
/// safe code.
///
/// # Safety
///
/// The library accesses the pages that decoded entries name. Therefore:
///
/// - [`Self::decode`] of what [`Self::table`] returned for an index below 2^18 must return that index. The library never
///   passes a larger one.
/// - [`Self::decode`] of what [`Self::leaf`] returned for a valid entry that [`Self::can_hold`] accepts must return that
///   entry, in each level with leaves. Numbers of entries are page frames, device page numbers, or, with
///   [`OfDma`](super::OfDma), DMA addresses in pages.
/// - [`Self::can_hold`] must refuse each entry that cannot be encoded.
/// - [`Word::EMPTY`], and nothing else, decodes to [`Slot::Empty`].
pub unsafe trait Format: Sized + Send + Sync + 'static {
    /// What an entry is stored in.
    type Word: Word;

    /// Number of levels, 2 to 5.
    const LEVELS: u32;

    /// Log2 of the entries of a table, 4 to 10.
    const BITS: u32;

    /// Whether entries of system memory hold DMA addresses instead of page frames: [`OfDma`](super::OfDma) makes such
    /// a format.
    const DMA: bool = false;

    /// Whether a leaf may be in `level`. Level 0 always holds leaves.
    fn has_leaves(level: u32) -> bool {
        level == 0
    }

    /// Whether `entry` can be expressed.
    fn can_hold(entry: Entry) -> bool {
        let _ = entry;
        true
    }

    /// Makes the entry for a table.
    fn table(index: u32) -> Self::Word;

    /// Makes a leaf of `level`. `entry` is valid.
    fn leaf(level: u32, entry: Entry) -> Self::Word;

    /// Takes an entry of `level` apart.
    fn decode(level: u32, word: Self::Word) -> Slot;
}

/// Log2 of the bytes that an entry of `level` covers.
#[inline]
pub(super) const fn shift<F: Format>(level: u32) -> u32 {
    PAGE_SHIFT as u32 + F::BITS * level
}

/// Number of entries of a table.
#[inline]
pub(super) const fn fan<F: Format>() -> usize {
    1 << F::BITS
}

/// That the geometry is one that the code was made for.
pub(super) const fn check<F: Format>() {
    assert!(F::LEVELS >= 2 && F::LEVELS <= 5 && F::BITS >= 4 && F::BITS <= 10);
}

/// Highest address that a table can hold.
pub(super) const fn last_address<F: Format>() -> usize {
    let bits = shift::<F>(F::LEVELS);
    if bits >= usize::BITS {
        usize::MAX
    } else {
        (1 << bits) - 1
    }
}

/// The reference: 4 levels of 9 bits, entries of 64 bits, leaves of 4 KiB and 2 MiB.
pub enum Radix4 {}

impl Radix4 {
    /// Bit of an entry that names a table; a leaf has it clear.
    const TABLE: u64 = 1 << 11;
}

// SAFETY: The bits of a leaf are kept as they are: valid, so not 0, with bit 11 clear. A table has it set,
// and 32 bits of index behind it.
unsafe impl Format for Radix4 {
    type Word = u64;

    const LEVELS: u32 = 4;
    const BITS: u32 = 9;

    fn has_leaves(level: u32) -> bool {
        level <= 1
    }

    fn table(index: u32) -> u64 {
        (u64::from(index) << 12) | Self::TABLE
    }

    #[inline]
    fn leaf(_level: u32, entry: Entry) -> u64 {
        entry.bits()
    }

    #[inline]
    fn decode(_level: u32, word: u64) -> Slot {
        if word == 0 {
            Slot::Empty
        } else if word & Self::TABLE != 0 {
            // CAST: Made from 32 bits.
            Slot::Table((word >> 12) as u32)
        } else {
            Slot::Leaf(Entry::from_bits(word))
        }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Formats that are described by the positions of their bits, without unsafe code.

use super::{
    entry::Entry,
    format::{Format, Slot, Word}, //
};
use core::marker::PhantomData;
use kernel::prelude::*;

/// Bits of the largest index of a table.
const INDEX_BITS: u32 = 18;

/// The bits of an entry, for [`Layout`].
#[derive(Clone, Copy, Debug)]
pub struct Bits {
    /// Set in each leaf.
    pub valid: u32,
    /// Set in each entry that names a table.
    pub table: u32,
    /// Set in leaves that may be written.
    pub write: u32,
    /// Set in leaves of device memory.
    pub device: u32,
    /// Set in leaves of pages that only the device may access; `None` if the format has no such bit.
    pub exclusive: Option<u32>,
    /// Lowest bit of the page number, or of the index of a table.
    pub number: u32,
    /// Count of bits of that number, at least 18: that many the index of a table needs.
    pub number_bits: u32,
}

impl Bits {
    const fn flags(&self) -> [Option<u32>; 5] {
        [
            Some(self.valid),
            Some(self.table),
            Some(self.write),
            Some(self.device),
            self.exclusive,
        ]
    }

    /// Mask of the number, before it is shifted.
    const fn number_mask(&self) -> u64 {
        match 1u64.checked_shl(self.number_bits) {
            Some(end) => end - 1,
            None => u64::MAX,
        }
    }

    /// Whether all fields are in a word of `width` bits, and no two overlap.
    const fn are_disjoint(&self, width: u32) -> bool {
        if self.number_bits < INDEX_BITS
            || self.number >= width
            || self.number_bits > width - self.number
        {
            return false;
        }
        let mut used = self.number_mask() << self.number;
        let flags = self.flags();
        let mut index = 0;
        while index < flags.len() {
            if let Some(bit) = flags[index] {
                if bit >= width || used & (1 << bit) != 0 {
                    return false;
                }
                used |= 1 << bit;
            }
            index += 1;
        }
        true
    }
}

/// A format of which the positions of the bits are all that there is to say. [`FormatOf`] makes a [`Format`] of it.
///
/// Fields that overlap or that do not fit into the word are compile errors.
pub trait Layout: Send + Sync + 'static {
    /// Type of an entry: `u32` or `u64`.
    type Word: Word + Into<u64> + TryFrom<u64>;

    /// Number of levels, 2 to 5.
    const LEVELS: u32;

    /// Log2 of the entries of a table, 4 to 10.
    const BITS_PER_LEVEL: u32;

    /// Highest level with leaves.
    const HIGHEST_LEAF: u32 = 0;

    /// The bits of an entry.
    const BITS: Bits;
}

/// The [`Format`] with the layout `L`. An entry whose page number has more bits than the layout is refused when it is
/// to be installed.
pub struct FormatOf<L>(PhantomData<fn() -> L>);

impl<L: Layout> FormatOf<L> {
    /// The bits, checked when this is compiled.
    const FIELDS: Bits = {
        assert!(
            L::BITS.are_disjoint(8 * size_of::<L::Word>() as u32),
            "fields of the layout overlap, or exceed the word"
        );
        L::BITS
    };

    fn word(bits: u64) -> L::Word {
        // Never empty: the fields are within the word, by the check of `FIELDS`.
        L::Word::try_from(bits).unwrap_or(L::Word::EMPTY)
    }

    fn flag(bit: u32, set: bool) -> u64 {
        u64::from(set) << bit
    }
}

// SAFETY: The fields are disjoint and in the word, by the check of `FIELDS`. So decoding returns each flag and the number
// as they were encoded, if the number has no more bits than its field: `can_hold` ensures that for leaves, and the index
// of a table has at most 18. A leaf has the bit `valid` and a table the bit `table`, so that neither is empty.
unsafe impl<L: Layout> Format for FormatOf<L> {
    type Word = L::Word;

    const LEVELS: u32 = L::LEVELS;
    const BITS: u32 = L::BITS_PER_LEVEL;

    fn has_leaves(level: u32) -> bool {
        level <= L::HIGHEST_LEAF
    }

    fn can_hold(entry: Entry) -> bool {
        let exclusive = !entry.is_exclusive() || Self::FIELDS.exclusive.is_some();
        exclusive && entry.number() as u64 & !Self::FIELDS.number_mask() == 0
    }

    fn table(index: u32) -> L::Word {
        let bits = Self::FIELDS;
        Self::word(Self::flag(bits.table, true) | u64::from(index) << bits.number)
    }

    fn leaf(_level: u32, entry: Entry) -> L::Word {
        let bits = Self::FIELDS;
        let exclusive = match bits.exclusive {
            Some(bit) => Self::flag(bit, entry.is_exclusive()),
            None => 0,
        };
        Self::word(
            Self::flag(bits.valid, true)
                | Self::flag(bits.write, entry.is_writable())
                | Self::flag(bits.device, entry.is_device())
                | exclusive
                | (entry.number() as u64) << bits.number,
        )
    }

    fn decode(_level: u32, word: L::Word) -> Slot {
        let bits = Self::FIELDS;
        let word: u64 = word.into();
        let is = |bit: u32| word >> bit & 1 != 0;
        let number = (word >> bits.number) & bits.number_mask();
        if is(bits.table) {
            // CAST: Made from an index of at most 18 bits.
            Slot::Table(number as u32)
        } else if !is(bits.valid) {
            Slot::Empty
        } else if bits.exclusive.is_some_and(is) {
            Slot::Leaf(Entry::exclusive(number as usize))
        } else if is(bits.device) {
            Slot::Leaf(Entry::device(number as usize, is(bits.write)))
        } else {
            Slot::Leaf(Entry::system(number as usize, is(bits.write)))
        }
    }
}

#[kunit_tests(rust_hmm_layout)]
mod tests {
    use super::*;

    enum Wide {}

    impl Layout for Wide {
        type Word = u64;

        const LEVELS: u32 = 4;
        const BITS_PER_LEVEL: u32 = 9;
        const BITS: Bits = Bits {
            valid: 0,
            table: 63,
            write: 1,
            device: 2,
            exclusive: None,
            number: 3,
            number_bits: 60,
        };
    }

    #[test]
    fn overlapping_and_exceeding_fields_are_refused() {
        let good = Wide::BITS;
        assert!(good.are_disjoint(64) && !good.are_disjoint(32));
        for bad in [
            Bits { write: 0, ..good },
            Bits { table: 64, ..good },
            Bits { device: 62, ..good },
            Bits {
                exclusive: Some(3),
                ..good
            },
            Bits { number: 2, ..good },
            Bits {
                number: 4,
                number_bits: 61,
                ..good
            },
            Bits {
                number_bits: INDEX_BITS - 1,
                ..good
            },
        ] {
            assert!(!bad.are_disjoint(64));
        }
    }

    #[test]
    fn encoded_entries_decode_to_themselves() {
        let last = (1 << 52) - 1;
        for entry in [
            Entry::system(0, false),
            Entry::system(last, true),
            Entry::device(last, false),
            Entry::device(0, true),
        ] {
            assert!(FormatOf::<Wide>::can_hold(entry));
            let word = FormatOf::<Wide>::leaf(0, entry);
            assert!(FormatOf::<Wide>::decode(0, word) == Slot::Leaf(entry));
        }
        assert!(!FormatOf::<Wide>::can_hold(Entry::exclusive(1)));
        for index in [0, (1 << INDEX_BITS) - 1] {
            let word = FormatOf::<Wide>::table(index);
            assert!(FormatOf::<Wide>::decode(1, word) == Slot::Table(index));
        }
        assert!(FormatOf::<Wide>::decode(0, 0) == Slot::Empty);
    }
}

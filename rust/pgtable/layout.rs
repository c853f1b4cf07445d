// SPDX-License-Identifier: GPL-2.0

//! Page table formats that are described by the positions of their bits.

use super::{
    entry::DevicePte,
    format::{
        Format,
        Word, //
    }, //
};
use core::marker::PhantomData;
use kernel::prelude::*;

/// Positions of the fields of an entry, for [`Layout`].
#[derive(Clone, Copy, Debug)]
pub struct Bits {
    /// Bit that is set in each leaf.
    pub valid: u32,
    /// Bit that is set in each entry that refers to a table.
    pub table: u32,
    /// Bit that is set in writable leaves.
    pub write: u32,
    /// Bit that is set in leaves of device memory.
    pub device: u32,
    /// Bit that is set in leaves of pages to which the device has exclusive access; `None` if the
    /// format has no such bit.
    pub exclusive: Option<u32>,
    /// Lowest bit of the address of a page or table, which is stored in units of device pages.
    pub number: u32,
    /// Number of bits of that address field.
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

    /// Mask of the address field, not shifted.
    const fn number_mask(&self) -> u64 {
        match 1u64.checked_shl(self.number_bits) {
            Some(end) => end - 1,
            None => u64::MAX,
        }
    }

    /// Whether all fields lie within a word of `width` bits, and no two overlap.
    const fn are_disjoint(&self, width: u32) -> bool {
        if self.number >= width || self.number_bits > width - self.number {
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

/// A format that is fully described by the positions of its bits. [`FormatOf`] turns it into a
/// [`Format`].
///
/// Fields that overlap or do not fit into the word cause a compile error.
///
/// # Examples
///
/// ```
/// use rust_hmm::pgtable::Bits;
/// use rust_hmm::pgtable::Format;
/// use rust_hmm::pgtable::FormatOf;
/// use rust_hmm::pgtable::Layout;
///
/// struct Simple;
///
/// impl Layout for Simple {
///     type Word = u64;
///
///     const LEVELS: u32 = 4;
///     const BITS_PER_LEVEL: u32 = 9;
///     const LEAVES: &'static [u32] = &[0, 9];
///     const BITS: Bits = Bits {
///         valid: 0,
///         table: 1,
///         write: 2,
///         device: 3,
///         exclusive: None,
///         number: 12,
///         number_bits: 36,
///     };
/// }
///
/// assert!(FormatOf::<Simple>::can_link(0x1000));
/// ```
pub trait Layout: Send + Sync + 'static {
    /// Type of an entry: `u32` or `u64`.
    type Word: Word + Into<u64> + TryFrom<u64>;

    /// Number of levels, 2 to 5.
    const LEVELS: u32;

    /// Log2 of the number of entries in a table, 4 to 11.
    const BITS_PER_LEVEL: u32;

    /// Log2 of the size of a device page in bytes, as [`Format::PAGE_SHIFT`].
    const PAGE_SHIFT: u32 = 12;

    /// Orders of leaves, as in [`Format::LEAVES`]. The format has no runs.
    const LEAVES: &'static [u32] = &[0];

    /// Positions of the fields of an entry.
    const BITS: Bits;
}

/// The [`Format`] with layout `L`. An entry whose page number does not fit into the address field
/// is not installed, and the installation fails.
pub struct FormatOf<L>(PhantomData<fn() -> L>);

impl<L: Layout> FormatOf<L> {
    /// Positions of the fields, checked at compile time.
    const FIELDS: Bits = {
        let mut index = 0;
        while index < L::LEAVES.len() {
            assert!(
                L::LEAVES[index] % L::BITS_PER_LEVEL == 0,
                "the layout has no bits that say that an entry belongs to a run"
            );
            index += 1;
        }
        assert!(
            L::BITS.are_disjoint(8 * size_of::<L::Word>() as u32),
            "fields of the layout overlap, or exceed the word"
        );
        L::BITS
    };

    fn word(bits: u64) -> L::Word {
        // The conversion cannot fail, because all fields lie within the word, as `FIELDS` checks.
        L::Word::try_from(bits).unwrap_or(L::Word::EMPTY)
    }

    fn flag(bit: u32, set: bool) -> u64 {
        u64::from(set) << bit
    }
}

impl<L: Layout> Format for FormatOf<L> {
    type Word = L::Word;

    const LEVELS: u32 = L::LEVELS;
    const BITS: u32 = L::BITS_PER_LEVEL;
    const PAGE_SHIFT: u32 = L::PAGE_SHIFT;
    const LEAVES: &'static [u32] = L::LEAVES;

    fn can_hold(entry: DevicePte) -> bool {
        let exclusive = !entry.is_exclusive() || Self::FIELDS.exclusive.is_some();
        exclusive && entry.number() as u64 & !Self::FIELDS.number_mask() == 0
    }

    fn can_link(address: u64) -> bool {
        (address >> L::PAGE_SHIFT) & !Self::FIELDS.number_mask() == 0
    }

    fn table(_level: u32, address: u64) -> L::Word {
        let bits = Self::FIELDS;
        Self::word(Self::flag(bits.table, true) | (address >> L::PAGE_SHIFT) << bits.number)
    }

    fn leaf(_order: u32, entry: DevicePte) -> L::Word {
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
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
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
        ] {
            assert!(!bad.are_disjoint(64));
        }
    }

    #[test]
    fn fields_match_the_layout() {
        type Format = FormatOf<Wide>;
        let last = (1 << 52) - 1;
        assert_eq!(Format::leaf(0, DevicePte::system(0, false)), 1);
        assert_eq!(Format::leaf(0, DevicePte::system(5, true)), 1 | 2 | 5 << 3);
        assert_eq!(Format::leaf(0, DevicePte::device(5, false)), 1 | 4 | 5 << 3);
        assert!(Format::can_hold(DevicePte::device(last, true)));
        let word = Format::leaf(0, DevicePte::device(last, true));
        assert_eq!(word, 1 | 2 | 4 | (last as u64) << 3);
        assert!(!Format::can_hold(DevicePte::exclusive(1)));
        assert_eq!(Format::table(1, 0x7000), 1 << 63 | 7 << 3);
        assert!(Format::can_link(0x7000));
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Formats with extreme geometries, in addition to those of the library and of samples.

use super::*;

/// A format of the samples.
#[path = "../../../samples/engines/format.rs"]
pub(super) mod sample;

/// As many levels as there can be, of as many bits; no huge leaves.
pub(super) enum DeepBits {}

impl Layout for DeepBits {
    type Word = u64;

    const LEVELS: u32 = 5;
    const BITS_PER_LEVEL: u32 = 10;
    const BITS: Bits = Bits {
        valid: 63,
        table: 62,
        write: 61,
        device: 60,
        exclusive: Some(59),
        number: 0,
        number_bits: 40,
    };
}

/// Without exclusive pages.
pub(super) enum PlainBits {}

impl Layout for PlainBits {
    type Word = u32;

    const LEVELS: u32 = 3;
    const BITS_PER_LEVEL: u32 = 5;
    const LEAVES: &'static [u32] = &[0, 5];
    const BITS: Bits = Bits {
        valid: 0,
        table: 1,
        write: 2,
        device: 3,
        exclusive: None,
        number: 4,
        number_bits: 28,
    };
}

/// As few levels as there can be, of as few bits, with a number that just fits.
pub(super) enum TinyBits {}

impl Layout for TinyBits {
    type Word = u32;

    const LEVELS: u32 = 2;
    const BITS_PER_LEVEL: u32 = 4;
    const LEAVES: &'static [u32] = &[0, 4];
    const BITS: Bits = Bits {
        valid: 0,
        table: 19,
        write: 20,
        device: 30,
        exclusive: Some(31),
        number: 1,
        number_bits: 18,
    };
}

/// Small tables of which there can be more than a million.
pub(super) enum ManyBits {}

impl Layout for ManyBits {
    type Word = u64;

    const LEVELS: u32 = 5;
    const BITS_PER_LEVEL: u32 = 5;
    const BITS: Bits = DeepBits::BITS;
}

/// As `Radix4`, without room for device pages beyond the first 512.
pub(super) enum Tight {}

impl Format for Tight {
    type Word = u64;

    const LEVELS: u32 = Radix4::LEVELS;
    const BITS: u32 = Radix4::BITS;
    const LEAVES: &'static [u32] = Radix4::LEAVES;

    fn can_hold(entry: DevicePte) -> bool {
        !entry.is_device() || entry.number() < PMD_PAGES
    }

    fn table(level: u32, address: u64) -> u64 {
        Radix4::table(level, address)
    }

    fn leaf(order: u32, entry: DevicePte) -> u64 {
        Radix4::leaf(order, entry)
    }
}

/// The format `F` for a device whose page is smaller than the CPU's by a factor of `1 << SHIFT`.
pub(super) struct Smaller<F, const SHIFT: u32>(core::marker::PhantomData<fn() -> F>);

/// The format `F` for a device whose page is a quarter of the CPU's.
pub(super) type Quarter<F> = Smaller<F, 2>;
/// The format `F` for a CPU whose page has the size of the device's.
pub(super) type Whole<F> = Smaller<F, 0>;

impl<F: Format, const SHIFT: u32> Format for Smaller<F, SHIFT> {
    type Word = F::Word;

    const LEVELS: u32 = F::LEVELS;
    const BITS: u32 = F::BITS;
    const PAGE_SHIFT: u32 = PAGE_SHIFT as u32 - SHIFT;
    const LEAVES: &'static [u32] = F::LEAVES;

    fn can_hold(entry: DevicePte) -> bool {
        F::can_hold(entry)
    }

    fn can_link(address: u64) -> bool {
        F::can_link(address)
    }

    fn table(level: u32, address: u64) -> Self::Word {
        F::table(level, address)
    }

    fn leaf(order: u32, entry: DevicePte) -> Self::Word {
        F::leaf(order, entry)
    }
}

pub(super) type Engines = FormatOf<sample::Pte>;
pub(super) type Deep = FormatOf<DeepBits>;
pub(super) type Plain = FormatOf<PlainBits>;
pub(super) type Many = FormatOf<ManyBits>;
pub(super) type Tiny = FormatOf<TinyBits>;

/// Small tables, and runs of two sizes in each.
pub(super) enum Runs {}

impl Runs {
    /// Log2 of the entries of the run that an entry belongs to; others say 0.
    pub(super) const ORDER: u32 = 4;
}

impl Format for Runs {
    type Word = u64;

    const LEVELS: u32 = 3;
    const BITS: u32 = 6;
    const LEAVES: &'static [u32] = &[0, 2, 4, 6];

    fn table(_level: u32, address: u64) -> u64 {
        address | 1
    }

    fn leaf(order: u32, entry: DevicePte) -> u64 {
        (entry.number() as u64) << 12
            | u64::from(order) << Self::ORDER
            | u64::from(entry.is_device()) << 3
            | u64::from(entry.may_be_dirty()) << 2
            | 2
    }
}

// SPDX-License-Identifier: GPL-2.0

//! The page table format of the device.

use rust_hmm::pgtable::{
    Bits,
    Layout, //
};

/// HARDWARE: four levels of 9 bits, entries of 64 bits, leaves of 4 KiB and 2 MiB.
pub(crate) enum Pte {}

impl Layout for Pte {
    type Word = u64;

    const LEVELS: u32 = 4;
    const BITS_PER_LEVEL: u32 = 9;
    const LEAVES: &'static [u32] = &[0, 9];
    const BITS: Bits = Bits {
        valid: 0,
        table: 1,
        write: 2,
        device: 3,
        exclusive: Some(4),
        number: 12,
        number_bits: 40,
    };
}

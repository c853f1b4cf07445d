// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! A format that says what it decodes.

use rust_hmm::pgtable::{
    Entry,
    Format,
    Slot, //
};

pub enum Empty {}

// SAFETY: No leaf is encoded, and none is decoded.
unsafe impl Format for Empty {
    type Word = u64;

    const LEVELS: u32 = 4;
    const BITS: u32 = 9;

    fn table(index: u32) -> u64 {
        u64::from(index)
    }

    fn leaf(_level: u32, _entry: Entry) -> u64 {
        0
    }

    fn decode(_level: u32, word: u64) -> Slot {
        match word {
            0 => Slot::Empty,
            index => Slot::Table(index as u32),
        }
    }
}

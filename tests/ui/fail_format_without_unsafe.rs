// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_format
//! A format of one's own is a promise that the library relies on: it accesses the pages that entries
//! decode to.

use rust_hmm::pgtable::{Entry, Format, Slot};

pub enum Lying {}

impl Format for Lying {
//~^ ERROR E0200: the trait `Format` requires an `unsafe impl` declaration
    type Word = u64;

    const LEVELS: u32 = 4;
    const BITS: u32 = 9;

    fn table(index: u32) -> u64 {
        u64::from(index)
    }

    fn leaf(_level: u32, _entry: Entry) -> u64 {
        1
    }

    fn decode(_level: u32, _word: u64) -> Slot {
        Slot::Leaf(Entry::system(0xdead, true))
    }
}

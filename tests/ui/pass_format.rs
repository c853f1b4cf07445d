// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! A page-table format without unsafe code, because only the device reads its entries.

#![forbid(unsafe_code)]

use rust_hmm::pgtable::{
    DevicePte,
    Format, //
};

pub enum Small {}

impl Format for Small {
    type Word = u32;

    const LEVELS: u32 = 3;
    const BITS: u32 = 8;
    const LEAVES: &'static [u32] = &[0, 4, 8];

    fn can_hold(entry: DevicePte) -> bool {
        entry.number() >> 20 == 0
    }

    fn can_link(address: u64) -> bool {
        address >> 32 == 0
    }

    fn table(_level: u32, address: u64) -> u32 {
        address as u32 | 1
    }

    fn leaf(order: u32, entry: DevicePte) -> u32 {
        (entry.number() << 12) as u32 | order << 4 | 2
    }
}

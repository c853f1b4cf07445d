// SPDX-License-Identifier: GPL-2.0

//! Walks of tables that are written by hand, according to the manuals.

use super::super::walk::{
    Bus,
    Format,
    Miss,
    Translation, //
};
use crate::harness::Trial;
use kernel::prelude::*;
use proptest::prelude::*;
use std::collections::HashMap;

/// Words, by bus address.
pub(super) struct Memory(HashMap<u64, u64>);

impl Bus for Memory {
    fn read(&self, address: u64) -> Result<u64, Miss> {
        self.0.get(&address).copied().ok_or(Miss::Bus(address))
    }
}

/// Three levels of tables that lead to a table at 0x4000 or, if there is a leaf of 2 MiB, end at
/// 0x3000. `ADDR` has the indices 1, 2, 3 and 5, beginning with the root.
pub(super) const ADDR: u64 = 1 << 39 | 2 << 30 | 3 << 21 | 5 << 12;

pub(super) fn tables(link: u64, large: Option<u64>, leaf: u64) -> Memory {
    Memory(HashMap::from([
        (0x1008, 0x2000 | link),
        (0x2010, 0x3000 | link),
        (0x3018, large.unwrap_or(0x4000 | link)),
        (0x4028, leaf),
    ]))
}

pub(super) fn found(address: u64, order: u32, writable: bool) -> Result<Translation, Miss> {
    Ok(Translation { address, order, writable })
}

pub(super) fn radix4(trial: &Trial<'_>) {
    trial.run(Just(()), 1..2, |_| {
        let walk = |large, leaf| Format::Radix4.walk(&tables(3, large, leaf), 0x1000, ADDR);
        assert_eq!(walk(None, 0x9003), found(0x9000, 0, true));
        assert_eq!(walk(None, 0x9001), found(0x9000, 0, false));
        assert_eq!(walk(None, 0x9002), Err(Miss::NotPresent));
        assert_eq!(walk(Some(0x60_0081), 0), found(0x60_5000, 9, false));
        assert_eq!(walk(Some(0x60_1081), 0), Err(Miss::Malformed(0x60_1081)));
        assert_eq!(walk(Some(0x8003), 0), Err(Miss::Bus(0x8028)));
        // Nothing is present beyond 48 bits.
        let beyond = Format::Radix4.walk(&tables(3, None, 0x9003), 0x1000, ADDR | 1 << 48);
        assert_eq!(beyond, Err(Miss::NotPresent));
    });
}

/// [`tables`], below a root at 0x5000.
pub(super) fn five_levels(leaf: u64) -> Memory {
    let mut memory = tables(3, None, leaf);
    memory.0.insert(0x5030, 0x1003);
    memory
}

/// The address of the page of [`five_levels`].
pub(super) const ADDR_OF_5: u64 = 6 << 48 | ADDR;

pub(super) fn radix5(trial: &Trial<'_>) {
    trial.run(Just(()), 1..2, |_| {
        let walk = |addr| Format::Radix5.walk(&five_levels(0x9003), 0x5000, addr);
        assert_eq!(walk(ADDR_OF_5), found(0x9000, 0, true));
        assert_eq!(walk(ADDR), Err(Miss::Bus(0x5000)));
        assert_eq!(walk(ADDR_OF_5 | 1 << 57), Err(Miss::NotPresent));
    });
}

/// Two levels of tables of 16 KiB that lead to a table at 0xc000 or, if there is a block, end at
/// 0x8000. `ADDR_OF_16K` has the indices 1, 2 and 3, beginning with the root at 0x4000.
pub(super) const ADDR_OF_16K: u64 = 1 << 36 | 2 << 25 | 3 << 14;

pub(super) fn tables_of_16k(block: Option<u64>, leaf: u64) -> Memory {
    let all = [(0x4008, 0x8003), (0x8010, block.unwrap_or(0xc003)), (0xc018, leaf)];
    Memory(HashMap::from(all))
}

pub(super) fn lpae16k(trial: &Trial<'_>) {
    trial.run(Just(()), 1..2, |_| {
        let walk = |block, leaf| {
            let memory = tables_of_16k(block, leaf);
            Format::Lpae16k.walk(&memory, 0x4000, ADDR_OF_16K | 0x1000)
        };
        let page = 1 << 10 | 1 << 6;
        assert_eq!(walk(None, 0x2_0003 | page), found(0x2_1000, 2, true));
        assert_eq!(walk(None, 0x2_0083 | page), found(0x2_1000, 2, false));
        assert_eq!(walk(None, 0x2_0003 | page | 1 << 52), found(0x2_1000, 9, true));
        // A page of 4 KiB.
        assert_eq!(walk(None, 0x2_1003 | page), Err(Miss::Malformed(0x2_1003 | page)));
        assert_eq!(walk(Some(0x600_0001 | page), 0), found(0x600_d000, 13, true));
        assert_eq!(walk(Some(0x602_0001 | page), 0), Err(Miss::Malformed(0x602_0001 | page)));
        let beyond = Format::Lpae16k.walk(&tables_of_16k(None, 0), 0x4000, 1 << 47);
        assert_eq!(beyond, Err(Miss::NotPresent));
    });
}

pub(super) fn lpae(trial: &Trial<'_>) {
    trial.run(Just(()), 1..2, |_| {
        let walk = |large, leaf| Format::Lpae.walk(&tables(3, large, leaf), 0x1000, ADDR);
        let page = 1 << 10 | 1 << 6;
        assert_eq!(walk(None, 0x9003 | page), found(0x9000, 0, true));
        assert_eq!(walk(None, 0x9083 | page), found(0x9000, 0, false));
        assert_eq!(walk(None, 0x9003 | page | 1 << 52), found(0x9000, 4, true));
        assert_eq!(walk(None, 0x9001 | page), Err(Miss::Malformed(0x9001 | page)));
        // Without the access flag, or for the kernel only.
        for bits in [1 << 6, 1 << 10] {
            assert_eq!(walk(None, 0x9003 | bits), Err(Miss::Malformed(0x9003 | bits)));
        }
        assert_eq!(walk(Some(0x60_0001 | page), 0), found(0x60_5000, 9, true));
    });
}

pub(super) fn gfx9(trial: &Trial<'_>) {
    trial.run(Just(()), 1..2, |_| {
        let walk = |large, leaf| Format::Gfx9.walk(&tables(1, large, leaf), 0x1000, ADDR);
        assert_eq!(walk(None, 0x9061), found(0x9000, 0, true));
        assert_eq!(walk(None, 0x9021 | 4 << 7), found(0x9000, 4, false));
        assert_eq!(walk(None, 0x9001), Err(Miss::Malformed(0x9001)));
        let large = 0x60_0061 | 9 << 7 | 1 << 54;
        assert_eq!(walk(Some(large), 0), found(0x60_5000, 9, true));
    });
}

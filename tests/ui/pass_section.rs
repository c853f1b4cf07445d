// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! Access sections and table guards that are dropped before their mirror, on the same thread.

use kernel::prelude::*;
use rust_hmm::{
    mirror::{
        Device,
        Mirror,
        PageMemory, //
    },
    mm::addr::PageRange, //
};

pub fn access<D: Device<Walker = u64>>(
    mirror: Mirror<D>,
    range: PageRange,
    to: &mut [u8],
) -> Result<u64> {
    let mut section = mirror.enter(0)?;
    if let Some(leaf) = section.walk(0x1000) {
        if let Ok(PageMemory::Cpu(page)) = section.resolve(0x1000, &leaf) {
            let _read = page.read(0, to);
        }
    }
    let data = *section.data();
    drop(section);
    let table = mirror.lock_table()?;
    if let Some(PageMemory::Cpu(pages)) = table.readable(0x1000) {
        let _read = pages.read(0, to);
    }
    let present = table.present(range) as u64;
    drop(table);
    drop(mirror);
    Ok(data + present)
}

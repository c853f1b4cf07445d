// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_section
//! A page cannot be accessed after the table lock was released.

use rust_hmm::mirror::{
    Device,
    Mirror,
    PageMemory, //
};

pub fn late<D: Device>(mirror: &Mirror<D>) {
    let Ok(table) = mirror.lock_table() else {
        return;
    };
    let place = table.readable(0x1000);
    drop(table);
    //~^ ERROR E0505: cannot move out of `table` because it is borrowed: move out of `table` occurs
    if let Some(PageMemory::Cpu(pages)) = place {
        let _ = pages.read(0, &mut [0; 8]);
    }
}

// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_section
//! The result of a translation cannot be used after the access section has ended.

use rust_hmm::{
    mirror::{
        AccessSection,
        Device,
        PageMemory, //
    },
    pgtable::Leaf, //
};

pub fn keep<D: Device>(section: AccessSection<'_, D>, leaf: &Leaf, to: &mut [u8]) {
    let place = section.resolve(0x1000, leaf);
    drop(section);
    //~^ ERROR E0505: cannot move out of `section` because it is borrowed: move out of `section`
    if let Ok(PageMemory::Cpu(page)) = place {
        let _read = page.read(0, to);
    }
}

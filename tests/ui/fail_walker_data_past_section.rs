// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_section
//! Data protected by an engine's lock cannot outlive the access section.

use rust_hmm::mirror::{
    AccessSection,
    Device, //
};

pub fn keep<D: Device<Walker = u64>>(section: AccessSection<'_, D>) -> u64 {
    let mut section = section;
    let data = section.data();
    drop(section);
    //~^ ERROR E0505: cannot move out of `section` because it is borrowed: move out of `section`
    *data
}

// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_section
//! An access section cannot outlive its mirror.

use kernel::prelude::*;
use rust_hmm::mirror::{
    Device,
    Mirror, //
};

pub fn late<D: Device>(mirror: Mirror<D>) -> Result<bool> {
    let section = mirror.enter(0)?;
    drop(mirror);
    //~^ ERROR E0505: cannot move out of `mirror` because it is borrowed: move out of `mirror`
    Ok(section.walk(0x1000).is_some())
}

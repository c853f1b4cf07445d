// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_section
//! A table guard cannot outlive its mirror.

use kernel::prelude::*;
use rust_hmm::{
    mirror::{
        Device,
        Mirror, //
    },
    mm::addr::PageRange, //
};

pub fn late<D: Device>(mirror: Mirror<D>, range: PageRange) -> Result<usize> {
    let table = mirror.lock_table()?;
    drop(mirror);
    //~^ ERROR E0505: cannot move out of `mirror` because it is borrowed: move out of `mirror`
    Ok(table.present(range))
}

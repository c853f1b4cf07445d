// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_request
//! A migration can be started only once.

use kernel::prelude::*;
use rust_hmm::{
    mirror::{
        Device,
        Mirror, //
    },
    mm::addr::PageRange, //
};

pub fn twice<D: Device>(mirror: &Mirror<D>, range: PageRange) -> Result {
    let migration = mirror.migrate(range);
    migration.to_device()?;
    migration.to_system()?;
    //~^ ERROR E0382: use of moved value: `migration`: value used here after move
    Ok(())
}

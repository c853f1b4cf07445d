// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_request
//! Outcomes cannot be read before the migration has run.

use kernel::prelude::*;
use rust_hmm::{
    migrate::PageOutcome,
    mirror::{
        Device,
        Mirror, //
    },
    mm::addr::PageRange, //
};

pub fn early<D: Device>(mirror: &Mirror<D>, range: PageRange) -> Result<bool> {
    let mut outcomes = [PageOutcome::None; 4];
    let migration = mirror.migrate(range).outcomes(&mut outcomes);
    let moved = outcomes.iter().any(|page| page.has_moved());
    //~^ ERROR E0502: cannot borrow `outcomes` as immutable because it is also borrowed as mutable:
    migration.to_device()?;
    Ok(moved)
}

// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! A migration that is started once, and whose outcomes are read afterwards.

use kernel::prelude::*;
use rust_hmm::{
    migrate::PageOutcome,
    mirror::{
        Device,
        Mirror, //
    },
    mm::addr::PageRange, //
};

pub fn there_and_back<D: Device>(mirror: &Mirror<D>, range: PageRange) -> Result<bool> {
    let mut outcomes = [PageOutcome::None; 4];
    mirror.migrate(range).outcomes(&mut outcomes).to_device()?;
    mirror.migrate(range).to_system()?;
    Ok(outcomes.iter().any(|page| page.has_moved()))
}

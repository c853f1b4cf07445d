// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_migration
//! Exclusive access cannot outlive the mmap lock.

use kernel::{mm::MmWithUser, prelude::*};
use rust_hmm::mm::{exclusive::ExclusivePage, notifier::Cookie, space::MmapGuard};

pub fn late(mm: &MmWithUser) -> Result<usize> {
    let guard = MmapGuard::lock(mm)?;
    let page = ExclusivePage::new(&guard, 0x1000, Cookie::NONE)?;
    drop(guard);
    //~^ ERROR E0505: cannot move out of `guard` because it is borrowed: move out of `guard` occurs
    Ok(page.pfn())
}

// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_migration
//! Exclusive access cannot outlive the mmap lock.

use kernel::{
    mm::MmWithUser,
    prelude::*, //
};
use rust_hmm::{
    kernel::identity::MigrationId,
    mm::{
        exclusive::ExclusivePage,
        vma::MmapGuard, //
    }, //
};

pub fn late(mm: &MmWithUser, id: MigrationId) -> Result<usize> {
    let guard = MmapGuard::lock(mm)?;
    let page = ExclusivePage::new(&guard, 0x1000, id)?;
    drop(guard);
    //~^ ERROR E0505: cannot move out of `guard` because it is borrowed: move out of `guard` occurs
    Ok(page.pfn())
}

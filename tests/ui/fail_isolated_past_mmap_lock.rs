// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_migration
//! A migration cannot outlive the mmap guard.

use kernel::{
    mm::MmWithUser,
    prelude::*, //
};
use rust_hmm::{
    kernel::identity::MigrationId,
    mm::{
        addr::PageRange,
        migrate::{
            Batch,
            Isolated, //
        },
        vma::MmapGuard, //
    }, //
};

pub fn late(mm: &MmWithUser, range: PageRange) -> Result {
    let mut batch = Batch::new()?;
    let guard = MmapGuard::lock(mm)?;
    let vma = guard.vma_lookup(range.start()).ok_or(EFAULT)?;
    let id = MigrationId::of(&range);
    let isolated = Isolated::of_system(vma, range, false, id, &mut batch)?;
    drop(guard);
    //~^ ERROR E0505: cannot move out of `guard` because it is borrowed: move out of `guard` occurs
    drop(isolated);
    Ok(())
}

// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_migration
//! A VMA cannot be used after the mmap lock was released.

use kernel::{
    mm::MmWithUser,
    prelude::*, //
};
use rust_hmm::mm::vma::MmapGuard;

pub fn late(mm: &MmWithUser) -> Result<usize> {
    let guard = MmapGuard::lock(mm)?;
    let vma = guard.vma_lookup(0x1000).ok_or(EFAULT)?;
    drop(guard);
    //~^ ERROR E0505: cannot move out of `guard` because it is borrowed: move out of `guard` occurs
    Ok(vma.start())
}

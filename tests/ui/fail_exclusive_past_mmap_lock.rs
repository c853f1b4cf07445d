// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0505
//! Exclusive access cannot outlive the mmap lock.

use kernel::{mm::MmWithUser, prelude::*};
use rust_hmm::mm::{exclusive::ExclusivePage, notifier::Cookie, space::MmapGuard};

pub fn late(mm: &MmWithUser) -> Result<usize> {
    let guard = MmapGuard::lock(mm)?;
    let page = ExclusivePage::new(&guard, 0x1000, Cookie::NONE)?;
    drop(guard);
    Ok(page.pfn())
}

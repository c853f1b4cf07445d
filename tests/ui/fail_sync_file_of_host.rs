// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_fence
//! A host fence cannot be exported as a sync file, because the host may never signal it.

use kernel::prelude::*;
use rust_hmm::kernel::{
    fence::DriverFence,
    identity::FenceType,
    sync_file::SyncFile, //
};

pub fn export() -> Result<SyncFile> {
    let pending = DriverFence::new(FenceType::NONE)?;
    SyncFile::new(&pending.fence())
    //~^ ERROR E0308: mismatched types: expected `&DmaFence`, found `&Fence`
}

// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_fence
//! An operation of a queue may fault: no other driver may wait for it where memory is reclaimed.

use kernel::prelude::*;
use rust_hmm::{mm::sync_file::SyncFile, queue::Queue};

pub fn export(queue: &Queue) -> Result<SyncFile> {
    let fence = queue.submit(KVec::new(), |_| Ok(()))?;
    SyncFile::new(&fence)
    //~^ ERROR E0308: mismatched types: expected `&DmaFence`, found `&Fence`
}

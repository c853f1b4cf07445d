// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_fence
//! The fence of an operation cannot be exported as a sync file: it may fault, and reclaim could
//! wait for it.

use kernel::prelude::*;
use rust_hmm::{
    kernel::sync_file::SyncFile,
    queue::Queue, //
};

pub fn export(queue: &Queue) -> Result<SyncFile> {
    let fence = queue.submit(KVec::new(), |_| Ok(()))?;
    SyncFile::new(&fence)
    //~^ ERROR E0308: mismatched types: expected `&DmaFence`, found `&Fence`
}

// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0310
//! What copies cannot borrow: pages live longer than the process that filled them.

use rust_hmm::memory::{CopyJob, MemoryOps};

/// With what may be borrowed.
pub struct Vram<R>(pub R);

impl<R: Send + Sync> MemoryOps for Vram<R> {
    fn copy(&self, job: CopyJob) {
        drop(job);
    }
}

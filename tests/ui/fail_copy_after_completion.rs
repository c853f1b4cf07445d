// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0505
//! The pages of a copy cannot be touched when it was completed: they are freed.

use rust_hmm::{memory::CopyJob, mirror::PlaceMut};

pub fn late(job: CopyJob) {
    let copy = job.copy();
    job.complete(Ok(()));
    if let PlaceMut::Cpu(pages) = copy.destination {
        pages.clear();
    }
}

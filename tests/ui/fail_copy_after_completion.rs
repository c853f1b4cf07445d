// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_copy
//! The pages of a copy cannot be accessed after its completion, because they may be freed then.

use rust_hmm::{
    memory::CopyJob,
    mirror::PageMemoryMut, //
};

pub fn late(job: CopyJob) {
    let copy = job.copy();
    job.complete(Ok(()));
    //~^ ERROR E0505: cannot move out of `job` because it is borrowed: move out of `job` occurs here
    if let PageMemoryMut::Cpu(pages) = copy.destination {
        pages.clear();
    }
}

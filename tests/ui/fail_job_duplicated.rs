// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_copy
//! A copy job cannot be cloned, because each copy would complete it.

use rust_hmm::memory::CopyJob;

pub fn duplicate(job: CopyJob) -> (CopyJob, CopyJob) {
    (job.clone(), job)
    //~^ ERROR E0599: no method named `clone` found for struct `CopyJob` in the current scope:
}

// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_copy
//! A copy has one job: two would end it twice.

use rust_hmm::memory::CopyJob;

pub fn duplicate(job: CopyJob) -> (CopyJob, CopyJob) {
    (job.clone(), job)
    //~^ ERROR E0599: no method named `clone` found for struct `CopyJob` in the current scope:
}

// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0599
//! A copy has one job: two would end it twice.

use rust_hmm::memory::CopyJob;

pub fn duplicate(job: CopyJob) -> (CopyJob, CopyJob) {
    (job.clone(), job)
}

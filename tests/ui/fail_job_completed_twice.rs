// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_copy
//! A copy can be completed only once, because its completion resumes the migration.

use rust_hmm::memory::CopyJob;

pub fn twice(job: CopyJob) {
    job.complete(Ok(()));
    job.complete(Ok(()));
    //~^ ERROR E0382: use of moved value: `job`: value used here after move
}

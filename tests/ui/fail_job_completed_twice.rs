// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0382
//! A copy is completed once: the migration goes on then.

use rust_hmm::memory::CopyJob;

pub fn twice(job: CopyJob) {
    job.complete(Ok(()));
    job.complete(Ok(()));
}

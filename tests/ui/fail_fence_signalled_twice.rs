// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_fence
//! A fence can be signalled only once.

use rust_hmm::kernel::fence::DriverFence;

pub fn twice(pending: DriverFence) {
    pending.signal(Ok(()));
    pending.signal(Ok(()));
    //~^ ERROR E0382: use of moved value: `pending`: value used here after move
}

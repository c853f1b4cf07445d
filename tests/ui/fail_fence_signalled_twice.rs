// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0382
//! A fence is signalled once.

use rust_hmm::mm::fence::Pending;

pub fn twice(pending: Pending) {
    pending.signal(Ok(()));
    pending.signal(Ok(()));
}

// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_copy
//! The DMA addresses of a copy cannot be used after its completion, which unmaps them.

use rust_hmm::memory::DmaCopy;

pub fn late(copy: DmaCopy) -> bool {
    copy.complete(Ok(()));
    copy.source(0).is_ok()
    //~^ ERROR E0382: borrow of moved value: `copy`: value borrowed here after move
}

// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_copy
//! When a copy is completed its memory is unmapped: the engine must not have its addresses.

use rust_hmm::memory::DmaCopy;

pub fn late(copy: DmaCopy) -> bool {
    copy.complete(Ok(()));
    copy.source(0).is_ok()
    //~^ ERROR E0382: borrow of moved value: `copy`: value borrowed here after move
}

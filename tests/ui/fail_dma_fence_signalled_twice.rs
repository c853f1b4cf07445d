// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_fence
//! A DMA fence can be signalled only once.

use rust_hmm::kernel::dma_fence::DmaDriverFence;

pub fn twice(pending: DmaDriverFence) {
    pending.signal(Ok(()));
    pending.signal(Ok(()));
    //~^ ERROR E0382: use of moved value: `pending`: value used here after move
}

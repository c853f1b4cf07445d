// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0382
//! A DMA fence is signalled once.

use rust_hmm::mm::dma_fence::DmaPending;

pub fn twice(pending: DmaPending) {
    pending.signal(Ok(()));
    pending.signal(Ok(()));
}

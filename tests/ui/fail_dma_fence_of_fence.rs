// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0308
//! A DMA fence becomes a fence, and never the other way round.

use rust_hmm::mm::{dma_fence::DmaFence, fence::Fence};

pub fn convert(fence: Fence) -> DmaFence {
    DmaFence::from(fence)
}

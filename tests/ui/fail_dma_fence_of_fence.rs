// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_fence
//! A DMA fence can be converted to a fence, but not vice versa.

use rust_hmm::kernel::{
    dma_fence::DmaFence,
    fence::Fence, //
};

pub fn convert(fence: Fence) -> DmaFence {
    DmaFence::from(fence)
    //~^ ERROR E0308: mismatched types: expected `DmaFence`, found `Fence`
}

// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_fence
//! A preallocated fence can be used only once.

use rust_hmm::kernel::{
    dma_fence::{
        DmaFenceAlloc,
        FenceContext, //
    },
    identity::FenceType, //
};

pub fn twice(alloc: DmaFenceAlloc, timeline: &FenceContext) {
    let one = alloc.init(timeline, FenceType::NONE);
    let two = alloc.init(timeline, FenceType::NONE);
    //~^ ERROR E0382: use of moved value: `alloc`: value used here after move
    drop((one, two));
}

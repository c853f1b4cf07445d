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

pub fn twice(room: DmaFenceAlloc, timeline: &FenceContext) {
    let one = room.init(timeline, FenceType::NONE);
    let two = room.init(timeline, FenceType::NONE);
    //~^ ERROR E0382: use of moved value: `room`: value used here after move
    drop((one, two));
}

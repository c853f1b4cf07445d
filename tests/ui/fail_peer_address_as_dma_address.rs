// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_dma
//! The address of another device's memory cannot be used as a DMA address of system memory.

use rust_hmm::mm::dma::{
    DmaAddress,
    PeerAddress, //
};

fn copy_from(_system: DmaAddress) {}

pub fn copy(from: PeerAddress) {
    copy_from(from)
    //~^ ERROR E0308: mismatched types: expected `DmaAddress`, found `PeerAddress`
}

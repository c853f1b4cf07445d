// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_dma
//! A DMA address of system memory cannot be used as a device page number.

use rust_hmm::mm::{
    dma::{
        DmaAddress,
        PeerAddress, //
    },
    pci::PeerMemory, //
};

pub fn place(memory: &PeerMemory, at: DmaAddress) -> Option<PeerAddress> {
    memory.address(at, 4096)
    //~^ ERROR E0308: mismatched types: expected `DeviceAddress`, found `DmaAddress`
}

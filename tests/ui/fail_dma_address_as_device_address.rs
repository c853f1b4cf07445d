// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_dma
//! Where system memory is for a device is no place in the device's memory.

use rust_hmm::mm::{
    dma::{DmaAddress, PeerAddress},
    pci::PeerMemory,
};

pub fn place(memory: &PeerMemory, at: DmaAddress) -> Option<PeerAddress> {
    memory.address(at, 4096)
    //~^ ERROR E0308: mismatched types: expected `DeviceAddress`, found `DmaAddress`
}

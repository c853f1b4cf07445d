// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! Each type of address, used for its purpose.

use rust_hmm::{
    mirror::PageAddress,
    mm::dma::{
        DeviceAddress,
        DmaAddress,
        PeerAddress, //
    },
    mm::pci::PeerMemory, //
};

fn copy_from(_system: DmaAddress) {}

pub fn copy(system: DmaAddress) -> PageAddress {
    copy_from(system);
    PageAddress::Dma(system)
}

pub fn place(memory: &PeerMemory, at: DeviceAddress) -> Option<PeerAddress> {
    memory.address(at, 4096)
}

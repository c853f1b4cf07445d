// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_dma
//! A device page number cannot be used as a DMA address.

use rust_hmm::mirror::PageAddress;
use rust_hmm::mm::dma::DeviceAddress;

pub fn target(at: DeviceAddress) -> PageAddress {
    PageAddress::Dma(at)
    //~^ ERROR E0308: mismatched types: expected `DmaAddress`, found `DeviceAddress`
}

// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_dma
//! A place in the device's memory is nothing that the device could access on the bus.

use rust_hmm::mirror::Target;
use rust_hmm::mm::dma::DeviceAddress;

pub fn target(at: DeviceAddress) -> Target {
    Target::Dma(at)
    //~^ ERROR E0308: mismatched types: expected `DmaAddress`, found `DeviceAddress`
}

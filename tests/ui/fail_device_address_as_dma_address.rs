// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0308
//! A place in the device's memory is nothing that the device could access on the bus.

use rust_hmm::mirror::Target;
use rust_hmm::mm::dma::DeviceAddress;

pub fn target(at: DeviceAddress) -> Target {
    Target::Dma(at)
}

// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_dma
//! A driver cannot create a DMA address; only a DMA mapping provides one.

use rust_hmm::mm::dma::DmaAddress;

pub fn anywhere() -> DmaAddress {
    DmaAddress::new(0x1000)
    //~^ ERROR E0624: associated function `new` is private: private associated function
}

// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_bound_resources
//! A driver cannot close a bound device: devres closes it on unbind.

use rust_hmm::mm::dma::DmaDevice;

pub fn early(device: &DmaDevice) -> usize {
    device.close()
    //~^ ERROR E0624: method `close` is private: private method
}

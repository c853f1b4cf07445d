// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_driver
//! A driver cannot modify the page table of a mirror directly.

use rust_hmm::mirror::{
    Device,
    Mirror, //
};

pub fn change<D: Device>(mirror: &Mirror<D>) {
    let mut state = mirror.inner().lock();
    //~^ ERROR E0624: method `inner` is private: private method
    state.table = todo!();
}

// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_flush
//! A flush yields only one proof.

use rust_hmm::pgtable::{
    Flushed,
    Flusher,
    Flushing,
    Radix4, //
};

pub fn twice<F: Flusher>(
    flushing: Flushing<F::Pending, Radix4>,
    flusher: &F,
) -> [Flushed<'_>; 2] {
    [flushing.wait(flusher), flushing.wait(flusher)]
    //~^ ERROR E0382: use of moved value: `flushing`: value used here after move
}

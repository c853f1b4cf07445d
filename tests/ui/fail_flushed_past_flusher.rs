// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_flush
//! The proof of a flush does not outlive its flusher, which it names by its address.

use rust_hmm::pgtable::{
    Flushed,
    Flusher,
    Flushing,
    Radix4, //
};

pub fn keep<F: Flusher + 'static>(
    flushing: Flushing<F::Pending, Radix4>,
    flusher: F,
) -> Flushed<'static> {
    flushing.wait(&flusher)
    //~^ ERROR E0515: cannot return value referencing function parameter `flusher`
}

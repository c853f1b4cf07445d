// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_flush
//! A driver cannot create the proof of a flush.

use rust_hmm::pgtable::{
    Flushed,
    Flusher, //
};

pub fn forge<F: Flusher>(flusher: &F) -> Flushed<'_> {
    Flushed::by(flusher, None, None)
    //~^ ERROR E0624: associated function `by` is private: private associated function
}

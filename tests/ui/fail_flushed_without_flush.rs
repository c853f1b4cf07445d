// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_flush
//! That there was nothing to flush is not for the driver to say.

use rust_hmm::pgtable::{Flushed, Flusher};

pub fn forge<F: Flusher>(flusher: &F) -> Flushed {
    Flushed::by(flusher, None)
    //~^ ERROR E0624: associated function `by` is private: private associated function
}

// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0624
//! That there was nothing to flush is not for the driver to say.

use rust_hmm::pgtable::{Flushed, Flusher};

pub fn forge<F: Flusher>(flusher: &F) -> Flushed {
    Flushed::by(flusher, None)
}

// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0624
//! Page contents cannot be reached by a made-up frame number.

use rust_hmm::mm::page::CpuPages;

pub fn forge() -> CpuPages<'static> {
    // SAFETY: None; this must not compile.
    unsafe { CpuPages::new(1, 1) }
}

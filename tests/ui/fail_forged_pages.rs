// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_values
//! A driver cannot access page contents by an arbitrary page frame number.

use rust_hmm::mm::folio::CpuPages;

pub fn forge() -> CpuPages<'static> {
    // SAFETY: None; this must not compile.
    unsafe { CpuPages::new(1, 1) }
    //~^ ERROR E0624: associated function `new` is private: private associated function
}

// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_values
//! A driver cannot create an unaligned or empty range.

use rust_hmm::mm::addr::PageRange;

pub fn forge() -> PageRange {
    PageRange { start: 5, end: 5 }
    //~^ ERROR E0451: field `start` of struct `PageRange` is private: private field
    //~^^ ERROR E0451: field `end` of struct `PageRange` is private: private field
}

// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0451
//! Ranges are aligned, and never empty.

use rust_hmm::mm::addr::PageRange;

pub fn forge() -> PageRange {
    PageRange { start: 5, end: 5 }
}

// SPDX-License-Identifier: GPL-2.0

//! Numbers of pages that were mapped for DMA and unmapped, of all devices.

use kernel::sync::atomic::{
    ordering::{
        Acquire,
        Relaxed,
        Release, //
    },
    Atomic, //
};

/// Pages mapped and unmapped for all devices since the module was loaded.
static PAGES_MAPPED: Atomic<u64> = Atomic::new(0);
static PAGES_UNMAPPED: Atomic<u64> = Atomic::new(0);

/// Returns the numbers of pages that were mapped for DMA and unmapped, for all devices since the
/// module was loaded.
///
/// # Context
///
/// Any.
///
/// # Examples
///
/// ```
/// use rust_hmm::mm::dma::totals;
///
/// let (mapped, unmapped) = totals();
/// assert!(mapped >= unmapped);
/// ```
// Not inlined: the counters are those of this module, whichever module calls this.
#[inline(never)]
pub fn totals() -> (u64, u64) {
    // Load `PAGES_UNMAPPED` first, so that it never exceeds `PAGES_MAPPED`.
    let unmapped = PAGES_UNMAPPED.load(Acquire);
    (PAGES_MAPPED.load(Relaxed), unmapped)
}

/// Adds to the numbers that [`totals`] returns.
#[inline(never)]
pub(super) fn count_totals(mapped: usize, unmapped: usize) {
    // Release: pairs with the acquire in `totals`. The owner of a page counts it as mapped before
    // it counts it as unmapped: both are done with the table lock held, or a close waits for the
    // task that has mapped the page.
    PAGES_MAPPED.fetch_add(mapped as u64, Relaxed);
    PAGES_UNMAPPED.fetch_add(unmapped as u64, Release);
}

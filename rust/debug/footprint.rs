// SPDX-License-Identifier: GPL-2.0

//! Memory footprint of the page tables of all mirrors, whether in use or cached (`rust_hmm/tables`
//! in debugfs), and numbers of pages mapped for DMA (`rust_hmm/dma`).

use crate::mm::dma;
use kernel::{
    debugfs::Writer,
    fmt,
    sync::atomic::{ordering::Relaxed, Atomic},
};

static PAGES: Atomic<i64> = Atomic::new(0);
static BYTES: Atomic<i64> = Atomic::new(0);

/// Adds `pages` table pages and `bytes`, which include their metadata, to the totals. Negative
/// values subtract. Context: any. Not inlined, so that all modules use the same counters.
#[inline(never)]
pub(crate) fn add(pages: i64, bytes: i64) {
    PAGES.add(pages, Relaxed);
    BYTES.add(bytes, Relaxed);
}

/// Text of the file `tables`: number and bytes of table pages.
pub(crate) struct Report;

impl Writer for Report {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "pages {}", PAGES.load(Relaxed))?;
        writeln!(f, "bytes {}", BYTES.load(Relaxed))
    }
}

/// Text of the file `dma`: numbers of pages of 4 KiB that were mapped for devices so far, that were
/// unmapped again, and that are mapped now.
pub(crate) struct Dma;

impl Writer for Dma {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mapped, unmapped) = dma::totals();
        writeln!(f, "mapped {mapped}")?;
        writeln!(f, "unmapped {unmapped}")?;
        writeln!(f, "live {}", mapped.saturating_sub(unmapped))
    }
}

// SPDX-License-Identifier: GPL-2.0

//! What the page tables of all mirrors take, in use or not: the file `rust_hmm/tables` in debugfs; and what is mapped
//! for DMA: the file `rust_hmm/dma`.

use crate::mm::dma;
use kernel::{
    debugfs::Writer,
    fmt,
    sync::atomic::{ordering::Relaxed, Atomic},
};

static PAGES: Atomic<i64> = Atomic::new(0);
static BYTES: Atomic<i64> = Atomic::new(0);

/// Takes note of `pages` more table pages, which take `bytes` with what is known of them; or less. Context:
/// any. Not inlined: there is one account in all modules.
#[inline(never)]
pub(crate) fn add(pages: i64, bytes: i64) {
    PAGES.add(pages, Relaxed);
    BYTES.add(bytes, Relaxed);
}

/// The text of the file: table pages, and their bytes.
pub(crate) struct Report;

impl Writer for Report {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "pages {}", PAGES.load(Relaxed))?;
        writeln!(f, "bytes {}", BYTES.load(Relaxed))
    }
}

/// The text of the file `dma`: pages of 4 KiB that were ever mapped for devices, that were unmapped again, and that are
/// mapped now.
pub(crate) struct Dma;

impl Writer for Dma {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mapped, unmapped) = dma::totals();
        writeln!(f, "mapped {mapped}")?;
        writeln!(f, "unmapped {unmapped}")?;
        writeln!(f, "live {}", mapped.saturating_sub(unmapped))
    }
}

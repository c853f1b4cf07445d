// SPDX-License-Identifier: GPL-2.0

//! Memory footprint of the page tables of all mirrors, whether in use or cached (`rust_hmm/tables`
//! in debugfs), and numbers of pages mapped for DMA (`rust_hmm/dma`).

use crate::mm::{
    dma,
    table_memory, //
};
use kernel::{
    debugfs::Writer,
    fmt, //
};

/// Text of the file `tables`: number and bytes of table pages.
pub(crate) struct TablesReport;

impl Writer for TablesReport {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pages, bytes) = table_memory::totals();
        writeln!(f, "pages {pages}")?;
        writeln!(f, "bytes {bytes}")
    }
}

/// Text of the file `dma`: numbers of pages that were mapped for devices so far, that were unmapped
/// again, and that are mapped now.
pub(crate) struct DmaReport;

impl Writer for DmaReport {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mapped, unmapped) = dma::totals();
        writeln!(f, "mapped {mapped}")?;
        writeln!(f, "unmapped {unmapped}")?;
        writeln!(f, "live {}", mapped.saturating_sub(unmapped))
    }
}

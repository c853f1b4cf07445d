// SPDX-License-Identifier: GPL-2.0

//! The TLB of an engine.

use kernel::{
    page::PAGE_SHIFT,
    prelude::*, //
};
use rust_hmm::{
    mm::addr::PageRange,
    pgtable::Leaf, //
};

/// Number of TLB entries.
const TLB_ENTRIES: usize = 64;

/// A direct-mapped TLB: addresses of pages, and their translations.
pub(crate) struct Tlb(KVec<Option<(usize, Leaf)>>);

impl Tlb {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(KVec::from_elem(None, TLB_ENTRIES, GFP_KERNEL)?))
    }

    fn line(&mut self, page: usize) -> Option<&mut Option<(usize, Leaf)>> {
        self.0.get_mut((page >> PAGE_SHIFT) % TLB_ENTRIES)
    }

    /// Returns the cached translation of the page at address `page`.
    pub(crate) fn lookup(&mut self, page: usize) -> Option<Leaf> {
        let (of, leaf) = (*self.line(page)?)?;
        (of == page).then_some(leaf)
    }

    /// Caches the translation of the page at address `page`.
    pub(crate) fn fill(&mut self, page: usize, leaf: Leaf) {
        if let Some(line) = self.line(page) {
            *line = Some((page, leaf));
        }
    }

    /// Drops the translations of `range`.
    pub(crate) fn flush(&mut self, range: PageRange) {
        for line in &mut self.0 {
            line.take_if(|(page, _)| range.contains(*page));
        }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! A TLB that must not get a page in two sizes, and the operations by which a table avoids that.

use super::*;
use crate::pgtable::Unwritten;

/// Entries that wait for a flush.
#[derive(Default)]
pub(super) struct Waiting {
    /// With the number of the flush that they wait for.
    flushing: Vec<(usize, Unwritten)>,
    /// Those whose flush is over.
    flushed: Vec<Unwritten>,
}

impl Waiting {
    /// Flush `number` is over.
    pub(super) fn flushed(&mut self, number: usize) {
        let (over, flushing) =
            std::mem::take(&mut self.flushing).into_iter().partition(|(it, _)| *it == number);
        let over: Vec<(usize, Unwritten)> = over;
        self.flushing = flushing;
        self.flushed.extend(over.into_iter().map(|(_, unwritten)| unwritten));
    }
}

impl<F: Format> Both<F> {
    /// Starts a flush for entries of `range` that get another size.
    pub(super) fn resize(&mut self, range: PageRange) {
        let batch = self.batch.as_mut().unwrap();
        if let Some(unwritten) = self.table.unwritten(range, batch) {
            self.waiting.flushing.push((self.starts, unwritten));
            self.start();
        }
    }

    /// Writes those whose flush is over.
    pub(super) fn write_sizes(&mut self) {
        for unwritten in std::mem::take(&mut self.waiting.flushed) {
            let batch = self.batch.as_mut().unwrap();
            let before = batch.range();
            self.table.write_sizes(unwritten, batch);
            assert_eq!(batch.range(), before, "entries need no flush when they are written");
        }
    }

    /// Has all that was changed flushed, and all sizes written.
    pub(super) fn settle(&mut self) {
        self.resize(everything());
        while !self.started.is_empty() {
            self.wait(true);
        }
        self.write_sizes();
    }
}

/// Device pages that were found, by CPU page and index in that, each with its size and the count of
/// flushes that had started by then.
#[derive(Default)]
pub(super) struct Tlb(BTreeMap<(usize, usize), (u32, usize)>);

impl Tlb {
    /// Caches a translation.
    pub(super) fn fill(&mut self, page: (usize, usize), order: u32, starts: usize) {
        let before = self.0.insert(page, (order, starts));
        if let Some((kept, _)) = before {
            assert_eq!(kept, order, "page {page:?} in two sizes");
        }
    }

    /// Flush `number`, of `range`, is over.
    pub(super) fn flush(&mut self, range: PageRange, number: usize) {
        let is_gone = |page: usize, starts: usize| range.contains(page * PAGE_SIZE) && starts <= number;
        self.0.retain(|page, (_, starts)| !is_gone(page.0, *starts));
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Allocation of device memory for the pages of a migration.

use super::{Arrival, MemoryOps, Ops};
use crate::{
    mm::{
        addr::{PMD_ORDER, PMD_PAGES},
        device_pages::{DevicePages, Row},
        page::LockedFolio, //
    },
    within::Within,
};

/// Allocates pages of a device's memory. The task is within a callback as long as this exists.
///
/// Small pages are taken in rows, so that most of them cost no search and no atomic operation.
pub(crate) struct Allocator<'m, M: MemoryOps> {
    pages: &'m DevicePages<Ops<M>>,
    /// The first page of the folio that was allocated last.
    last: Option<usize>,
    /// Small pages that were taken, and not allocated yet.
    row: Option<Row<'m, Ops<M>>>,
    /// Small pages that will be needed, at most.
    ahead: usize,
    _within: Within,
}

impl<'m, M: MemoryOps> Allocator<'m, M> {
    pub(super) fn new(pages: &'m DevicePages<Ops<M>>, ahead: usize) -> Self {
        Self {
            pages,
            last: None,
            row: None,
            ahead,
            _within: Within::enter(),
        }
    }

    /// Whether a test wants the next allocation to fail.
    #[inline]
    pub(crate) fn driver_fails(&self, order: u32) -> bool {
        self.pages.data().driver.fail_allocation(order)
    }

    /// A folio of `order`, if there is one. The arrival is one of this memory.
    #[inline]
    pub(crate) fn alloc(&mut self, arrival: &Arrival<'_>, order: u32) -> Option<LockedFolio> {
        if self.driver_fails(order) {
            return None;
        }
        let choice = self.pages.data().driver.choose(order);
        match &mut self.row {
            Some(row) if order == 0 && choice.is_none() && row.pages() != 0 => {
                self.last = Some(row.number());
                row.take()
            }
            _ => self.search(arrival, order, choice),
        }
    }

    /// As [`Self::alloc`], if there is no row of pages. `choice` is the driver's.
    #[inline(never)]
    fn search(
        &mut self,
        arrival: &Arrival<'_>,
        order: u32,
        choice: Option<usize>,
    ) -> Option<LockedFolio> {
        if arrival.is_late() {
            return None;
        }
        // What the driver says is a wish: only free pages are taken.
        let chosen = |number| Some((number, self.pages.alloc_at(number, order)?));
        let (number, folio) = match choice.and_then(chosen) {
            Some(found) => found,
            None if order == 0 => return self.next_row(choice.is_some()),
            None => self.pages.alloc_numbered(order)?,
        };
        self.note(number, order);
        if order == PMD_ORDER {
            self.pages.data().splits.forget(number);
        }
        Some(folio)
    }

    /// Takes a row of pages. Returns the first one. If the driver `chooses` pages, it is the only
    /// one, because the driver may choose those behind.
    fn next_row(&mut self, chooses: bool) -> Option<LockedFolio> {
        let most = if chooses { 1 } else { self.ahead };
        let mut row = self.pages.take_row(self.last, most)?;
        self.ahead = self.ahead.saturating_sub(row.pages());
        self.note(row.number(), 0);
        let folio = row.take();
        self.row = Some(row);
        folio
    }

    /// Notes that the folio of `order` at device page `number` was taken, or a row that begins there.
    fn note(&mut self, number: usize, order: u32) {
        // What is in the same block makes no difference: the block is in use since the last one.
        let block = number / PMD_PAGES;
        let last = self.last.replace(number);
        if last.map(|last| last / PMD_PAGES) != Some(block) {
            let lru = &self.pages.data().lru;
            lru.touch(block);
            lru.allocated(block, order == PMD_ORDER);
        }
    }
}

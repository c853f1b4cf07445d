// SPDX-License-Identifier: GPL-2.0

//! Allocation of device memory for the pages of a migration, and growth of the memory.

use super::{
    worker::MemoryWorker,
    Arrival,
    Memory,
    MemoryOps,
    MemoryState, //
};
use crate::{
    kernel::reentry::ReentryGuard,
    mm::{
        addr::{
            PMD_ORDER,
            PMD_PAGES, //
        },
        device_pages::{
            DevicePages,
            Row, //
        },
        folio::LockedFolio,
        migrate::{
            Isolated,
            MigrateEntry,
            Source, //
        }, //
    }, //
};
use kernel::prelude::*;

impl<M: MemoryOps> Memory<M> {
    /// Adds pages to the memory until `pages` are free or the limit is reached; see
    /// [`DevicePages::add_chunks`].
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the device was unplugged.
    /// - `ENOMEM`
    /// - Those of [`DevicePages::add_chunks`].
    ///
    /// # Context
    ///
    /// May sleep; neither the mmap lock nor a folio lock may be held.
    pub(crate) fn add_chunks(&self, pages: usize) -> Result {
        if self.is_gone() {
            return Err(ENODEV);
        }
        self.start_worker()?;
        self.pages().add_chunks(pages)
    }

    /// Starts the worker thread, and allows splits of huge pages. Called before the first chunk is
    /// added.
    pub(super) fn start_worker(&self) -> Result {
        self.pages().data().splits.open(self.pages());
        if self.parts.worker.as_ref().is_none() {
            // If a concurrent task has set it, this new worker is dropped at once.
            self.parts
                .worker
                .populate(MemoryWorker::new(self.pages().clone())?);
        }
        Ok(())
    }

    /// Returns whether a test makes the next allocation fail.
    pub(crate) fn fails_allocation(&self) -> bool {
        self.pages().data().faults.fails_allocation()
    }

    /// Allocates one folio, see [`Self::allocator`].
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(crate) fn alloc(
        &self,
        arrival: &Arrival<'_>,
        order: u32,
    ) -> Option<crate::mm::folio::LockedFolio> {
        self.allocator(1).alloc(arrival, order)
    }

    /// Returns an allocator that takes at most `ahead` small pages before they are needed. The
    /// caller keeps the folios as long as the allocator exists. Otherwise a block of which one was
    /// allocated would not stay a candidate for eviction.
    pub(crate) fn allocator(&self, ahead: usize) -> Allocator<'_, M> {
        Allocator::new(self.pages(), ahead)
    }

    /// Allocates pages of this memory as destinations of `isolated`, for holes only with `holes`.
    /// Calls `refused` for each entry for which no folio is free. Returns whether one of these is
    /// huge.
    #[inline]
    pub(crate) fn fill<R>(
        &self,
        isolated: &mut Isolated<'_, R>,
        arrival: &Arrival<'_>,
        holes: bool,
        mut refused: impl FnMut(&MigrateEntry),
    ) -> bool {
        let mut no_huge = false;
        let mut allocator = self.allocator(isolated.count());
        isolated.fill(|entry| {
            if !holes && entry.source == Source::Hole {
                return None;
            }
            let folio = allocator.alloc(arrival, entry.order());
            if folio.is_none() {
                no_huge |= entry.order() == PMD_ORDER;
                refused(entry);
            }
            folio
        });
        no_huge
    }
}

/// Allocator of device pages for one step of a migration.
///
/// Small pages are taken in rows of consecutive pages, so that most allocations need neither a
/// search nor an atomic operation.
///
/// # Context
///
/// The task counts as within a driver callback as long as the allocator exists, because the driver
/// chooses pages.
pub(crate) struct Allocator<'m, M: MemoryOps> {
    pages: &'m DevicePages<MemoryState<M>>,
    /// First page of the last allocated folio.
    last: Option<usize>,
    /// Small pages that were taken and are not allocated yet.
    row: Option<Row<'m, MemoryState<M>>>,
    /// Most small pages that will still be needed.
    ahead: usize,
    _within: ReentryGuard,
}

impl<'m, M: MemoryOps> Allocator<'m, M> {
    pub(super) fn new(pages: &'m DevicePages<MemoryState<M>>, ahead: usize) -> Self {
        Self {
            pages,
            last: None,
            row: None,
            ahead,
            _within: ReentryGuard::enter(),
        }
    }

    /// Returns whether a test makes the next allocation fail.
    #[inline]
    pub(crate) fn fails_allocation(&self) -> bool {
        self.pages.data().faults.fails_allocation()
    }

    /// Allocates a folio of `order`. Returns `None` if no such folio is free or the device is being
    /// unplugged. `arrival` must be a step of this memory.
    #[inline]
    pub(crate) fn alloc(&mut self, arrival: &Arrival<'_>, order: u32) -> Option<LockedFolio> {
        if self.fails_allocation() {
            return None;
        }
        let choice = self.pages.data().driver.suggest_page(order);
        match &mut self.row {
            Some(row) if order == 0 && choice.is_none() && row.pages() != 0 => {
                self.last = Some(row.number());
                row.take()
            }
            _ => self.search(arrival, order, choice),
        }
    }

    /// Allocates a folio by a search. `choice` is the page that the driver prefers, if any.
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
        // The driver's choice is a preference: if the page is not free, another one is taken.
        let chosen = |number| Some((number, self.pages.alloc_at(number, order)?));
        let (number, folio) = match choice.and_then(chosen) {
            Some(found) => found,
            None if order == 0 => return self.next_row(choice.is_some()),
            None => self.pages.alloc_numbered(order)?,
        };
        self.mark_used(number, order);
        if order == PMD_ORDER {
            self.pages.data().splits.cancel(number);
        }
        Some(folio)
    }

    /// Takes a row of pages and returns its first page. If the driver `chooses` pages, the row has
    /// one page, because the driver may choose another successor.
    fn next_row(&mut self, chooses: bool) -> Option<LockedFolio> {
        let most = if chooses { 1 } else { self.ahead };
        let mut row = self.pages.take_row(self.last, most)?;
        self.ahead = self.ahead.saturating_sub(row.pages());
        self.mark_used(row.number(), 0);
        let folio = row.take();
        self.row = Some(row);
        folio
    }

    /// Marks the block of device page `number` as used, where a folio of `order` or a row was
    /// taken.
    fn mark_used(&mut self, number: usize, order: u32) {
        // Only the first page of a block changes the order of use.
        let block = number / PMD_PAGES;
        let last = self.last.replace(number);
        if last.map(|last| last / PMD_PAGES) != Some(block) {
            let lru = &self.pages.data().lru;
            lru.mark_accessed(block);
            lru.allocated(block, order == PMD_ORDER);
        }
    }
}

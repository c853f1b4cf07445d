// SPDX-License-Identifier: GPL-2.0

//! Allocation of device pages, and withdrawal of pages from use.
//!
//! An allocation takes no lock but that of the new folio, and allocates no system memory. It may be
//! called with the mmap lock and folio locks held. Hints lead to a chunk that has a free folio of
//! the order.
//!
//! Pages are taken offline and online under the mutex `adding`, because a chunk that is added
//! concurrently would make all of its pages free.

use super::{
    chunk::Chunk,
    hints::HintClass,
    DevicePageOps,
    DevicePages,
    DeviceRange,
    CHUNK_PAGES, //
};
use crate::{
    inject::{
        fails,
        FailPoint, //
    },
    mm::{
        addr::{
            PMD_ORDER,
            PMD_PAGES, //
        },
        folio::LockedFolio, //
    }, //
};
use kernel::sync::atomic::ordering::Full;

impl<T: DevicePageOps> DevicePages<T> {
    /// Allocates a device folio of order 0 to [`PMD_ORDER`]. It is locked and has one reference.
    ///
    /// # Context
    ///
    /// Any in which a folio lock may be taken. Does not allocate system memory.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kernel::prelude::*;
    /// use rust_hmm::mm::addr::PMD_ORDER;
    /// use rust_hmm::mm::device_pages::DevicePageOps;
    /// use rust_hmm::mm::device_pages::DevicePages;
    /// use rust_hmm::mm::folio::LockedFolio;
    ///
    /// /// Allocates a huge page, or a small one if none is free.
    /// fn alloc<T: DevicePageOps>(pages: &DevicePages<T>) -> Result<LockedFolio> {
    ///     let folio = pages.alloc(PMD_ORDER).or_else(|| pages.alloc(0));
    ///     folio.ok_or(ENOMEM)
    /// }
    /// ```
    pub fn alloc(&self, order: u32) -> Option<LockedFolio> {
        self.alloc_numbered(order).map(|(_, folio)| folio)
    }

    /// As [`Self::alloc`], but also returns the device page number of the first page.
    pub(crate) fn alloc_numbered(&self, order: u32) -> Option<(usize, LockedFolio)> {
        if fails(FailPoint::DevicePage) {
            return None;
        }
        self.take(order)
    }

    /// As [`Self::alloc_numbered`], without fault injection.
    fn take(&self, order: u32) -> Option<(usize, LockedFolio)> {
        if order > PMD_ORDER {
            return None;
        }
        let (chunk, index) = self.take_index(order)?;
        let number = chunk.index * CHUNK_PAGES + index;
        Some((number, self.taken(chunk, index, order)))
    }

    /// Allocates the pages of a folio of `order`, without counting them as used.
    fn take_index(&self, order: u32) -> Option<(&Chunk<T>, usize)> {
        self.hinted(HintClass::Room(order)).find_map(|chunk| {
            let index = chunk.take(order, |may_have| {
                if may_have {
                    self.hints.set(HintClass::Room(order), chunk.index)
                } else {
                    self.hints.clear(HintClass::Room(order), chunk.index)
                }
            })?;
            Some((chunk, index))
        })
    }

    /// Allocates consecutive pages, at most `most`. Prefers the pages that follow device page
    /// `near`, the most recent allocation of the caller, then pages of the same chunk, then of any
    /// chunk.
    pub(crate) fn take_row(&self, near: Option<usize>, most: usize) -> Option<Row<'_, T>> {
        let most = most.max(1);
        let near = near.and_then(|near| Some((self.chunk(near)?, near % CHUNK_PAGES + 1)));
        // Fast path: most pages of a migration are consecutive, and need no search of the block.
        let behind = near.and_then(|(chunk, next)| {
            let count = chunk.free.take_row(next, most.min(left_in_block(next)));
            (count != 0).then(|| self.row(chunk, next, count))
        });
        behind.or_else(|| {
            let found = near.and_then(|(chunk, _)| Some((chunk, chunk.free.take(0)?)));
            let (chunk, first) = found.or_else(|| self.take_index(0))?;
            let more = left_in_block(first + 1).min(most - 1);
            let count = 1 + chunk.free.take_row(first + 1, more);
            Some(self.row(chunk, first, count))
        })
    }

    /// Counts `count` pages from `first` on of `chunk`, which the caller has allocated, as used.
    fn row<'a>(&'a self, chunk: &'a Chunk<T>, first: usize, count: usize) -> Row<'a, T> {
        // Full barrier: later accesses are ordered after the pages are counted as in use.
        self.used.fetch_add(count, Full);
        // INVARIANT: The caller has allocated the pages.
        Row {
            owner: self,
            chunk,
            next: first,
            end: first + count,
        }
    }

    #[inline]
    fn taken(&self, chunk: &Chunk<T>, index: usize, order: u32) -> LockedFolio {
        // Full barrier: later accesses are ordered after the pages are counted as in use.
        self.used.fetch_add(1 << order, Full);
        chunk.folio(index, order)
    }

    /// As [`Self::alloc`], but allocates the folio that begins at device page `number`, if it is
    /// free.
    ///
    /// # Context
    ///
    /// As for [`Self::alloc`].
    pub fn alloc_at(&self, number: usize, order: u32) -> Option<LockedFolio> {
        if fails(FailPoint::DevicePage) {
            return None;
        }
        let chunk = self.chunk(number)?;
        let index = number % CHUNK_PAGES;
        (chunk.free.take_at(index, order)).then(|| self.taken(chunk, index, order))
    }

    /// Withdraws the pages of `range`: free pages now, and pages in use when they are freed.
    /// Returns the number of pages that are not withdrawn yet, which includes the pages of chunks
    /// that are not added.
    ///
    /// # Context
    ///
    /// May sleep. Takes the mutex under which chunks are added.
    pub fn offline(&self, range: DeviceRange) -> usize {
        // Excludes a concurrent addition of a chunk, which would restore its pages.
        let _adding = self.adding.lock();
        let mut left = 0;
        self.for_each_part(range, |chunk, first, count| {
            self.hints.set(HintClass::Withdrawn, chunk.index);
            left += if chunk.is_there() {
                chunk.free.offline(first, count)
            } else {
                count
            };
        });
        left
    }

    /// Reverts [`Self::offline`] for the pages of `range`.
    ///
    /// # Context
    ///
    /// May sleep. Takes the mutex under which chunks are added.
    pub fn online(&self, range: DeviceRange) {
        let _adding = self.adding.lock();
        self.for_each_part(range, |chunk, first, count| {
            if chunk.is_there() {
                chunk.free.online(first, count);
                self.note_room(chunk, None);
            }
        });
    }

    fn for_each_part(&self, range: DeviceRange, mut each: impl FnMut(&Chunk<T>, usize, usize)) {
        let end = range.first.saturating_add(range.count);
        let first = range.first / CHUNK_PAGES;
        for chunk in (first..self.chunks.made()).map_while(|index| self.chunks.get(index)) {
            let base = chunk.index * CHUNK_PAGES;
            let from = range.first.max(base);
            let to = end.min(base + chunk.free.len());
            if from >= to {
                break;
            }
            each(chunk, from - base, to - from);
        }
    }
}

/// Returns the number of pages from `index` of a chunk to the end of its block; 0 if a block begins
/// at `index`.
fn left_in_block(index: usize) -> usize {
    (PMD_PAGES - index % PMD_PAGES) % PMD_PAGES
}

/// Consecutive allocated device pages, which are taken as folios one by one. Dropping it frees the
/// remaining pages.
///
/// # Invariants
///
/// Pages `next..end` of `chunk` were taken, and belong to this value. They are in one block.
pub(crate) struct Row<'a, T: DevicePageOps> {
    owner: &'a DevicePages<T>,
    chunk: &'a Chunk<T>,
    next: usize,
    end: usize,
}

impl<T: DevicePageOps> Row<'_, T> {
    /// Returns the number of remaining pages.
    #[inline]
    pub(crate) fn pages(&self) -> usize {
        self.end - self.next
    }

    /// Returns the device page number of the next page.
    #[inline]
    pub(crate) fn number(&self) -> usize {
        self.chunk.index * CHUNK_PAGES + self.next
    }

    /// Takes the next page, locked and with one reference. Context: as [`DevicePages::alloc`].
    #[inline]
    pub(crate) fn take(&mut self) -> Option<LockedFolio> {
        if self.pages() == 0 || fails(FailPoint::DevicePage) {
            return None;
        }
        let index = self.next;
        // INVARIANT: The returned folio owns that page.
        self.next += 1;
        Some(self.chunk.folio(index, 0))
    }
}

impl<T: DevicePageOps> Drop for Row<'_, T> {
    fn drop(&mut self) {
        for index in self.next..self.end {
            let is_used = self.chunk.free.release(index, 1);
            let range = DeviceRange {
                first: self.chunk.index * CHUNK_PAGES + index,
                count: 1,
            };
            self.owner.pages_released(self.chunk, range, is_used);
        }
    }
}

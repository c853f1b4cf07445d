// SPDX-License-Identifier: GPL-2.0

//! A page allocator of the device, as a driver may have one. It suggests pages in a round-robin
//! fashion, so that freed pages are not reused at once.

use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::Relaxed,
        Atomic, //
    }, //
};
use rust_hmm::mm::device_pages::DeviceRange;

/// Number of suggestions that are tracked until the folio is freed.
const MAX_SUGGESTIONS: usize = 4096;

/// The allocator.
pub(crate) struct PageAllocator {
    pages: usize,
    next: Atomic<usize>,
    /// Suggested device page numbers plus one.
    chosen: KVVec<Atomic<usize>>,
    honoured: Atomic<u64>,
}

impl PageAllocator {
    /// Creates an allocator for `pages` pages.
    pub(crate) fn new(pages: usize) -> Result<Self> {
        let mut chosen = KVVec::with_capacity(MAX_SUGGESTIONS, GFP_KERNEL)?;
        for _ in 0..MAX_SUGGESTIONS {
            chosen.push(Atomic::new(0), GFP_KERNEL)?;
        }
        Ok(Self {
            pages,
            next: Atomic::new(0),
            chosen,
            honoured: Atomic::new(0),
        })
    }

    /// Returns the device page to suggest for the next folio of `order`.
    pub(crate) fn suggest_page(&self, order: u32) -> Option<usize> {
        let pages = 1 << order;
        let next = self.next.fetch_add(pages, Relaxed) % self.pages.max(1);
        let number = next & !(pages - 1);
        if let Some(place) = self.chosen.get(number % MAX_SUGGESTIONS) {
            place.store(number + 1, Relaxed);
        }
        Some(number)
    }

    /// Counts a freed folio if it was allocated at a suggested page.
    pub(crate) fn freed(&self, range: DeviceRange) {
        if let Some(place) = self.chosen.get(range.first % MAX_SUGGESTIONS) {
            if place.load(Relaxed) == range.first + 1 {
                place.store(0, Relaxed);
                self.honoured.add(1, Relaxed);
            }
        }
    }

    /// Returns the number of folios that were allocated at a suggested page.
    pub(crate) fn honoured(&self) -> u64 {
        self.honoured.load(Relaxed)
    }
}

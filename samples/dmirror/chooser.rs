// SPDX-License-Identifier: GPL-2.0

//! An allocator of the device's own, as a driver may have one: it takes turns over its memory, so that what
//! was just freed is not used again at once.

use kernel::{
    prelude::*,
    sync::atomic::{ordering::Relaxed, Atomic},
};
use rust_hmm::mm::device_pages::DeviceRange;

/// Choices that are remembered until they are freed.
const PLACES: usize = 4096;

/// The allocator.
pub(crate) struct Chooser {
    pages: usize,
    next: Atomic<usize>,
    /// Device page numbers plus one.
    chosen: KVVec<Atomic<usize>>,
    honoured: Atomic<u64>,
}

impl Chooser {
    /// For `pages` pages.
    pub(crate) fn new(pages: usize) -> Result<Self> {
        let mut chosen = KVVec::with_capacity(PLACES, GFP_KERNEL)?;
        for _ in 0..PLACES {
            chosen.push(Atomic::new(0), GFP_KERNEL)?;
        }
        Ok(Self {
            pages,
            next: Atomic::new(0),
            chosen,
            honoured: Atomic::new(0),
        })
    }

    /// Where the next folio of `order` is to come from.
    pub(crate) fn choose(&self, order: u32) -> Option<usize> {
        let pages = 1 << order;
        let next = self.next.fetch_add(pages, Relaxed) % self.pages.max(1);
        let number = next & !(pages - 1);
        if let Some(place) = self.chosen.get(number % PLACES) {
            place.store(number + 1, Relaxed);
        }
        Some(number)
    }

    /// A folio is freed.
    pub(crate) fn freed(&self, range: DeviceRange) {
        if let Some(place) = self.chosen.get(range.first % PLACES) {
            if place.load(Relaxed) == range.first + 1 {
                place.store(0, Relaxed);
                self.honoured.add(1, Relaxed);
            }
        }
    }

    /// Folios that were in use where they were chosen.
    pub(crate) fn honoured(&self) -> u64 {
        self.honoured.load(Relaxed)
    }
}

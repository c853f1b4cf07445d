// SPDX-License-Identifier: GPL-2.0

//! Lookup of device page numbers by page frame, and of page frames by device page number.

use super::{
    Chunk,
    DevicePageOps,
    DevicePages,
    CHUNK_PAGES, //
};
use crate::kernel::word::peek_usize;
use kernel::sync::atomic::ordering::Relaxed;

impl<T: DevicePageOps> DevicePages<T> {
    /// Returns the device page number of page frame `pfn`, if it belongs to this memory.
    ///
    /// # Context
    ///
    /// Any but interrupts. May take a spinlock.
    ///
    /// # Examples
    ///
    /// ```
    /// use rust_hmm::mm::device_pages::DevicePageOps;
    /// use rust_hmm::mm::device_pages::DevicePages;
    ///
    /// /// Returns whether the first `count` pages of the memory have consecutive page frames.
    /// fn is_contiguous<T: DevicePageOps>(pages: &DevicePages<T>, count: usize) -> bool {
    ///     let first = pages.pfn(0);
    ///     (0..count).all(|at| first.and_then(|pfn| pages.lookup(pfn + at)) == Some(at))
    /// }
    /// ```
    #[inline]
    pub fn lookup(&self, pfn: usize) -> Option<usize> {
        // Fast path: most lookups are for system pages.
        if pfn < peek_usize(&self.lowest) {
            None
        } else {
            self.lookup_device(pfn)
        }
    }

    /// As [`Self::lookup`], for a frame that is not below all frames of this memory.
    #[inline(never)]
    fn lookup_device(&self, pfn: usize) -> Option<usize> {
        let within = |chunk: &Chunk<T>| {
            let index = pfn.checked_sub(chunk.base()?)?;
            (index < CHUNK_PAGES).then_some(chunk.index * CHUNK_PAGES + index)
        };
        let recent = self.chunks.get(peek_usize(&self.recent));
        if let Some(number) = recent.and_then(within) {
            return Some(number);
        }
        let found = self.frames.find(pfn, pfn)?;
        // CAST: The value is the number of a chunk plus one.
        let chunk = self.chunks.get(found.value.get() as usize - 1)?;
        self.recent.store(chunk.index, Relaxed);
        // Recheck: the chunk may have been removed, and added again with other frames.
        within(chunk)
    }

    /// Returns a function like [`Self::lookup`] that is faster for frames of the same chunk.
    pub(crate) fn pfn_lookup(&self) -> impl FnMut(usize) -> Option<usize> + '_ {
        // First frame and first number of the chunk of the previous lookup.
        let mut base = usize::MAX;
        let mut first = 0;
        move |pfn| {
            if let Some(index) = pfn.checked_sub(base).filter(|index| *index < CHUNK_PAGES) {
                return Some(first + index);
            }
            let number = self.lookup(pfn)?;
            first = number - number % CHUNK_PAGES;
            base = pfn - number % CHUNK_PAGES;
            Some(number)
        }
    }

    /// Returns the page frame number of device page `number`, if its chunk is added. If the page is
    /// not in use, the chunk may be removed concurrently.
    ///
    /// # Context
    ///
    /// Any.
    pub fn pfn(&self, number: usize) -> Option<usize> {
        Some(self.chunk(number)?.base()? + number % CHUNK_PAGES)
    }
}

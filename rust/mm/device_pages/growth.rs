// SPDX-License-Identifier: GPL-2.0

//! Adds and removes chunks of device memory, and maintains the hints which of them have free folios
//! or are idle.
//!
//! Chunks are added and removed under the mutex `adding`, and below it under the memory hot-plug
//! locks. A caller must not hold the mmap lock or a folio lock.
//!
//! Hints change without a lock. A stale hint costs a search of its chunk. A missing one would hide
//! free pages. Therefore a task that clears a hint checks the chunk again afterwards.

use super::{
    chunk::Chunk,
    hints::HintClass,
    DevicePageOps,
    DevicePages,
    DeviceRange,
    MemoryKind,
    CHUNK_BYTES,
    CHUNK_PAGES, //
};
use crate::{
    inject::{
        fails,
        FailPoint, //
    },
    mm::{
        addr::PMD_ORDER,
        range_map::Wait, //
    }, //
};
use core::num::NonZeroU64;
use kernel::{
    prelude::*,
    sync::atomic::ordering::Relaxed, //
};

impl<T: DevicePageOps> DevicePages<T> {
    /// Adds chunks until at least `pages` pages are free, or the limit of the memory is reached.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`: memory or addresses for a chunk could not be allocated, or the limit is reached
    ///   and no page is free.
    /// * `EBUSY`: the addresses of coherent memory are system memory or belong to another driver,
    ///   or an earlier attempt to add them ran out of memory halfway.
    ///
    /// # Context
    ///
    /// May sleep. Takes memory hot-plug locks, so that neither the mmap lock nor a folio lock may
    /// be held.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kernel::prelude::*;
    /// use rust_hmm::mm::device_pages::DevicePageOps;
    /// use rust_hmm::mm::device_pages::DevicePages;
    /// use rust_hmm::mm::folio::LockedFolio;
    ///
    /// /// Allocates a page, and adds a chunk if none is free.
    /// fn alloc<T: DevicePageOps>(pages: &DevicePages<T>) -> Result<LockedFolio> {
    ///     if let Some(folio) = pages.alloc(0) {
    ///         return Ok(folio);
    ///     }
    ///     pages.add_chunks(1)?;
    ///     pages.alloc(0).ok_or(ENOMEM)
    /// }
    /// ```
    pub fn add_chunks(&self, pages: usize) -> Result {
        if fails(FailPoint::Grow) {
            return Err(ENOMEM);
        }
        while self.total().saturating_sub(self.used()) < pages {
            let _adding = self.adding.lock();
            if let Some(chunk) = self.hinted(HintClass::Absent).next() {
                self.add(chunk)?;
                continue;
            }
            let Some(chunk) = self.make(self.chunks.made())? else {
                // Compare under the mutex: a chunk that is being removed concurrently has no free
                // pages, and would look like one that is in use.
                return if self.used() < self.total() {
                    Ok(())
                } else {
                    Err(ENOMEM)
                };
            };
            self.add(chunk)?;
        }
        Ok(())
    }

    /// Adds all missing chunks below device page `end`.
    ///
    /// # Errors
    ///
    /// * `EINVAL`: `end` is beyond the limit of the memory.
    /// * `ENOMEM`, `EBUSY`: see [`Self::add_chunks`].
    ///
    /// # Context
    ///
    /// As for [`Self::add_chunks`].
    pub fn grow_to(&self, end: usize) -> Result {
        let _adding = self.adding.lock();
        for index in 0..end.div_ceil(CHUNK_PAGES) {
            let chunk = match self.chunks.get(index) {
                Some(chunk) => chunk,
                None => self.make(index)?.ok_or(EINVAL)?,
            };
            if !chunk.is_there() {
                self.add(chunk)?;
            }
        }
        Ok(())
    }

    /// Creates chunk `index` without page frames. It must be the next one. Returns `None` if the
    /// limit is reached. The caller holds the mutex `adding`.
    fn make(&self, index: usize) -> Result<Option<&Chunk<T>>> {
        let first = index.saturating_mul(CHUNK_PAGES);
        if first >= self.max_pages {
            return Ok(None);
        }
        self.hints.prepare(index)?;
        let pages = (self.max_pages - first).min(CHUNK_PAGES);
        let chunk = self.chunks.put(index, Chunk::new(self, index, pages)?)?;
        self.hints.set(HintClass::Absent, index);
        Ok(Some(chunk))
    }

    /// Adds the page frames of `chunk`. The caller holds the mutex `adding`.
    fn add(&self, chunk: &Chunk<T>) -> Result {
        let index = chunk.index;
        let pages = DeviceRange {
            first: index * CHUNK_PAGES,
            count: chunk.free.len(),
        };
        T::growing(self, pages)?;
        let kind = match self.kind {
            MemoryKind::Private => MemoryKind::Private,
            MemoryKind::Coherent { start } => MemoryKind::Coherent {
                // CAST: `new` checked that all of the memory lies within the physical address
                // space.
                start: start + index as u64 * CHUNK_BYTES,
            },
        };
        chunk.add(self.owner(), kind, &self.lowest, &|base| {
            // CAST: `usize` has at most 64 bits.
            let number = NonZeroU64::new(index as u64 + 1);
            self.frames
                .store(base..=base + (CHUNK_PAGES - 1), number, Wait::Yes)
        })?;
        self.there.fetch_add(chunk.free.len(), Relaxed);
        self.hints.clear(HintClass::Absent, index);
        self.hints.set(HintClass::Idle, index);
        self.note_room(chunk, None);
        Ok(())
    }

    /// Sets the hints of `chunk` after pages were freed: page `page`, or any number of pages if
    /// `None`.
    #[inline]
    pub(super) fn note_room(&self, chunk: &Chunk<T>, page: Option<usize>) {
        if chunk.lacks_room() {
            self.set_room(chunk, chunk.gains_room(page));
        }
    }

    // Not inlined to keep `note_room` small: most frees change no hint.
    #[inline(never)]
    fn set_room(&self, chunk: &Chunk<T>, gained: u64) {
        for order in (0..=PMD_ORDER).filter(|order| gained >> order & 1 != 0) {
            self.hints.set(HintClass::Room(order), chunk.index);
        }
    }

    /// Iterates over present chunks of which no page is in use. Clears stale hints on the way.
    fn idle(&self) -> impl Iterator<Item = &Chunk<T>> {
        self.hinted(HintClass::Idle).filter(|chunk| {
            if chunk.free.used() == 0 {
                return chunk.is_there();
            }
            self.hints.clear(HintClass::Idle, chunk.index);
            // Recheck: the last page may have been freed after the first check and before the hint
            // was cleared. That free found the hint still set.
            if chunk.free.used() == 0 {
                self.hints.set(HintClass::Idle, chunk.index);
            }
            false
        })
    }

    /// Returns the number of present chunks, and how many of them have no page in use.
    ///
    /// # Context
    ///
    /// Any.
    pub fn idle_chunks(&self) -> (usize, usize) {
        let there = self.there.load(Relaxed).div_ceil(CHUNK_PAGES);
        (there, self.idle().count())
    }

    /// Removes up to `count` chunks of which no page is in use. Returns how many were removed. This
    /// frees [`CHUNK_OVERHEAD`](super::CHUNK_OVERHEAD) bytes of kernel memory each.
    /// [`Self::add_chunks`] adds the chunks again when they are needed.
    ///
    /// # Context
    ///
    /// As for [`Self::add_chunks`].
    pub fn remove_chunks(&self, count: usize) -> usize {
        let _adding = self.adding.lock();
        let removed = self.idle().filter(|chunk| {
            if !chunk.remove_idle() {
                return false;
            }
            self.there.fetch_sub(chunk.free.len(), Relaxed);
            self.hints.clear(HintClass::Idle, chunk.index);
            self.hints.set(HintClass::Absent, chunk.index);
            true
        });
        removed.take(count).count()
    }
}

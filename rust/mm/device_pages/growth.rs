// SPDX-License-Identifier: GPL-2.0

//! Adds and removes chunks (pieces) of device memory, and maintains the hints which of them have
//! free folios or are idle.

use super::{
    hints::HintClass,
    piece::Piece,
    DevicePageOps,
    DevicePages,
    DeviceRange,
    MemoryKind,
    PIECE_BYTES,
    PIECE_PAGES, //
};
use crate::{
    inject::{fails, FailPoint},
    mm::{
        addr::PMD_ORDER,
        range_map::Wait, //
    },
};
use core::num::NonZeroU64;
use kernel::{
    prelude::*,
    sync::atomic::ordering::Relaxed, //
};

impl<T: DevicePageOps> DevicePages<T> {
    /// Adds pieces until at least `pages` pages are free, or the limit of the memory is reached.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`: memory or addresses for a piece could not be allocated, or the limit is reached
    ///   and no page is free.
    /// * `EBUSY`: the addresses of coherent memory are system memory or belong to another driver,
    ///   or an earlier attempt to add them ran out of memory halfway.
    ///
    /// # Context
    ///
    /// May sleep. Takes memory hot-plug locks, so that neither the mmap lock nor a folio lock may
    /// be held.
    pub fn add_chunks(&self, pages: usize) -> Result {
        if fails(FailPoint::Grow) {
            return Err(ENOMEM);
        }
        while self.total().saturating_sub(self.used()) < pages {
            let _adding = self.adding.lock();
            if let Some(piece) = self.hinted(HintClass::Absent).next() {
                self.add(piece)?;
                continue;
            }
            let Some(piece) = self.make(self.pieces.made())? else {
                // Compare under the mutex: a piece that is being removed concurrently has no free
                // pages, and would look like one that is in use.
                return if self.used() < self.total() {
                    Ok(())
                } else {
                    Err(ENOMEM)
                };
            };
            self.add(piece)?;
        }
        Ok(())
    }

    /// Adds all missing pieces below device page `end`.
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
        for index in 0..end.div_ceil(PIECE_PAGES) {
            let piece = match self.pieces.get(index) {
                Some(piece) => piece,
                None => self.make(index)?.ok_or(EINVAL)?,
            };
            if !piece.is_there() {
                self.add(piece)?;
            }
        }
        Ok(())
    }

    /// Creates piece `index` without page frames. It must be the next one. Returns `None` if the
    /// limit is reached. The caller holds the mutex `adding`.
    fn make(&self, index: usize) -> Result<Option<&Piece<T>>> {
        let first = index.saturating_mul(PIECE_PAGES);
        if first >= self.max_pages {
            return Ok(None);
        }
        self.hints.prepare(index)?;
        let pages = (self.max_pages - first).min(PIECE_PAGES);
        let piece = self.pieces.put(index, Piece::new(self, index, pages)?)?;
        self.hints.set(HintClass::Absent, index);
        Ok(Some(piece))
    }

    /// Adds the page frames of `piece`. The caller holds the mutex `adding`.
    fn add(&self, piece: &Piece<T>) -> Result {
        let index = piece.index;
        let pages = DeviceRange {
            first: index * PIECE_PAGES,
            count: piece.free.len(),
        };
        T::growing(self, pages)?;
        let kind = match self.kind {
            MemoryKind::Private => MemoryKind::Private,
            MemoryKind::Coherent { start } => MemoryKind::Coherent {
                // CAST: `new` checked that all of the memory lies within the physical address
                // space.
                start: start + index as u64 * PIECE_BYTES,
            },
        };
        piece.add(self.owner(), kind, &self.lowest, &|base| {
            // CAST: `usize` has at most 64 bits.
            let number = NonZeroU64::new(index as u64 + 1);
            self.frames
                .store(base..=base + (PIECE_PAGES - 1), number, Wait::Yes)
        })?;
        self.there.fetch_add(piece.free.len(), Relaxed);
        self.hints.clear(HintClass::Absent, index);
        self.hints.set(HintClass::Idle, index);
        self.note_room(piece, None);
        Ok(())
    }

    /// Sets the hints of `piece` after pages were freed: page `page`, or any number of pages if
    /// `None`.
    #[inline]
    pub(super) fn note_room(&self, piece: &Piece<T>, page: Option<usize>) {
        if piece.lacks_room() {
            self.set_room(piece, piece.gains_room(page));
        }
    }

    // Not inlined to keep `note_room` small: most frees change no hint.
    #[inline(never)]
    fn set_room(&self, piece: &Piece<T>, gained: u64) {
        for order in (0..=PMD_ORDER).filter(|order| gained >> order & 1 != 0) {
            self.hints.set(HintClass::Room(order), piece.index);
        }
    }

    /// Iterates over present pieces of which no page is in use. Clears stale hints on the way.
    fn idle(&self) -> impl Iterator<Item = &Piece<T>> {
        self.hinted(HintClass::Idle).filter(|piece| {
            if piece.free.used() == 0 {
                return piece.is_there();
            }
            self.hints.clear(HintClass::Idle, piece.index);
            // Recheck: the last page may have been freed after the first check and before the hint
            // was cleared. That free found the hint still set.
            if piece.free.used() == 0 {
                self.hints.set(HintClass::Idle, piece.index);
            }
            false
        })
    }

    /// Returns the number of present pieces, and how many of them have no page in use.
    pub fn idle_chunks(&self) -> (usize, usize) {
        let there = self.there.load(Relaxed).div_ceil(PIECE_PAGES);
        (there, self.idle().count())
    }

    /// Removes up to `count` pieces of which no page is in use. Returns how many were removed. This
    /// frees [`PIECE_OVERHEAD`](super::PIECE_OVERHEAD) bytes of kernel memory each.
    /// [`Self::add_chunks`] adds the pieces again when they are needed.
    ///
    /// # Context
    ///
    /// As for [`Self::add_chunks`].
    pub fn remove_chunks(&self, count: usize) -> usize {
        let _adding = self.adding.lock();
        let removed = self.idle().filter(|piece| {
            if !piece.remove_idle() {
                return false;
            }
            self.there.fetch_sub(piece.free.len(), Relaxed);
            self.hints.clear(HintClass::Idle, piece.index);
            self.hints.set(HintClass::Absent, piece.index);
            true
        });
        removed.take(count).count()
    }
}

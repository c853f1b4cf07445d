// SPDX-License-Identifier: GPL-2.0

//! Adding and removing pieces of device memory, and which of them have room or are idle.

use super::{
    hints::Class,
    piece::Piece,
    DevicePageOps,
    DevicePages,
    DeviceRange,
    Kind,
    PIECE_BYTES,
    PIECE_PAGES, //
};
use crate::{
    inject::{fails, Point},
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
    /// Makes room for `pages` more pages, as far as the limit allows.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if no more memory could be added at all and none is free; `EBUSY` if coherent memory is
    /// system memory or another driver's, or the kernel once ran out of memory while it added it. Context: may sleep and
    /// takes memory hot-plug locks: neither the mmap lock nor a folio lock may be held.
    pub fn grow(&self, pages: usize) -> Result {
        if fails(Point::Grow) {
            return Err(ENOMEM);
        }
        while self.total().saturating_sub(self.used()) < pages {
            let _adding = self.adding.lock();
            if let Some(piece) = self.hinted(Class::Absent).next() {
                self.add(piece)?;
                continue;
            }
            let Some(piece) = self.make(self.pieces.made())? else {
                // Under the mutex: without, a piece that is just removed looks like one in use.
                return match self.used() < self.total() {
                    true => Ok(()),
                    false => Err(ENOMEM),
                };
            };
            self.add(piece)?;
        }
        Ok(())
    }

    /// Adds all pieces up to device page `end`.
    ///
    /// # Errors
    ///
    /// As [`Self::grow`]; `EINVAL` if there cannot be so many. Context: as there.
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

    /// Makes piece `index`, the next one, without frames; `None` if there cannot be one. The mutex
    /// is held.
    fn make(&self, index: usize) -> Result<Option<&Piece<T>>> {
        let first = index.saturating_mul(PIECE_PAGES);
        if first >= self.max_pages {
            return Ok(None);
        }
        self.hints.prepare(index)?;
        let pages = (self.max_pages - first).min(PIECE_PAGES);
        let piece = self.pieces.put(index, Piece::new(self, index, pages)?)?;
        self.hints.set(Class::Absent, index);
        Ok(Some(piece))
    }

    /// Adds the frames of `piece`. The mutex is held.
    fn add(&self, piece: &Piece<T>) -> Result {
        let index = piece.index;
        let pages = DeviceRange {
            first: index * PIECE_PAGES,
            count: piece.free.len(),
        };
        T::growing(self, pages)?;
        let kind = match self.kind {
            Kind::Private => Kind::Private,
            Kind::Coherent { start } => Kind::Coherent {
                // CAST: Within the physical addresses, as `new` has seen.
                start: start + index as u64 * PIECE_BYTES,
            },
        };
        piece.add(self.owner(), kind, &self.lowest, &|base| {
            // CAST: Widens it.
            let number = NonZeroU64::new(index as u64 + 1);
            self.frames
                .store(base..=base + (PIECE_PAGES - 1), number, Wait::Yes)
        })?;
        self.there.fetch_add(piece.free.len(), Relaxed);
        self.hints.clear(Class::Absent, index);
        self.hints.set(Class::Idle, index);
        self.note_room(piece, None);
        Ok(())
    }

    /// Notes that `piece` has room again, because of page `page` or of all pages.
    #[inline]
    pub(super) fn note_room(&self, piece: &Piece<T>, page: Option<usize>) {
        if piece.lacks_room() {
            self.set_room(piece, piece.gains_room(page));
        }
    }

    // Not inlined: pages are freed more often.
    #[inline(never)]
    fn set_room(&self, piece: &Piece<T>, gained: u64) {
        for order in (0..=PMD_ORDER).filter(|order| gained >> order & 1 != 0) {
            self.hints.set(Class::Room(order), piece.index);
        }
    }

    /// The pieces without a page in use, of those that are there.
    fn idle(&self) -> impl Iterator<Item = &Piece<T>> {
        self.hinted(Class::Idle).filter(|piece| {
            if piece.free.used() == 0 {
                return piece.is_there();
            }
            self.hints.clear(Class::Idle, piece.index);
            // The last page may have been given back meanwhile.
            if piece.free.used() == 0 {
                self.hints.set(Class::Idle, piece.index);
            }
            false
        })
    }

    /// Pieces that are there, and of these those without a page in use.
    pub fn pieces_idle(&self) -> (usize, usize) {
        let there = self.there.load(Relaxed).div_ceil(PIECE_PAGES);
        (there, self.idle().count())
    }

    /// Gives up to `count` pieces back of which no page is in use, with what the kernel keeps for them:
    /// [`PIECE_OVERHEAD`](super::PIECE_OVERHEAD) bytes each. Returns how many. They come again when they are needed.
    ///
    /// Context: as [`Self::grow`].
    pub fn shrink(&self, count: usize) -> usize {
        let _adding = self.adding.lock();
        let removed = self.idle().filter(|piece| {
            if !piece.remove_idle() {
                return false;
            }
            self.there.fetch_sub(piece.free.len(), Relaxed);
            self.hints.clear(Class::Idle, piece.index);
            self.hints.set(Class::Absent, piece.index);
            true
        });
        removed.take(count).count()
    }
}

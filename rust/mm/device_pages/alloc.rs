// SPDX-License-Identifier: GPL-2.0

//! Taking device pages into use, and out of use.

use super::{
    hints::Class,
    piece::Piece,
    DevicePageOps,
    DevicePages,
    DeviceRange,
    PIECE_PAGES, //
};
use crate::{
    inject::{fails, Point},
    mm::{
        addr::{PMD_ORDER, PMD_PAGES},
        page::LockedFolio, //
    },
};
use kernel::sync::atomic::ordering::Full;

impl<T: DevicePageOps> DevicePages<T> {
    /// Takes a free folio of order 0 to 9 into use: locked, with one reference.
    ///
    /// Context: any that may take a folio lock; does not allocate.
    pub fn alloc(&self, order: u32) -> Option<LockedFolio> {
        self.alloc_numbered(order).map(|(_, folio)| folio)
    }

    /// As [`Self::alloc`], with the number of its first page.
    pub(crate) fn alloc_numbered(&self, order: u32) -> Option<(usize, LockedFolio)> {
        if fails(Point::DevicePage) {
            return None;
        }
        self.take(order)
    }

    /// As [`Self::alloc_numbered`], without fault injection.
    fn take(&self, order: u32) -> Option<(usize, LockedFolio)> {
        if order > PMD_ORDER {
            return None;
        }
        self.hinted(Class::Room(order)).find_map(|piece| {
            let index = piece.take(order, |may_have| match may_have {
                true => self.hints.set(Class::Room(order), piece.index),
                false => self.hints.clear(Class::Room(order), piece.index),
            })?;
            Some((
                piece.index * PIECE_PAGES + index,
                self.taken(piece, index, order),
            ))
        })
    }

    /// As [`Self::alloc_numbered`], first the page behind device page `near`, which is one that was
    /// taken just now, then from its piece.
    pub(crate) fn alloc_near(&self, near: usize, order: u32) -> Option<(usize, LockedFolio)> {
        // One use, also where the search goes on in other pieces.
        if fails(Point::DevicePage) {
            return None;
        }
        let taken = self.piece(near).and_then(|piece| {
            // Most pages of a migration follow each other: the block need not be searched.
            let next = near % PIECE_PAGES + 1;
            let is_next = order == 0 && next % PMD_PAGES != 0 && piece.free.take_at(next, 0);
            let index = match is_next {
                true => next,
                false => piece.free.take(order)?,
            };
            Some((piece, index))
        });
        match taken {
            Some((piece, index)) => Some((
                piece.index * PIECE_PAGES + index,
                self.taken(piece, index, order),
            )),
            None => self.take(order),
        }
    }

    #[inline]
    fn taken(&self, piece: &Piece<T>, index: usize, order: u32) -> LockedFolio {
        // Full: what follows is ordered after the pages are in use.
        self.used.fetch_add(1 << order, Full);
        piece.folio(index, order)
    }

    /// As [`Self::alloc`], the folio that begins at device page `number`, if it is free.
    pub fn alloc_at(&self, number: usize, order: u32) -> Option<LockedFolio> {
        if fails(Point::DevicePage) {
            return None;
        }
        let piece = self.piece(number)?;
        let index = number % PIECE_PAGES;
        (piece.free.take_at(index, order)).then(|| self.taken(piece, index, order))
    }

    /// Takes free pages of `range` out of use, and those in use when they are given back. Returns
    /// how many are not out of use by now. Pages of pieces that are not there yet cannot be taken.
    pub fn withdraw(&self, range: DeviceRange) -> usize {
        // A piece that is added meanwhile would restore its pages.
        let _adding = self.adding.lock();
        let mut left = 0;
        self.for_each_part(range, |piece, first, count| {
            self.hints.set(Class::Withdrawn, piece.index);
            left += match piece.is_there() {
                true => piece.free.withdraw(first, count),
                false => count,
            };
        });
        left
    }

    /// Brings the pages of `range` back into use.
    pub fn restore(&self, range: DeviceRange) {
        let _adding = self.adding.lock();
        self.for_each_part(range, |piece, first, count| {
            if piece.is_there() {
                piece.free.restore(first, count);
                self.note_room(piece, None);
            }
        });
    }

    fn for_each_part(&self, range: DeviceRange, mut each: impl FnMut(&Piece<T>, usize, usize)) {
        let end = range.first.saturating_add(range.count);
        let first = range.first / PIECE_PAGES;
        for piece in (first..self.pieces.made()).map_while(|index| self.pieces.get(index)) {
            let base = piece.index * PIECE_PAGES;
            let (from, to) = (range.first.max(base), end.min(base + piece.free.len()));
            if from >= to {
                break;
            }
            each(piece, from - base, to - from);
        }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Device memory that has `struct page`s: `ZONE_DEVICE`, private or coherent.
//!
//! Memory comes in pieces of [`PIECE_PAGES`], added when they are needed and removed when they are idle.
//! A device page is named by its *device page number*, which counts from 0 over all pieces, as a device
//! counts its memory.
//!
//! C header: [`include/linux/memremap.h`](srctree/include/linux/memremap.h)

use super::{
    addr::PMD_PAGES,
    notifier::Cookie,
    page::LockedFolio, //
};
use crate::{
    inject::{fails, Point},
    locks, //
};
use kernel::{
    page::PAGE_SHIFT,
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Mutex,
        SetOnce, //
    },
};

mod cpu_fault;
mod mapped;
mod piece;
mod region;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;

pub use cpu_fault::{CpuFault, FaultError};
pub use mapped::MmapLocks;
use piece::{Looker, Piece};

/// Pages of one piece: 256 MiB, as in the kernel's `lib/test_hmm.c`.
pub const PIECE_PAGES: usize = 1 << 16;

/// Most pieces that one device can have: 32 GiB.
pub const MAX_PIECES: usize = 128;

/// No page frame number is longer; the kernel knows the machine's real limit.
const LAST_PHYSICAL: u64 = (1 << 52) - 1;

const PIECE_BYTES: u64 = (PIECE_PAGES as u64) << PAGE_SHIFT;

/// Bytes of system memory that the kernel needs for a piece: a `struct page` of 64 bytes for each page.
pub const PIECE_OVERHEAD: usize = PIECE_PAGES * 64;

/// How the CPU sees the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It cannot: `MEMORY_DEVICE_PRIVATE`. A touch is a fault that brings the page back.
    Private,
    /// As its own: `MEMORY_DEVICE_COHERENT`, one piece at this physical address in bytes.
    Coherent {
        /// Start, a multiple of 2 MiB, of 256 MiB that are reserved for the device and that nobody has
        /// requested, not the driver either: the library does.
        start: u64,
    },
}

/// Consecutive device pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRange {
    /// Device page number of the first one.
    pub first: usize,
    /// Number of pages.
    pub count: usize,
}

/// What the owner of device pages does with them. It borrows nothing: the kernel calls it until the
/// pages are dropped, which `mem::forget` can prevent.
pub trait DevicePageOps: Send + Sync + Sized + 'static {
    /// Brings the page of `fault` back to system memory, as the CPU touched it.
    ///
    /// `Ok` means that the CPU may try again. Context: the mmap lock is held for reading and the
    /// page is locked; may sleep; must not wait for invalidations (`read_begin`).
    fn migrate_to_ram(pages: &DevicePages<Self>, fault: CpuFault<'_>) -> Result<(), FaultError>;

    /// The pages of `range`, a folio, are about to be free. Context: any, also interrupts; must not sleep.
    fn freed(pages: &DevicePages<Self>, range: DeviceRange) {
        let _ = (pages, range);
    }
}

/// The memory of one device.
///
/// Dropping it waits until every page is free: migrate them away before. Context: may sleep.
///
/// # Invariants
///
/// Pinned; places for pieces are only ever filled, in the order of their numbers, and point back here.
#[pin_data(PinnedDrop)]
pub struct DevicePages<T: DevicePageOps> {
    pieces: KVec<SetOnce<Pin<KBox<Piece<T>>>>>,
    kind: Kind,
    /// No page frame is lower.
    lowest: Atomic<usize>,
    max_pages: usize,
    /// Held while a piece is added.
    #[pin]
    adding: Mutex<()>,
    data: T,
}

// SAFETY: Pieces are `Send + Sync`, and so is `T`.
unsafe impl<T: DevicePageOps> Send for DevicePages<T> {}
// SAFETY: As above.
unsafe impl<T: DevicePageOps> Sync for DevicePages<T> {}

impl<T: DevicePageOps> DevicePages<T> {
    /// Prepares memory of at most `max_pages` pages, rounded up to 2 MiB; none is there yet, see
    /// [`Self::grow`].
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINVAL` if a coherent start is not a multiple of 2 MiB or `max_pages` is more
    /// than 32 GiB. Context: may sleep.
    pub fn new(kind: Kind, max_pages: usize, data: T) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            pieces: {
                if max_pages > MAX_PIECES * PIECE_PAGES {
                    return Err(EINVAL);
                }
                if let Kind::Coherent { start } = kind {
                    let last = start.checked_add(PIECE_BYTES).ok_or(EINVAL)? - 1;
                    let aligned = start % (PMD_PAGES as u64 * 4096) == 0;
                    if start == 0 || !aligned || last > LAST_PHYSICAL {
                        return Err(EINVAL);
                    }
                }
                let count = match kind {
                    Kind::Private => max_pages.div_ceil(PIECE_PAGES),
                    Kind::Coherent { .. } => 1,
                };
                let mut pieces = KVec::with_capacity(count, GFP_KERNEL)?;
                for _ in 0..count {
                    pieces.push(SetOnce::new(), GFP_KERNEL)?;
                }
                pieces
            },
            kind,
            lowest: Atomic::new(usize::MAX),
            max_pages: max_pages.next_multiple_of(PMD_PAGES),
            adding <- {
                let (name, key) = locks::adding();
                Mutex::new((), name, key)
            },
            data,
        }? Error)
    }

    /// The owner's data.
    pub fn data(&self) -> &T {
        &self.data
    }

    /// How the CPU sees the memory.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What names this device to the kernel: `dev_pagemap.owner`.
    ///
    /// Nothing else can have this name, not even what the pages are a field of: events are told apart by it.
    pub fn owner(&self) -> Cookie {
        Cookie::inside(self)
    }

    fn pieces(&self) -> impl Iterator<Item = &Piece<T>> + Clone {
        self.pieces
            .iter()
            .map_while(|piece| Some(&**piece.as_ref()?))
    }

    /// Pages in use.
    pub fn used(&self) -> usize {
        self.pieces().map(|piece| piece.free.used()).sum()
    }

    /// Pages that there are by now and that are not out of use.
    pub fn total(&self) -> usize {
        self.pieces()
            .filter(|piece| piece.is_there())
            .map(|piece| piece.free.len().saturating_sub(piece.free.withdrawn()))
            .sum()
    }

    /// Most pages that there can be.
    pub fn limit(&self) -> usize {
        self.max_pages
    }

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
            if let Some(piece) = self.pieces().find(|piece| !piece.is_there()) {
                piece.add(self.owner(), self.kind, &self.lowest)?;
                continue;
            }
            let index = self.pieces().count();
            let Some(place) = self.pieces.get(index) else {
                // Under the mutex: without, a piece that is just removed looks like one in use.
                return match self.used() < self.total() {
                    true => Ok(()),
                    false => Err(ENOMEM),
                };
            };
            let pages = (self.max_pages - index * PIECE_PAGES).min(PIECE_PAGES);
            let piece = Piece::new(self, index, pages)?;
            piece.add(self.owner(), self.kind, &self.lowest)?;
            place.populate(piece);
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
            let place = self.pieces.get(index).ok_or(EINVAL)?;
            match place.as_ref() {
                Some(piece) if piece.is_there() => {}
                Some(piece) => piece.add(self.owner(), self.kind, &self.lowest)?,
                None => {
                    let pages = (self.max_pages - index * PIECE_PAGES).min(PIECE_PAGES);
                    let piece = Piece::new(self, index, pages)?;
                    piece.add(self.owner(), self.kind, &self.lowest)?;
                    place.populate(piece);
                }
            }
        }
        Ok(())
    }

    /// Pieces that are there, and of these those without a page in use.
    pub fn pieces_idle(&self) -> (usize, usize) {
        let there = || self.pieces().filter(|piece| piece.is_there());
        let idle = there().filter(|piece| piece.free.used() == 0).count();
        (there().count(), idle)
    }

    /// Gives up to `count` pieces back of which no page is in use, with what the kernel keeps for them:
    /// [`PIECE_OVERHEAD`] bytes each. Returns how many. They come again when they are needed.
    ///
    /// Context: as [`Self::grow`].
    pub fn shrink(&self, count: usize) -> usize {
        let _adding = self.adding.lock();
        let idle = self.pieces().filter(|piece| piece.free.used() == 0);
        idle.filter(|piece| piece.remove_idle()).take(count).count()
    }

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
        self.pieces().find_map(|piece| {
            let index = piece.free.take(order)?;
            let number = piece.index * PIECE_PAGES + index;
            Some((number, piece.folio(index, order)))
        })
    }

    /// As [`Self::alloc`], the folio that begins at device page `number`, if it is free.
    pub fn alloc_at(&self, number: usize, order: u32) -> Option<LockedFolio> {
        if fails(Point::DevicePage) {
            return None;
        }
        let piece = self.pieces.get(number / PIECE_PAGES)?.as_ref()?;
        let index = number % PIECE_PAGES;
        (piece.free.take_at(index, order)).then(|| piece.folio(index, order))
    }

    /// Takes free pages of `range` out of use, and those in use when they are given back. Returns
    /// how many are not out of use by now. Pages of pieces that are not there yet cannot be taken.
    pub fn withdraw(&self, range: DeviceRange) -> usize {
        // A piece that is added meanwhile would restore its pages.
        let _adding = self.adding.lock();
        let mut left = 0;
        self.for_each_part(range, |piece, first, count| {
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
            }
        });
    }

    fn for_each_part(&self, range: DeviceRange, mut each: impl FnMut(&Piece<T>, usize, usize)) {
        let end = range.first.saturating_add(range.count);
        for piece in self.pieces() {
            let base = piece.index * PIECE_PAGES;
            let (from, to) = (range.first.max(base), end.min(base + piece.free.len()));
            if from < to {
                each(piece, from - base, to - from);
            }
        }
    }

    /// Keeps the frames of the piece that has device page `number` from being removed.
    pub(super) fn look(&self, number: usize) -> Option<Looker<'_>> {
        self.pieces.get(number / PIECE_PAGES)?.as_ref()?.look()
    }

    /// Pages in use of the block of 512 pages that begins at `number`.
    pub fn used_in_block(&self, number: usize) -> usize {
        match self
            .pieces
            .get(number / PIECE_PAGES)
            .map(|piece| piece.as_ref())
        {
            Some(Some(piece)) => piece.free.used_in_block(number % PIECE_PAGES),
            _ => 0,
        }
    }

    /// The device page number of page frame `pfn`, if it is one of this device.
    pub fn lookup(&self, pfn: usize) -> Option<usize> {
        // Most pages that are asked for are of the system.
        if pfn < self.lowest.load(Relaxed) {
            return None;
        }
        self.pieces().find_map(|piece| {
            let index = pfn.checked_sub(piece.base()?)?;
            (index < PIECE_PAGES).then_some(piece.index * PIECE_PAGES + index)
        })
    }

    /// As [`Self::lookup`], for frames that are close together.
    pub(crate) fn finder(&self) -> impl FnMut(usize) -> Option<usize> + '_ {
        // A frame and its number, in the piece that the last one was in.
        let (mut base, mut first) = (usize::MAX, 0);
        move |pfn| {
            if let Some(index) = pfn.checked_sub(base).filter(|index| *index < PIECE_PAGES) {
                return Some(first + index);
            }
            let number = self.lookup(pfn)?;
            first = number - number % PIECE_PAGES;
            base = pfn - number % PIECE_PAGES;
            Some(number)
        }
    }

    /// The page frame number of device page `number`, if it is there. It may go when it is not in use.
    pub fn pfn(&self, number: usize) -> Option<usize> {
        let piece = self.pieces.get(number / PIECE_PAGES)?.as_ref()?;
        Some(piece.base()? + number % PIECE_PAGES)
    }

    /// The blocks of 512 device pages of which some are in use, by their first page.
    pub fn used_blocks(&self) -> impl Iterator<Item = DeviceRange> + Clone + '_ {
        self.pieces().flat_map(|piece| {
            (0..piece.free.len())
                .step_by(PMD_PAGES)
                .filter(|first| piece.free.used_in_block(*first) != 0)
                .map(|first| DeviceRange {
                    first: piece.index * PIECE_PAGES + first,
                    count: PMD_PAGES,
                })
        })
    }
}

#[pinned_drop]
impl<T: DevicePageOps> PinnedDrop for DevicePages<T> {
    fn drop(self: Pin<&mut Self>) {
        for piece in self.pieces().filter(|piece| piece.is_there()) {
            // SAFETY: The frames are there, and nobody else has the owner any more.
            unsafe { piece.unmap() };
        }
    }
}

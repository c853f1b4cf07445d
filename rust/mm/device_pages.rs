// SPDX-License-Identifier: GPL-2.0

//! Device memory that has `struct page`s: `ZONE_DEVICE`, private or coherent.
//!
//! Memory comes in pieces of [`PIECE_PAGES`], added when they are needed and removed when they are
//! idle. Pieces are found by number in a table of two levels, and by page frame in a maple tree;
//! `hints.rs` has which of them may have room. So no operation on a page depends on how many pieces
//! there are. A device page is named by its *device page number*, which counts from 0 over all
//! pieces, as a device counts its memory.
//!
//! C header: [`include/linux/memremap.h`](srctree/include/linux/memremap.h)

use super::{
    addr::PMD_PAGES,
    notifier::Cookie,
    range_map::RangeMap,
    word::peek_usize, //
};
use crate::{
    bindings,
    locks, //
};
use kernel::{
    page::PAGE_SHIFT,
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc,
        Mutex, //
    },
};

mod alloc;
mod cpu_fault;
mod growth;
mod hints;
mod mapped;
mod owner;
mod piece;
mod pieces;
mod region;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;

pub(crate) use alloc::Row;
pub use cpu_fault::{CpuFault, FaultError};
use hints::{Class, Hints};
pub use mapped::MmapLocks;
pub use owner::Owner;
use piece::{Looker, Piece};
use pieces::Pieces;

/// Pages of one piece: 256 MiB, as in the kernel's `lib/test_hmm.c`.
pub const PIECE_PAGES: usize = 1 << 16;

/// No page frame number is longer; the kernel knows the machine's real limit.
const LAST_PHYSICAL: u64 = (1 << 52) - 1;

/// Most pages that one device can have: all that can have a physical address.
pub const MAX_PAGES: usize = ((LAST_PHYSICAL + 1) >> PAGE_SHIFT) as usize;

const PIECE_BYTES: u64 = (PIECE_PAGES as u64) << PAGE_SHIFT;

/// Bytes of system memory that the kernel needs for a piece: a `struct page` of 64 bytes for each page.
pub const PIECE_OVERHEAD: usize = PIECE_PAGES * 64;

/// How the CPU sees the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It cannot: `MEMORY_DEVICE_PRIVATE`. A touch is a fault that brings the page back.
    Private,
    /// As its own: `MEMORY_DEVICE_COHERENT`, at this physical address in bytes.
    Coherent {
        /// Start, a multiple of 2 MiB, of addresses that are reserved for the device: its limit,
        /// rounded up to 256 MiB. Nobody has requested them, not the driver either: the library
        /// does.
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

    /// The pages of `range`, a folio, have become free, and others may have them. A full barrier
    /// lies before. Context: as for [`Self::freed`].
    fn given_back(pages: &DevicePages<Self>, range: DeviceRange) {
        let _ = (pages, range);
    }

    /// The pages of `range` are about to be added: allocates what is kept for them. `ENOMEM`.
    /// Context: may sleep; must not add or remove memory.
    fn growing(pages: &DevicePages<Self>, range: DeviceRange) -> Result {
        let _ = (pages, range);
        Ok(())
    }
}

/// The memory of one device.
///
/// Dropping it waits until every page is free: migrate them away before. Context: may sleep.
///
/// # Invariants
///
/// Pinned; pieces point back here.
#[pin_data(PinnedDrop)]
pub struct DevicePages<T: DevicePageOps> {
    pieces: Pieces<T>,
    hints: Hints,
    owner: Arc<Owner>,
    /// Whether the owner was given by the caller, who may give it to other memories, too.
    shared: bool,
    /// First of the owner's numbers that are this memory's.
    first: usize,
    /// The kernel's callbacks. A copy of its own, whose address names this memory.
    ops: bindings::dev_pagemap_ops,
    /// Numbers of pieces, plus one, by page frame. May have frames of pieces that were removed.
    #[pin]
    frames: RangeMap,
    /// The piece in which a frame was looked up last.
    recent: Atomic<usize>,
    kind: Kind,
    /// No page frame is lower.
    lowest: Atomic<usize>,
    max_pages: usize,
    /// Pages in use.
    used: Atomic<usize>,
    /// Pages of pieces that have frames.
    there: Atomic<usize>,
    /// Held while a piece is added or removed.
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
    /// `ENOMEM`; `EINVAL` if a coherent start is not a multiple of 2 MiB, or if `max_pages` is more than
    /// [`MAX_PAGES`]. Context: may sleep.
    pub fn new(kind: Kind, max_pages: usize, data: T) -> impl PinInit<Self, Error> {
        Self::of_owner(None, kind, max_pages, data)
    }

    /// As [`Self::new`], one of the memories of `owner`, or the only one of an owner of its own.
    ///
    /// # Errors
    ///
    /// As there; `EINVAL` if all memories of the owner have more than [`MAX_PAGES`].
    pub fn of_owner(
        owner: Option<Arc<Owner>>,
        kind: Kind,
        max_pages: usize,
        data: T,
    ) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            pieces: {
                if max_pages > MAX_PAGES {
                    return Err(EINVAL);
                }
                let count = max_pages.div_ceil(PIECE_PAGES);
                if let Kind::Coherent { start } = kind {
                    // CAST: At most the physical addresses.
                    let bytes = (count.max(1) as u64).checked_mul(PIECE_BYTES).ok_or(EINVAL)?;
                    let last = start.checked_add(bytes).ok_or(EINVAL)? - 1;
                    let aligned = start % (PMD_PAGES as u64 * 4096) == 0;
                    if start == 0 || !aligned || last > LAST_PHYSICAL {
                        return Err(EINVAL);
                    }
                }
                Pieces::new(count)?
            },
            hints: Hints::new(max_pages.div_ceil(PIECE_PAGES))?,
            shared: owner.is_some(),
            owner: match owner {
                Some(owner) => owner,
                None => Owner::new()?,
            },
            first: owner.give(max_pages.next_multiple_of(PIECE_PAGES))?,
            ops: Piece::<T>::OPS,
            frames <- RangeMap::new(),
            recent: Atomic::new(0),
            kind,
            lowest: Atomic::new(usize::MAX),
            max_pages: max_pages.next_multiple_of(PMD_PAGES),
            used: Atomic::new(0),
            there: Atomic::new(0),
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

    /// Name of the device in the kernel: `dev_pagemap.owner`. The memories of a device share it.
    pub fn owner(&self) -> Cookie {
        self.owner.name()
    }

    /// The kernel's callbacks, at an address of this memory's own.
    fn ops(&self) -> *const bindings::dev_pagemap_ops {
        &self.ops
    }

    /// Name of this memory: `dev_pagemap.ops`.
    pub(crate) fn tile(&self) -> Cookie {
        Cookie::of(&self.ops)
    }

    /// The first number that this memory has in entries, which have numbers of the owner.
    #[inline]
    pub(crate) fn first(&self) -> usize {
        self.first
    }

    /// Whether the owner may have other memories. If not, the owner's numbers are those of this
    /// memory.
    #[inline]
    pub(crate) fn shares_owner(&self) -> bool {
        self.shared
    }

    /// The pieces that were made, in the order of their numbers.
    fn pieces(&self) -> impl Iterator<Item = &Piece<T>> + Clone {
        self.pieces.iter()
    }

    fn piece(&self, number: usize) -> Option<&Piece<T>> {
        self.pieces.get(number / PIECE_PAGES)
    }

    /// The pieces that may have what `class` says.
    fn hinted(&self, class: Class) -> impl Iterator<Item = &Piece<T>> {
        let mut from = 0;
        core::iter::from_fn(move || {
            let index = self.hints.find(class, from)?;
            from = index + 1;
            self.pieces.get(index)
        })
    }

    /// Pages in use.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Pages that there are by now and that are not out of use.
    pub fn total(&self) -> usize {
        // The pages of pieces that are not there are withdrawn, too.
        let partly = self
            .hinted(Class::Withdrawn)
            .filter(|piece| piece.is_there());
        let out = partly.map(|piece| piece.free.withdrawn()).sum();
        self.there.load(Relaxed).saturating_sub(out)
    }

    /// Most pages that there can be.
    pub fn limit(&self) -> usize {
        self.max_pages
    }

    /// The folio of `order` at `index` of `piece` was given back; whether other pages of it are in
    /// use. Context: any.
    #[inline]
    fn given_back(&self, piece: &Piece<T>, index: usize, order: u32, is_used: bool) {
        self.used.fetch_sub(1 << order, Relaxed);
        if !is_used {
            self.hints.set(Class::Idle, piece.index);
        }
        self.note_room(piece, Some(index));
        let range = DeviceRange {
            first: piece.index * PIECE_PAGES + index,
            count: 1 << order,
        };
        T::given_back(self, range);
    }

    /// Keeps the frames of the piece that has device page `number` from being removed.
    pub(super) fn look(&self, number: usize) -> Option<Looker<'_>> {
        self.piece(number)?.look()
    }

    /// Pages in use of the block of 512 pages that begins at `number`.
    pub fn used_in_block(&self, number: usize) -> usize {
        self.piece(number)
            .map_or(0, |piece| piece.free.used_in_block(number % PIECE_PAGES))
    }

    /// The device page number of page frame `pfn`, if it is one of this device.
    #[inline]
    pub fn lookup(&self, pfn: usize) -> Option<usize> {
        // Most pages that are asked for are of the system.
        match pfn < peek_usize(&self.lowest) {
            true => None,
            false => self.lookup_device(pfn),
        }
    }

    /// As [`Self::lookup`], of a frame that is not below all of this device.
    #[inline(never)]
    fn lookup_device(&self, pfn: usize) -> Option<usize> {
        let within = |piece: &Piece<T>| {
            let index = pfn.checked_sub(piece.base()?)?;
            (index < PIECE_PAGES).then_some(piece.index * PIECE_PAGES + index)
        };
        let recent = self.pieces.get(peek_usize(&self.recent));
        if let Some(number) = recent.and_then(within) {
            return Some(number);
        }
        let found = self.frames.find(pfn, pfn)?;
        // CAST: A number of a piece.
        let piece = self.pieces.get(found.value.get() as usize - 1)?;
        self.recent.store(piece.index, Relaxed);
        // It may have been removed, and have other frames by now.
        within(piece)
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
        Some(self.piece(number)?.base()? + number % PIECE_PAGES)
    }

    /// The blocks of 512 device pages of which some are in use, by their first page.
    pub fn used_blocks(&self) -> impl Iterator<Item = DeviceRange> + Clone + '_ {
        let used = self.pieces().filter(|piece| piece.free.used() != 0);
        used.flat_map(|piece| {
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

// SPDX-License-Identifier: GPL-2.0

//! Device memory that has `struct page`s: `ZONE_DEVICE`, private or coherent.
//!
//! Memory comes in pieces of [`PIECE_PAGES`], added when they are needed. A device page is named by
//! its *device page number*, which counts from 0 over all pieces, as a device counts its memory.
//!
//! C header: [`include/linux/memremap.h`](srctree/include/linux/memremap.h)

use super::{
    addr::PMD_PAGES,
    notifier::Cookie,
    page::LockedFolio,
    space::Vma, //
};
use crate::{
    bindings,
    inject::{fails, Point},
    locks, //
};
use core::marker::PhantomData;
use kernel::{
    page::PAGE_MASK,
    prelude::*,
    sync::{Mutex, SetOnce}, //
};
use piece::{Piece, PIECE_BYTES};

mod piece;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;

/// Pages of one piece: 256 MiB, as in the kernel's `lib/test_hmm.c`.
pub const PIECE_PAGES: usize = 1 << 16;

/// Most pieces that one device can have: 32 GiB.
pub const MAX_PIECES: usize = 128;

/// No page frame number is longer; the kernel knows the machine's real limit.
const LAST_PHYSICAL: u64 = (1 << 52) - 1;

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

/// Why a CPU fault on a device page failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultError {
    /// No memory to bring the page back to: `VM_FAULT_OOM`.
    NoMemory,
    /// The device lost the page: `VM_FAULT_SIGBUS`.
    Lost,
}

/// What the owner of device pages does with them. It borrows nothing: the kernel calls it until the
/// pages are dropped, which `mem::forget` can prevent.
pub trait DevicePageOps: Send + Sync + Sized + 'static {
    /// Brings the page of `fault` back to system memory, as the CPU touched it.
    ///
    /// `Ok` means that the CPU may try again. Context: the mmap lock is held for reading and the
    /// page is locked; may sleep; must not wait for invalidations (`read_begin`).
    fn migrate_to_ram(pages: &DevicePages<Self>, fault: CpuFault<'_>) -> Result<(), FaultError>;
}

/// A CPU fault on a device-private page.
///
/// # Invariants
///
/// `vmf` is the fault being handled for `'a`; the mmap lock is held for reading, and its page is
/// locked and referenced.
pub struct CpuFault<'a> {
    vmf: *mut bindings::vm_fault,
    _borrow: PhantomData<&'a ()>,
}

impl<'a> CpuFault<'a> {
    /// The mapping.
    pub fn vma(&self) -> Vma<'a> {
        // SAFETY: By the type invariant.
        unsafe { Vma::from_raw(bindings::rust_hmm_vmf_vma(self.vmf)) }
    }

    /// Address of the page.
    pub fn address(&self) -> usize {
        // SAFETY: By the type invariant.
        (unsafe { bindings::rust_hmm_vmf_address(self.vmf) }) & PAGE_MASK
    }

    /// Whether the fault is on a huge entry of 2 MiB.
    pub fn is_huge(&self) -> bool {
        // SAFETY: By the type invariant.
        !unsafe { bindings::rust_hmm_vmf_is_pte(self.vmf) }
    }

    /// Whether the fault is on a small entry of a page that is still one of a large folio.
    ///
    /// The core splits such a folio while it isolates, hands the lock over to the faulting page's new
    /// folio, but goes on taking the old folio's first page for the one that the fault holds
    /// (`fault_folio` of `migrate_vma_collect_pmd()`, 7.2 and 7.3): it migrates that page without its
    /// lock, and unlocks what is not locked, which locks it for ever. So a range with more than the
    /// faulting page must not be isolated before the folio is split.
    pub fn is_part_of_large(&self) -> bool {
        // SAFETY: By the type invariant.
        !self.is_huge() && unsafe { bindings::rust_hmm_vmf_folio_is_large(self.vmf) }
    }

    pub(super) fn page(&self) -> *mut bindings::page {
        // SAFETY: By the type invariant.
        unsafe { bindings::rust_hmm_vmf_page(self.vmf) }
    }
}

/// The memory of one device.
///
/// Dropping it waits until every page is free: migrate them away before. Context: may sleep.
///
/// # Invariants
///
/// Pinned; pieces are only ever added, in the order of their numbers, and point back here.
#[pin_data(PinnedDrop)]
pub struct DevicePages<T: DevicePageOps> {
    pieces: KVec<SetOnce<Pin<KBox<Piece<T>>>>>,
    kind: Kind,
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
                    if start == 0 || start % (PMD_PAGES as u64 * 4096) != 0 || last > LAST_PHYSICAL {
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

    fn pieces(&self) -> impl Iterator<Item = &Piece<T>> {
        self.pieces
            .iter()
            .map_while(|piece| Some(&**piece.as_ref()?))
    }

    /// Pages in use.
    pub fn used(&self) -> usize {
        self.pieces().map(|piece| piece.free.used()).sum()
    }

    /// Pages that there are by now.
    pub fn total(&self) -> usize {
        (self.pieces().count() * PIECE_PAGES).min(self.max_pages)
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
    /// system memory or another driver's. Context: may sleep and
    /// takes memory hot-plug locks: neither the mmap lock nor a folio lock may be held.
    pub fn grow(&self, pages: usize) -> Result {
        if fails(Point::Grow) {
            return Err(ENOMEM);
        }
        while self.total().saturating_sub(self.used()) < pages {
            let _adding = self.adding.lock();
            let index = self.pieces().count();
            let Some(place) = self.pieces.get(index) else {
                break;
            };
            let pages = (self.max_pages - index * PIECE_PAGES).min(PIECE_PAGES);
            place.populate(Piece::new(self, self.kind, index, pages)?);
        }
        if self.used() >= self.total() {
            return Err(ENOMEM);
        }
        Ok(())
    }

    /// Takes a free folio of order 0 or 9 into use: locked, with one reference.
    ///
    /// Context: any that may take a folio lock; does not allocate.
    pub fn alloc(&self, order: u32) -> Option<LockedFolio> {
        if fails(Point::DevicePage) {
            return None;
        }
        for piece in self.pieces() {
            if let Some(index) = piece.free.take(order) {
                let pfn = piece.base + index;
                // SAFETY: The frames are of this piece and free, and now ours.
                return Some(unsafe {
                    bindings::rust_hmm_device_folio_init(pfn, piece.pgmap.get(), order);
                    LockedFolio::from_raw(pfn, order)
                });
            }
        }
        None
    }

    /// The device page number of page frame `pfn`, if it is one of this device.
    pub fn lookup(&self, pfn: usize) -> Option<usize> {
        self.pieces().find_map(|piece| {
            let index = pfn.checked_sub(piece.base)?;
            (index < PIECE_PAGES).then_some(piece.index * PIECE_PAGES + index)
        })
    }

    /// As [`Self::lookup`], for frames that are close together.
    pub(crate) fn finder(&self) -> impl FnMut(usize) -> Option<usize> + '_ {
        let mut last: Option<&Piece<T>> = None;
        move |pfn| {
            let index_in = |piece: &Piece<T>| {
                let index = pfn.checked_sub(piece.base)?;
                (index < PIECE_PAGES).then_some(index)
            };
            if last.and_then(index_in).is_none() {
                last = self.pieces().find(|piece| index_in(piece).is_some());
            }
            let piece = last?;
            Some(piece.index * PIECE_PAGES + index_in(piece)?)
        }
    }

    /// The page frame number of device page `number`.
    pub fn pfn(&self, number: usize) -> Option<usize> {
        let piece = self.pieces.get(number / PIECE_PAGES)?.as_ref()?;
        Some(piece.base + number % PIECE_PAGES)
    }

    /// The blocks of 512 device pages of which some are in use, by their first page.
    pub fn used_blocks(&self) -> impl Iterator<Item = DeviceRange> + '_ {
        self.pieces().flat_map(|piece| {
            (0..PIECE_PAGES)
                .step_by(PMD_PAGES)
                .filter(|first| piece.free.block_used(*first))
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
        for piece in self.pieces() {
            // SAFETY: Once, here.
            unsafe { piece.unmap() };
        }
    }
}

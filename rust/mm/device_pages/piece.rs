// SPDX-License-Identifier: GPL-2.0

//! One piece of device memory: its page frames, which come and go, and what the kernel calls for them.

use super::{
    super::{
        addr::PMD_ORDER,
        device_alloc::{clear, set, FreeMap},
        notifier::Cookie,
        page::LockedFolio,
        word::{load_u64, peek_usize}, //
    },
    region::Region,
    CpuFault, DevicePageOps, DevicePages, DeviceRange, FaultError, Kind, PIECE_BYTES, PIECE_PAGES,
};
use crate::{
    bindings,
    inject::{fails, Point},
};
use core::{ops::Range, ptr::null_mut};
use kernel::{
    error::from_err_ptr,
    page::PAGE_SHIFT,
    prelude::*,
    sync::atomic::{
        ordering::{Acquire, Full, Relaxed, Release},
        Atomic, //
    },
    types::Opaque, //
};

/// One piece of memory.
///
/// # Invariants
///
/// While `base` is not [`ABSENT`], `pgmap` describes the frames from there on and is mapped. Pages are free
/// or in use only then; else all are withdrawn. `back` points to the pinned [`DevicePages`] that owns
/// the piece.
#[pin_data]
pub(super) struct Piece<T: DevicePageOps> {
    #[pin]
    pgmap: Opaque<bindings::dev_pagemap>,
    /// First page frame.
    base: Atomic<usize>,
    pub(super) index: usize,
    pub(super) free: FreeMap,
    /// Orders of which a free folio may be there, a bit each: those that the owner's hints have.
    room: Atomic<u64>,
    /// Those who look at free pages, which keeps them from being removed.
    lookers: Atomic<usize>,
    back: *const DevicePages<T>,
}

/// Regions that are tried for a piece.
const REGIONS: usize = 4;

/// A bit for each order.
const ALL_ORDERS: u64 = (1 << (PMD_ORDER + 1)) - 1;

/// No page frames are there.
const ABSENT: usize = usize::MAX;

// SAFETY: The pointer is to a `Sync` owner that outlives the piece; the rest is `Send + Sync`.
unsafe impl<T: DevicePageOps> Send for Piece<T> {}
// SAFETY: As above. `pgmap` is only written while no page is there, by who holds the owner's mutex.
unsafe impl<T: DevicePageOps> Sync for Piece<T> {}

/// Keeps the frames of a piece from being removed.
pub(in crate::mm) struct Looker<'a> {
    count: &'a Atomic<usize>,
    frames: Range<usize>,
}

impl Looker<'_> {
    /// The frames.
    pub(in crate::mm) fn frames(&self) -> Range<usize> {
        self.frames.clone()
    }
}

impl Drop for Looker<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Release);
    }
}

impl<T: DevicePageOps> Piece<T> {
    pub(super) const OPS: bindings::dev_pagemap_ops = bindings::dev_pagemap_ops {
        folio_free: Some(Self::folio_free),
        migrate_to_ram: Some(Self::migrate_to_ram),
        memory_failure: None,
        // The core's default does what is needed: it copies `pgmap` and `mapping` to the tail.
        // Free pages are counted one by one, so a split changes nothing for us.
        folio_split: None,
    };

    /// The piece of number `index`, of which `pages` are used; a multiple of 512. It has no frames yet.
    pub(super) fn new(
        back: &DevicePages<T>,
        index: usize,
        pages: usize,
    ) -> Result<Pin<KBox<Self>>> {
        let free = FreeMap::new(pages)?;
        KBox::pin_init(
            // INVARIANT: It is absent, and no page is free.
            pin_init!(Self {
                pgmap <- Opaque::ffi_init(|slot: *mut bindings::dev_pagemap| {
                    // SAFETY: It may be written.
                    unsafe { slot.write(bindings::dev_pagemap::default()) };
                }),
                base: Atomic::new(ABSENT),
                index,
                free,
                room: Atomic::new(0),
                lookers: Atomic::new(0),
                back: core::ptr::from_ref(back),
            }),
            GFP_KERNEL,
        )
    }

    /// The first page frame, if there are any.
    pub(super) fn base(&self) -> Option<usize> {
        Some(peek_usize(&self.base)).filter(|base| *base != ABSENT)
    }

    /// Whether there are page frames.
    pub(super) fn is_there(&self) -> bool {
        peek_usize(&self.base) != ABSENT
    }

    /// Adds the frames, the first of which `lowest` is not above from then on. `note` is called
    /// with it before there is a free page. The owner's mutex is held.
    pub(super) fn add(
        &self,
        owner: Cookie,
        kind: Kind,
        lowest: &Atomic<usize>,
        note: &dyn Fn(usize) -> Result,
    ) -> Result {
        // When the kernel cannot add all of a region, what it has added stays, and the region says `EEXIST` from then on.
        // Such ones are held for as long as this takes, so that the next one is another.
        let mut spoilt = [const { None::<Region> }; REGIONS];
        for place in &mut spoilt {
            match self.map(Region::request(kind)?, owner, kind, lowest, note) {
                Ok(()) => return Ok(()),
                Err((error, region)) if error == EEXIST => *place = Some(region),
                Err((error, _)) => return Err(error),
            }
        }
        Err(ENOMEM)
    }

    /// As [`Self::add`], at the addresses `region`; an error gives these back.
    fn map(
        &self,
        region: Region,
        owner: Cookie,
        kind: Kind,
        lowest: &Atomic<usize>,
        note: &dyn Fn(usize) -> Result,
    ) -> core::result::Result<(), (Error, Region)> {
        if fails(Point::Region) {
            return Err((EEXIST, region));
        }
        let mut map = bindings::dev_pagemap {
            type_: match kind {
                Kind::Private => bindings::memory_type_MEMORY_DEVICE_PRIVATE,
                Kind::Coherent { .. } => bindings::memory_type_MEMORY_DEVICE_COHERENT,
            },
            // SAFETY: By the type invariant the owner does not move, and it outlives the piece.
            ops: unsafe { (*self.back).ops() },
            owner: owner.as_ptr(),
            nr_range: 1,
            ..Default::default()
        };
        // SAFETY: `range` is the variant that `nr_range` 1 selects. Nobody uses `pgmap` while there is no
        // page, and others that want to add some wait for the mutex.
        unsafe {
            *map.__bindgen_anon_1.range.as_mut() = bindings::range {
                start: region.start(),
                end: region.start() + (PIECE_BYTES - 1),
            };
            self.pgmap.get().write(map);
        }
        // SAFETY: `pgmap` is initialized and pinned.
        let mapped = from_err_ptr(unsafe {
            bindings::memremap_pages(self.pgmap.get(), bindings::NUMA_NO_NODE)
        });
        if let Err(error) = mapped {
            return Err((error, region));
        }
        // CAST: Physical frame numbers fit.
        if let Err(error) = note((region.start() >> PAGE_SHIFT) as usize) {
            // SAFETY: Mapped just now, and no page of it is in use.
            unsafe { bindings::memunmap_pages(self.pgmap.get()) };
            return Err((error, region));
        }
        // CAST: As above.
        let base = (region.keep() >> PAGE_SHIFT) as usize;
        // Before: who has one of the pages must find it. Others that add some wait for the mutex.
        lowest.store(lowest.load(Relaxed).min(base), Relaxed);
        // INVARIANT: Mapped now, and only then pages become free.
        self.base.store(base, Release);
        self.free.restore(0, self.free.len());
        Ok(())
    }

    /// Takes the frames away if no page is in use. The owner's mutex is held. Returns whether they are gone.
    pub(super) fn remove_idle(&self) -> bool {
        // Pages that somebody has taken out of use must stay so.
        if !self.is_there() || self.free.withdrawn() != 0 {
            return false;
        }
        // From here on nobody takes one.
        if self.free.withdraw(0, self.free.len()) != 0 {
            self.free.restore(0, self.free.len());
            return false;
        }
        // A looker increments the count before it loads `base`, so that one of the two sees the
        // other. Acquire: accesses of lookers that are done precede the removal of the frames.
        let base = self.base.xchg(ABSENT, Full);
        if self.lookers.load(Acquire) != 0 {
            self.base.store(base, Release);
            self.free.restore(0, self.free.len());
            return false;
        }
        // SAFETY: All pages are free and stay so; nobody looks at them.
        unsafe { self.unmap_from(base) };
        true
    }

    /// Keeps the frames from being removed; `None` if there are none.
    pub(super) fn look(&self) -> Option<Looker<'_>> {
        self.lookers.fetch_add(1, Full);
        // INVARIANT: Counted; dropped if there are none.
        let mut looker = Looker {
            count: &self.lookers,
            frames: 0..0,
        };
        let base = self.base.load(Acquire);
        if base == ABSENT {
            return None;
        }
        looker.frames = base..base + PIECE_PAGES;
        Some(looker)
    }

    /// Waits until all pages are free and takes the memory away.
    ///
    /// # Safety
    ///
    /// The frames must be there, and nobody but those who have a page may use them any more.
    pub(super) unsafe fn unmap(&self) {
        let base = self.base.load(Relaxed);
        // SAFETY: By the function's requirements. `base` stays until all pages are free: `folio_free` needs it to find
        // the number of a page.
        unsafe { self.unmap_from(base) };
        // INVARIANT: The owner is about to go.
        self.base.store(ABSENT, Release);
    }

    /// As [`Self::unmap`], of the frames from `base` on.
    ///
    /// # Safety
    ///
    /// As there; they were there until `base` was taken.
    unsafe fn unmap_from(&self, base: usize) {
        // SAFETY: Mapped until now, by the function's requirements.
        unsafe { bindings::memunmap_pages(self.pgmap.get()) };
        // SAFETY: Kept in `map`, and not used any more.
        unsafe { Region::give_back((base as u64) << PAGE_SHIFT) };
    }

    /// # Safety
    ///
    /// `pgmap` must be that of a page in use of a piece of this type.
    unsafe fn from_pgmap<'a>(pgmap: *mut bindings::dev_pagemap) -> &'a Self {
        // SAFETY: It is the field of a live piece, by the function's requirements.
        unsafe { &*kernel::container_of!(Opaque::cast_from(pgmap), Self, pgmap) }
    }

    /// # Safety
    ///
    /// Called by the core for a folio of a piece of this type, when its last reference is gone.
    unsafe extern "C" fn folio_free(folio: *mut bindings::folio) {
        let (mut order, mut pgmap) = (0, null_mut());
        // SAFETY: A free folio, which nobody else takes before it is given back; both may be
        // written.
        let pfn = unsafe { bindings::rust_hmm_device_folio_reset(folio, &mut order, &mut pgmap) };
        // SAFETY: By the function's requirements.
        let piece = unsafe { Self::from_pgmap(pgmap) };
        let index = pfn.wrapping_sub(peek_usize(&piece.base));
        // SAFETY: The owner outlives its pieces, by the type invariant.
        let pages = unsafe { &*piece.back };
        T::freed(
            pages,
            DeviceRange {
                first: piece.index * PIECE_PAGES + index,
                count: 1 << order,
            },
        );
        // Now others may have it. The core keeps `pgmap`, and with it the owner, until this
        // returns.
        let is_used = piece.free.give_back(index, 1 << order);
        pages.given_back(piece, index, order, is_used);
    }

    /// # Safety
    ///
    /// Called by the core for a fault on a page of a piece of this type.
    unsafe extern "C" fn migrate_to_ram(vmf: *mut bindings::vm_fault) -> bindings::vm_fault_t {
        // SAFETY: By the function's requirements the page is one of a piece of this type.
        let piece = unsafe {
            let pfn = bindings::rust_hmm_page_to_pfn(bindings::rust_hmm_vmf_page(vmf));
            Self::from_pgmap(bindings::rust_hmm_pfn_pgmap(pfn))
        };
        // SAFETY: The owner outlives its pieces, by the type invariant.
        let pages = unsafe { &*piece.back };
        // SAFETY: The core calls this with the mmap lock held and the page locked, and the fault is under way until this
        // returns; what `migrate_to_ram` does with it cannot outlive that.
        let fault = unsafe { CpuFault::from_raw(vmf) };
        match T::migrate_to_ram(pages, fault) {
            Ok(()) => 0,
            Err(FaultError::NoMemory) => bindings::vm_fault_reason_VM_FAULT_OOM,
            Err(FaultError::Lost) => bindings::vm_fault_reason_VM_FAULT_SIGBUS,
            // SAFETY: The fault is still under way, and nothing of it is borrowed any more.
            Err(FaultError::Again) => unsafe { bindings::rust_hmm_vmf_retry(vmf) },
        }
    }

    /// Takes a folio of `order`. `hint` changes the owner's hint that there may be one: cleared
    /// before the last look, and set if that finds one.
    pub(super) fn take(&self, order: u32, hint: impl Fn(bool)) -> Option<usize> {
        if let Some(index) = self.free.take(order) {
            return Some(index);
        }
        // In this order: whoever gives a page back and finds the bit in `room` set does not set the
        // hint.
        hint(false);
        clear(&self.room, 1 << order);
        let index = self.free.take(order)?;
        set(&self.room, 1 << order);
        hint(true);
        Some(index)
    }

    /// Whether there is an order of which no free folio may be there.
    #[inline]
    pub(super) fn lacks_room(&self) -> bool {
        load_u64(&self.room) != ALL_ORDERS
    }

    /// The orders of which a free folio may be there now, and was not, because of page `index` or
    /// of all pages; a bit each.
    #[inline(never)]
    pub(super) fn gains_room(&self, index: Option<usize>) -> u64 {
        let orders = index.map_or(ALL_ORDERS, |index| (2 << self.free.free_order(index)) - 1);
        let gained = orders & !load_u64(&self.room);
        if gained != 0 {
            set(&self.room, gained);
        }
        gained
    }

    /// The folio at `index`, which was just taken.
    pub(super) fn folio(&self, index: usize, order: u32) -> LockedFolio {
        let pfn = peek_usize(&self.base) + index;
        // SAFETY: The frames are of this piece and were free, and now are ours; so they are there.
        unsafe {
            bindings::rust_hmm_device_folio_init(pfn, self.pgmap.get(), order);
            LockedFolio::from_raw(pfn, order)
        }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Chunks of device memory: the `dev_pagemap` of each, whose page frames are added and removed at
//! run time, and the callbacks of its pages.
//!
//! Page frames are added and removed under the mutex `adding` of the owner. At run time, they are
//! removed only while all pages are withdrawn and no [`FrameGuard`] exists. The core frees pages in
//! any context, also in interrupts, so that freeing them only uses atomics.

use super::{
    super::{
        addr::PMD_ORDER,
        device_alloc::{
            clear,
            set,
            FreeMap, //
        },
        folio::LockedFolio, //
    },
    region::Region,
    CpuFault,
    DevicePageOps,
    DevicePages,
    DeviceRange,
    FaultError,
    MemoryKind,
    CHUNK_BYTES,
    CHUNK_PAGES, //
};
use crate::{
    bindings,
    inject::{
        fails,
        FailPoint, //
    },
    kernel::{
        identity::PgmapOwner,
        word::{
            load_u64,
            peek_usize, //
        }, //
    }, //
};
use core::{
    ops::Range,
    ptr::null_mut, //
};
use kernel::{
    error::from_err_ptr,
    page::PAGE_SHIFT,
    prelude::*,
    sync::atomic::{
        ordering::{
            Acquire,
            Full,
            Relaxed,
            Release, //
        },
        Atomic, //
    },
    types::Opaque, //
};

/// One chunk of device memory: a ZONE_DEVICE region.
///
/// # Invariants
///
/// While `base` is not [`NO_BASE`], `pgmap` describes the frames from there on and is mapped. Pages
/// are free or in use only then; else all are withdrawn. `back` points to the pinned
/// [`DevicePages`] that owns the chunk.
#[pin_data]
pub(super) struct Chunk<T: DevicePageOps> {
    #[pin]
    pgmap: Opaque<bindings::dev_pagemap>,
    /// First page frame, or [`NO_BASE`].
    base: Atomic<usize>,
    pub(super) index: usize,
    pub(super) free: FreeMap,
    /// Orders of which a free folio may exist, one bit each. A set bit means that the owner's hint
    /// is set.
    maybe_free: Atomic<u64>,
    /// Number of [`FrameGuard`]s. The page frames are not removed while it is not 0.
    guards: Atomic<usize>,
    back: *const DevicePages<T>,
}

/// Maximum number of regions that are tried for one chunk.
const MAX_REGION_TRIES: usize = 4;

/// One bit for each order from 0 to [`PMD_ORDER`].
const ALL_ORDERS: u64 = (1 << (PMD_ORDER + 1)) - 1;

/// Value of `base` while the chunk has no page frames.
const NO_BASE: usize = usize::MAX;

// SAFETY: `back` points to a `Sync` owner that outlives the chunk. All other fields are `Send` and
// `Sync`, or protected as described below.
unsafe impl<T: DevicePageOps> Send for Chunk<T> {}
// SAFETY: All fields that change are atomic, except `pgmap`, which is only written under the
// owner's mutex while the chunk has no page frames.
unsafe impl<T: DevicePageOps> Sync for Chunk<T> {}

/// Prevents the removal of the page frames of a chunk.
pub(in crate::mm) struct FrameGuard<'a> {
    count: &'a Atomic<usize>,
    frames: Range<usize>,
}

impl FrameGuard<'_> {
    /// Returns the page frames of the chunk.
    pub(in crate::mm) fn frames(&self) -> Range<usize> {
        self.frames.clone()
    }
}

impl Drop for FrameGuard<'_> {
    fn drop(&mut self) {
        // Pairs with the acquire in `remove_idle`: the accesses under the guard precede the
        // removal.
        self.count.fetch_sub(1, Release);
    }
}

impl<T: DevicePageOps> Chunk<T> {
    pub(super) const OPS: bindings::dev_pagemap_ops = bindings::dev_pagemap_ops {
        folio_free: Some(Self::folio_free),
        migrate_to_ram: Some(Self::migrate_to_ram),
        memory_failure: None,
        // No callback is needed: the core copies `pgmap` and `mapping` to the new folios, and pages
        // are counted one by one, so that a split does not change the counts.
        folio_split: None,
    };

    /// Creates chunk `index` without page frames. Its first `pages` pages are used.
    pub(super) fn new(
        back: &DevicePages<T>,
        index: usize,
        pages: usize,
    ) -> Result<Pin<KBox<Self>>> {
        let free = FreeMap::new(pages)?;
        KBox::pin_init(
            // INVARIANT: `base` is `NO_BASE`, and all pages are withdrawn in a new `FreeMap`.
            pin_init!(Self {
                pgmap <- Opaque::ffi_init(|slot: *mut bindings::dev_pagemap| {
                    // SAFETY: `slot` is valid for writes.
                    unsafe { slot.write(bindings::dev_pagemap::default()) };
                }),
                base: Atomic::new(NO_BASE),
                index,
                free,
                maybe_free: Atomic::new(0),
                guards: Atomic::new(0),
                back: core::ptr::from_ref(back),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the first page frame, or `None` if the chunk has no page frames.
    pub(super) fn base(&self) -> Option<usize> {
        Some(peek_usize(&self.base)).filter(|base| *base != NO_BASE)
    }

    /// Whether the chunk has page frames.
    pub(super) fn is_there(&self) -> bool {
        peek_usize(&self.base) != NO_BASE
    }

    /// Adds the page frames, and lowers `lowest` to the first one if that is smaller. Calls `note`
    /// with the first page frame before a page becomes free. The caller holds the owner's mutex.
    pub(super) fn add(
        &self,
        owner: PgmapOwner,
        kind: MemoryKind,
        lowest: &Atomic<usize>,
        note: &dyn Fn(usize) -> Result,
    ) -> Result {
        // If memremap_pages() fails halfway, the part that was added remains, and later attempts
        // for this region return EEXIST. Hold such regions until a usable one is found, so that
        // each request returns a different region.
        let mut spoilt = [const { None::<Region> }; MAX_REGION_TRIES];
        for place in &mut spoilt {
            match self.map(Region::request(kind)?, owner, kind, lowest, note) {
                Ok(()) => return Ok(()),
                Err((error, region)) if error == EEXIST => *place = Some(region),
                Err((error, _)) => return Err(error),
            }
        }
        Err(ENOMEM)
    }

    /// Adds the page frames at the addresses of `region`. Returns the region together with an
    /// error. See [`Self::add`].
    fn map(
        &self,
        region: Region,
        owner: PgmapOwner,
        kind: MemoryKind,
        lowest: &Atomic<usize>,
        note: &dyn Fn(usize) -> Result,
    ) -> core::result::Result<(), (Error, Region)> {
        if fails(FailPoint::Region) {
            return Err((EEXIST, region));
        }
        let mut map = bindings::dev_pagemap {
            type_: match kind {
                MemoryKind::Private => bindings::memory_type_MEMORY_DEVICE_PRIVATE,
                MemoryKind::Coherent { .. } => bindings::memory_type_MEMORY_DEVICE_COHERENT,
            },
            // SAFETY: The owner is pinned and outlives the chunk, by the type invariant.
            ops: unsafe { (*self.back).ops() },
            owner: owner.as_ptr(),
            nr_range: 1,
            ..Default::default()
        };
        // SAFETY: `nr_range` is 1, which selects the variant `range`. `pgmap` is not read while the
        // chunk has no page frames, and the owner's mutex excludes other writers.
        unsafe {
            *map.__bindgen_anon_1.range.as_mut() = bindings::range {
                start: region.start(),
                end: region.start() + (CHUNK_BYTES - 1),
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
        // CAST: A page frame number of a physical address fits into `usize`.
        if let Err(error) = note((region.start() >> PAGE_SHIFT) as usize) {
            // SAFETY: `pgmap` was mapped above, and no page of it has become free or in use.
            unsafe { bindings::memunmap_pages(self.pgmap.get()) };
            return Err((error, region));
        }
        // CAST: A page frame number of a physical address fits into `usize`.
        let base = (region.keep() >> PAGE_SHIFT) as usize;
        // Update `lowest` before pages become free, because lookups of a page in use rely on it.
        // The mutex excludes other writers.
        lowest.store(lowest.load(Relaxed).min(base), Relaxed);
        // INVARIANT: `pgmap` is mapped. Pages become free only after `base` is set.
        // Release: pairs with the acquire in `frame_guard`, which finds initialized page frames.
        // Holders of a page find them by `online`, whose full barriers precede its allocation.
        self.base.store(base, Release);
        self.free.online(0, self.free.len());
        Ok(())
    }

    /// Removes the page frames if no page is in use. The caller holds the owner's mutex. Returns
    /// whether the page frames were removed.
    pub(super) fn remove_idle(&self) -> bool {
        // Withdrawn pages must stay withdrawn, and adding the page frames again would make them
        // free.
        if !self.is_there() || self.free.withdrawn() != 0 {
            return false;
        }
        // No page can be allocated after this.
        if self.free.offline(0, self.free.len()) != 0 {
            self.free.online(0, self.free.len());
            return false;
        }
        // Full barrier: frame_guard() increments `guards` before it loads `base`, so that either it
        // sees `NO_BASE` or the load below sees the increment. Acquire pairs with the decrement:
        // accesses under past guards precede the removal of the page frames.
        let base = self.base.xchg(NO_BASE, Full);
        if self.guards.load(Acquire) != 0 {
            // The page frames exist all the time. A reader that finds `base` needs no more than
            // that.
            self.base.store(base, Release);
            self.free.online(0, self.free.len());
            return false;
        }
        // SAFETY: All pages are withdrawn, so that none is in use or can be allocated, and there is
        // no guard.
        unsafe { self.unmap_from(base) };
        true
    }

    /// Prevents the removal of the page frames while the result exists. Returns `None` if the chunk
    /// has none.
    pub(super) fn frame_guard(&self) -> Option<FrameGuard<'_>> {
        // Full barrier: see `remove_idle`.
        self.guards.fetch_add(1, Full);
        // INVARIANT: `guards` was incremented above. Dropping `frame_guard` decrements it on every
        // path.
        let mut frame_guard = FrameGuard {
            count: &self.guards,
            frames: 0..0,
        };
        // Pairs with the release in `map`.
        let base = self.base.load(Acquire);
        if base == NO_BASE {
            return None;
        }
        frame_guard.frames = base..base + CHUNK_PAGES;
        Some(frame_guard)
    }

    /// Waits until all pages are free, and removes the page frames.
    ///
    /// # Safety
    ///
    /// The chunk must have page frames. Only holders of a page may use them from now on.
    pub(super) unsafe fn unmap(&self) {
        let base = self.base.load(Relaxed);
        // SAFETY: The chunk has page frames, which only holders of a page use, by the function's
        // requirements. `base` remains set until all pages are free, because `folio_free` computes
        // the number of a page from it.
        unsafe { self.unmap_from(base) };
        // INVARIANT: No page frames are mapped. All pages are free, and the owner does not allocate
        // any before it is dropped. No reader is left that could pair with the store.
        self.base.store(NO_BASE, Release);
    }

    /// Removes the page frames from `base` on; see [`Self::unmap`].
    ///
    /// # Safety
    ///
    /// As for [`Self::unmap`]. `base` must be the first page frame that the chunk had until now.
    unsafe fn unmap_from(&self, base: usize) {
        // SAFETY: `pgmap` is mapped, by the function's requirements.
        unsafe { bindings::memunmap_pages(self.pgmap.get()) };
        // SAFETY: `map` kept the region, and its page frames were removed above.
        unsafe { Region::release((base as u64) << PAGE_SHIFT) };
    }

    /// # Safety
    ///
    /// `pgmap` must be that of a page in use of a chunk of this type.
    unsafe fn from_pgmap<'a>(pgmap: *mut bindings::dev_pagemap) -> &'a Self {
        // SAFETY: `pgmap` is the field of a live chunk of this type, by the function's
        // requirements.
        unsafe { &*kernel::container_of!(Opaque::cast_from(pgmap), Self, pgmap) }
    }

    /// # Safety
    ///
    /// Called by the core for a folio of a chunk of this type, after its last reference was
    /// dropped.
    unsafe extern "C" fn folio_free(folio: *mut bindings::folio) {
        let mut order = 0;
        let mut pgmap = null_mut();
        // SAFETY: The folio has no references and cannot be allocated before `release()`, so that
        // it is ours. `order` and `pgmap` may be written.
        let pfn = unsafe { bindings::rust_hmm_device_folio_reset(folio, &mut order, &mut pgmap) };
        // SAFETY: `pgmap` is that of a folio of a chunk of this type, by the function's
        // requirements.
        let chunk = unsafe { Self::from_pgmap(pgmap) };
        let index = pfn.wrapping_sub(peek_usize(&chunk.base));
        // SAFETY: The owner outlives its chunks, by the type invariant.
        let pages = unsafe { &*chunk.back };
        match order {
            // The most frequent case, in which the order is a compile-time constant.
            0 => chunk.freed(pages, index, 0),
            order => chunk.freed(pages, index, order),
        }
    }

    /// Releases the folio of `order` at `index`, whose last reference was dropped. Context: any.
    #[inline(always)]
    fn freed(&self, pages: &DevicePages<T>, index: usize, order: u32) {
        let range = DeviceRange {
            first: self.index * CHUNK_PAGES + index,
            count: 1 << order,
        };
        T::freed(pages, range);
        // From here on, the pages can be allocated concurrently. The core holds a reference of
        // `pgmap`, which keeps the owner alive until this function returns.
        let is_used = self.free.release(index, range.count);
        pages.pages_released(self, range, is_used);
    }

    /// # Safety
    ///
    /// Called by the core for a fault on a page of a chunk of this type.
    unsafe extern "C" fn migrate_to_ram(vmf: *mut bindings::vm_fault) -> bindings::vm_fault_t {
        // SAFETY: The page of the fault belongs to a chunk of this type and is in use, by the
        // function's requirements.
        let chunk = unsafe {
            let pfn = bindings::rust_hmm_page_to_pfn(bindings::rust_hmm_vmf_page(vmf));
            Self::from_pgmap(bindings::rust_hmm_pfn_pgmap(pfn))
        };
        // SAFETY: The owner outlives its chunks, by the type invariant.
        let pages = unsafe { &*chunk.back };
        // SAFETY: The core calls this with the mmap lock held and the page locked and referenced.
        // The fault is handled until this function returns, and `T::migrate_to_ram` cannot keep
        // `fault` longer because its lifetime is generic.
        let fault = unsafe { CpuFault::from_raw(vmf) };
        match T::migrate_to_ram(pages, fault) {
            Ok(()) => 0,
            Err(FaultError::NoMemory) => bindings::vm_fault_reason_VM_FAULT_OOM,
            Err(FaultError::Lost) => bindings::vm_fault_reason_VM_FAULT_SIGBUS,
            // SAFETY: The fault is still being handled, and `fault` was consumed.
            Err(FaultError::Retry) => unsafe { bindings::rust_hmm_vmf_retry(vmf) },
        }
    }

    /// Allocates a folio of `order`. `hint` updates the owner's hint for that order: it is called
    /// with false before the last attempt, and with true if that attempt succeeds.
    pub(super) fn take(&self, order: u32, hint: impl Fn(bool)) -> Option<usize> {
        if let Some(index) = self.free.take(order) {
            return Some(index);
        }
        // Clear the hint before the bit in `maybe_free`: a concurrent free that finds the bit set
        // does not set the hint.
        hint(false);
        clear(&self.maybe_free, 1 << order);
        let index = self.free.take(order)?;
        set(&self.maybe_free, 1 << order);
        hint(true);
        Some(index)
    }

    /// Whether the bit of some order is clear in `maybe_free`.
    #[inline]
    pub(super) fn lacks_room(&self) -> bool {
        load_u64(&self.maybe_free) != ALL_ORDERS
    }

    /// Sets the bits in `maybe_free` for orders of which a free folio may exist now, because page
    /// `index` was freed, or any pages if `None`. Returns the bits that were clear before.
    #[inline(never)]
    pub(super) fn gains_room(&self, index: Option<usize>) -> u64 {
        let orders = index.map_or(ALL_ORDERS, |index| (2 << self.free.free_order(index)) - 1);
        let gained = orders & !load_u64(&self.maybe_free);
        if gained != 0 {
            set(&self.maybe_free, gained);
        }
        gained
    }

    /// Initializes the folio at `index`, which was just allocated, and returns it locked.
    pub(super) fn folio(&self, index: usize, order: u32) -> LockedFolio {
        let pfn = peek_usize(&self.base) + index;
        // SAFETY: The pages were just allocated from `free`. A chunk whose pages are in use has
        // page frames, and no other task has a reference to these.
        unsafe {
            bindings::rust_hmm_device_folio_init(pfn, self.pgmap.get(), order);
            LockedFolio::from_raw(pfn, order)
        }
    }
}

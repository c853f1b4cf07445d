// SPDX-License-Identifier: GPL-2.0

//! Device memory that has `struct page`s: `ZONE_DEVICE`, private or coherent.
//!
//! Memory comes in pieces of [`PIECE_PAGES`], added when they are needed. A device page is named by
//! its *device page number*, which counts from 0 over all pieces, as a device counts its memory.
//!
//! C header: [`include/linux/memremap.h`](srctree/include/linux/memremap.h)

use super::{
    addr::PMD_PAGES,
    device_alloc::FreeMap,
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
    error::{from_err_ptr, to_result},
    page::{PAGE_MASK, PAGE_SHIFT},
    prelude::*,
    sync::{Mutex, SetOnce},
    types::Opaque, //
};

#[cfg(CONFIG_KUNIT = "y")]
mod tests;

/// Pages of one piece: 256 MiB, as in the kernel's `lib/test_hmm.c`.
pub const PIECE_PAGES: usize = 1 << 16;

/// Most pieces that one device can have: 32 GiB.
pub const MAX_PIECES: usize = 128;

/// No page frame number is longer; the kernel knows the machine's real limit.
const LAST_PHYSICAL: u64 = (1 << 52) - 1;

const PIECE_BYTES: u64 = (PIECE_PAGES as u64) << PAGE_SHIFT;

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

/// One piece of memory.
///
/// # Invariants
///
/// `pgmap` describes the frames from `base` on, is mapped until `unmap`, and `back` points to the
/// pinned [`DevicePages`] that owns the piece.
#[pin_data]
struct Piece<T: DevicePageOps> {
    #[pin]
    pgmap: Opaque<bindings::dev_pagemap>,
    base: usize,
    index: usize,
    free: FreeMap,
    back: *const DevicePages<T>,
}

// SAFETY: The pointer is to a `Sync` owner that outlives the piece; the rest is `Send + Sync`.
unsafe impl<T: DevicePageOps> Send for Piece<T> {}
// SAFETY: As above.
unsafe impl<T: DevicePageOps> Sync for Piece<T> {}

impl<T: DevicePageOps> Piece<T> {
    const OPS: bindings::dev_pagemap_ops = bindings::dev_pagemap_ops {
        folio_free: Some(Self::folio_free),
        migrate_to_ram: Some(Self::migrate_to_ram),
        memory_failure: None,
        // The core's default does what is needed: it copies `pgmap` and `mapping` to the tail.
        // Free pages are counted one by one, so a split changes nothing for us.
        folio_split: None,
    };

    /// Adds the piece of number `index`, of which `pages` are used; a multiple of 512.
    fn new(
        back: &DevicePages<T>,
        kind: Kind,
        index: usize,
        pages: usize,
    ) -> Result<Pin<KBox<Self>>> {
        let owner = back.owner();
        let free = FreeMap::new(pages)?;
        let start = match kind {
            Kind::Private => {
                let mut start = 0;
                // SAFETY: The name is static and `start` may be written.
                to_result(unsafe {
                    bindings::rust_hmm_request_free_region(
                        PIECE_BYTES,
                        c"rust_hmm".as_char_ptr(),
                        &mut start,
                    )
                })?;
                start
            }
            Kind::Coherent { start } => {
                // Refuses system memory, and what another driver has.
                //
                // SAFETY: The name is static.
                to_result(unsafe {
                    bindings::rust_hmm_request_region(start, PIECE_BYTES, c"rust_hmm".as_char_ptr())
                })?;
                start
            }
        };
        let piece = KBox::pin_init(
            try_pin_init!(Self {
                pgmap <- Opaque::ffi_init(|slot: *mut bindings::dev_pagemap| {
                    let mut map = bindings::dev_pagemap {
                        type_: match kind {
                            Kind::Private => bindings::memory_type_MEMORY_DEVICE_PRIVATE,
                            Kind::Coherent { .. } => bindings::memory_type_MEMORY_DEVICE_COHERENT,
                        },
                        ops: &Self::OPS,
                        owner: owner.as_ptr(),
                        nr_range: 1,
                        ..Default::default()
                    };
                    // SAFETY: `range` is the variant that `nr_range` 1 selects.
                    unsafe {
                        *map.__bindgen_anon_1.range.as_mut() = bindings::range {
                            start,
                            end: start + (PIECE_BYTES - 1),
                        };
                        slot.write(map);
                    }
                }),
                // CAST: Physical frame numbers fit.
                base: (start >> PAGE_SHIFT) as usize,
                index,
                free,
                back: core::ptr::from_ref(back),
            }? Error),
            GFP_KERNEL,
        );
        let mapped = piece.and_then(|piece| {
            // SAFETY: `pgmap` is initialized and pinned.
            from_err_ptr(unsafe {
                bindings::memremap_pages(piece.pgmap.get(), bindings::NUMA_NO_NODE)
            })?;
            // INVARIANT: Mapped now.
            Ok(piece)
        });
        if mapped.is_err() {
            // SAFETY: Requested above, and nobody uses it.
            unsafe { bindings::rust_hmm_release_region(start, PIECE_BYTES) };
        }
        mapped
    }

    /// Waits until all pages are free and takes the memory away.
    ///
    /// # Safety
    ///
    /// To be called once, by the owner's drop.
    unsafe fn unmap(&self) {
        // SAFETY: Mapped by the type invariant and the function's requirements.
        unsafe { bindings::memunmap_pages(self.pgmap.get()) };
        // SAFETY: Requested in `new`.
        unsafe { bindings::rust_hmm_release_region((self.base as u64) << PAGE_SHIFT, PIECE_BYTES) };
    }

    /// # Safety
    ///
    /// `page` must be a page of a live piece of this type.
    unsafe fn from_pfn<'a>(pfn: usize) -> &'a Self {
        // SAFETY: A device page, by the function's requirements.
        let pgmap = unsafe { bindings::rust_hmm_pfn_pgmap(pfn) };
        // SAFETY: It is the field of a live piece.
        unsafe { &*kernel::container_of!(Opaque::cast_from(pgmap), Self, pgmap) }
    }

    /// # Safety
    ///
    /// Called by the core for a folio of a piece of this type, when its last reference is gone.
    unsafe extern "C" fn folio_free(folio: *mut bindings::folio) {
        // SAFETY: A folio begins with its first page.
        let (pfn, order) = unsafe {
            let pfn = bindings::rust_hmm_page_to_pfn(folio.cast());
            (pfn, bindings::rust_hmm_pfn_order(pfn))
        };
        // SAFETY: By the function's requirements.
        let piece = unsafe { Self::from_pfn(pfn) };
        // SAFETY: A free folio, which nobody else takes before it is given back.
        unsafe { bindings::rust_hmm_device_folio_reset(pfn, order) };
        piece
            .free
            .give_back(pfn.wrapping_sub(piece.base), 1 << order);
    }

    /// # Safety
    ///
    /// Called by the core for a fault on a page of a piece of this type.
    unsafe extern "C" fn migrate_to_ram(vmf: *mut bindings::vm_fault) -> bindings::vm_fault_t {
        // SAFETY: By the function's requirements the page is one of a piece of this type.
        let piece = unsafe {
            Self::from_pfn(bindings::rust_hmm_page_to_pfn(bindings::rust_hmm_vmf_page(
                vmf,
            )))
        };
        // SAFETY: The owner outlives its pieces, by the type invariant.
        let pages = unsafe { &*piece.back };
        // INVARIANT: The core calls this with the mmap lock held and the page locked.
        let fault = CpuFault {
            vmf,
            _borrow: PhantomData,
        };
        match T::migrate_to_ram(pages, fault) {
            Ok(()) => 0,
            Err(FaultError::NoMemory) => bindings::vm_fault_reason_VM_FAULT_OOM,
            Err(FaultError::Lost) => bindings::vm_fault_reason_VM_FAULT_SIGBUS,
        }
    }
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

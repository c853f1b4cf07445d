// SPDX-License-Identifier: GPL-2.0

//! A piece of device memory: one `dev_pagemap`, and what the core calls for it.

use super::{CpuFault, DevicePageOps, DevicePages, FaultError, Kind, PIECE_PAGES};
use crate::{bindings, mm::device_alloc::FreeMap};
use core::marker::PhantomData;
use kernel::{
    error::{from_err_ptr, to_result},
    page::PAGE_SHIFT,
    prelude::*,
    types::Opaque, //
};

/// Bytes of a piece.
pub(super) const PIECE_BYTES: u64 = (PIECE_PAGES as u64) << PAGE_SHIFT;

/// One piece of memory.
///
/// # Invariants
///
/// `pgmap` describes the frames from `base` on, is mapped until `unmap`, and `back` points to the
/// pinned [`DevicePages`] that owns the piece.
#[pin_data]
pub(super) struct Piece<T: DevicePageOps> {
    #[pin]
    pub(super) pgmap: Opaque<bindings::dev_pagemap>,
    pub(super) base: usize,
    pub(super) index: usize,
    pub(super) free: FreeMap,
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
    pub(super) fn new(
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
    pub(super) unsafe fn unmap(&self) {
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

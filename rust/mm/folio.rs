// SPDX-License-Identifier: GPL-2.0

//! Contents of pages, and folios that are locked for migration.
//!
//! A device, a user thread and a copy may access a page concurrently. All accesses are made by C
//! helpers and thus outside of Rust's memory model, as for user memory.
//!
//! C headers: [`include/linux/highmem.h`](srctree/include/linux/highmem.h),
//! [`include/linux/page-flags.h`](srctree/include/linux/page-flags.h)

use super::{
    addr::PMD_ORDER,
    vma::Vma, //
};
use crate::{
    bindings,
    inject::{
        fails,
        FailPoint, //
    }, //
};
use core::mem::ManuallyDrop;
use kernel::prelude::*;

mod cpu_pages;
mod dirty;
mod shared_bytes;

pub use cpu_pages::{
    CpuPages,
    CpuPagesMut, //
};
pub(crate) use dirty::DirtyBatch;
pub use shared_bytes::SharedBytes;

/// Returns whether page frame `pfn` is the zero page.
///
/// # Context
///
/// Any.
pub fn is_zero_pfn(pfn: usize) -> bool {
    // SAFETY: Compares numbers only.
    unsafe { bindings::rust_hmm_pfn_is_zero(pfn) }
}

/// A new locked folio, the destination of a migration. Dropping it frees the folio.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::mm::folio::Effort;
/// use rust_hmm::mm::folio::LockedFolio;
/// use rust_hmm::mm::vma::Vma;
///
/// /// Allocates the destination of a page in `vma`, by its memory policy.
/// fn destination(vma: Vma<'_>, addr: usize) -> Result<LockedFolio> {
///     LockedFolio::alloc_system(Some(vma), addr, 0, Effort::Must)
/// }
/// ```
///
/// # Invariants
///
/// `pfn` is the first frame of a folio of `order` of which we own one reference and the lock.
pub struct LockedFolio {
    pfn: usize,
    order: u32,
}

/// Effort of an allocation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Reclaim memory and retry: the caller cannot continue without the folio.
    Must,
    /// Do not retry after light reclaim (`__GFP_NORETRY`). The caller can continue without the
    /// folio.
    Try,
}

impl LockedFolio {
    /// Allocates a folio of system memory for `addr`, according to the memory policy of `vma`, if
    /// any.
    ///
    /// The folio is marked dirty: data migrated from a device may be newer than data that reclaim
    /// may discard (`MADV_FREE`).
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    /// - `EINVAL`: the order is larger than [`PMD_ORDER`].
    ///
    /// # Context
    ///
    /// May sleep and enter reclaim. No lock that a notifier takes may be held.
    pub fn alloc_system(
        vma: Option<Vma<'_>>,
        addr: usize,
        order: u32,
        effort: Effort,
    ) -> Result<Self> {
        if order > PMD_ORDER {
            return Err(EINVAL);
        }
        let vma = vma.map_or(core::ptr::null_mut(), |vma| vma.as_ptr());
        let must = effort == Effort::Must;
        if fails(FailPoint::SystemFolio) {
            return Err(ENOMEM);
        }
        // SAFETY: `vma` is null, or valid because its mmap lock is held.
        let pfn = unsafe { bindings::rust_hmm_folio_alloc_locked(vma, addr, order, must) };
        if pfn == 0 {
            return Err(ENOMEM);
        }
        // INVARIANT: The helper returns a new locked folio.
        Ok(Self { pfn, order })
    }

    /// # Safety
    ///
    /// `pfn` must begin a folio of `order` of which the caller owns a reference and the lock.
    pub(super) unsafe fn from_raw(pfn: usize, order: u32) -> Self {
        // INVARIANT: By the function's requirements.
        Self { pfn, order }
    }

    /// Returns the frame number of the first page, for tests.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(crate) fn pfn(&self) -> usize {
        self.pfn
    }

    /// Returns the order of the folio.
    ///
    /// # Context
    ///
    /// Any.
    pub fn order(&self) -> u32 {
        self.order
    }

    /// Returns the frame number and the order, and transfers the reference and the lock to the
    /// caller.
    pub(super) fn into_raw(self) -> (usize, u32) {
        let this = ManuallyDrop::new(self);
        (this.pfn, this.order)
    }
}

impl Drop for LockedFolio {
    fn drop(&mut self) {
        // SAFETY: We own the lock and a reference by the type invariant.
        unsafe { bindings::rust_hmm_folio_unlock_put(self.pfn) };
    }
}

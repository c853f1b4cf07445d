// SPDX-License-Identifier: GPL-2.0

//! Isolates huge pages of private device memory whole.
//!
//! If such a page is zapped while it is isolated, `zap_huge_pmd_folio()` drops a reference and a
//! mapcount that the migration entry does not hold (7.2 and 7.3, see `rust/helpers/rmap.c`).
//! Therefore only a page with a single mapping is isolated whole, so that this happens at most
//! once. An extra reference keeps the page alive meanwhile, and the missing counts are restored
//! afterwards. All other huge pages are split.

use crate::{
    bindings,
    kernel::identity::MemoryId,
    mm::{
        addr::PageRange,
        cpu_fault::CpuFault,
        vma::Vma, //
    }, //
};
use core::{
    mem::MaybeUninit,
    ptr, //
};

/// Result of the lookup of a huge page.
pub(super) enum ThpLookup<'a> {
    /// A hole, or a huge page that is locked by another task.
    Nothing,
    /// A huge page of the requested private memory, which may be isolated whole.
    Whole(ThpIsolation<'a>),
    /// Other pages, or a huge page that has to be split.
    Other,
}

/// A huge page that may be isolated whole.
///
/// # Invariants
///
/// The page at `pfn`, of private device memory, was mapped by nothing but `vma` at `addr`, and has
/// a reference of ours. If `locked`, it has another one, and its lock is ours.
pub(super) struct ThpIsolation<'a> {
    vma: Vma<'a>,
    addr: usize,
    pfn: usize,
    locked: bool,
}

impl<'a> ThpIsolation<'a> {
    /// Looks up the huge page that the PMD of `range` maps in `vma`. `tile` identifies the device
    /// memory. Does not sleep.
    pub(super) fn find(
        vma: Vma<'a>,
        range: PageRange,
        tile: MemoryId,
        fault: Option<&CpuFault<'_>>,
    ) -> ThpLookup<'a> {
        let addr = range.start();
        let locked = fault.is_none();
        let page = fault.map_or(ptr::null_mut(), CpuFault::page);
        let mut pfn = MaybeUninit::uninit();
        // SAFETY: The mmap lock is held for `'a`, and the faulting page is locked and referenced.
        let found = unsafe {
            bindings::rust_hmm_huge_hold(vma.as_ptr(), addr, tile.as_ptr(), page, pfn.as_mut_ptr())
        };
        match found {
            bindings::rust_hmm_huge_RUST_HMM_HUGE_HOLE
            | bindings::rust_hmm_huge_RUST_HMM_HUGE_BUSY => ThpLookup::Nothing,
            // INVARIANT: The helper checked the mapping, and took the references and, if `locked`,
            // the lock.
            bindings::rust_hmm_huge_RUST_HMM_HUGE_HELD => ThpLookup::Whole(Self {
                vma,
                addr,
                // SAFETY: `RUST_HMM_HUGE_HELD` says that the helper wrote `pfn`.
                pfn: unsafe { pfn.assume_init() },
                locked,
            }),
            _ => ThpLookup::Other,
        }
    }

    /// Returns the page, locked by us or by the fault, with the one reference that the core expects
    /// of a fault.
    pub(super) fn page(&self) -> *mut bindings::page {
        // SAFETY: `pfn` has a struct page, because we have a reference of it by the type invariant.
        unsafe { bindings::rust_hmm_pfn_page(self.pfn) }
    }

    /// Restores counts that a concurrent zap has dropped in excess. Those that are dropped after
    /// this call are restored by the next one.
    fn restore_counts(&self) {
        // SAFETY: We have a reference of the page by the type invariant, and the mmap lock is held
        // for `'a`.
        unsafe { bindings::rust_hmm_huge_settle(self.vma.as_ptr(), self.addr, self.pfn) };
    }

    /// Calls `migrate` without our reference, because `migrate` compares the reference count with
    /// that of the isolation and the fault. A concurrent zap may drop one of these two in excess,
    /// but not both.
    pub(super) fn without_reference(&self, migrate: impl FnOnce()) {
        self.restore_counts();
        // SAFETY: The isolation and the fault have references of the page. Ours is taken again
        // before they are dropped.
        unsafe { bindings::rust_hmm_pfn_put(self.pfn) };
        migrate();
        // SAFETY: The isolation or the fault still has a reference of the page.
        unsafe { bindings::rust_hmm_pfn_get(self.pfn) };
    }
}

impl Drop for ThpIsolation<'_> {
    /// Restores excessively dropped counts for the last time: the page is not isolated now, so that
    /// its entry is zapped correctly.
    fn drop(&mut self) {
        self.restore_counts();
        // SAFETY: The lock, if `locked`, and the references are ours by the type invariant.
        unsafe {
            if self.locked {
                bindings::rust_hmm_pfn_unlock(self.pfn);
                bindings::rust_hmm_pfn_put(self.pfn);
            }
            bindings::rust_hmm_pfn_put(self.pfn);
        }
    }
}

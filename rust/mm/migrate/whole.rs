// SPDX-License-Identifier: GPL-2.0

//! Huge pages of private device memory that are isolated whole.
//!
//! Of such a page that is dropped meanwhile the core releases more than it has, see `rust/rmap.c`. What closes that
//! is here: only a page that nobody else maps is taken whole, with references for the worst case, and afterwards
//! what is missing is put back. Others are split.

use crate::{
    bindings,
    mm::{addr::PageRange, device_pages::CpuFault, notifier::Cookie, space::Vma},
};
use core::{mem::MaybeUninit, ptr};

/// What there is to be isolated.
pub(super) enum Found<'a> {
    /// Nothing is there, or nothing that can be had now.
    Nothing,
    /// A huge page of the private memory asked for.
    Whole(Whole<'a>),
    /// Something else, or a page that is to be split.
    Other,
}

/// A huge page that may be isolated whole.
///
/// # Invariants
///
/// The page at `pfn`, of private device memory, was mapped by nothing but `vma` at `addr`, and has a reference of
/// ours. If `locked`, it has another one, and its lock is ours.
pub(super) struct Whole<'a> {
    vma: Vma<'a>,
    addr: usize,
    pfn: usize,
    locked: bool,
}

impl<'a> Whole<'a> {
    /// Looks at what `range`, 2 MiB of `vma`, is mapped to. `tile` names the memory. Context: atomic.
    pub(super) fn find(
        vma: Vma<'a>,
        range: PageRange,
        tile: Cookie,
        fault: Option<&CpuFault<'_>>,
    ) -> Found<'a> {
        let (addr, locked) = (range.start(), fault.is_none());
        let page = fault.map_or(ptr::null_mut(), CpuFault::page);
        let mut pfn = MaybeUninit::uninit();
        // SAFETY: The mmap lock is held for `'a`, the faulting page has a lock and a reference.
        let found = unsafe {
            bindings::rust_hmm_huge_hold(vma.as_ptr(), addr, tile.as_ptr(), page, pfn.as_mut_ptr())
        };
        match found {
            bindings::rust_hmm_huge_RUST_HMM_HUGE_HOLE
            | bindings::rust_hmm_huge_RUST_HMM_HUGE_BUSY => Found::Nothing,
            // INVARIANT: The call has looked, and taken what there is to take.
            bindings::rust_hmm_huge_RUST_HMM_HUGE_HELD => Found::Whole(Self {
                vma,
                addr,
                // SAFETY: With this answer it was written.
                pfn: unsafe { pfn.assume_init() },
                locked,
            }),
            _ => Found::Other,
        }
    }

    /// The page, locked by us or by the fault, with the one reference that the core expects of a fault.
    pub(super) fn page(&self) -> *mut bindings::page {
        // SAFETY: Arithmetic; the frame is there by the type invariant.
        unsafe { bindings::rust_hmm_pfn_page(self.pfn) }
    }

    /// Puts back what is missing. What is dropped from now on is seen the next time.
    fn settle(&self) {
        // SAFETY: By the type invariant, and the mmap lock is held for `'a`.
        unsafe { bindings::rust_hmm_huge_settle(self.vma.as_ptr(), self.addr, self.pfn) };
    }

    /// Calls `migrate`, which counts the references: with that of the fault, and without ours. One of those that
    /// are left may be lost.
    pub(super) fn without_reference(&self, migrate: impl FnOnce()) {
        self.settle();
        // SAFETY: The page is isolated, with references of that and of the fault; ours comes back before they go.
        unsafe { bindings::rust_hmm_pfn_put(self.pfn) };
        migrate();
        // SAFETY: As above.
        unsafe { bindings::rust_hmm_pfn_get(self.pfn) };
    }
}

impl Drop for Whole<'_> {
    /// The page is not isolated any more: nothing gets lost from now on.
    fn drop(&mut self) {
        self.settle();
        // SAFETY: By the type invariant.
        unsafe {
            if self.locked {
                bindings::rust_hmm_pfn_unlock(self.pfn);
                bindings::rust_hmm_pfn_put(self.pfn);
            }
            bindings::rust_hmm_pfn_put(self.pfn);
        }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! A CPU fault on a device-private page, while it is being handled.
//!
//! C header: [`include/linux/memremap.h`](srctree/include/linux/memremap.h)

use crate::{
    bindings,
    mm::vma::Vma, //
};
use core::marker::PhantomData;
use kernel::page::PAGE_MASK;

/// Why a CPU fault on a device page failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultError {
    /// No system memory could be allocated for the page (`VM_FAULT_OOM`).
    NoMemory,
    /// The device lost the contents of the page (`VM_FAULT_SIGBUS`).
    Lost,
    /// Another task that needs the mmap lock has to make progress first (`VM_FAULT_RETRY`). The
    /// faulting task releases the mmap lock and repeats the fault if [`CpuFault::can_retry`]
    /// returns true.
    Retry,
}

/// A CPU fault on a device-private page.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::mm::addr::PageRange;
/// use rust_hmm::mm::addr::PMD_SIZE;
/// use rust_hmm::mm::device_pages::CpuFault;
///
/// /// Returns the range to migrate for a fault: its block as far as the VMA extends.
/// fn around(fault: &CpuFault<'_>) -> Result<PageRange> {
///     if fault.is_large_folio_subpage() {
///         return PageRange::from_pages(fault.address(), 1);
///     }
///     let start = fault.address() & !(PMD_SIZE - 1);
///     let vma = fault.vma();
///     PageRange::new(start.max(vma.start()), vma.end().min(start + PMD_SIZE))
/// }
/// ```
///
/// # Invariants
///
/// `vmf` is the fault being handled for `'a`. The mmap lock is held for reading, and the page of
/// the fault is locked and referenced.
pub struct CpuFault<'a> {
    vmf: *mut bindings::vm_fault,
    _borrow: PhantomData<&'a ()>,
}

impl<'a> CpuFault<'a> {
    /// # Safety
    ///
    /// `vmf` must be a fault that is being handled for all of `'a`, with the mmap lock held for
    /// reading and its page locked and referenced.
    pub(super) unsafe fn from_raw(vmf: *mut bindings::vm_fault) -> Self {
        // INVARIANT: `vmf` meets the type invariant by the function's requirements.
        Self {
            vmf,
            _borrow: PhantomData,
        }
    }

    /// Returns the VMA of the fault.
    ///
    /// # Context
    ///
    /// The CPU fault is being handled, with the mmap lock held for reading. Does not sleep.
    pub fn vma(&self) -> Vma<'a> {
        // SAFETY: `vmf` is being handled for `'a` by the type invariant.
        unsafe { Vma::from_raw(bindings::rust_hmm_vmf_vma(self.vmf)) }
    }

    /// Returns the page-aligned address of the fault.
    ///
    /// # Context
    ///
    /// The CPU fault is being handled, with the mmap lock held for reading. Does not sleep.
    pub fn address(&self) -> usize {
        // SAFETY: `vmf` is being handled for `'a` by the type invariant.
        (unsafe { bindings::rust_hmm_vmf_address(self.vmf) }) & PAGE_MASK
    }

    /// Whether the fault is on a huge PMD.
    ///
    /// # Context
    ///
    /// The CPU fault is being handled, with the mmap lock held for reading. Does not sleep.
    pub fn is_huge(&self) -> bool {
        // SAFETY: `vmf` is being handled for `'a` by the type invariant.
        !unsafe { bindings::rust_hmm_vmf_is_pte(self.vmf) }
    }

    /// Whether the fault is on a PTE that maps one page of a large folio.
    ///
    /// `migrate_vma_collect_pmd()` splits such a folio and keeps the new folio of the faulting page
    /// locked. It nevertheless compares later pages with the first page of the old folio
    /// (`fault_folio`, 7.2 and 7.3). It would therefore migrate that page without its lock, and
    /// unlock a folio that is not locked, which remains locked for ever. Callers must not isolate
    /// more than the faulting page before the folio is split.
    ///
    /// # Context
    ///
    /// The CPU fault is being handled, with the mmap lock held for reading. Does not sleep.
    pub fn is_large_folio_subpage(&self) -> bool {
        // SAFETY: `vmf` is being handled for `'a` by the type invariant.
        !self.is_huge() && unsafe { bindings::rust_hmm_vmf_folio_is_large(self.vmf) }
    }

    /// Whether the faulting task can release the mmap lock and repeat the fault. Other callers of
    /// `handle_mm_fault()`, for example `ptrace`, hold the mmap lock until they have the page.
    /// `hmm_range_fault()` does so, too, unless its notifier is invalidated.
    ///
    /// # Context
    ///
    /// The CPU fault is being handled, with the mmap lock held for reading. Does not sleep.
    pub fn can_retry(&self) -> bool {
        // SAFETY: `vmf` is being handled for `'a` by the type invariant.
        unsafe { bindings::rust_hmm_vmf_can_retry(self.vmf) }
    }

    /// Whether the fault was taken in user mode. After the fault the task returns to user mode and
    /// executes the instruction again.
    ///
    /// # Context
    ///
    /// The CPU fault is being handled, with the mmap lock held for reading. Does not sleep.
    pub fn is_user(&self) -> bool {
        // SAFETY: `vmf` is being handled for `'a` by the type invariant.
        unsafe { bindings::rust_hmm_vmf_is_user(self.vmf) }
    }

    /// Returns the pfn of the faulting page, or of the first page of a huge page.
    ///
    /// # Context
    ///
    /// The CPU fault is being handled, with the mmap lock held for reading. Does not sleep.
    pub fn pfn(&self) -> usize {
        // SAFETY: `vmf` is being handled for `'a` by the type invariant.
        unsafe { bindings::rust_hmm_page_pfn(self.page()) }
    }

    pub(in crate::mm) fn page(&self) -> *mut bindings::page {
        // SAFETY: `vmf` is being handled for `'a` by the type invariant.
        unsafe { bindings::rust_hmm_vmf_page(self.vmf) }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! A CPU fault on a device-private page, while it is being handled.
//!
//! C header: [`include/linux/memremap.h`](srctree/include/linux/memremap.h)

use crate::{bindings, mm::space::Vma};
use core::marker::PhantomData;
use kernel::page::PAGE_MASK;

/// Why a CPU fault on a device page failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultError {
    /// No memory to bring the page back to: `VM_FAULT_OOM`.
    NoMemory,
    /// The device lost the page: `VM_FAULT_SIGBUS`.
    Lost,
    /// Somebody else who needs the mmap lock has to do something first. Who can, lets it go and tries again:
    /// `VM_FAULT_RETRY`; see [`CpuFault::can_retry`].
    Again,
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
    /// # Safety
    ///
    /// `vmf` must be a fault that is being handled for all of `'a`, with the mmap lock held for reading and its page
    /// locked and referenced.
    pub(super) unsafe fn from_raw(vmf: *mut bindings::vm_fault) -> Self {
        // INVARIANT: By the function's requirements.
        Self {
            vmf,
            _borrow: PhantomData,
        }
    }

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

    /// Whether who faults can let go of the mmap lock in between. Others (range faults, `ptrace`) hold it until they have
    /// the page; a range fault ends early when its notifier is called.
    pub fn can_retry(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { bindings::rust_hmm_vmf_can_retry(self.vmf) }
    }

    /// Whether the current task has faulted in user mode. After the fault it returns there, and
    /// repeats the instruction.
    pub fn is_user(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { bindings::rust_hmm_vmf_is_user(self.vmf) }
    }

    /// Its page frame; of a huge page the first one.
    pub fn pfn(&self) -> usize {
        // SAFETY: By the type invariant.
        unsafe { bindings::rust_hmm_page_pfn(self.page()) }
    }

    pub(in crate::mm) fn page(&self) -> *mut bindings::page {
        // SAFETY: By the type invariant.
        unsafe { bindings::rust_hmm_vmf_page(self.vmf) }
    }
}

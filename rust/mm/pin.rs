// SPDX-License-Identifier: GPL-2.0

//! Pages of a process that are pinned for long, and charged to its `RLIMIT_MEMLOCK`.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h), `pin_user_pages`

use super::{addr::PageRange, page::CpuPagesMut, space::MmapGuard};
use crate::bindings;
use kernel::{
    alloc::flags::__GFP_NOWARN,
    error::to_result,
    mm::{Mm, MmWithUser},
    prelude::*,
    sync::aref::ARef, //
};

/// Pages pinned at once.
const AT_ONCE: usize = 1 << 12;

/// What a process has locked of its limit.
///
/// # Invariants
///
/// `pages` are counted in `mm`.
pub struct Accounted {
    mm: ARef<Mm>,
    pages: usize,
}

impl Accounted {
    /// Counts `pages` as locked by `mm`.
    ///
    /// # Errors
    ///
    /// `ENOMEM` beyond the limit of the current task, unless it may lock what it likes. Context: may
    /// sleep; takes the mmap lock, and so does the drop.
    pub fn new(mm: &MmWithUser, pages: usize) -> Result<Self> {
        // SAFETY: The address space is in use.
        to_result(unsafe { bindings::account_locked_vm(mm.as_raw(), pages, true) })?;
        // INVARIANT: Just counted.
        Ok(Self {
            mm: ARef::from(&**mm),
            pages,
        })
    }
}

impl Drop for Accounted {
    fn drop(&mut self) {
        // SAFETY: The structure is alive, by our reference, even if the process is not. What is taken
        // away was counted, by the type invariant, so that it does not fail.
        unsafe { bindings::account_locked_vm(self.mm.as_raw(), self.pages, false) };
    }
}

/// Pages that are pinned: they stay where they are.
///
/// # Invariants
///
/// Each element is a page of system memory of which we own a pin for writing.
pub struct PinnedPages(KVVec<*mut bindings::page>);

// SAFETY: Pins may be used and dropped anywhere.
unsafe impl Send for PinnedPages {}
// SAFETY: The list does not change.
unsafe impl Sync for PinnedPages {}

impl PinnedPages {
    /// Pins all pages of `range`, for writing. Those of a device come back first.
    ///
    /// # Errors
    ///
    /// `EFAULT`: not mapped, or not writable; `EINVAL`: of a kind that cannot be pinned for long;
    /// `ENOMEM`; `EINTR`: killed. Context: may sleep; faults pages in.
    pub fn new(mmap: &MmapGuard<'_>, range: PageRange) -> Result<Self> {
        // Whoever may lock what he likes may ask for more than there can be.
        let flags = GFP_KERNEL_ACCOUNT | __GFP_NOWARN;
        // INVARIANT: Nothing is pinned yet.
        let mut pinned = Self(KVVec::with_capacity(range.pages(), flags)?);
        while pinned.0.len() < range.pages() {
            let done = pinned.0.len();
            let wanted = (range.pages() - done).min(AT_ONCE);
            let place = pinned.0.spare_capacity_mut().as_mut_ptr();
            // SAFETY: The mmap lock is held, and there is room for so many.
            let got = unsafe {
                bindings::rust_hmm_pin(
                    mmap.mm_raw(),
                    range.address(done),
                    wanted,
                    place.cast::<*mut bindings::page>(),
                )
            };
            let got = usize::try_from(got).map_err(|_| {
                // CAST: A negative errno.
                match Error::from_errno(got as kernel::ffi::c_int) {
                    error if super::space::fatal_signal_pending() && error != ENOMEM => EINTR,
                    error => error,
                }
            })?;
            if got == 0 {
                return Err(EFAULT);
            }
            // SAFETY: So many were filled in.
            // INVARIANT: And pinned.
            unsafe { pinned.0.inc_len(got) };
        }
        Ok(pinned)
    }

    /// Number of pages.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Frame number of page `index`.
    pub(crate) fn pfn(&self, index: usize) -> Option<usize> {
        let page = *self.0.get(index)?;
        // SAFETY: Alive by the type invariant.
        Some(unsafe { bindings::rust_hmm_page_to_pfn(page) })
    }

    /// Page `index`, to be read and written.
    pub fn page(&self, index: usize) -> Option<CpuPagesMut<'_>> {
        let pfn = self.pfn(index)?;
        // SAFETY: System memory that is pinned for writing as long as `self` is borrowed.
        Some(unsafe { CpuPagesMut::new(pfn, 1) })
    }

    /// Whether these are pages `first..` of `other`.
    pub fn is_part_of(&self, other: &Self, first: usize) -> bool {
        let theirs = other.0.get(first..first.saturating_add(self.0.len()));
        theirs == Some(self.0.as_slice())
    }
}

impl Drop for PinnedPages {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            // SAFETY: Pinned by the type invariant, and not used any more.
            unsafe { bindings::rust_hmm_unpin(self.0.as_mut_ptr(), self.0.len()) };
        }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Long-term pinned pages of a process, charged to its `RLIMIT_MEMLOCK`.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h), `pin_user_pages`

use super::{
    addr::PageRange,
    folio::CpuPagesMut,
    vma::MmapGuard, //
};
use crate::bindings;
use kernel::{
    alloc::flags::__GFP_NOWARN,
    error::to_result,
    mm::{
        Mm,
        MmWithUser, //
    },
    prelude::*,
    sync::aref::ARef, //
};

/// Maximum number of pages that are pinned by one call. It bounds the growth of the list for pages
/// that may not be mapped, 32 KiB, and not the pinned memory. Therefore it is in pages.
const PIN_BATCH_PAGES: usize = 1 << 12;

/// A charge of locked pages to a process.
///
/// # Invariants
///
/// `pages` are counted in `mm`.
pub struct LockedVmCharge {
    mm: ARef<Mm>,
    pages: usize,
}

impl LockedVmCharge {
    /// Charges `pages` pages to `mm` as locked.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`: the limit of the current task would be exceeded, and it does not have
    ///   `CAP_IPC_LOCK`.
    ///
    /// # Context
    ///
    /// May sleep. This and the drop take the mmap lock for writing.
    pub fn new(mm: &MmWithUser, pages: usize) -> Result<Self> {
        // SAFETY: `mm` has a user.
        to_result(unsafe { bindings::account_locked_vm(mm.as_raw(), pages, true) })?;
        // INVARIANT: The pages were charged above.
        Ok(Self {
            mm: ARef::from(&**mm),
            pages,
        })
    }
}

impl Drop for LockedVmCharge {
    fn drop(&mut self) {
        // SAFETY: Our reference keeps the `mm_struct` allocated, even after the process has exited.
        // The pages were charged by the type invariant, so that the call does not fail.
        unsafe { bindings::account_locked_vm(self.mm.as_raw(), self.pages, false) };
    }
}

/// Pinned pages, which are neither moved nor freed.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::mm::MmWithUser;
/// use rust_hmm::mm::addr::PageRange;
/// use rust_hmm::mm::pin::LockedVmCharge;
/// use rust_hmm::mm::pin::PinnedPages;
/// use rust_hmm::mm::vma::MmapGuard;
///
/// /// Pins pages that count as locked memory of the process.
/// fn pin(mm: &MmWithUser, range: PageRange) -> Result<(LockedVmCharge, PinnedPages)> {
///     // Takes the mmap lock for writing, so that it must come first.
///     let charge = LockedVmCharge::new(mm, range.pages())?;
///     let guard = MmapGuard::lock(mm)?;
///     Ok((charge, PinnedPages::new(&guard, range)?))
/// }
/// ```
///
/// # Invariants
///
/// Each element is a page of system memory of which we own a pin for writing.
pub struct PinnedPages(KVVec<*mut bindings::page>);

// SAFETY: Pins may be used and dropped by any task.
unsafe impl Send for PinnedPages {}
// SAFETY: The list does not change through a shared reference.
unsafe impl Sync for PinnedPages {}

impl PinnedPages {
    /// Pins all pages of `range` for writing. Pages in device memory are migrated back first.
    ///
    /// # Errors
    ///
    /// * `EFAULT`: part of the range is not mapped or not writable.
    /// * `EINVAL`: part of the range is memory that cannot be pinned long-term.
    /// * `ENOMEM`: memory allocation failed.
    /// * `EINTR`: a fatal signal is pending.
    ///
    /// # Context
    ///
    /// May sleep. Faults pages in.
    pub fn new(mmap: &MmapGuard<'_>, range: PageRange) -> Result<Self> {
        // No warning: a task with `CAP_IPC_LOCK` is not limited, and may request more memory than
        // exists.
        let flags = GFP_KERNEL_ACCOUNT | __GFP_NOWARN;
        // INVARIANT: The list is empty.
        let mut pinned = Self(KVVec::new());
        while pinned.0.len() < range.pages() {
            let done = pinned.0.len();
            let count = (range.pages() - done).min(PIN_BATCH_PAGES);
            // Grow the list with the pinned pages. Most of a large range may not be mapped, and a
            // list for all of it could take all memory.
            pinned.0.reserve(count, flags)?;
            let place = pinned.0.spare_capacity_mut().as_mut_ptr();
            // SAFETY: The mmap lock is held, and the list has capacity for `count` more elements.
            let got = unsafe {
                bindings::rust_hmm_pin(
                    mmap.mm_raw(),
                    range.address(done),
                    count,
                    place.cast::<*mut bindings::page>(),
                )
            };
            let got = usize::try_from(got).map_err(|_| {
                // CAST: `got` is a negative errno.
                match Error::from_errno(got as kernel::ffi::c_int) {
                    error if super::vma::fatal_signal_pending() && error != ENOMEM => EINTR,
                    error => error,
                }
            })?;
            if got == 0 {
                return Err(EFAULT);
            }
            // SAFETY: The helper wrote `got` elements.
            // INVARIANT: The helper pinned each of these pages.
            unsafe { pinned.0.inc_len(got) };
        }
        // The capacity doubles as the list grows. If this fails, the list stays large.
        let _ = pinned.0.shrink_to(0, flags);
        Ok(pinned)
    }

    /// Number of pages.
    ///
    /// # Context
    ///
    /// Any.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the pfn of page `index`.
    pub(crate) fn pfn(&self, index: usize) -> Option<usize> {
        let page = *self.0.get(index)?;
        // SAFETY: The page is pinned, thus allocated, by the type invariant.
        Some(unsafe { bindings::rust_hmm_page_to_pfn(page) })
    }

    /// Returns page `index` for reading and writing.
    ///
    /// # Context
    ///
    /// Any.
    pub fn page(&self, index: usize) -> Option<CpuPagesMut<'_>> {
        let pfn = self.pfn(index)?;
        // SAFETY: The page is system memory and is pinned for writing as long as `self` is
        // borrowed.
        Some(unsafe { CpuPagesMut::new(pfn, 1) })
    }

    /// Whether these are consecutive pages of `other`, beginning with page `first`.
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_part_of(&self, other: &Self, first: usize) -> bool {
        let theirs = other.0.get(first..first.saturating_add(self.0.len()));
        theirs == Some(self.0.as_slice())
    }
}

impl Drop for PinnedPages {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            // SAFETY: The pages are pinned by the type invariant, and this is the last use of the
            // pins.
            unsafe { bindings::rust_hmm_unpin(self.0.as_mut_ptr(), self.0.len()) };
        }
    }
}

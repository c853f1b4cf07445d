// SPDX-License-Identifier: GPL-2.0

//! Exclusive access of a device to a page in system memory, for its atomic operations.
//!
//! C header: [`include/linux/rmap.h`](srctree/include/linux/rmap.h)

use super::vma::MmapGuard;
use crate::{
    bindings,
    inject::{
        fails,
        FailPoint, //
    },
    kernel::{
        identity::{
            EventOwner,
            MigrationId, //
        },
        reentry, //
    }, //
};
use core::{
    marker::PhantomData,
    ptr, //
};
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    mm::MmWithUser,
    prelude::*, //
};

/// Returns whether reclaim can damage the CPU PTEs of exclusive pages, on this architecture.
pub(crate) fn reclaim_damages_exclusive() -> bool {
    // SAFETY: The helper has no preconditions.
    unsafe { bindings::rust_hmm_reclaim_damages_exclusive() }
}

/// Lets reclaim ignore references of the mapping at `addr`, as `MADV_RANDOM` does.
///
/// # Errors
///
/// * `EINTR`: a fatal signal is pending.
///
/// # Context
///
/// May sleep: takes the mmap lock for writing.
pub(crate) fn ignore_references(mm: &MmWithUser, addr: usize) -> Result {
    // SAFETY: `mm` is valid and has a user.
    to_result(unsafe { bindings::rust_hmm_vma_drop_recency(mm.as_raw(), addr) })
}

/// Returns whether reclaim walks the CPU PTEs of the mapping at `addr`.
pub(crate) fn reclaim_walks(mmap: &MmapGuard<'_>, addr: usize) -> bool {
    mmap.vma_lookup(addr).is_some_and(|vma| {
        // SAFETY: The mmap lock is held as long as `vma` is borrowed.
        unsafe { bindings::rust_hmm_vma_has_recency(vma.as_ptr()) }
    })
}

/// A locked page in system memory that only the device may access. The first CPU access after this
/// is dropped notifies the mirrors and ends the exclusive access.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::mm::MmWithUser;
/// use rust_hmm::kernel::identity::MigrationId;
/// use rust_hmm::mm::exclusive::ExclusivePage;
/// use rust_hmm::mm::vma::MmapGuard;
///
/// fn with_exclusive(mm: &MmWithUser, addr: usize, map: impl FnOnce(usize)) -> Result {
///     ExclusivePage::prepare(mm, addr)?;
///     let guard = MmapGuard::lock(mm)?;
///     let page = ExclusivePage::new(&guard, addr, MigrationId::of(&guard))?;
///     // The page cannot become accessible to the CPU before `page` is dropped.
///     map(page.pfn());
///     Ok(())
/// }
/// ```
///
/// # Invariants
///
/// We own a reference to the folio of `pfn`, and its lock.
pub struct ExclusivePage<'a> {
    pfn: usize,
    _borrow: PhantomData<&'a ()>,
}

impl<'a> ExclusivePage<'a> {
    /// Lets the kernel's reclaim ignore references of the mapping at `addr`, where it would damage
    /// the entries of exclusive pages (arm64). The mapping is changed as by `MADV_RANDOM`. See
    /// "Exclusive access and reclaim" in Documentation/kernel-bugs.rst.
    ///
    /// # Errors
    ///
    /// * `EINTR`: a fatal signal is pending.
    /// * `EDEADLK`: called within a callback, or with the mmap lock held.
    ///
    /// # Context
    ///
    /// May sleep: takes the mmap lock, for writing if the mapping has to be changed. No lock may be
    /// held.
    pub fn prepare(mm: &MmWithUser, addr: usize) -> Result {
        reentry::may_wait()?;
        if !reclaim_damages_exclusive() || !reclaim_walks(&MmapGuard::lock_here(mm)?, addr) {
            return Ok(());
        }
        ignore_references(mm, addr)
    }

    /// Makes the page at `addr` exclusive to the device. The notifier event carries `id`.
    ///
    /// # Errors
    ///
    /// * `EFAULT`: there is no writable memory at `addr`.
    /// * `EOPNOTSUPP`: the page is not anonymous, or hugetlb.
    /// * `EBUSY`: the page was changed concurrently, or the mapping since [`Self::prepare`].
    /// * `EINTR`: a fatal signal is pending.
    ///
    /// # Context
    ///
    /// May sleep. Calls MMU notifiers.
    pub fn new(mmap: &'a MmapGuard<'_>, addr: usize, id: MigrationId) -> Result<Self> {
        if fails(FailPoint::Exclusive) {
            return Err(EBUSY);
        }
        if reclaim_damages_exclusive() && reclaim_walks(mmap, addr) {
            return Err(EBUSY);
        }
        let mut folio = ptr::null_mut();
        // SAFETY: The mm has a user, and `mmap` holds its mmap lock.
        let page = from_err_ptr(unsafe {
            bindings::make_device_exclusive(
                mmap.mm_raw(),
                addr,
                EventOwner::from(id).as_ptr(),
                &mut folio,
            )
        })?;
        // SAFETY: `page` was returned by make_device_exclusive() with a reference.
        let pfn = unsafe { bindings::rust_hmm_page_to_pfn(page) };
        // INVARIANT: make_device_exclusive() returns the folio locked, with a reference.
        Ok(Self {
            pfn,
            _borrow: PhantomData,
        })
    }

    /// Returns the page frame number.
    ///
    /// # Context
    ///
    /// Any.
    pub fn pfn(&self) -> usize {
        self.pfn
    }
}

impl Drop for ExclusivePage<'_> {
    fn drop(&mut self) {
        // SAFETY: We own the lock and the reference by the type invariant.
        unsafe { bindings::rust_hmm_folio_unlock_put(self.pfn) };
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Exclusive access of a device to a page in system memory, for its atomic operations.
//!
//! C header: [`include/linux/rmap.h`](srctree/include/linux/rmap.h)

use super::{notifier::Cookie, space::MmapGuard};
use crate::{
    bindings,
    inject::{fails, Point},
};
use core::{marker::PhantomData, ptr};
use kernel::{error::from_err_ptr, prelude::*};

/// A page that only the device may access, locked. A CPU access ends that as soon as this is
/// dropped, and is announced to notifiers before.
///
/// # Invariants
///
/// We own a reference to the folio of `pfn`, and its lock.
pub struct ExclusivePage<'a> {
    pfn: usize,
    _borrow: PhantomData<&'a ()>,
}

impl<'a> ExclusivePage<'a> {
    /// Makes the page at `addr` exclusive; its notifier event carries `cookie`.
    ///
    /// # Errors
    ///
    /// `EFAULT`: not writable memory. `EOPNOTSUPP`: not anonymous, or hugetlb. `EBUSY`: it changed
    /// meanwhile. `EINTR`: killed. Context: may sleep; calls notifiers.
    pub fn new(mmap: &'a MmapGuard<'_>, addr: usize, cookie: Cookie) -> Result<Self> {
        if fails(Point::Exclusive) {
            return Err(EBUSY);
        }
        let mut folio = ptr::null_mut();
        // SAFETY: The address space is in use and its mmap lock is held.
        let page = from_err_ptr(unsafe {
            bindings::make_device_exclusive(mmap.mm_raw(), addr, cookie.as_ptr(), &mut folio)
        })?;
        // SAFETY: The page is valid.
        let pfn = unsafe { bindings::rust_hmm_page_to_pfn(page) };
        // INVARIANT: The folio is returned locked and referenced.
        Ok(Self {
            pfn,
            _borrow: PhantomData,
        })
    }

    /// The page frame number.
    pub fn pfn(&self) -> usize {
        self.pfn
    }
}

impl Drop for ExclusivePage<'_> {
    fn drop(&mut self) {
        // SAFETY: We own both by the type invariant.
        unsafe { bindings::rust_hmm_folio_unlock_put(self.pfn) };
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Private anonymous memory that is created by `mmap()` of a device file and identified by its file
//! offset.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h)

use super::{
    addr::PageRange,
    vma::{
        MmapGuard,
        Vma, //
    }, //
};
use crate::bindings;
use kernel::{
    error::to_result,
    mm::{
        virt::{
            flags,
            VmaNew, //
        },
        MmWithUser, //
    },
    page::PAGE_SHIFT,
    prelude::*, //
};

/// Returns the file offset, in bytes, of a VMA that is being set up.
pub(crate) fn offset(vma: &VmaNew) -> usize {
    // SAFETY: `vma` is valid, and no other task can access it before `mmap()` has inserted it.
    unsafe { bindings::rust_hmm_vma_offset(vma.as_ptr()) << PAGE_SHIFT }
}

/// Turns a private VMA that is being set up into anonymous memory. With `huge`, the VMA prefers
/// huge pages.
///
/// # Errors
///
/// * `EINVAL`: the VMA is shared, or the driver has already set it up for its own pages.
pub(crate) fn set_anonymous(vma: &VmaNew, huge: bool) -> Result {
    if vma.flags() & (flags::MIXEDMAP | flags::PFNMAP | flags::IO) != 0 {
        return Err(EINVAL);
    }
    // SAFETY: `vma` is valid, and no other task can access it before `mmap()` has inserted it.
    if unsafe { bindings::rust_hmm_vma_is_shared(vma.as_ptr()) } {
        return Err(EINVAL);
    }
    // SAFETY: `vma` is valid and not yet visible to other tasks. It is private, as checked above,
    // and has no pages yet.
    unsafe { bindings::rust_hmm_vma_set_anonymous(vma.as_ptr(), huge) };
    Ok(())
}

impl Vma<'_> {
    /// Returns the file offset, in bytes, with which anonymous memory was mapped from a device
    /// file; 0 for any other VMA.
    pub(crate) fn anonymous_offset(&self) -> usize {
        // SAFETY: The VMA is valid, and the mmap lock is held as long as `self` exists.
        let pages = unsafe { bindings::rust_hmm_vma_anonymous_offset(self.as_ptr()) };
        pages << PAGE_SHIFT
    }
}

/// Unmaps those VMAs in `range` of `mm` for which `is`, called with start and offset in bytes,
/// returns true. `mm` must be the mm of the current task, unless the current task is a kernel
/// thread.
///
/// # Errors
///
/// * `EINVAL`: `mm` belongs to another process.
/// * `ENOMEM`: a VMA could not be split.
/// * `EINTR`: a fatal signal is pending.
///
/// # Context
///
/// May sleep. Takes the mmap lock of `mm`.
pub(crate) fn unmap_if(
    mm: &MmWithUser,
    range: PageRange,
    is: impl Fn(usize, usize) -> bool,
) -> Result {
    let mut rest = Some(range);
    while let Some(left) = rest {
        let guard = MmapGuard::lock(mm)?;
        let found = guard.vma_from(left.start()).and_then(|vma| {
            let part = PageRange::new(vma.start(), vma.end()).ok()?;
            Some((part, is(vma.start(), vma.anonymous_offset())))
        });
        drop(guard);
        let Some((part, ours)) = found else {
            break;
        };
        if let Some(part) = part.intersect(&left).filter(|_| ours) {
            // SAFETY: `mm` has a user, because `mm` is a reference to an `MmWithUser`. Only memory
            // of that process is unmapped.
            to_result(unsafe {
                bindings::rust_hmm_munmap(mm.as_raw(), part.start(), part.end() - part.start())
            })?;
        }
        rest = left.from_address(part.end());
    }
    Ok(())
}

// SPDX-License-Identifier: GPL-2.0

//! Anonymous memory that comes from a device file, and is known by it.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h)

use super::{
    addr::PageRange,
    space::{MmapGuard, Vma},
};
use crate::bindings;
use kernel::{
    error::to_result,
    mm::{
        virt::{flags, VmaNew},
        MmWithUser, //
    },
    page::PAGE_SHIFT,
    prelude::*, //
};

/// The offset of a mapping that is being set up, in bytes.
pub(crate) fn offset(vma: &VmaNew) -> usize {
    // SAFETY: The mapping is valid, and nobody else has it yet.
    unsafe { bindings::rust_hmm_vma_offset(vma.as_ptr()) << PAGE_SHIFT }
}

/// Makes a private mapping that is being set up anonymous memory; with `huge` of huge pages, if there are.
///
/// # Errors
///
/// `EINVAL` if it is shared, or was made one of a driver's pages.
pub(crate) fn set_anonymous(vma: &VmaNew, huge: bool) -> Result {
    if vma.flags() & (flags::MIXEDMAP | flags::PFNMAP | flags::IO) != 0 {
        return Err(EINVAL);
    }
    // SAFETY: As above.
    if unsafe { bindings::rust_hmm_vma_is_shared(vma.as_ptr()) } {
        return Err(EINVAL);
    }
    // SAFETY: As above; it is private, and has no pages yet.
    unsafe { bindings::rust_hmm_vma_set_anonymous(vma.as_ptr(), huge) };
    Ok(())
}

impl Vma<'_> {
    /// The offset in bytes with which anonymous memory was mapped from a file; 0 for any other.
    pub(crate) fn anonymous_offset(&self) -> usize {
        // SAFETY: Valid, with the mmap lock held.
        let pages = unsafe { bindings::rust_hmm_vma_anonymous_offset(self.as_ptr()) };
        pages << PAGE_SHIFT
    }
}

/// Maps `bytes` of `file` at `offset` into the current process. Returns the address.
///
/// # Safety
///
/// `file` must be an open file.
///
/// # Errors
///
/// Those of `mmap`. Context: may sleep; takes the mmap lock.
pub(crate) unsafe fn map_file(
    file: *mut bindings::file,
    bytes: usize,
    offset: usize,
) -> Result<usize> {
    // SAFETY: By the function's requirements.
    let addr = unsafe { bindings::rust_hmm_mmap(file, bytes, offset) };
    usize::try_from(addr).map_err(|_| {
        // CAST: A negative errno.
        Error::from_errno(addr as kernel::ffi::c_int)
    })
}

/// Unmaps the mappings in `range` of `mm` of which `is` says so, by their start and offset in bytes. `mm` is
/// that of the current task, unless that is a kernel thread.
///
/// # Errors
///
/// `EINVAL`: of another process; `ENOMEM`; `EINTR`. Context: may sleep; takes the mmap lock.
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
            // SAFETY: The address space is in use. What is unmapped is the process's own memory.
            to_result(unsafe {
                bindings::rust_hmm_munmap(mm.as_raw(), part.start(), part.end() - part.start())
            })?;
        }
        rest = left.from_address(part.end());
    }
    Ok(())
}

// SPDX-License-Identifier: GPL-2.0

//! Contents of pages that the CPU can read, and of those that it can also write.

use crate::bindings;
use core::marker::PhantomData;
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

/// Physically contiguous pages that the CPU can read.
///
/// # Invariants
///
/// `first..first + count` are page frames of CPU-addressable memory, alive for `'a`.
#[derive(Clone, Copy)]
pub struct CpuPages<'a> {
    pub(super) first: usize,
    pub(super) count: usize,
    _borrow: PhantomData<&'a ()>,
}

impl<'a> CpuPages<'a> {
    /// # Safety
    ///
    /// The page frames must be CPU-addressable and stay alive for all of `'a`.
    pub(crate) unsafe fn new(first: usize, count: usize) -> Self {
        // INVARIANT: By the function's requirements.
        Self {
            first,
            count,
            _borrow: PhantomData,
        }
    }

    /// Returns the number of pages.
    ///
    /// # Context
    ///
    /// Any.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the frame number of the first page.
    #[cfg(CONFIG_RUST_HMM_CAPI)]
    pub(crate) fn first_pfn(&self) -> usize {
        self.first
    }

    /// Returns the size of the pages in bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.count.saturating_mul(PAGE_SIZE)
    }

    /// Returns the first page frame, if `len` bytes from `offset` on are at its start, as in most
    /// copies.
    #[inline]
    pub(in crate::mm) fn frame_with(&self, offset: usize, len: usize) -> Option<usize> {
        (offset == 0 && len <= PAGE_SIZE && self.count != 0).then_some(self.first)
    }

    /// Splits `len` bytes from `offset` on at page boundaries. Calls `f` for each part with the
    /// page frame, the offset in that page, and the indices of the part in the `len` bytes.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the bytes extend beyond the pages.
    pub(in crate::mm) fn for_each_part(
        &self,
        offset: usize,
        len: usize,
        mut f: impl FnMut(usize, usize, core::ops::Range<usize>),
    ) -> Result {
        if offset.checked_add(len).ok_or(EINVAL)? > self.bytes() {
            return Err(EINVAL);
        }
        let mut done = 0;
        while done < len {
            // OVERFLOW: below `bytes()`.
            let at = offset + done;
            let part = (len - done).min(PAGE_SIZE - at % PAGE_SIZE);
            f(
                self.first + at / PAGE_SIZE,
                at % PAGE_SIZE,
                done..done + part,
            );
            done += part;
        }
        Ok(())
    }

    /// Copies `dst.len()` bytes from `offset` on to `dst`.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the bytes extend beyond the pages.
    ///
    /// # Context
    ///
    /// Any but NMI. Does not sleep.
    pub fn read(&self, offset: usize, dst: &mut [u8]) -> Result {
        let len = dst.len();
        self.for_each_part(offset, len, |pfn, at, part| {
            if let Some(dst) = dst.get_mut(part) {
                // SAFETY: The frame is alive and addressable by the type invariant, and the part
                // lies in one page and in `dst`.
                unsafe {
                    bindings::rust_hmm_read_page(dst.as_mut_ptr().cast(), pfn, at, dst.len())
                };
            }
        })
    }
}

/// [`CpuPages`] that the CPU may also write.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::mm::folio::CpuPages;
/// use rust_hmm::mm::folio::CpuPagesMut;
///
/// /// Fills a destination from its source, or with zeros if that is a hole.
/// fn copy(source: Option<&CpuPages<'_>>, destination: &CpuPagesMut<'_>) -> Result {
///     match source {
///         Some(pages) => destination.copy_from(pages),
///         None => {
///             destination.clear();
///             Ok(())
///         }
///     }
/// }
/// ```
#[derive(Clone, Copy)]
pub struct CpuPagesMut<'a>(CpuPages<'a>);

impl<'a> CpuPagesMut<'a> {
    /// # Safety
    ///
    /// As [`CpuPages::new`], and writing to the pages must be allowed.
    pub(crate) unsafe fn new(first: usize, count: usize) -> Self {
        // SAFETY: By the function's requirements.
        Self(unsafe { CpuPages::new(first, count) })
    }

    /// Copies `src` to `offset`.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the bytes extend beyond the pages.
    ///
    /// # Context
    ///
    /// Any but NMI. Does not sleep.
    pub fn write(&self, offset: usize, src: &[u8]) -> Result {
        self.0.for_each_part(offset, src.len(), |pfn, at, part| {
            if let Some(src) = src.get(part) {
                // SAFETY: The frame is alive, addressable and writable by the type invariant, and
                // the part lies in one page and in `src`.
                unsafe { bindings::rust_hmm_write_page(pfn, at, src.as_ptr().cast(), src.len()) };
            }
        })
    }

    /// Copies all pages of `src`.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the numbers of pages differ.
    ///
    /// # Context
    ///
    /// Any but NMI. Does not sleep.
    pub fn copy_from(&self, src: &CpuPages<'_>) -> Result {
        if src.count != self.0.count {
            return Err(EINVAL);
        }
        // SAFETY: The frames of both are alive and addressable by their invariants, and their
        // numbers are equal.
        unsafe { bindings::rust_hmm_copy_pages(self.0.first, src.first, src.count) };
        Ok(())
    }

    /// Adds `value` to the 64-bit word at `offset`, wrapping around, and returns the old value. The
    /// operation is atomic with regard to CPU accesses, too.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: `offset` is not a multiple of 8, or beyond the pages.
    ///
    /// # Context
    ///
    /// Any but NMI. Does not sleep.
    pub fn fetch_add_u64(&self, offset: usize, value: u64) -> Result<u64> {
        if offset % size_of::<u64>() != 0 || offset >= self.0.bytes() {
            return Err(EINVAL);
        }
        let pfn = self.0.first + offset / PAGE_SIZE;
        // SAFETY: The frame is alive, addressable and writable by the type invariant, and an
        // aligned word lies in one page.
        Ok(unsafe { bindings::rust_hmm_fetch_add_page(pfn, offset % PAGE_SIZE, value) })
    }

    /// Fills the pages with zeros.
    ///
    /// # Context
    ///
    /// Any but NMI. Does not sleep.
    pub fn clear(&self) {
        // SAFETY: The frames are alive, addressable and writable by the type invariant.
        unsafe { bindings::rust_hmm_clear_pages(self.0.first, self.0.count) };
    }
}

impl<'a> core::ops::Deref for CpuPagesMut<'a> {
    type Target = CpuPages<'a>;

    fn deref(&self) -> &CpuPages<'a> {
        &self.0
    }
}

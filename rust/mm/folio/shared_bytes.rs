// SPDX-License-Identifier: GPL-2.0

//! A buffer that several tasks access concurrently: the memory of a software device.

use super::{
    CpuPages,
    CpuPagesMut, //
};
use crate::bindings;
use kernel::prelude::*;

/// A buffer of kernel memory that supports concurrent accesses: the memory of a software device.
/// It is zeroed on allocation.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::page::PAGE_SIZE;
/// use rust_hmm::mm::folio::SharedBytes;
///
/// let vram = SharedBytes::new(4 * PAGE_SIZE)?;
/// vram.write(PAGE_SIZE, &[1, 2, 3])?;
/// vram.fetch_add_u64(0, 5)?;
/// let mut read = [0; 3];
/// vram.read(PAGE_SIZE, &mut read)?;
/// assert_eq!(read, [1, 2, 3]);
/// assert_eq!(vram.fetch_add_u64(0, 1)?, 5);
/// # Ok::<(), Error>(())
/// ```
///
/// # Invariants
///
/// `data` owns `len` initialized bytes, which are only touched through raw pointers.
pub struct SharedBytes {
    data: KVVec<u8>,
    len: usize,
}

// SAFETY: The memory is accessed only by C copy routines, whose data races are outside of Rust's
// memory model, like those of a device.
unsafe impl Sync for SharedBytes {}

impl SharedBytes {
    /// Allocates `len` bytes.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new(len: usize) -> Result<Self> {
        let mut data = KVVec::<u8>::with_capacity(len, GFP_KERNEL | __GFP_ZERO)?;
        data.spare_capacity_mut().get(..len).ok_or(ENOMEM)?;
        // INVARIANT: There is room for `len` zeroed bytes.
        Ok(Self { data, len })
    }

    /// Returns the number of bytes.
    ///
    /// # Context
    ///
    /// Any.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the buffer has no bytes.
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(in crate::mm) fn pointer(&self, offset: usize, len: usize) -> Result<*mut u8> {
        if offset.checked_add(len).ok_or(EINVAL)? > self.len {
            return Err(EINVAL);
        }
        Ok(self.data.as_ptr().cast_mut().wrapping_add(offset))
    }

    /// Copies `dst.len()` bytes from `offset` on to `dst`.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the bytes extend beyond the buffer.
    ///
    /// # Context
    ///
    /// Any but NMI. Does not sleep.
    pub fn read(&self, offset: usize, dst: &mut [u8]) -> Result {
        let src = self.pointer(offset, dst.len())?;
        // SAFETY: `pointer` has checked that the bytes lie within the buffer.
        unsafe { bindings::rust_hmm_copy_bytes(dst.as_mut_ptr().cast(), src.cast(), dst.len()) };
        Ok(())
    }

    /// Copies `src` to `offset`.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the bytes extend beyond the buffer.
    ///
    /// # Context
    ///
    /// Any but NMI. Does not sleep.
    pub fn write(&self, offset: usize, src: &[u8]) -> Result {
        let dst = self.pointer(offset, src.len())?;
        // SAFETY: `pointer` has checked that the bytes lie within the buffer.
        unsafe { bindings::rust_hmm_copy_bytes(dst.cast(), src.as_ptr().cast(), src.len()) };
        Ok(())
    }

    /// Atomically adds `value` to the 64-bit word at `offset`, wrapping around, and returns the old
    /// value.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: `offset` is not a multiple of 8, or beyond the buffer.
    ///
    /// # Context
    ///
    /// Any but NMI. Does not sleep.
    pub fn fetch_add_u64(&self, offset: usize, value: u64) -> Result<u64> {
        let at = self.pointer(offset, size_of::<u64>())?;
        if !at.cast::<u64>().is_aligned() {
            return Err(EINVAL);
        }
        // SAFETY: `pointer` has checked that the bytes lie within the buffer.
        Ok(unsafe { bindings::rust_hmm_fetch_add_bytes(at.cast(), value) })
    }

    /// Copies all of `pages` to `offset`.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the bytes extend beyond the buffer.
    ///
    /// # Context
    ///
    /// Any but NMI. Does not sleep.
    #[inline]
    pub fn load(&self, offset: usize, pages: &CpuPages<'_>) -> Result {
        let dst = self.pointer(offset, pages.bytes())?;
        // SAFETY: `pointer` has checked the length, and the frames are alive by the invariant of
        // `pages`.
        unsafe { bindings::rust_hmm_read_pages(dst.cast(), pages.first, pages.count) };
        Ok(())
    }

    /// Copies the bytes from `offset` on to `pages`, until all pages are filled.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the bytes extend beyond the buffer.
    ///
    /// # Context
    ///
    /// Any but NMI. Does not sleep.
    #[inline]
    pub fn store(&self, offset: usize, pages: &CpuPagesMut<'_>) -> Result {
        let src = self.pointer(offset, pages.bytes())?;
        // SAFETY: `pointer` has checked the length, and the frames are alive and writable by the
        // invariant of `pages`.
        unsafe { bindings::rust_hmm_write_pages(pages.first, src.cast(), pages.count) };
        Ok(())
    }

    /// Copies `len` bytes at `from` of `other` to `offset`.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the bytes extend beyond either buffer, or `other` is this buffer.
    ///
    /// # Context
    ///
    /// Any but NMI. Does not sleep.
    pub fn copy_from(&self, offset: usize, other: &Self, from: usize, len: usize) -> Result {
        if core::ptr::eq(self, other) {
            return Err(EINVAL);
        }
        let dst = self.pointer(offset, len)?;
        let src = other.pointer(from, len)?;
        // SAFETY: `pointer` has checked both lengths, and the buffers are different.
        unsafe { bindings::rust_hmm_copy_bytes(dst.cast(), src.cast(), len) };
        Ok(())
    }

    /// Fills `len` bytes at `offset` with zeros.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the bytes extend beyond the buffer.
    ///
    /// # Context
    ///
    /// Any but NMI. Does not sleep.
    pub fn clear(&self, offset: usize, len: usize) -> Result {
        let dst = self.pointer(offset, len)?;
        // SAFETY: `pointer` has checked that the bytes lie within the buffer.
        unsafe { bindings::rust_hmm_clear_bytes(dst.cast(), len) };
        Ok(())
    }
}

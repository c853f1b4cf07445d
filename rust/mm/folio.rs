// SPDX-License-Identifier: GPL-2.0

//! Contents of pages, and folios that are locked for migration.
//!
//! A device, a user thread and a copy may access a page concurrently. All accesses are made by C
//! helpers and thus outside of Rust's memory model, as for user memory.
//!
//! C headers: [`include/linux/highmem.h`](srctree/include/linux/highmem.h),
//! [`include/linux/page-flags.h`](srctree/include/linux/page-flags.h)

use super::{
    addr::PMD_ORDER,
    vma::Vma, //
};
use crate::{
    bindings,
    inject::{
        fails,
        FailPoint, //
    }, //
};
use core::{
    marker::PhantomData,
    mem::ManuallyDrop, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

mod dirty;

pub(crate) use dirty::DirtyBatch;

/// Returns whether page frame `pfn` is the zero page.
///
/// # Context
///
/// Any.
pub fn is_zero_pfn(pfn: usize) -> bool {
    // SAFETY: Compares numbers only.
    unsafe { bindings::rust_hmm_pfn_is_zero(pfn) }
}

/// Physically contiguous pages that the CPU can read.
///
/// # Invariants
///
/// `first..first + count` are page frames of CPU-addressable memory, alive for `'a`.
#[derive(Clone, Copy)]
pub struct CpuPages<'a> {
    first: usize,
    count: usize,
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
    pub(super) fn frame_with(&self, offset: usize, len: usize) -> Option<usize> {
        (offset == 0 && len <= PAGE_SIZE && self.count != 0).then_some(self.first)
    }

    /// Splits `len` bytes from `offset` on at page boundaries. Calls `f` for each part with the
    /// page frame, the offset in that page, and the indices of the part in the `len` bytes.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the bytes extend beyond the pages.
    pub(super) fn for_each_part(
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

/// A new locked folio, the destination of a migration. Dropping it frees the folio.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::mm::folio::Effort;
/// use rust_hmm::mm::folio::LockedFolio;
/// use rust_hmm::mm::vma::Vma;
///
/// /// Allocates the destination of a page in `vma`, by its memory policy.
/// fn destination(vma: Vma<'_>, addr: usize) -> Result<LockedFolio> {
///     LockedFolio::alloc_system(Some(vma), addr, 0, Effort::Must)
/// }
/// ```
///
/// # Invariants
///
/// `pfn` is the first frame of a folio of `order` of which we own one reference and the lock.
pub struct LockedFolio {
    pfn: usize,
    order: u32,
}

/// Effort of an allocation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Reclaim memory and retry: the caller cannot continue without the folio.
    Must,
    /// Do not retry after light reclaim (`__GFP_NORETRY`). The caller can continue without the
    /// folio.
    Try,
}

impl LockedFolio {
    /// Allocates a folio of system memory for `addr`, according to the memory policy of `vma`, if
    /// any.
    ///
    /// The folio is marked dirty: data migrated from a device may be newer than data that reclaim
    /// may discard (`MADV_FREE`).
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    /// - `EINVAL`: the order is larger than [`PMD_ORDER`].
    ///
    /// # Context
    ///
    /// May sleep and enter reclaim. No lock that a notifier takes may be held.
    pub fn alloc_system(
        vma: Option<Vma<'_>>,
        addr: usize,
        order: u32,
        effort: Effort,
    ) -> Result<Self> {
        if order > PMD_ORDER {
            return Err(EINVAL);
        }
        let vma = vma.map_or(core::ptr::null_mut(), |vma| vma.as_ptr());
        let must = effort == Effort::Must;
        if fails(FailPoint::SystemFolio) {
            return Err(ENOMEM);
        }
        // SAFETY: `vma` is null, or valid because its mmap lock is held.
        let pfn = unsafe { bindings::rust_hmm_folio_alloc_locked(vma, addr, order, must) };
        if pfn == 0 {
            return Err(ENOMEM);
        }
        // INVARIANT: The helper returns a new locked folio.
        Ok(Self { pfn, order })
    }

    /// # Safety
    ///
    /// `pfn` must begin a folio of `order` of which the caller owns a reference and the lock.
    pub(super) unsafe fn from_raw(pfn: usize, order: u32) -> Self {
        // INVARIANT: By the function's requirements.
        Self { pfn, order }
    }

    /// Returns the frame number of the first page, for tests.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(crate) fn pfn(&self) -> usize {
        self.pfn
    }

    /// Returns the order of the folio.
    ///
    /// # Context
    ///
    /// Any.
    pub fn order(&self) -> u32 {
        self.order
    }

    /// Returns the frame number and the order, and transfers the reference and the lock to the
    /// caller.
    pub(super) fn into_raw(self) -> (usize, u32) {
        let this = ManuallyDrop::new(self);
        (this.pfn, this.order)
    }
}

impl Drop for LockedFolio {
    fn drop(&mut self) {
        // SAFETY: We own the lock and a reference by the type invariant.
        unsafe { bindings::rust_hmm_folio_unlock_put(self.pfn) };
    }
}

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

    pub(super) fn pointer(&self, offset: usize, len: usize) -> Result<*mut u8> {
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

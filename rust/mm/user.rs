// SPDX-License-Identifier: GPL-2.0

//! Copies to and from memory of the current process where a page fault cannot be handled, because
//! a lock is held that the fault may need.
//!
//! A copy stops at the first page that is not present. The caller then releases the lock, faults
//! the page in with [`UserSpan::fault_in`], and continues the copy.
//!
//! C headers: [`include/linux/uaccess.h`](srctree/include/linux/uaccess.h),
//! [`include/linux/pagemap.h`](srctree/include/linux/pagemap.h)

use super::folio::{
    CpuPages,
    CpuPagesMut,
    SharedBytes, //
};
use crate::bindings;
use kernel::prelude::*;

/// Returns whether the current task has `CAP_SYS_ADMIN`, which is required to inspect other
/// processes.
///
/// # Context
///
/// May sleep.
pub fn is_privileged() -> bool {
    // SAFETY: No preconditions. CAST: A small constant.
    unsafe { bindings::capable(bindings::CAP_SYS_ADMIN as kernel::ffi::c_int) }
}

/// A range of user addresses of the current process. It need not be mapped: a copy returns the
/// number of bytes copied.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::mm::folio::SharedBytes;
/// use rust_hmm::mm::user::UserSpan;
///
/// /// Copies to the current process, and faults in the pages that are missing.
/// fn copy_to_user(from: &SharedBytes, to: UserSpan) -> Result {
///     let mut done = 0;
///     while done < to.len() {
///         let rest = to.part(done, to.len() - done)?;
///         match from.read_to_user(done, rest)? {
///             0 => rest.fault_in(true)?,
///             copied => done += copied,
///         }
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserSpan {
    addr: usize,
    len: usize,
}

impl UserSpan {
    /// Creates a span of `len` bytes from `addr` on.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn new(addr: usize, len: usize) -> Self {
        Self { addr, len }
    }

    /// Returns the number of bytes.
    ///
    /// # Context
    ///
    /// Any.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the span is empty.
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns `len` bytes of the span from byte `at` on.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the bytes extend beyond the span.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn part(&self, at: usize, len: usize) -> Result<Self> {
        if at.checked_add(len).ok_or(EINVAL)? > self.len {
            return Err(EINVAL);
        }
        // The copy refuses an address that wraps around.
        Ok(Self::new(self.addr.wrapping_add(at), len))
    }

    /// Faults the span in for reading or for writing, without changing its contents.
    ///
    /// # Errors
    ///
    /// - `EFAULT`: not even the first byte is accessible.
    ///
    /// # Context
    ///
    /// May sleep; takes the mmap lock. The caller must not hold any lock.
    pub fn fault_in(&self, write: bool) -> Result {
        // SAFETY: The C side checks the addresses.
        let left = unsafe { bindings::rust_hmm_fault_in_user(self.addr, self.len, write) };
        if left >= self.len {
            return Err(EFAULT);
        }
        Ok(())
    }
}

impl CpuPages<'_> {
    /// Copies the bytes from `offset` on to `to`, up to the first user page that is not present.
    /// Returns the number of bytes copied.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the bytes extend beyond the pages.
    ///
    /// # Context
    ///
    /// Task context of the process; may be atomic.
    pub fn read_to_user(&self, offset: usize, to: UserSpan) -> Result<usize> {
        let Some(pfn) = self.frame_with(offset, to.len) else {
            return self.read_parts_to_user(offset, to);
        };
        // SAFETY: The frame is alive and addressable by the type invariant; user memory is checked
        // by the C side.
        let left = unsafe { bindings::rust_hmm_page_to_user(to.addr, pfn, 0, to.len) };
        Ok(to.len - left)
    }

    #[inline(never)]
    fn read_parts_to_user(&self, offset: usize, to: UserSpan) -> Result<usize> {
        let mut done = 0;
        self.for_each_part(offset, to.len, |pfn, at, part| {
            if done == part.start {
                let user = to.addr.wrapping_add(done);
                // SAFETY: The frame is alive and addressable by the type invariant, and the part
                // lies in one page; user memory is checked by the C side.
                let left = unsafe { bindings::rust_hmm_page_to_user(user, pfn, at, part.len()) };
                done += part.len() - left;
            }
        })?;
        Ok(done)
    }
}

impl CpuPagesMut<'_> {
    /// Copies `from` to byte `offset`, up to the first user page that is not present. Returns the
    /// number of bytes copied.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the bytes extend beyond the pages.
    ///
    /// # Context
    ///
    /// Task context of the process; may be atomic.
    pub fn write_from_user(&self, offset: usize, from: UserSpan) -> Result<usize> {
        if let Some(pfn) = self.frame_with(offset, from.len) {
            // SAFETY: The frame is alive, addressable and writable by the type invariant; user
            // memory is checked by the C side.
            let left = unsafe { bindings::rust_hmm_page_from_user(pfn, 0, from.addr, from.len) };
            return Ok(from.len - left);
        }
        let mut done = 0;
        self.for_each_part(offset, from.len, |pfn, at, part| {
            if done == part.start {
                let user = from.addr.wrapping_add(done);
                // SAFETY: The frame is alive, addressable and writable by the type invariant, and
                // the part lies in one page; user memory is checked by the C side.
                let left = unsafe { bindings::rust_hmm_page_from_user(pfn, at, user, part.len()) };
                done += part.len() - left;
            }
        })?;
        Ok(done)
    }
}

impl SharedBytes {
    /// Copies the bytes from `offset` on to `to`, up to the first user page that is not present.
    /// Returns the number of bytes copied.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the bytes extend beyond the buffer.
    ///
    /// # Context
    ///
    /// Task context of the process; may be atomic.
    pub fn read_to_user(&self, offset: usize, to: UserSpan) -> Result<usize> {
        let src = self.pointer(offset, to.len)?;
        // SAFETY: `pointer` has checked the length; user memory is checked by the C side.
        let left = unsafe { bindings::rust_hmm_bytes_to_user(to.addr, src.cast(), to.len) };
        Ok(to.len - left)
    }

    /// Copies `from` to byte `offset`, up to the first user page that is not present. Returns the
    /// number of bytes copied.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the bytes extend beyond the buffer.
    ///
    /// # Context
    ///
    /// Task context of the process; may be atomic.
    pub fn write_from_user(&self, offset: usize, from: UserSpan) -> Result<usize> {
        let dst = self.pointer(offset, from.len)?;
        // SAFETY: `pointer` has checked the length; user memory is checked by the C side.
        let left = unsafe { bindings::rust_hmm_bytes_from_user(dst.cast(), from.addr, from.len) };
        Ok(from.len - left)
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_user)]
mod tests {
    use super::*;
    use kernel::page::PAGE_SIZE;

    #[test]
    fn parts_stay_within_bounds() -> Result {
        let span = UserSpan::new(0x1000, 0x300);
        assert_eq!(span.part(0x100, 0x200)?, UserSpan::new(0x1100, 0x200));
        assert_eq!(span.part(0x100, 0x201), Err(EINVAL));
        assert_eq!(span.part(1, usize::MAX), Err(EINVAL));
        Ok(())
    }

    #[test]
    fn copies_stop_at_the_end_of_memory() -> Result {
        const BYTES: usize = 3 * PAGE_SIZE;
        // SAFETY: Makes an address space for the test, if need be.
        let addr = unsafe { bindings::rust_hmm_kunit_mmap(BYTES) };
        assert_ne!(addr, 0);
        let user = UserSpan::new(addr, BYTES);
        let block = SharedBytes::new(BYTES)?;
        let back = SharedBytes::new(BYTES)?;
        for at in 0..BYTES / 16 {
            block.write(at * 16, &(at as u64).to_ne_bytes())?;
        }
        // No page is present yet, and the copy faults none in.
        assert_eq!(block.read_to_user(0, user)?, 0);
        user.part(0, PAGE_SIZE)?.fault_in(true)?;
        assert_eq!(block.read_to_user(0, user)?, PAGE_SIZE);
        // Not aligned, and no whole words.
        assert_eq!(block.read_to_user(3, user.part(5, 0x801)?)?, 0x801);
        assert_eq!(back.write_from_user(0, user.part(5, 0x801)?)?, 0x801);
        let mut from = [0u8; 32];
        let mut to = [0u8; 32];
        for at in (0..0x7e0).step_by(32) {
            block.read(3 + at, &mut from)?;
            back.read(at, &mut to)?;
            assert!(from == to);
        }
        back.read(0x7f1, to.get_mut(..16).ok_or(EINVAL)?)?;
        block.read(0x7f4, from.get_mut(..16).ok_or(EINVAL)?)?;
        assert!(from.get(..16) == to.get(..16));
        // Beyond all user memory.
        let kernel = UserSpan::new(usize::MAX - 0xfff, 0x800);
        assert_eq!(block.read_to_user(0, kernel)?, 0);
        assert_eq!(back.write_from_user(0, kernel)?, 0);
        assert_eq!(kernel.fault_in(true), Err(EFAULT));
        // Beyond the block.
        assert_eq!(block.read_to_user(1, user), Err(EINVAL));
        assert_eq!(back.write_from_user(1, user), Err(EINVAL));
        // SAFETY: Made above.
        unsafe { bindings::rust_hmm_kunit_munmap(addr, BYTES) };
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Copies extensible ioctl arguments, which begin with their size, from and to user space.

use kernel::{prelude::*, uaccess::UserSlice};
use rust_hmm::mm::addr::PageRange;

/// An ioctl argument of at most `N` bytes that begins with its size.
pub(crate) struct Structure<const N: usize> {
    bytes: [u8; N],
    /// Number of valid bytes: the size given by user space, at most `N`.
    room: usize,
    user: usize,
}

impl<const N: usize> Structure<N> {
    /// Copies the argument from user space. `least` is its size in version 1.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: shorter than `least`.
    /// - `E2BIG`: longer than `N` bytes, and the rest is not zero or longer than a page.
    /// - `EFAULT`
    pub(crate) fn read(user: usize, least: usize) -> Result<Self> {
        let slice = |at: usize, len| UserSlice::new(UserPtr::from_addr(user.wrapping_add(at)), len);
        let size: u32 = slice(0, size_of::<u32>()).reader().read()?;
        let size = usize::try_from(size)?;
        if size < least {
            return Err(EINVAL);
        }
        let room = size.min(N);
        let mut bytes = [0; N];
        slice(0, room)
            .reader()
            .read_slice(bytes.get_mut(..room).ok_or(EINVAL)?)?;
        let mut rest = room;
        while rest < size {
            if rest - room > kernel::page::PAGE_SIZE {
                return Err(E2BIG);
            }
            let byte: u8 = slice(rest, 1).reader().read()?;
            if byte != 0 {
                return Err(E2BIG);
            }
            rest += 1;
        }
        Ok(Self { bytes, room, user })
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        let mut word = [0; 4];
        if let Some(bytes) = self.bytes.get(at..at + 4) {
            word.copy_from_slice(bytes);
        }
        u32::from_ne_bytes(word)
    }

    pub(crate) fn u64(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        if let Some(bytes) = self.bytes.get(at..at + 8) {
            word.copy_from_slice(bytes);
        }
        u64::from_ne_bytes(word)
    }

    pub(crate) fn put_u32(&mut self, at: usize, value: u32) {
        if let Some(bytes) = self.bytes.get_mut(at..at + 4) {
            bytes.copy_from_slice(&value.to_ne_bytes());
        }
    }

    pub(crate) fn put_u64(&mut self, at: usize, value: u64) {
        if let Some(bytes) = self.bytes.get_mut(at..at + 8) {
            bytes.copy_from_slice(&value.to_ne_bytes());
        }
    }

    pub(crate) fn put_all(&mut self, at: usize, values: impl IntoIterator<Item = u64>) {
        for (index, value) in values.into_iter().enumerate() {
            self.put_u64(at + index * size_of::<u64>(), value);
        }
    }

    /// Copies the valid bytes back to user space, with their number in the first word.
    pub(crate) fn write(&mut self) -> Result {
        self.put_u32(0, u32::try_from(self.room)?);
        UserSlice::new(UserPtr::from_addr(self.user), self.room)
            .writer()
            .write_slice(self.bytes.get(..self.room).ok_or(EINVAL)?)
    }

    /// Returns the range whose address and number of pages are at offset `at`.
    pub(crate) fn range(&self, at: usize) -> Result<PageRange> {
        let start = usize::try_from(self.u64(at))?;
        PageRange::from_pages(start, usize::try_from(self.u64(at + 8))?)
    }
}

/// Returns `EINVAL` if `flags` is not 0.
pub(crate) fn no_flags(flags: u32) -> Result {
    if flags != 0 {
        return Err(EINVAL);
    }
    Ok(())
}

/// Converts the library's `EFAULT` for a process that has exited to the `EINVAL` of `test_hmm`.
pub(crate) fn gone_is_invalid(error: Error) -> Error {
    if error == EFAULT {
        EINVAL
    } else {
        error
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Copies extensible ioctl arguments, which begin with their size, from and to user space.

use core::ops::{
    Deref,
    DerefMut, //
};
use kernel::{
    prelude::*,
    uaccess::UserSlice, //
};
use rust_hmm::mm::addr::PageRange;

/// Defines structures of the user interface, and asserts their sizes. The derived traits require
/// that each bit pattern is valid, and that there is no padding.
macro_rules! arguments {
    ($($(#[$meta:meta])* $name:ident: $size:literal { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(
            kernel::prelude::FromBytes,
            kernel::prelude::IntoBytes,
        )]
        #[repr(C)]
        pub(crate) struct $name {
            $(pub(crate) $field: $type,)*
        }

        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

/// An ioctl argument that begins with its size.
pub(crate) struct Structure<T> {
    fields: T,
    /// Number of valid bytes: the size given by user space, at most that of `T`.
    valid: usize,
    user: usize,
}

impl<T: FromBytes + IntoBytes> Structure<T> {
    /// Copies the argument from user space. `least` is its size in version 1.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: shorter than `least`.
    /// - `E2BIG`: longer than `T`, and the rest is not zero or longer than a page.
    /// - `EFAULT`
    pub(crate) fn read(user: usize, least: usize) -> Result<Self> {
        let mut fields = zeroed::<T>();
        let valid = read_bytes(fields.as_mut_bytes(), user, least)?;
        Ok(Self {
            fields,
            valid,
            user,
        })
    }

    /// Copies the valid bytes back to user space, with their number in the first word.
    pub(crate) fn write(&mut self) -> Result {
        write_bytes(self.fields.as_mut_bytes(), self.user, self.valid)
    }
}

impl<T> Deref for Structure<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.fields
    }
}

impl<T> DerefMut for Structure<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.fields
    }
}

/// Returns a structure whose fields are 0.
pub(crate) fn zeroed<T: FromBytes>() -> T {
    T::new_zeroed()
}

fn slice(user: usize, at: usize, len: usize) -> UserSlice {
    UserSlice::new(UserPtr::from_addr(user.wrapping_add(at)), len)
}

fn read_bytes(bytes: &mut [u8], user: usize, least: usize) -> Result<usize> {
    let size: u32 = slice(user, 0, size_of::<u32>()).reader().read()?;
    let size = usize::try_from(size)?;
    if size < least {
        return Err(EINVAL);
    }
    let valid = size.min(bytes.len());
    slice(user, 0, valid)
        .reader()
        .read_slice(bytes.get_mut(..valid).ok_or(EINVAL)?)?;
    let mut rest = valid;
    while rest < size {
        if rest - valid > kernel::page::PAGE_SIZE {
            return Err(E2BIG);
        }
        let byte: u8 = slice(user, rest, 1).reader().read()?;
        if byte != 0 {
            return Err(E2BIG);
        }
        rest += 1;
    }
    Ok(valid)
}

fn write_bytes(bytes: &mut [u8], user: usize, valid: usize) -> Result {
    let size = u32::try_from(valid)?.to_ne_bytes();
    bytes
        .get_mut(..size.len())
        .ok_or(EINVAL)?
        .copy_from_slice(&size);
    slice(user, 0, valid)
        .writer()
        .write_slice(bytes.get(..valid).ok_or(EINVAL)?)
}

/// Returns the range of `npages` pages at `addr`. `EINVAL`.
pub(crate) fn range(addr: u64, npages: u64) -> Result<PageRange> {
    PageRange::from_pages(usize::try_from(addr)?, usize::try_from(npages)?)
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

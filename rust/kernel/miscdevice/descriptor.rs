// SPDX-License-Identifier: GPL-2.0

//! Use of an open file by its descriptor, such as one that a process has passed to an ioctl of
//! another device.

use super::{
    FileOps,
    OpenFile, //
};
use crate::bindings;
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    types::ForeignOwnable, //
};

/// A reference to an open file of a node of this type.
///
/// # Invariants
///
/// `file` has the operations of this type, so that `open` has set its `private_data`. We own a
/// reference.
struct OpenFileRef<F: OpenFile> {
    file: NonNull<bindings::file>,
    _file: PhantomData<F>,
}

impl<F: OpenFile> OpenFileRef<F> {
    fn state(&self) -> &F {
        // SAFETY: By the type invariant, `open` has set `private_data`. It is valid until
        // `release`, which is not called before our reference is dropped.
        let state = unsafe { Pin::<KBox<F>>::borrow((*self.file.as_ptr()).private_data) };
        state.get_ref()
    }
}

impl<F: OpenFile> Drop for OpenFileRef<F> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant we own a reference, which `fget()` has taken.
        unsafe { bindings::fput(self.file.as_ptr()) };
    }
}

impl<F: OpenFile> FileOps<F> {
    fn hold(&'static self, fd: i32) -> Result<OpenFileRef<F>> {
        // SAFETY: No preconditions.
        let file = unsafe { bindings::fget(u32::try_from(fd).map_err(|_| EBADF)?) };
        let file = NonNull::new(file).ok_or(EBADF)?;
        // SAFETY: `fget()` has returned a valid file with a reference.
        let operations = unsafe { (*file.as_ptr()).f_op };
        if !self.matches(operations) {
            // SAFETY: `fget()` has taken a reference, which is not used after this.
            unsafe { bindings::fput(file.as_ptr()) };
            return Err(EBADF);
        }
        // INVARIANT: The operations of the file are those of this type, and `fget()` has taken a
        // reference.
        Ok(OpenFileRef {
            file,
            _file: PhantomData,
        })
    }

    /// Calls `f` with the open file of descriptor `fd` of the current process.
    ///
    /// # Errors
    ///
    /// - `EBADF`: `fd` is not open, or is not a file of this type
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn with<R>(&'static self, fd: i32, f: impl FnOnce(&F) -> R) -> Result<R> {
        let held = self.hold(fd)?;
        Ok(f(held.state()))
    }

    /// Maps `bytes` at `offset` of the file privately into the current process, readable and
    /// writable. Returns the address.
    ///
    /// # Errors
    ///
    /// - the errors of [`Self::with`] and of [`OpenFile::mmap`]
    /// - the errors of `vm_mmap()`, such as `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep; takes the mmap lock.
    #[cfg(CONFIG_RUST_HMM_MANAGED)]
    pub fn map(&'static self, fd: i32, bytes: usize, offset: usize) -> Result<usize> {
        let held = self.hold(fd)?;
        // SAFETY: `held` has a reference to the open file.
        unsafe { map_file(held.file.as_ptr(), bytes, offset) }
    }
}

/// Maps `bytes` bytes of `file` at `offset` into the current process. Returns the address.
///
/// # Safety
///
/// `file` must be an open file.
///
/// # Errors
///
/// Those of `mmap()`.
///
/// # Context
///
/// May sleep. Takes the mmap lock of the current process for writing.
#[cfg(CONFIG_RUST_HMM_MANAGED)]
pub(crate) unsafe fn map_file(
    file: *mut bindings::file,
    bytes: usize,
    offset: usize,
) -> Result<usize> {
    // SAFETY: `file` is an open file by the function's requirements.
    let addr = unsafe { bindings::rust_hmm_mmap(file, bytes, offset) };
    usize::try_from(addr).map_err(|_| {
        // CAST: A negative errno.
        Error::from_errno(addr as kernel::ffi::c_int)
    })
}

// SPDX-License-Identifier: GPL-2.0

//! Fences as files, which other drivers and `poll` understand.
//!
//! C header: [`include/linux/sync_file.h`](srctree/include/linux/sync_file.h)

use super::fence::Fence;
use crate::bindings;
use core::{mem::ManuallyDrop, ptr::NonNull};
use kernel::{
    error::to_result,
    ffi,
    prelude::*,
    time::Delta,
    types::NotThreadSafe, //
};

/// Longest limit of a fence that leaves.
pub const LONGEST: Delta = Delta::from_secs(100);

/// A file for a fence, with a descriptor that the process does not see yet. Dropped, there is none.
///
/// # Invariants
///
/// `fd` is reserved in the current process, and `file` a sync file of which we own a reference.
pub struct SyncFile {
    fd: ffi::c_int,
    file: NonNull<bindings::file>,
    /// The descriptor is one of this task.
    _nts: NotThreadSafe,
}

impl SyncFile {
    /// Makes a file for `fence`.
    ///
    /// Who gets it may wait for it where memory is reclaimed. So what is in it, if it is a fence of this
    /// library that has not been signalled, signals after `limit` in any case, then with `ETIMEDOUT`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the limit is more than [`LONGEST`], or nothing; `EMFILE`; `ENOMEM`. Context: may sleep.
    pub fn new(fence: &Fence, limit: Delta) -> Result<Self> {
        if limit <= Delta::ZERO || limit > LONGEST {
            return Err(EINVAL);
        }
        let mut file = core::ptr::null_mut();
        // SAFETY: The fence is alive, and `file` may be written.
        let fd =
            unsafe { bindings::rust_hmm_fence_export(fence.as_raw(), limit.as_nanos(), &mut file) };
        to_result(fd)?;
        // INVARIANT: Both are new, and ours.
        Ok(Self {
            fd,
            file: NonNull::new(file).ok_or(ENOMEM)?,
            _nts: NotThreadSafe,
        })
    }

    /// The number of the descriptor.
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// Gives both to a driver in C.
    pub(crate) fn into_raw(self) -> (ffi::c_int, *mut bindings::file) {
        let this = ManuallyDrop::new(self);
        (this.fd, this.file.as_ptr())
    }

    /// Gives it to the process.
    pub fn install(self) {
        let this = ManuallyDrop::new(self);
        // SAFETY: By the type invariant; the reference goes with it.
        unsafe { bindings::rust_hmm_fence_install(this.fd, this.file.as_ptr()) };
    }

    /// The fence of the sync file `fd`: the very one, if it is of this library, without a limit.
    ///
    /// # Errors
    ///
    /// `EBADF` if it is no sync file.
    pub fn fence(fd: i32) -> Result<Fence> {
        // SAFETY: No preconditions.
        let raw = unsafe { bindings::rust_hmm_fence_import(fd) };
        // SAFETY: The call returns a reference.
        Ok(unsafe { Fence::from_raw(NonNull::new(raw).ok_or(EBADF)?) })
    }
}

impl Drop for SyncFile {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::rust_hmm_fence_forget(self.fd, self.file.as_ptr()) };
    }
}

/// Waits until no fence that left is watched any more: for the unloading of the module.
pub(crate) fn exit() {
    // SAFETY: No preconditions.
    unsafe { bindings::rust_hmm_fence_exit() };
}

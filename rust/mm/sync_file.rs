// SPDX-License-Identifier: GPL-2.0

//! DMA fences as files, which other drivers and `poll` understand.
//!
//! C header: [`include/linux/sync_file.h`](srctree/include/linux/sync_file.h)

use super::dma_fence::DmaFence;
use crate::bindings;
use core::{mem::ManuallyDrop, ptr::NonNull};
use kernel::{
    error::to_result,
    ffi,
    prelude::*,
    types::NotThreadSafe, //
};

/// A file for a DMA fence, with a descriptor that is reserved but not installed. Dropped, both are released.
///
/// Of a [`Fence`](super::fence::Fence) no file can be made: whoever gets the file may wait for it where memory is
/// reclaimed.
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
    /// # Errors
    ///
    /// - `EMFILE`: the process has too many descriptors.
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new(fence: &DmaFence) -> Result<Self> {
        let mut file = core::ptr::null_mut();
        // SAFETY: The fence is alive by its type invariant, and `file` may be written.
        let fd = unsafe { bindings::rust_hmm_sync_file_reserve(fence.as_raw(), &mut file) };
        to_result(fd)?;
        // INVARIANT: Both are new, and ours.
        Ok(Self {
            fd,
            file: NonNull::new(file).ok_or(ENOMEM)?,
            _nts: NotThreadSafe,
        })
    }

    /// Number of the descriptor.
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// Installs the file at the descriptor.
    pub fn install(self) {
        let this = ManuallyDrop::new(self);
        // SAFETY: By the type invariant; the reference goes with it.
        unsafe { bindings::rust_hmm_sync_file_install(this.fd, this.file.as_ptr()) };
    }

    /// Returns the fence of the sync file `fd`, of any driver.
    ///
    /// # Errors
    ///
    /// - `EBADF`: `fd` is no sync file.
    pub fn fence(fd: i32) -> Result<DmaFence> {
        // SAFETY: No preconditions.
        let raw = unsafe { bindings::rust_hmm_sync_file_fence(fd) };
        // SAFETY: The call returns a reference.
        Ok(unsafe { DmaFence::from_raw(NonNull::new(raw).ok_or(EBADF)?) })
    }
}

impl Drop for SyncFile {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::rust_hmm_sync_file_forget(self.fd, self.file.as_ptr()) };
    }
}

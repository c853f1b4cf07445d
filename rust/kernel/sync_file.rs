// SPDX-License-Identifier: GPL-2.0

//! Sync files: DMA fences as files, for other drivers and for `poll()`.
//!
//! C header: [`include/linux/sync_file.h`](srctree/include/linux/sync_file.h)

use super::dma_fence::DmaFence;
use crate::bindings;
use core::{
    mem::ManuallyDrop,
    ptr::NonNull, //
};
use kernel::{
    error::to_result,
    ffi,
    prelude::*,
    types::NotThreadSafe, //
};

/// A sync file for a DMA fence, with a file descriptor that is reserved but not yet installed. Both
/// are released when this is dropped.
///
/// There is no sync file for a [`Fence`](super::fence::Fence), because a driver that imports the
/// file may wait for it in memory reclaim.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::kernel::dma_fence::DmaDriverFence;
/// use rust_hmm::kernel::fence::Fence;
/// use rust_hmm::kernel::sync_file::SyncFile;
///
/// /// Returns a descriptor that other drivers can wait for. The last step of an ioctl, because the
/// /// process can use the descriptor from then on.
/// fn export(pending: &DmaDriverFence) -> Result<i32> {
///     let file = SyncFile::new(&pending.fence())?;
///     let fd = file.fd();
///     file.install();
///     Ok(fd)
/// }
///
/// fn import(fd: i32) -> Result<Fence> {
///     Fence::of(&SyncFile::fence(fd)?)
/// }
/// ```
///
/// # Invariants
///
/// `fd` is reserved in the current process, and `file` a sync file of which we own a reference.
pub struct SyncFile {
    fd: ffi::c_int,
    file: NonNull<bindings::file>,
    /// The descriptor belongs to the current task's file table.
    _nts: NotThreadSafe,
}

impl SyncFile {
    /// Creates a sync file for `fence`, and reserves a descriptor.
    ///
    /// # Errors
    ///
    /// * `EMFILE`: the process has too many open descriptors.
    /// * `ENOMEM`: memory allocation failed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new(fence: &DmaFence) -> Result<Self> {
        let mut file = core::ptr::null_mut();
        // SAFETY: The fence is alive by its type invariant, and `file` may be written.
        let fd = unsafe { bindings::rust_hmm_sync_file_reserve(fence.as_raw(), &mut file) };
        to_result(fd)?;
        // INVARIANT: The helper reserved `fd` and created `file`, and both are ours.
        Ok(Self {
            fd,
            file: NonNull::new(file).ok_or(ENOMEM)?,
            _nts: NotThreadSafe,
        })
    }

    /// Returns the number of the descriptor.
    ///
    /// # Context
    ///
    /// Any.
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// Installs the file at the descriptor.
    ///
    /// # Context
    ///
    /// Task context of the process that created the file.
    pub fn install(self) {
        let this = ManuallyDrop::new(self);
        // SAFETY: `fd` is reserved and the reference of `file` is ours, by the type invariant. The
        // reference passes to the file table.
        unsafe { bindings::rust_hmm_sync_file_install(this.fd, this.file.as_ptr()) };
    }

    /// Returns the fence of the sync file `fd`, of any driver.
    ///
    /// # Errors
    ///
    /// * `EBADF`: `fd` is not a sync file.
    ///
    /// # Context
    ///
    /// Task context; `fd` is one of the current process.
    pub fn fence(fd: i32) -> Result<DmaFence> {
        // SAFETY: The helper has no preconditions.
        let raw = unsafe { bindings::rust_hmm_sync_file_fence(fd) };
        // SAFETY: The helper returned a valid fence with a reference, unless it returned null.
        Ok(unsafe { DmaFence::from_raw(NonNull::new(raw).ok_or(EBADF)?) })
    }
}

impl Drop for SyncFile {
    fn drop(&mut self) {
        // SAFETY: `fd` is reserved and the reference of `file` is ours, by the type invariant.
        unsafe { bindings::rust_hmm_sync_file_forget(self.fd, self.file.as_ptr()) };
    }
}

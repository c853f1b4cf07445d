// SPDX-License-Identifier: GPL-2.0

//! Physical address regions for chunks of device memory.

use super::{
    MemoryKind,
    CHUNK_BYTES, //
};
use crate::bindings;
use core::mem::ManuallyDrop;
use kernel::{
    error::to_result,
    prelude::*, //
};

/// A region of [`CHUNK_BYTES`] in `/proc/iomem`, released when dropped.
///
/// # Invariants
///
/// The region was requested, and is released only by dropping this.
pub(super) struct Region {
    start: u64,
}

impl Region {
    /// Requests a region: for private memory any free one, for coherent memory the given one.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`: no region is free for private memory, or memory allocation failed.
    /// * `EBUSY`: the region of coherent memory is system memory, or belongs to another driver.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn request(kind: MemoryKind) -> Result<Self> {
        let start = match kind {
            MemoryKind::Private => {
                let mut start = 0;
                // SAFETY: The name is static, and `start` may be written.
                to_result(unsafe {
                    bindings::rust_hmm_request_free_region(
                        CHUNK_BYTES,
                        c"rust_hmm".as_char_ptr(),
                        &mut start,
                    )
                })
                // The helper returns ERANGE if no addresses are left.
                .map_err(|_| ENOMEM)?;
                start
            }
            MemoryKind::Coherent { start } => {
                // SAFETY: The name is static.
                to_result(unsafe {
                    bindings::rust_hmm_request_region(start, CHUNK_BYTES, c"rust_hmm".as_char_ptr())
                })?;
                start
            }
        };
        // INVARIANT: The region was requested above.
        Ok(Self { start })
    }

    /// Returns the first address.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Keeps the region requested until [`Self::release`] is called. Returns the first address.
    pub(super) fn keep(self) -> u64 {
        ManuallyDrop::new(self).start
    }

    /// Releases the kept region that begins at `start`.
    ///
    /// # Safety
    ///
    /// The region must have been returned by [`Self::keep`], must not have been released since, and
    /// must not be in use.
    pub(super) unsafe fn release(start: u64) {
        // INVARIANT: The region is still requested and has no other owner, by the function's
        // requirements.
        drop(Self { start });
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: The region was requested and not yet released, by the type invariant.
        unsafe { bindings::rust_hmm_release_region(self.start, CHUNK_BYTES) };
    }
}

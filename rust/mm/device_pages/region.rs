// SPDX-License-Identifier: GPL-2.0

//! Physical addresses for a piece of device memory.

use super::{Kind, PIECE_BYTES};
use crate::bindings;
use core::mem::ManuallyDrop;
use kernel::{error::to_result, prelude::*};

/// A region of [`PIECE_BYTES`] in `/proc/iomem`, given back when dropped.
///
/// # Invariants
///
/// It was requested, and nobody else gives it back.
pub(super) struct Region {
    start: u64,
}

impl Region {
    /// Requests one.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: none is free for private memory, or there is no memory to note it. `EBUSY`: that of coherent
    /// memory is system memory, or another driver has it. Context: may sleep.
    pub(super) fn request(kind: Kind) -> Result<Self> {
        let start = match kind {
            Kind::Private => {
                let mut start = 0;
                // SAFETY: The name is static and `start` may be written.
                to_result(unsafe {
                    bindings::rust_hmm_request_free_region(
                        PIECE_BYTES,
                        c"rust_hmm".as_char_ptr(),
                        &mut start,
                    )
                })
                // It says ERANGE when there are no addresses left.
                .map_err(|_| ENOMEM)?;
                start
            }
            Kind::Coherent { start } => {
                // SAFETY: The name is static.
                to_result(unsafe {
                    bindings::rust_hmm_request_region(start, PIECE_BYTES, c"rust_hmm".as_char_ptr())
                })?;
                start
            }
        };
        // INVARIANT: Just requested.
        Ok(Self { start })
    }

    /// The first address.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Keeps it until [`Self::give_back`]. Returns the first address.
    pub(super) fn keep(self) -> u64 {
        ManuallyDrop::new(self).start
    }

    /// Gives the one back that begins at `start`.
    ///
    /// # Safety
    ///
    /// It must have been kept, only once for each call, and nobody may use it any more.
    pub(super) unsafe fn give_back(start: u64) {
        // INVARIANT: By the function's requirements.
        drop(Self { start });
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: Ours, by the type invariant.
        unsafe { bindings::rust_hmm_release_region(self.start, PIECE_BYTES) };
    }
}

// SPDX-License-Identifier: GPL-2.0

//! The CPU mapping of a part of a function's memory.

use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    ffi::c_void,
    prelude::*, //
};

/// Mapping of a part of a function's memory for the CPU.
///
/// # Invariants
///
/// `size` bytes of memory of a device are mapped at `base`, uncached, until this is dropped.
pub(super) struct BarMapping {
    pub(super) base: NonNull<c_void>,
    pub(super) size: usize,
}

impl BarMapping {
    /// Maps `size` bytes of memory of a device at bus address `start`.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Safety
    ///
    /// The memory must be claimed, and must not be released before the returned object is dropped.
    pub(super) unsafe fn new(start: u64, size: usize) -> Result<Self> {
        // SAFETY: By the function's requirements.
        let base = unsafe { bindings::rust_hmm_bar_map(start, size) };
        // INVARIANT: Just mapped.
        let base = NonNull::new(base).ok_or(ENOMEM)?;
        Ok(Self { base, size })
    }
}

// SAFETY: The mapping may be used and unmapped by any thread.
unsafe impl Send for BarMapping {}

// SAFETY: A shared reference gives access to the memory by whole words only.
unsafe impl Sync for BarMapping {}

impl Drop for BarMapping {
    fn drop(&mut self) {
        // SAFETY: Mapped by the type invariant. `drop` has exclusive access, so that the mapping is
        // not in use.
        unsafe { bindings::rust_hmm_bar_unmap(self.base.as_ptr()) };
    }
}

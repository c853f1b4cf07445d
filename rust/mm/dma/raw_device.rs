// SPDX-License-Identifier: GPL-2.0

//! The kernel's device behind a [`DmaDevice`](super::DmaDevice).

use crate::{
    bindings,
    kernel::deferred::DropWaits, //
};
use core::ptr::NonNull;
use kernel::{
    error::to_result,
    prelude::*, //
};

/// A `struct device`, which is unregistered or released when this is dropped.
///
/// # Invariants
///
/// We have a reference of `device`. As long as its [`DmaDevice`](super::DmaDevice) is not closed,
/// it is registered and prepared for DMA, and if it is not `software`, bound to its driver; with
/// `software` it is ours.
pub(super) struct RawDevice {
    device: NonNull<bindings::device>,
    software: bool,
    coherent: bool,
}

// SAFETY: A `struct device` is reference-counted and may be used and unregistered by any task.
unsafe impl Send for RawDevice {}
// SAFETY: The DMA API may be called for a device by several tasks concurrently.
unsafe impl Sync for RawDevice {}

impl RawDevice {
    /// Creates a software device, which is prepared for DMA.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`: memory allocation or registration failed.
    pub(super) fn software(name: &CStr) -> Result<Self> {
        let raw = Self::create(name)?;
        // SAFETY: The device was registered and prepared for DMA by `create`, and its reference is
        // ours.
        Ok(unsafe { Self::new(raw, true) })
    }

    /// Creates, registers and prepares a `struct device`. The caller owns its reference.
    fn create(name: &CStr) -> Result<NonNull<bindings::device>> {
        // SAFETY: The helper copies the name.
        let raw = unsafe { bindings::rust_hmm_dma_create(name.as_char_ptr()) };
        NonNull::new(raw).ok_or(ENOMEM)
    }

    /// Creates a software device whose DMA is always bounced.
    ///
    /// # Errors
    ///
    /// As [`Self::software`].
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(super) fn bouncing(name: &CStr) -> Result<Self> {
        let raw = Self::create(name)?;
        // SAFETY: The device was registered by `create`, and no page is mapped for it yet.
        unsafe { bindings::rust_hmm_dma_bounce(raw.as_ptr()) };
        // SAFETY: The device was prepared for DMA by `create`, and its reference is ours.
        Ok(unsafe { Self::new(raw, true) })
    }

    /// Prepares a device that is bound to its driver for DMA with addresses of `bits` bits.
    ///
    /// # Errors
    ///
    /// Those of [`DmaDevice::bound`](super::DmaDevice::bound), except for `ENOMEM`.
    ///
    /// # Safety
    ///
    /// `device` must be bound as long as its [`DmaDevice`](super::DmaDevice) is not closed, and no
    /// page may be mapped for it yet.
    pub(super) unsafe fn adopt(device: NonNull<bindings::device>, bits: u32) -> Result<Self> {
        // SAFETY: The device is bound and has no mappings by the function's requirements.
        to_result(unsafe { bindings::rust_hmm_dma_adopt(device.as_ptr(), bits) })?;
        // SAFETY: The device was prepared for DMA, and the helper took a reference for us. The
        // device is bound by the function's requirements.
        Ok(unsafe { Self::new(device, false) })
    }

    /// # Safety
    ///
    /// `device` must meet the type invariant. The caller's reference passes to the result.
    unsafe fn new(device: NonNull<bindings::device>, software: bool) -> Self {
        // SAFETY: The device is registered and prepared for DMA by the function's requirements.
        let coherent = unsafe { bindings::rust_hmm_dma_is_coherent(device.as_ptr()) };
        // INVARIANT: By the function's requirements.
        Self {
            device,
            software,
            coherent,
        }
    }

    /// Returns the device.
    pub(super) fn device(&self) -> NonNull<bindings::device> {
        self.device
    }

    /// Returns whether this is a software device, rather than one that is bound to a driver.
    pub(super) fn is_software(&self) -> bool {
        self.software
    }

    /// Returns whether the device was DMA-coherent and its DMA not bounced when it was prepared.
    pub(super) fn is_coherent(&self) -> bool {
        self.coherent
    }
}

impl DropWaits for RawDevice {}

impl Drop for RawDevice {
    fn drop(&mut self) {
        // SAFETY: The device is ours by the type invariant, and this is the last use of it.
        unsafe {
            if self.software {
                bindings::rust_hmm_dma_destroy(self.device.as_ptr())
            } else {
                bindings::rust_hmm_dma_release(self.device.as_ptr())
            }
        }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Addresses by which devices reach pinned pages.
//!
//! C header: [`include/linux/dma-mapping.h`](srctree/include/linux/dma-mapping.h)

use super::pin::PinnedPages;
use crate::bindings;
use core::ptr::NonNull;
use kernel::{error::to_result, prelude::*, sync::Arc};

/// A device that accesses memory by itself.
///
/// # Invariants
///
/// It is registered, prepared for DMA, and ours.
pub struct DmaDevice(NonNull<bindings::device>);

// SAFETY: A device may be used and unregistered anywhere.
unsafe impl Send for DmaDevice {}
// SAFETY: Its DMA functions may be called by several tasks.
unsafe impl Sync for DmaDevice {}

impl DmaDevice {
    /// A software device, which reaches all memory. Context: may sleep. `ENODEV`; `ENOMEM`.
    pub fn software(name: &CStr) -> Result<Arc<Self>> {
        // SAFETY: The name is copied.
        let raw = unsafe { bindings::rust_hmm_dma_create(name.as_char_ptr()) };
        // INVARIANT: Just registered and prepared.
        let device = Self(NonNull::new(raw).ok_or(ENODEV)?);
        Ok(Arc::new(device, GFP_KERNEL)?)
    }

    fn as_raw(&self) -> *mut bindings::device {
        self.0.as_ptr()
    }

    /// Whether device and CPU see each other's writes without being told to look.
    pub fn is_coherent(&self) -> bool {
        // SAFETY: Registered by the type invariant.
        !unsafe { bindings::rust_hmm_dma_needs_sync(self.as_raw()) }
    }
}

impl Drop for DmaDevice {
    fn drop(&mut self) {
        // SAFETY: Ours by the type invariant. Its mappings have held a reference of this.
        unsafe { bindings::rust_hmm_dma_destroy(self.as_raw()) };
    }
}

/// Pages as a device sees them.
///
/// # Invariants
///
/// Each element is a mapping of a page for `device` that we own. The pages outlive this.
pub(crate) struct DmaMapping {
    device: Arc<DmaDevice>,
    addresses: KVVec<u64>,
}

impl DmaMapping {
    /// Maps all of `pages`.
    ///
    /// # Safety
    ///
    /// The pages must stay pinned until this is dropped.
    ///
    /// # Errors
    ///
    /// `ENOMEM`. Context: may sleep.
    pub(crate) unsafe fn new(device: &Arc<DmaDevice>, pages: &PinnedPages) -> Result<Self> {
        // INVARIANT: Nothing is mapped yet.
        let mut mapping = Self {
            device: device.clone(),
            addresses: KVVec::with_capacity(pages.count(), GFP_KERNEL_ACCOUNT)?,
        };
        for index in 0..pages.count() {
            let pfn = pages.pfn(index).ok_or(EINVAL)?;
            let mut address = 0;
            // SAFETY: The page is pinned, and the device registered.
            to_result(unsafe { bindings::rust_hmm_dma_map(device.as_raw(), pfn, &mut address) })?;
            // INVARIANT: Just mapped. There is room.
            mapping.addresses.push(address, GFP_KERNEL_ACCOUNT)?;
        }
        Ok(mapping)
    }

    /// Whether it is for `device`.
    pub(crate) fn is_for(&self, device: &DmaDevice) -> bool {
        core::ptr::eq(&*self.device, device)
    }

    /// The address of page `index`.
    pub(crate) fn address(&self, index: usize) -> Option<u64> {
        self.addresses.get(index).copied()
    }

    /// Makes page `index` visible to the device, or to the CPU, where that does not happen by itself.
    pub(crate) fn sync(&self, index: usize, for_device: bool) {
        if let Some(address) = self.address(index) {
            // SAFETY: Mapped by the type invariant.
            unsafe { bindings::rust_hmm_dma_sync(self.device.as_raw(), address, for_device) };
        }
    }
}

impl Drop for DmaMapping {
    fn drop(&mut self) {
        for address in &self.addresses {
            // SAFETY: Mapped by the type invariant, and not used any more.
            unsafe { bindings::rust_hmm_dma_unmap(self.device.as_raw(), *address) };
        }
    }
}

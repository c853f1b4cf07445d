// SPDX-License-Identifier: GPL-2.0

//! DMA mappings of pinned pages: locked host memory.

use super::{
    DmaAddress,
    DmaDevice,
    DmaUser, //
};
use crate::{
    bindings,
    inject::{
        fails,
        FailPoint, //
    },
    kernel::lock_classes,
    mm::pin::PinnedPages, //
};
use kernel::{
    error::to_result,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// Pages with one mapping each, which are unmapped when this is dropped.
///
/// # Invariants
///
/// Each element of `list` is the mapping of a page for `device`, which is not closed before this is
/// dropped.
struct DmaAddresses {
    device: Arc<DmaDevice>,
    list: KVVec<u64>,
}

impl Drop for DmaAddresses {
    fn drop(&mut self) {
        let coherent = self.device.is_coherent();
        for address in &self.list {
            // SAFETY: `address` is mapped by the type invariant, and this is its last use.
            unsafe { bindings::rust_hmm_dma_unmap(self.device.as_raw(), *address, coherent) };
        }
        self.device.count_unmapped(self.list.len());
    }
}

/// Addresses of pinned pages, until the owner drops them or the device is closed.
#[pin_data]
struct PinnedAddresses {
    device: Arc<DmaDevice>,
    // Held while the pages are unmapped, so that `DmaDevice::close` waits for a concurrent
    // unmapping.
    #[pin]
    addresses: Mutex<Option<DmaAddresses>>,
}

impl DmaUser for PinnedAddresses {
    fn close(&self) -> usize {
        let mut addresses = self.addresses.lock();
        let pages = addresses.as_ref().map_or(0, |all| all.list.len());
        *addresses = None;
        pages
    }
}

/// Pinned pages that are mapped for a device. The pages must outlive the mapping.
pub(crate) struct DmaMapping(Arc<PinnedAddresses>);

impl DmaMapping {
    /// Maps all of `pages`. For a coherent device this fails if a page would be bounced.
    ///
    /// All mappings of one device have the same attributes. `kernel/dma/debug.c` does not
    /// distinguish two mappings of a page, and warns if their attributes differ.
    ///
    /// # Safety
    ///
    /// The pages must stay pinned until this is dropped.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`: memory allocation or a mapping failed.
    /// * `ENODEV`: the device is closed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) unsafe fn new(device: &Arc<DmaDevice>, pages: &PinnedPages) -> Result<Self> {
        let frames = (0..pages.count()).map(|index| pages.pfn(index).ok_or(EINVAL));
        // SAFETY: The pages stay pinned by the function's requirements.
        unsafe { Self::of_frames(device, pages.count(), frames) }
    }

    /// # Safety
    ///
    /// As for [`Self::new`], applied to the pages of `frames`.
    pub(super) unsafe fn of_frames(
        device: &Arc<DmaDevice>,
        count: usize,
        frames: impl Iterator<Item = Result<usize>>,
    ) -> Result<Self> {
        let _open = device.begin()?;
        // INVARIANT: The list is empty.
        let mut addresses = DmaAddresses {
            device: device.clone(),
            list: KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?,
        };
        let coherent = device.is_coherent();
        for pfn in frames {
            let pfn = pfn?;
            let mut address = 0;
            let fails = fails(FailPoint::Dma);
            // SAFETY: The page is pinned, and `_open` keeps the device registered.
            to_result(unsafe {
                bindings::rust_hmm_dma_map(device.as_raw(), pfn, coherent, fails, &mut address)
            })?;
            device.count_mapped(1);
            // INVARIANT: `address` was mapped above. The push does not allocate.
            addresses.list.push(address, GFP_KERNEL_ACCOUNT)?;
        }
        let (name, key) = lock_classes::dma_addresses();
        let mapping = Arc::pin_init(
            pin_init!(PinnedAddresses {
                device: device.clone(),
                addresses <- Mutex::new(Some(addresses), name, key),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        device.add(mapping.clone())?;
        Ok(Self(mapping))
    }

    /// Whether the pages are mapped for `device`.
    pub(crate) fn is_for(&self, device: &DmaDevice) -> bool {
        core::ptr::eq(&*self.0.device, device)
    }

    /// Returns the DMA address of page `index`; `None` if there is no such page, or if the device
    /// is closed. May sleep.
    pub(crate) fn address(&self, index: usize) -> Option<DmaAddress> {
        let addresses = self.0.addresses.lock();
        let address = *addresses.as_ref()?.list.get(index)?;
        Some(DmaAddress::new(address))
    }

    /// Synchronizes page `index` for the device, or for the CPU. Needed only for a device that is
    /// not coherent.
    pub(crate) fn sync(&self, index: usize, for_device: bool) {
        let Ok(_open) = self.0.device.begin() else {
            return;
        };
        if let Some(address) = self.address(index) {
            // SAFETY: `address` is mapped by the type invariant, because the device is not closed.
            unsafe {
                bindings::rust_hmm_dma_sync(self.0.device.as_raw(), address.raw(), for_device)
            };
        }
    }
}

impl Drop for DmaMapping {
    fn drop(&mut self) {
        self.0.close();
        let this: Arc<dyn DmaUser> = self.0.clone();
        self.0.device.remove(&this);
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Decodes the bus addresses of locked memory, for engines: the window of the IOMMU that has it.

use crate::{
    device::View,
    hardware::{
        bus::Action,
        cache::{
            Cache,
            HostPage, //
        }, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};
use rust_hmm::{
    host_lock::{
        Coherence,
        PinnedRange,
        APERTURE, //
    },
    mirror::Mirror,
    mm::{
        dma::DmaDevice,
        folio::CpuPagesMut, //
    }, //
};

/// A page of locked memory. It stays pinned as long as this exists, also if it is unlocked.
pub(crate) struct LockedPage {
    region: Arc<PinnedRange>,
    address: usize,
    device: Arc<DmaDevice>,
}

impl LockedPage {
    fn pages(&self) -> Result<CpuPagesMut<'_>> {
        self.region.page(self.address).ok_or(EFAULT)
    }
}

impl HostPage for LockedPage {
    fn address(&self) -> usize {
        self.address
    }

    fn is_of_mapping(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.region, &other.region)
    }

    fn is_coherent(&self) -> bool {
        self.region.grain() == Coherence::Fine
    }

    fn sync(&self, reads: bool) {
        self.region.sync(&self.device, self.address, reads);
    }

    fn read(&self, at: usize, to: &mut [u8]) -> Result {
        self.pages()?.read(at, to)
    }

    fn write(&self, at: usize, from: &[u8]) -> Result {
        self.pages()?.write(at, from)
    }

    fn fetch_add(&self, at: usize, value: u64) -> Result<u64> {
        self.pages()?.fetch_add_u64(at, value)
    }
}

/// The window of an open file, with the engines' cache of it.
#[pin_data]
pub(crate) struct LockedWindow {
    /// The device that the engines belong to, for DMA synchronisation.
    device: Arc<DmaDevice>,
    #[pin]
    pub(crate) cache: Cache<LockedPage>,
}

impl LockedWindow {
    pub(crate) fn new(device: Arc<DmaDevice>) -> impl PinInit<Self> {
        pin_init!(Self {
            device,
            cache <- Cache::new(),
        })
    }

    /// Whether `addr` is a device address of locked memory.
    pub(crate) fn holds(addr: usize) -> bool {
        addr & APERTURE != 0
    }

    /// Performs `action` at `addr`. `EFAULT` if it is not locked for this device.
    pub(crate) fn access(&self, mirror: &Mirror<View>, addr: usize, action: Action<'_>) -> Result {
        let address = addr & !(PAGE_SIZE - 1);
        let region = mirror.locked(address).ok_or(EFAULT)?;
        region.dma(&self.device, address).ok_or(EFAULT)?;
        let page = LockedPage {
            region,
            address,
            device: self.device.clone(),
        };
        self.cache.access(page, addr % PAGE_SIZE, action)
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Memory of a PCI function that is mapped for another function or device (peer-to-peer DMA).

use super::PciMemory;
use crate::{
    bindings,
    inject::{
        fails,
        FailPoint, //
    },
    kernel::{
        deferred::{
            Deferred,
            DropWaits, //
        },
        lock_classes, //
    },
    mm::dma::{
        DeviceAddress,
        DmaDevice,
        DmaUser,
        PeerAddress, //
    }, //
};
use kernel::{
    error::to_result,
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            AtomicFlag, //
        },
        Arc,
        Mutex, //
    }, //
};

/// Memory of another function, mapped for a device until its owner drops it, the device is closed,
/// or the memory is released.
///
/// # Invariants
///
/// Memory of `size` bytes is mapped for `device` at `address`, until `mapped` is false. The device
/// is not closed before.
#[pin_data(PinnedDrop)]
struct MappedPeer {
    device: Arc<DmaDevice>,
    address: u64,
    size: u64,
    /// Set before the memory is unmapped. Relaxed, and read without the mutex: a driver must have
    /// stopped the engines by then, because addresses that it has asked for before become invalid
    /// in the same way. The flag only ends requests for new ones.
    gone: AtomicFlag,
    // Held while the memory is unmapped, so that closing the device or releasing the memory waits
    // for a concurrent unmapping.
    #[pin]
    mapped: Mutex<bool>,
}

impl MappedPeer {
    /// Maps `memory`, which begins at bus address `start`, for `device`, which must be open.
    fn new(memory: &PciMemory, device: &Arc<DmaDevice>, start: u64) -> Result<Arc<Self>> {
        let mut address = 0;
        // SAFETY: The device is open, and the memory is claimed by the invariant of `PciMemory`.
        to_result(unsafe {
            bindings::rust_hmm_peer_map(
                device.as_raw(),
                start,
                memory.size,
                fails(FailPoint::Dma),
                &mut address,
            )
        })?;
        let (name, class) = lock_classes::peer_mapped();
        let mapped = Arc::pin_init(
            // INVARIANT: The memory was mapped above, and the device is open.
            pin_init!(Self {
                device: device.clone(),
                address,
                size: memory.size,
                gone: AtomicFlag::new(false),
                mapped <- Mutex::new(true, name, class),
            }),
            GFP_KERNEL,
        );
        mapped.inspect_err(|_| {
            // SAFETY: The memory was mapped above, and the mapping is not used.
            unsafe { bindings::rust_hmm_peer_unmap(device.as_raw(), address, memory.size) }
        })
    }
}

impl DmaUser for MappedPeer {
    fn close(&self) -> usize {
        let mut mapped = self.mapped.lock();
        self.gone.store(true, Relaxed);
        if core::mem::replace(&mut *mapped, false) {
            // SAFETY: The memory is mapped by the type invariant, because `mapped` was true. This
            // is the last use of the mapping.
            unsafe { bindings::rust_hmm_peer_unmap(self.device.as_raw(), self.address, self.size) };
        }
        0
    }
}

#[pinned_drop]
impl PinnedDrop for MappedPeer {
    fn drop(self: Pin<&mut Self>) {
        DmaUser::close(&*self);
    }
}

/// Memory of a PCI function, mapped for another function or device. It is unmapped when this is
/// dropped, the device is closed, or the memory is released.
///
/// # Context
///
/// The drop may sleep. In a callback and in atomic context a worker unmaps the memory.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::sync::Arc;
/// use rust_hmm::mm::dma::DeviceAddress;
/// use rust_hmm::mm::dma::DmaDevice;
/// use rust_hmm::mm::dma::PeerAddress;
/// use rust_hmm::mm::pci::PciMemory;
/// use rust_hmm::mm::pci::PeerMemory;
///
/// /// Returns the address by which `device` reads the first page of another device's memory.
/// fn first_page(memory: &Arc<PciMemory>, device: &Arc<DmaDevice>) -> Result<Option<PeerAddress>> {
///     let mapped = PeerMemory::map(memory, device)?;
///     // The address is valid as long as `mapped` exists, which a driver keeps.
///     Ok(mapped.address(DeviceAddress::START, 4096))
/// }
/// ```
pub struct PeerMemory(Deferred<PeerMapping>);

/// A mapping, and the memory that is mapped.
struct PeerMapping {
    mapped: Arc<MappedPeer>,
    memory: Arc<PciMemory>,
}

impl DropWaits for PeerMapping {}

impl PeerMemory {
    /// Maps all of `memory` for `device`.
    ///
    /// # Errors
    ///
    /// * `ENXIO`: the bus does not route such transactions, see [`PciMemory::distance`].
    /// * `ENOMEM`: memory allocation or the mapping failed.
    /// * `ENODEV`: the device is closed, or the memory was released.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn map(memory: &Arc<PciMemory>, device: &Arc<DmaDevice>) -> Result<Self> {
        let _open = device.begin()?;
        memory.distance(device).ok_or(ENXIO)?;
        let mapped = memory.add_user(|start| MappedPeer::new(memory, device, start))?;
        let this = PeerMapping {
            mapped,
            memory: memory.clone(),
        };
        let add = || {
            device.add(this.mapped.clone())?;
            Ok(this)
        };
        Deferred::new(add, GFP_KERNEL).map(Self)
    }

    /// Returns the address by which the device accesses the `bytes` bytes at `at`; `None` if they
    /// exceed the memory, or if it was released.
    ///
    /// # Context
    ///
    /// Any.
    pub fn address(&self, at: DeviceAddress, bytes: u64) -> Option<PeerAddress> {
        let end = at.raw().checked_add(bytes)?;
        let mapped = &self.0.mapped;
        (end <= mapped.size && !mapped.gone.load(Relaxed))
            .then(|| PeerAddress::new(mapped.address + at.raw()))
    }

    /// Whether this maps `memory`.
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_of(&self, memory: &Arc<PciMemory>) -> bool {
        Arc::ptr_eq(&self.0.memory, memory)
    }
}

impl Drop for PeerMapping {
    fn drop(&mut self) {
        self.mapped.close();
        self.memory.remove_user(&self.mapped);
        let this: Arc<dyn DmaUser> = self.mapped.clone();
        self.mapped.device.remove(&this);
    }
}

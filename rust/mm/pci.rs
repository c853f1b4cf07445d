// SPDX-License-Identifier: GPL-2.0

//! What a driver of a PCI device needs beyond the kernel crate: memory of other devices, and interrupts.
//!
//! C headers: [`include/linux/pci.h`](srctree/include/linux/pci.h),
//! [`include/linux/pci-p2pdma.h`](srctree/include/linux/pci-p2pdma.h)

use super::dma::{DeviceAddress, DmaDevice, Maps, PeerAddress};
use crate::bindings;
use core::{marker::PhantomData, ptr::NonNull};
use kernel::{
    device::Core,
    error::to_result,
    ffi, pci,
    prelude::*,
    sync::{
        atomic::{ordering::Full, AtomicFlag},
        Arc,
    },
};

/// Memory of a PCI function, behind one of its base address registers. It is ours: nobody else uses it.
///
/// # Invariants
///
/// We have a reference of `raw`, of which `bar` was claimed.
pub struct PciMemory {
    raw: NonNull<bindings::pci_dev>,
    bar: i32,
    start: u64,
    size: u64,
}

// SAFETY: A PCI device may be used anywhere.
unsafe impl Send for PciMemory {}
// SAFETY: Nothing of it changes.
unsafe impl Sync for PciMemory {}

impl PciMemory {
    /// Claims register `bar` of the function `function` of the slot that `device` is in; its own is one of them.
    ///
    /// # Errors
    ///
    /// `ENODEV` if there is no such function; `ENXIO` if there is no memory; `EBUSY` if somebody else has it; `ENOMEM`.
    /// Context: may sleep.
    pub fn claim(device: &pci::Device<Core<'_>>, function: u32, bar: u32) -> Result<Arc<Self>> {
        let raw = NonNull::from(device).cast::<bindings::pci_dev>();
        // SAFETY: The device is bound.
        let raw = unsafe { bindings::rust_hmm_pci_function(raw.as_ptr(), function & 7) };
        let raw = NonNull::new(raw).ok_or(ENODEV)?;
        let bar = i32::try_from(bar)?;
        let (mut start, mut size) = (0, 0);
        // SAFETY: We have a reference.
        let claimed = to_result(unsafe {
            bindings::rust_hmm_pci_claim(raw.as_ptr(), bar, &mut start, &mut size)
        });
        if let Err(error) = claimed {
            // SAFETY: Our reference.
            unsafe { bindings::rust_hmm_pci_function_put(raw.as_ptr()) };
            return Err(error);
        }
        // INVARIANT: Just claimed.
        let this = Self {
            raw,
            bar,
            start,
            size,
        };
        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    /// Bytes that there are.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// How far `client` is from it on the bus; `None` if it must not access it, because the bus would not carry that.
    /// Context: may sleep.
    pub fn distance(&self, client: &DmaDevice) -> Option<u32> {
        let _open = client.begin().ok()?;
        // SAFETY: We have references of both.
        let distance =
            unsafe { bindings::rust_hmm_pci_distance(self.raw.as_ptr(), client.as_raw()) };
        u32::try_from(distance).ok()
    }
}

impl Drop for PciMemory {
    fn drop(&mut self) {
        // SAFETY: Claimed, and our reference.
        unsafe {
            bindings::rust_hmm_pci_unclaim(self.raw.as_ptr(), self.bar);
            bindings::rust_hmm_pci_function_put(self.raw.as_ptr());
        }
    }
}

/// # Invariants
///
/// The memory is mapped for `device` at `address`, until `unmapped`.
struct Mapped {
    device: Arc<DmaDevice>,
    memory: Arc<PciMemory>,
    address: u64,
    unmapped: AtomicFlag,
}

impl Maps for Mapped {
    fn close(&self) -> usize {
        if !self.unmapped.xchg(true, Full) {
            // SAFETY: Mapped by the type invariant, and not used any more.
            unsafe {
                bindings::rust_hmm_peer_unmap(
                    self.device.as_raw(),
                    self.address,
                    self.memory.size,
                )
            };
        }
        0
    }
}

/// Memory of a PCI function as another function or device sees it. Dropping it unmaps it; so does closing the device.
pub struct PeerMemory(Arc<Mapped>);

impl PeerMemory {
    /// Maps all of `memory` for `device`.
    ///
    /// # Errors
    ///
    /// `ENXIO` if the bus does not carry that, see [`PciMemory::distance`]; `ENOMEM`; `ENODEV` if the device is gone.
    /// Context: may sleep.
    pub fn map(memory: &Arc<PciMemory>, device: &Arc<DmaDevice>) -> Result<Self> {
        let _open = device.begin()?;
        memory.distance(device).ok_or(ENXIO)?;
        let mut address = 0;
        // SAFETY: The device is open, and the memory ours.
        to_result(unsafe {
            bindings::rust_hmm_peer_map(device.as_raw(), memory.start, memory.size, &mut address)
        })?;
        // INVARIANT: Just mapped.
        let mapped = Mapped {
            device: device.clone(),
            memory: memory.clone(),
            address,
            unmapped: AtomicFlag::new(false),
        };
        let mapped = match Arc::new(mapped, GFP_KERNEL) {
            Ok(mapped) => mapped,
            Err(error) => {
                // SAFETY: Just mapped.
                unsafe {
                    bindings::rust_hmm_peer_unmap(device.as_raw(), address, memory.size)
                };
                return Err(error.into());
            }
        };
        let this = Self(mapped);
        device.add(this.0.clone())?;
        Ok(this)
    }

    /// Where the device finds `bytes` from `at` on; `None` beyond the end.
    pub fn address(&self, at: DeviceAddress, bytes: u64) -> Option<PeerAddress> {
        let end = at.raw().checked_add(bytes)?;
        (end <= self.0.memory.size).then(|| PeerAddress::new(self.0.address + at.raw()))
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        self.0.close();
        let this: Arc<dyn Maps> = self.0.clone();
        self.0.device.remove(&this);
    }
}

/// Who hears of interrupts.
pub trait Interrupted: Send + Sync + 'static {
    /// The device has interrupted. Context: interrupt.
    fn interrupted(&self);
}

/// The interrupt of a PCI device, signalled by a message. Dropping it waits for a handler that runs; it must be gone
/// before the device is unbound.
///
/// # Invariants
///
/// `raw` calls the handler, of which `_handler` is the reference, until it is freed.
pub struct Interrupt<T: Interrupted> {
    raw: NonNull<bindings::rust_hmm_interrupt>,
    _handler: Arc<T>,
    _handles: PhantomData<T>,
}

// SAFETY: It may be freed anywhere that may sleep.
unsafe impl<T: Interrupted> Send for Interrupt<T> {}
// SAFETY: There is nothing to do with a shared reference.
unsafe impl<T: Interrupted> Sync for Interrupt<T> {}

impl<T: Interrupted> Interrupt<T> {
    /// Has `handler` called. Also lets the device access memory. Context: may sleep.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there is no such interrupt; `ENOMEM`.
    pub fn new(
        device: &pci::Device<Core<'_>>,
        name: &'static CStr,
        handler: Arc<T>,
    ) -> Result<Self> {
        let pdev = NonNull::from(device).cast::<bindings::pci_dev>();
        let mut error = 0;
        // SAFETY: The device is bound; handler and name live until the interrupt is freed.
        let raw = unsafe {
            bindings::rust_hmm_interrupt_new(
                pdev.as_ptr(),
                Some(Self::handle),
                Arc::as_ptr(&handler).cast(),
                name.as_char_ptr(),
                &mut error,
            )
        };
        // INVARIANT: Registered.
        Ok(Self {
            raw: NonNull::new(raw).ok_or_else(|| Error::from_errno(error))?,
            _handler: handler,
            _handles: PhantomData,
        })
    }

    /// # Safety
    ///
    /// `data` must be a handler of this type.
    unsafe extern "C" fn handle(data: *const ffi::c_void) {
        // SAFETY: By the function's requirements; alive by the type invariant.
        unsafe { &*data.cast::<T>() }.interrupted();
    }
}

impl<T: Interrupted> Drop for Interrupt<T> {
    fn drop(&mut self) {
        // SAFETY: Registered by the type invariant.
        unsafe { bindings::rust_hmm_interrupt_free(self.raw.as_ptr()) };
    }
}

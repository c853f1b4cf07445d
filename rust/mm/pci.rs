// SPDX-License-Identifier: GPL-2.0

//! What a driver of a PCI device needs beyond the kernel crate: memory of other devices, and interrupts.
//!
//! C headers: [`include/linux/pci.h`](srctree/include/linux/pci.h),
//! [`include/linux/pci-p2pdma.h`](srctree/include/linux/pci-p2pdma.h)

use super::dma::{DeviceAddress, DmaDevice, Maps, PeerAddress};
use crate::{
    bindings,
    inject::{fails, Point},
    locks, //
};
use core::{marker::PhantomData, ptr::NonNull};
use kernel::{
    device::Core,
    error::to_result,
    ffi, pci,
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Full},
            AtomicFlag, //
        },
        Arc,
        Mutex, //
    },
};

/// Memory of a PCI function, behind one of its base address registers. It is ours: nobody else uses it.
///
/// # Invariants
///
/// We have a reference of `raw`, of which `bar` is claimed until `released`.
#[pin_data(PinnedDrop)]
pub struct PciMemory {
    raw: NonNull<bindings::pci_dev>,
    bar: i32,
    start: u64,
    size: u64,
    released: AtomicFlag,
    #[pin]
    users: Mutex<KVec<Arc<Mapped>>>,
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
        let (name, class) = locks::pci_users();
        let this = Arc::pin_init(
            pin_init!(Self {
                raw,
                bar,
                start,
                size,
                released: AtomicFlag::new(false),
                users <- Mutex::new(KVec::new(), name, class),
            }),
            GFP_KERNEL,
        );
        this.inspect_err(|_| {
            // SAFETY: Claimed, and our reference.
            unsafe {
                bindings::rust_hmm_pci_unclaim(raw.as_ptr(), bar);
                bindings::rust_hmm_pci_function_put(raw.as_ptr());
            }
        })
    }

    /// The memory goes: nobody can access it any more, nor map it. No engine may be about to. Context: may sleep.
    pub fn release(&self) {
        let mut users = self.users.lock();
        if self.released.xchg(true, Full) {
            return;
        }
        for user in core::mem::take(&mut *users) {
            user.close();
        }
        // SAFETY: Claimed by the type invariant.
        unsafe { bindings::rust_hmm_pci_unclaim(self.raw.as_ptr(), self.bar) };
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

#[pinned_drop]
impl PinnedDrop for PciMemory {
    fn drop(self: Pin<&mut Self>) {
        self.release();
        // SAFETY: Our reference.
        unsafe { bindings::rust_hmm_pci_function_put(self.raw.as_ptr()) };
    }
}

/// # Invariants
///
/// Memory of `size` bytes is mapped for `device` at `address`, until `unmapped`.
struct Mapped {
    device: Arc<DmaDevice>,
    address: u64,
    size: u64,
    unmapped: AtomicFlag,
}

impl Maps for Mapped {
    fn close(&self) -> usize {
        if !self.unmapped.xchg(true, Full) {
            // SAFETY: Mapped by the type invariant, and not used any more.
            unsafe { bindings::rust_hmm_peer_unmap(self.device.as_raw(), self.address, self.size) };
        }
        0
    }
}

/// Memory of a PCI function as another function or device sees it. Dropping it unmaps it; so does closing the device,
/// or releasing the memory.
pub struct PeerMemory {
    mapped: Arc<Mapped>,
    memory: Arc<PciMemory>,
}

impl PeerMemory {
    /// Maps all of `memory` for `device`.
    ///
    /// # Errors
    ///
    /// `ENXIO` if the bus does not carry that, see [`PciMemory::distance`]; `ENOMEM`; `ENODEV` if device or memory are gone.
    /// Context: may sleep.
    pub fn map(memory: &Arc<PciMemory>, device: &Arc<DmaDevice>) -> Result<Self> {
        let _open = device.begin()?;
        memory.distance(device).ok_or(ENXIO)?;
        let mut users = memory.users.lock();
        users.reserve(1, GFP_KERNEL)?;
        if memory.released.load(Acquire) {
            return Err(ENODEV);
        }
        let mut address = 0;
        // SAFETY: The device is open, and the memory ours.
        to_result(unsafe {
            bindings::rust_hmm_peer_map(
                device.as_raw(),
                memory.start,
                memory.size,
                fails(Point::Dma),
                &mut address,
            )
        })?;
        // INVARIANT: Just mapped.
        let mapped = Mapped {
            device: device.clone(),
            address,
            size: memory.size,
            unmapped: AtomicFlag::new(false),
        };
        let mapped = match Arc::new(mapped, GFP_KERNEL) {
            Ok(mapped) => mapped,
            Err(error) => {
                // SAFETY: Just mapped.
                unsafe { bindings::rust_hmm_peer_unmap(device.as_raw(), address, memory.size) };
                return Err(error.into());
            }
        };
        users.push(mapped.clone(), GFP_KERNEL)?;
        drop(users);
        let this = Self {
            mapped,
            memory: memory.clone(),
        };
        device.add(this.mapped.clone())?;
        Ok(this)
    }

    /// Where the device finds `bytes` from `at` on; `None` beyond the end, or if the memory is gone.
    pub fn address(&self, at: DeviceAddress, bytes: u64) -> Option<PeerAddress> {
        let end = at.raw().checked_add(bytes)?;
        let mapped = &self.mapped;
        (end <= mapped.size && !mapped.unmapped.load(Acquire))
            .then(|| PeerAddress::new(mapped.address + at.raw()))
    }

    /// Whether it is of `memory`.
    pub fn is_of(&self, memory: &Arc<PciMemory>) -> bool {
        Arc::ptr_eq(&self.memory, memory)
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        self.mapped.close();
        self.memory
            .users
            .lock()
            .retain(|user| !Arc::ptr_eq(user, &self.mapped));
        let this: Arc<dyn Maps> = self.mapped.clone();
        self.mapped.device.remove(&this);
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

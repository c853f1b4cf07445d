// SPDX-License-Identifier: GPL-2.0

//! What a driver of a PCI device needs beyond the kernel crate: memory of other devices, and interrupts.
//!
//! C headers: [`include/linux/pci.h`](srctree/include/linux/pci.h),
//! [`include/linux/pci-p2pdma.h`](srctree/include/linux/pci-p2pdma.h)

use super::dma::{DeviceAddress, DmaDevice, Maps, PeerAddress};
use crate::{
    bindings,
    deferred::{
        Deferred,
        DropWaits, //
    },
    inject::{fails, Point},
    locks, //
};
use core::ptr::NonNull;
use kernel::{
    device::Core,
    devres::{self, Devres},
    error::to_result,
    ffi, pci,
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Full, Relaxed},
            AtomicFlag, //
        },
        Arc,
        Mutex, //
    },
};

/// Memory of a PCI function, behind one of its base address registers. It is released before the device that claimed
/// it is unbound.
///
/// # Invariants
///
/// We have a reference of `raw`, of which `bar` is claimed until `released`. The function stays bound until then, to the
/// driver that claimed it.
#[pin_data(PinnedDrop)]
pub struct PciMemory {
    raw: NonNull<bindings::pci_dev>,
    bar: i32,
    start: u64,
    size: u64,
    released: AtomicFlag,
    #[pin]
    users: Mutex<KVec<Arc<dyn Maps>>>,
}

// SAFETY: A PCI device may be used anywhere.
unsafe impl Send for PciMemory {}
// SAFETY: Nothing of it changes.
unsafe impl Sync for PciMemory {}

impl PciMemory {
    /// Claims register `bar` of the function `function` of the slot that `device` is in. To be called in the driver's
    /// `probe`. Another function than the device's own must be bound to the same driver; it is then not unbound before
    /// `device` is.
    ///
    /// # Errors
    ///
    /// * `ENODEV`: there is no such function.
    /// * `EPROBE_DEFER`: it is not bound to a driver (yet).
    /// * `EBUSY`: it is bound to another driver, or its memory is in use.
    /// * `ENXIO`: the register has no memory.
    /// * `EINVAL`: `bar` is no number of a register.
    /// * `ENOMEM`.
    ///
    /// Context: may sleep.
    pub fn claim(device: &pci::Device<Core<'_>>, function: u32, bar: u32) -> Result<Arc<Self>> {
        let bar = i32::try_from(bar).map_err(|_| EINVAL)?;
        let this = NonNull::from(device).cast::<bindings::pci_dev>();
        let mut error = 0;
        // SAFETY: The device is bound.
        let raw =
            unsafe { bindings::rust_hmm_pci_function(this.as_ptr(), function & 7, &mut error) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::from_errno(error))?;
        let (mut start, mut size) = (0, 0);
        // SAFETY: We have a reference, and the function is bound.
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
        let this = this.inspect_err(|_| {
            // SAFETY: Claimed, and our reference.
            unsafe {
                bindings::rust_hmm_pci_unclaim(raw.as_ptr(), bar);
                bindings::rust_hmm_pci_function_put(raw.as_ptr());
            }
        })?;
        // INVARIANT: Released before the device is unbound; at once if this fails.
        devres::register(device.as_ref(), ReleaseOnUnbind(this.clone()), GFP_KERNEL)?;
        Ok(this)
    }

    /// Unmaps the memory for all devices, and gives the register back. No engine may be about to access it. Context:
    /// may sleep.
    fn release(&self) {
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

    /// Has `map` map the memory, of which it gets the bus address, and adds what has the mapping:
    /// it is closed before the memory is released. Context: may sleep.
    ///
    /// # Errors
    ///
    /// `ENODEV`: the memory was released. `ENOMEM`; those of `map`.
    pub(super) fn add_user<U: Maps + 'static>(
        &self,
        map: impl FnOnce(u64) -> Result<Arc<U>>,
    ) -> Result<Arc<U>> {
        let mut users = self.users.lock();
        users.reserve(1, GFP_KERNEL)?;
        if self.released.load(Acquire) {
            return Err(ENODEV);
        }
        let user = map(self.start)?;
        users.push(user.clone(), GFP_KERNEL)?;
        Ok(user)
    }

    /// Removes it. Context: may sleep.
    pub(super) fn remove_user<U: Maps + 'static>(&self, user: &Arc<U>) {
        let place = Arc::as_ptr(user).addr();
        let is_other = |other: &mut Arc<dyn Maps>| Arc::as_ptr(other).addr() != place;
        self.users.lock().retain(is_other);
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

/// Releases memory when devres drops it, before the device is unbound.
struct ReleaseOnUnbind(Arc<PciMemory>);

impl Drop for ReleaseOnUnbind {
    fn drop(&mut self) {
        self.0.release();
    }
}

#[pinned_drop]
impl PinnedDrop for PciMemory {
    fn drop(self: Pin<&mut Self>) {
        // Devres had a reference until it has released the memory, so that this does not wait.
        if !self.released.load(Acquire) {
            self.release();
        }
        // SAFETY: Our reference.
        unsafe { bindings::rust_hmm_pci_function_put(self.raw.as_ptr()) };
    }
}

/// Memory of another function, mapped for a device until its owner, the device or the memory unmaps it.
///
/// # Invariants
///
/// Memory of `size` bytes is mapped for `device` at `address`, until `mapped` is false. The device is not closed before.
#[pin_data(PinnedDrop)]
struct Mapped {
    device: Arc<DmaDevice>,
    address: u64,
    size: u64,
    /// Set before it is unmapped.
    gone: AtomicFlag,
    // Held while it is unmapped, so that whoever closes the device or releases the memory waits for that.
    #[pin]
    mapped: Mutex<bool>,
}

impl Mapped {
    /// Maps `memory`, which is at `start`, for `device`, which is open.
    fn new(memory: &PciMemory, device: &Arc<DmaDevice>, start: u64) -> Result<Arc<Self>> {
        let mut address = 0;
        // SAFETY: The device is open, and the memory ours.
        to_result(unsafe {
            bindings::rust_hmm_peer_map(
                device.as_raw(),
                start,
                memory.size,
                fails(Point::Dma),
                &mut address,
            )
        })?;
        let (name, class) = locks::peer_mapped();
        let mapped = Arc::pin_init(
            // INVARIANT: Just mapped, and the device is open.
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
            // SAFETY: Just mapped.
            unsafe { bindings::rust_hmm_peer_unmap(device.as_raw(), address, memory.size) }
        })
    }
}

impl Maps for Mapped {
    fn close(&self) -> usize {
        let mut mapped = self.mapped.lock();
        self.gone.store(true, Relaxed);
        if core::mem::replace(&mut *mapped, false) {
            // SAFETY: Mapped by the type invariant, and not used any more.
            unsafe { bindings::rust_hmm_peer_unmap(self.device.as_raw(), self.address, self.size) };
        }
        0
    }
}

#[pinned_drop]
impl PinnedDrop for Mapped {
    fn drop(self: Pin<&mut Self>) {
        Maps::close(&*self);
    }
}

/// Memory of a PCI function as another function or device sees it. Dropping it unmaps it; so does closing the device,
/// or releasing the memory.
///
/// # Context
///
/// The drop may sleep. In a callback and in atomic context a worker unmaps it.
pub struct PeerMemory(Deferred<Peer>);

/// The mapping, and the memory that is mapped.
struct Peer {
    mapped: Arc<Mapped>,
    memory: Arc<PciMemory>,
}

impl DropWaits for Peer {}

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
        let mapped = memory.add_user(|start| Mapped::new(memory, device, start))?;
        let this = Peer {
            mapped,
            memory: memory.clone(),
        };
        let add = || {
            device.add(this.mapped.clone())?;
            Ok(this)
        };
        Deferred::new(add, GFP_KERNEL).map(Self)
    }

    /// Where the device finds `bytes` from `at` on; `None` beyond the end, or if the memory is gone.
    pub fn address(&self, at: DeviceAddress, bytes: u64) -> Option<PeerAddress> {
        let end = at.raw().checked_add(bytes)?;
        let mapped = &self.0.mapped;
        (end <= mapped.size && !mapped.gone.load(Relaxed))
            .then(|| PeerAddress::new(mapped.address + at.raw()))
    }

    /// Whether it is of `memory`.
    pub fn is_of(&self, memory: &Arc<PciMemory>) -> bool {
        Arc::ptr_eq(&self.0.memory, memory)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.mapped.close();
        self.memory.remove_user(&self.mapped);
        let this: Arc<dyn Maps> = self.mapped.clone();
        self.mapped.device.remove(&this);
    }
}

/// Who hears of interrupts.
pub trait Interrupted: Send + Sync + 'static {
    /// The device has interrupted. Context: interrupt.
    fn interrupted(&self);
}

/// The registered handler of an interrupt. Dropping it waits for a handler that runs.
///
/// # Invariants
///
/// `raw` calls the handler, of which `_handler` is the reference, until it is freed.
struct Registered<T: Interrupted> {
    raw: NonNull<bindings::rust_hmm_interrupt>,
    _handler: Arc<T>,
}

// SAFETY: It may be freed anywhere that may sleep.
unsafe impl<T: Interrupted> Send for Registered<T> {}
// SAFETY: There is nothing to do with a shared reference.
unsafe impl<T: Interrupted> Sync for Registered<T> {}

impl<T: Interrupted> Drop for Registered<T> {
    fn drop(&mut self) {
        // SAFETY: Registered by the type invariant, and freed once.
        unsafe { bindings::rust_hmm_interrupt_free(self.raw.as_ptr()) };
    }
}

/// The interrupt of a PCI device, signalled by a message. It is freed when this is dropped or the device is unbound,
/// whichever is first. Both wait for a handler that runs, and keep the device from accessing memory afterwards.
///
/// # Context
///
/// The drop may sleep. In a callback, in atomic context and in the handler itself it returns at once, and a worker frees
/// the interrupt.
pub struct Interrupt<T: Interrupted>(#[expect(dead_code)] Deferred<Devres<Registered<T>>>);

impl<T: Interrupted> DropWaits for Devres<Registered<T>> {}

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
        let registered = Registered {
            raw: NonNull::new(raw).ok_or_else(|| Error::from_errno(error))?,
            _handler: handler,
        };
        let managed = || Devres::new(device.as_ref(), registered);
        Deferred::new(managed, GFP_KERNEL).map(Self)
    }

    /// # Safety
    ///
    /// `data` must be a handler of this type.
    unsafe extern "C" fn handle(data: *const ffi::c_void) {
        // SAFETY: By the function's requirements; alive by the type invariant.
        unsafe { &*data.cast::<T>() }.interrupted();
    }
}

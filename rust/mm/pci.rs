// SPDX-License-Identifier: GPL-2.0

//! PCI functions: memory of other functions (peer-to-peer DMA), and interrupts. The kernel crate
//! has neither.
//!
//! Memory of a function may be mapped for other devices when the function is unbound. devres
//! releases it then: under the mutex of its users, `release()` closes each mapping and unclaims the
//! BAR. A mapping that is requested later fails with `ENODEV`.
//!
//! `peer` has the mappings for other functions, `interrupt` the interrupts.
//!
//! C headers: [`include/linux/pci.h`](srctree/include/linux/pci.h),
//! [`include/linux/pci-p2pdma.h`](srctree/include/linux/pci-p2pdma.h)

use super::dma::{
    DmaDevice,
    DmaUser, //
};
use crate::{
    bindings,
    kernel::lock_classes, //
};
use core::ptr::NonNull;
use kernel::{
    device::Core,
    devres,
    error::to_result,
    pci,
    prelude::*,
    sync::{
        atomic::{
            ordering::{
                Acquire,
                Full, //
            },
            AtomicFlag, //
        },
        Arc,
        Mutex, //
    }, //
};

mod interrupt;
mod peer;

pub use interrupt::{
    Interrupt,
    IrqHandler, //
};
pub use peer::PeerMemory;

/// Memory of a PCI function, behind one of its base address registers (BARs). It is released before
/// the device that claimed it is unbound.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::device::Core;
/// use kernel::pci;
/// use kernel::sync::Arc;
/// use rust_hmm::mm::pci::PciMemory;
///
/// /// Called by `probe`: the memory is BAR 2 of the function itself.
/// fn claim(pdev: &pci::Device<Core<'_>>) -> Result<Arc<PciMemory>> {
///     pdev.enable_device_mem()?;
///     let memory = PciMemory::claim(pdev, 0, 2)?;
///     if memory.size() < 1 << 20 {
///         return Err(ENODEV);
///     }
///     Ok(memory)
/// }
/// ```
///
/// # Invariants
///
/// We have a reference of `raw`, of which `bar` is claimed until `released`. The function stays
/// bound until then, to the driver that claimed it.
#[pin_data(PinnedDrop)]
pub struct PciMemory {
    raw: NonNull<bindings::pci_dev>,
    bar: u32,
    start: u64,
    size: u64,
    released: AtomicFlag,
    #[pin]
    users: Mutex<KVec<Arc<dyn DmaUser>>>,
}

// SAFETY: A `struct pci_dev` is reference-counted and may be used by any task.
unsafe impl Send for PciMemory {}
// SAFETY: Fields that change are atomic or protected by a mutex.
unsafe impl Sync for PciMemory {}

impl PciMemory {
    /// Claims BAR `bar` of function `function` in the slot of `device`. To be called from the
    /// driver's `probe`. If the function is not that of `device`, it must be bound to the same
    /// driver, and is not unbound before `device`.
    ///
    /// # Errors
    ///
    /// * `ENODEV`: there is no such function.
    /// * `EPROBE_DEFER`: the function is not bound to a driver (yet).
    /// * `EBUSY`: the function is bound to another driver, or its memory is in use.
    /// * `ENXIO`: the BAR has no memory.
    /// * `EINVAL`: `bar` is not the number of a BAR.
    /// * `ENOMEM`: memory allocation failed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn claim(device: &pci::Device<Core<'_>>, function: u32, bar: u32) -> Result<Arc<Self>> {
        let this = NonNull::from(device).cast::<bindings::pci_dev>();
        let mut error = 0;
        // SAFETY: The device is bound, because its `probe` runs.
        let raw =
            unsafe { bindings::rust_hmm_pci_function(this.as_ptr(), function & 7, &mut error) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::from_errno(error))?;
        let mut start = 0;
        let mut size = 0;
        // SAFETY: We have a reference of the function, and it is bound.
        let claimed = to_result(unsafe {
            bindings::rust_hmm_pci_claim(raw.as_ptr(), bar, &mut start, &mut size)
        });
        if let Err(error) = claimed {
            // SAFETY: The reference is ours, and this is its last use.
            unsafe { bindings::rust_hmm_pci_function_put(raw.as_ptr()) };
            return Err(error);
        }
        // INVARIANT: The BAR was claimed above, and the function stays bound.
        let (name, class) = lock_classes::pci_users();
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
            // SAFETY: The BAR was claimed above. The reference is ours, and this is its last use.
            unsafe {
                bindings::rust_hmm_pci_unclaim(raw.as_ptr(), bar);
                bindings::rust_hmm_pci_function_put(raw.as_ptr());
            }
        })?;
        // INVARIANT: devres releases the memory before the device is unbound, or immediately if the
        // registration fails.
        devres::register(device.as_ref(), ReleaseOnUnbind(this.clone()), GFP_KERNEL)?;
        Ok(this)
    }

    /// Unmaps the memory for all devices, and releases the BAR. No engine may access the memory
    /// from now on. May sleep.
    fn release(&self) {
        let mut users = self.users.lock();
        // The mutex orders this. The barrier is not needed.
        if self.released.xchg(true, Full) {
            return;
        }
        for user in core::mem::take(&mut *users) {
            user.close();
        }
        // SAFETY: The BAR is claimed by the type invariant, and `released` was false until now.
        unsafe { bindings::rust_hmm_pci_unclaim(self.raw.as_ptr(), self.bar) };
    }

    /// Calls `map` with the bus address of the memory, and adds the mapping that it returns. The
    /// mapping is closed before the memory is released.
    ///
    /// # Errors
    ///
    /// * `ENODEV`: the memory was released.
    /// * `ENOMEM`: memory allocation failed.
    /// * Errors of `map`.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn add_user<U: DmaUser + 'static>(
        &self,
        map: impl FnOnce(u64) -> Result<Arc<U>>,
    ) -> Result<Arc<U>> {
        let mut users = self.users.lock();
        users.reserve(1, GFP_KERNEL)?;
        // The mutex, which is held, orders this load after the release.
        if self.released.load(Acquire) {
            return Err(ENODEV);
        }
        let user = map(self.start)?;
        users.push(user.clone(), GFP_KERNEL)?;
        Ok(user)
    }

    /// Removes a mapping that was added. May sleep.
    pub(super) fn remove_user<U: DmaUser + 'static>(&self, user: &Arc<U>) {
        let place = Arc::as_ptr(user).addr();
        let is_other = |other: &mut Arc<dyn DmaUser>| Arc::as_ptr(other).addr() != place;
        self.users.lock().retain(is_other);
    }

    /// Returns the size of the memory in bytes.
    ///
    /// # Context
    ///
    /// Any.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the distance of `client` from the memory on the bus; `None` if `client` must not
    /// access it, because the bus does not route such transactions.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn distance(&self, client: &DmaDevice) -> Option<u32> {
        let _open = client.begin().ok()?;
        // SAFETY: We have a reference of the function, and `_open` keeps `client` registered.
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
        // devres holds a reference until it has released the memory, so that this does not wait.
        // This is the last reference, so that all earlier uses precede this load.
        if !self.released.load(Acquire) {
            self.release();
        }
        // SAFETY: The reference is ours, and this is its last use.
        unsafe { bindings::rust_hmm_pci_function_put(self.raw.as_ptr()) };
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_pci_memory)]
mod tests {
    use super::*;
    use core::ptr::null_mut;

    #[test]
    fn numbers_that_are_not_bars_are_refused() {
        for bar in [6, i32::MAX.unsigned_abs(), 1 << 31, u32::MAX] {
            // SAFETY: The number is checked before any pointer is used.
            let claimed =
                unsafe { bindings::rust_hmm_pci_claim(null_mut(), bar, null_mut(), null_mut()) };
            assert_eq!(claimed, EINVAL.to_errno());
        }
    }

    #[test]
    fn refused_claim_drops_its_reference() -> Result {
        // SAFETY: No requirements.
        let raw = NonNull::new(unsafe { bindings::rust_hmm_kunit_pci_device() }).ok_or(ENOMEM)?;
        // SAFETY: The device is valid until its reference is dropped below. No other thread has it,
        // so that this one may use it like the driver core. A refused claim registers nothing.
        let device = unsafe { raw.cast::<pci::Device<Core<'_>>>().as_ref() };
        // SAFETY: We have a reference of the device.
        let references = || unsafe { bindings::rust_hmm_kunit_pci_references(raw.as_ptr()) };
        let before = references();
        // BAR 0 has no memory, and there is no BAR 6.
        for (bar, error) in [(0, ENXIO), (6, EINVAL)] {
            assert_eq!(PciMemory::claim(device, 0, bar).err(), Some(error));
            assert_eq!(references(), before);
        }
        // SAFETY: The reference is ours, and this is its last use.
        unsafe { bindings::rust_hmm_pci_function_put(raw.as_ptr()) };
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Interrupts of PCI functions.
//!
//! The handler runs in hard interrupt context, possibly until the interrupt is freed. devres frees
//! it before the device is unbound, also while the driver still holds it. Freeing waits for a
//! running handler, so that a handler that drops its interrupt would deadlock: a worker frees it
//! then.

use crate::{
    bindings,
    kernel::deferred::{
        Deferred,
        DropWaits, //
    }, //
};
use core::ptr::NonNull;
use kernel::{
    device::Core,
    devres::Devres,
    ffi,
    pci,
    prelude::*,
    sync::Arc, //
};

/// Handler of a device interrupt.
pub trait IrqHandler: Send + Sync + 'static {
    /// Called when the device raises the interrupt.
    ///
    /// # Context
    ///
    /// Hard interrupt. Must not sleep.
    fn handle_irq(&self);
}

/// A registered interrupt handler. Dropping it waits until the handler does not run.
///
/// # Invariants
///
/// `raw` calls the handler, of which `_handler` is the reference, until it is freed.
struct RegisteredIrq<T: IrqHandler> {
    raw: NonNull<bindings::rust_hmm_interrupt>,
    _handler: Arc<T>,
}

// SAFETY: The interrupt may be freed by any task that may sleep.
unsafe impl<T: IrqHandler> Send for RegisteredIrq<T> {}
// SAFETY: There are no methods on a shared reference.
unsafe impl<T: IrqHandler> Sync for RegisteredIrq<T> {}

impl<T: IrqHandler> Drop for RegisteredIrq<T> {
    fn drop(&mut self) {
        // SAFETY: The handler is registered by the type invariant, and freed only here.
        unsafe { bindings::rust_hmm_interrupt_free(self.raw.as_ptr()) };
    }
}

/// A message-signalled interrupt of a PCI device. It is freed when this is dropped or the device is
/// unbound, whichever happens first. Both wait until the handler does not run, and clear bus
/// mastering, so that the device does not access memory afterwards.
///
/// # Context
///
/// The drop may sleep. In a callback, in atomic context and in the handler itself it returns
/// immediately, and a worker frees the interrupt.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::device::Core;
/// use kernel::pci;
/// use kernel::sync::Arc;
/// use kernel::sync::atomic::Atomic;
/// use kernel::sync::atomic::ordering::Relaxed;
/// use rust_hmm::mm::pci::Interrupt;
/// use rust_hmm::mm::pci::IrqHandler;
///
/// struct Faults(Atomic<u32>);
///
/// impl IrqHandler for Faults {
///     // A thread of the driver handles the faults.
///     fn handle_irq(&self) {
///         self.0.fetch_add(1, Relaxed);
///     }
/// }
///
/// fn request(pdev: &pci::Device<Core<'_>>) -> Result<Interrupt<Faults>> {
///     Interrupt::new(pdev, c"example", Arc::new(Faults(Atomic::new(0)), GFP_KERNEL)?)
/// }
/// ```
pub struct Interrupt<T: IrqHandler>(#[expect(dead_code)] Deferred<Devres<RegisteredIrq<T>>>);

impl<T: IrqHandler> DropWaits for Devres<RegisteredIrq<T>> {}

impl<T: IrqHandler> Interrupt<T> {
    /// Registers `handler` for the interrupt, and enables bus mastering, so that the device can
    /// access memory.
    ///
    /// # Errors
    ///
    /// * `ENOSPC`: the device has no such interrupt.
    /// * `ENOMEM`: memory allocation failed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new(
        device: &pci::Device<Core<'_>>,
        name: &'static CStr,
        handler: Arc<T>,
    ) -> Result<Self> {
        let pdev = NonNull::from(device).cast::<bindings::pci_dev>();
        let mut error = 0;
        // SAFETY: The device is bound. `handler` and `name` live until the interrupt is freed.
        let raw = unsafe {
            bindings::rust_hmm_interrupt_new(
                pdev.as_ptr(),
                Some(Self::handle),
                Arc::as_ptr(&handler).cast(),
                name.as_char_ptr(),
                &mut error,
            )
        };
        // INVARIANT: The helper registered `handler`; a null pointer is refused.
        let registered = RegisteredIrq {
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
        // SAFETY: `data` is a `T` by the function's requirements, and alive by the invariant of
        // `RegisteredIrq`.
        unsafe { &*data.cast::<T>() }.handle_irq();
    }
}

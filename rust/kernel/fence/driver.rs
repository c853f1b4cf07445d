// SPDX-License-Identifier: GPL-2.0

//! The side of a fence that signals it.

use super::Fence;
use crate::kernel::{
    cancel::cancelled,
    identity::FenceType, //
};
use core::mem::ManuallyDrop;
use kernel::prelude::*;

/// The signalling side of a fence, which only its owner has. If it is dropped, the fence fails with
/// `ECANCELED`.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::kernel::fence::DriverFence;
/// use rust_hmm::kernel::fence::FenceStatus;
/// use rust_hmm::kernel::identity::FenceType;
///
/// let pending = DriverFence::new(FenceType::NONE)?;
/// let fence = pending.fence();
/// assert_eq!(fence.check(), FenceStatus::NotDone);
/// pending.signal(Err(EIO));
/// assert_eq!(fence.check().result(), Some(Err(EIO)));
/// assert_eq!(fence.synchronize(None), Err(EIO));
/// # Ok::<(), Error>(())
/// ```
///
/// # Invariants
///
/// The fence was made by [`Self::new`], and is not signalled.
#[must_use = "dropped, it is cancelled"]
pub struct DriverFence(Fence);

impl DriverFence {
    /// Creates a fence that a device of type `kind` signals.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new(kind: FenceType) -> Result<Self> {
        // INVARIANT: The fence is new and not signalled.
        Ok(Self(Fence::alloc(kind, false)?))
    }

    /// Creates a fence for a C driver, which gets both sides as one pointer. See [`Self::new`].
    #[cfg(CONFIG_RUST_HMM_CAPI)]
    pub(crate) fn of_driver(kind: FenceType) -> Result<Self> {
        // INVARIANT: The fence is new and not signalled.
        Ok(Self(Fence::alloc(kind, true)?))
    }

    /// Returns the waiting side.
    ///
    /// # Context
    ///
    /// Any.
    pub fn fence(&self) -> Fence {
        self.0.clone()
    }

    /// Passes both sides to a C driver, with a reference.
    #[cfg(CONFIG_RUST_HMM_CAPI)]
    pub(crate) fn into_raw(self) -> *mut crate::bindings::rust_hmm_fence {
        ManuallyDrop::new(self).0.as_raw()
    }

    /// Signals the fence, with an error if `result` is one.
    ///
    /// # Context
    ///
    /// Any in which a `spinlock_t` may be taken: also hard interrupts, but not with `PREEMPT_RT`,
    /// where handlers of drivers are threads.
    pub fn signal(self, result: Result) {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so that the fence is moved out once.
        let fence = unsafe { core::ptr::read(&this.0) };
        fence.end(result);
    }
}

impl Drop for DriverFence {
    fn drop(&mut self) {
        self.0.end(Err(cancelled()));
    }
}

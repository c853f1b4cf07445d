// SPDX-License-Identifier: GPL-2.0

//! Fences of operations that may fault, take an mmap lock or wait for user space.
//!
//! The duration of such an operation is not bounded. Therefore its fence is not a `dma_fence`, with
//! or without a timeout (see "Indefinite DMA Fences" in `Documentation/driver-api/dma-buf.rst`),
//! and it cannot be converted to a `dma_fence` or a sync file. [`DmaFence`] is another type, for
//! hardware that accesses memory which cannot move. Only the other direction is allowed:
//! [`Fence::of`] creates a fence that signals when a DMA fence does.
//!
//! [`DriverFence`] is the side that signals the fence, once. [`Fence`] is the side that waits. User
//! space observes a fence by an eventfd ([`Fence::eventfd`]) or by `poll()` of a driver's file
//! ([`FenceWatch`](super::fence_watch::FenceWatch)).

use super::{
    completion::TimedCompletion,
    dma_fence::DmaFence,
    reentry, //
};
use crate::{
    bindings,
    kernel::identity::FenceType, //
};
#[cfg(CONFIG_RUST_HMM_CAPI)]
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use kernel::{
    error::to_result,
    prelude::*,
    time::{
        Delta,
        Instant,
        Jiffies,
        Monotonic, //
    }, //
};

mod alloc;
mod driver;
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
mod tests;

pub use alloc::FenceAlloc;
pub use driver::DriverFence;

/// Maximum duration of one sleep of a wait, in jiffies. After it the elapsed time is checked again.
const MAX_SLEEP_JIFFIES: Jiffies = 1 << 20;

/// State of a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceStatus {
    /// The operation has not ended.
    NotDone,
    /// The operation has succeeded.
    Done,
    /// The operation has failed, or was cancelled (`ECANCELED`).
    Failed(Error),
}

impl FenceStatus {
    /// Returns the result of the operation, if it has ended.
    ///
    /// # Context
    ///
    /// Any.
    pub fn result(self) -> Option<Result> {
        match self {
            Self::NotDone => None,
            Self::Done => Some(Ok(())),
            Self::Failed(error) => Some(Err(error)),
        }
    }
}

/// The waiting side of a fence. A clone refers to the same fence.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::time::Delta;
/// use rust_hmm::kernel::fence::Fence;
///
/// /// Waits for an operation for at most 10 ms.
/// fn wait(fence: &Fence) -> Result {
///     fence.synchronize(Some(Delta::from_millis(10)))
/// }
/// ```
///
/// # Invariants
///
/// We own a reference of the fence.
pub struct Fence(NonNull<bindings::rust_hmm_fence>);

// SAFETY: All functions on a fence may be called by any task, and its reference count is atomic.
unsafe impl Send for Fence {}
// SAFETY: The state of a fence is protected by its own lock, and its reference count is atomic.
unsafe impl Sync for Fence {}

impl Fence {
    fn alloc(kind: FenceType, by_driver: bool) -> Result<Self> {
        // SAFETY: The helper has no preconditions. `kind` is only compared, never dereferenced.
        let raw = unsafe { bindings::rust_hmm_fence_alloc(kind.as_ptr(), by_driver) };
        // INVARIANT: The fence is new, and its reference is ours.
        Ok(Self(NonNull::new(raw).ok_or(ENOMEM)?))
    }

    /// Creates a fence that signals when `dma` does, with the same result.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn of(dma: &DmaFence) -> Result<Self> {
        Ok(FenceAlloc::new()?.follow(dma))
    }

    /// # Safety
    ///
    /// `raw` must be a valid fence. The caller's reference passes to the result.
    #[cfg(CONFIG_RUST_HMM_CAPI)]
    pub(crate) unsafe fn from_raw(raw: NonNull<bindings::rust_hmm_fence>) -> Self {
        // INVARIANT: The reference is ours by the function's requirements.
        Self(raw)
    }

    /// Creates a new reference.
    ///
    /// # Safety
    ///
    /// `raw` must be a fence that is alive.
    #[cfg(CONFIG_RUST_HMM_CAPI)]
    pub(crate) unsafe fn get(raw: NonNull<bindings::rust_hmm_fence>) -> Self {
        // SAFETY: `raw` is valid by the function's requirements. `ManuallyDrop` keeps the caller's
        // reference.
        let theirs = ManuallyDrop::new(unsafe { Self::from_raw(raw) });
        Self::clone(&theirs)
    }

    /// Passes the reference to the caller.
    #[cfg(CONFIG_RUST_HMM_CAPI)]
    pub(crate) fn into_raw(self) -> *mut bindings::rust_hmm_fence {
        ManuallyDrop::new(self).as_raw()
    }

    pub(super) fn as_raw(&self) -> *mut bindings::rust_hmm_fence {
        self.0.as_ptr()
    }

    fn end(&self, result: Result) {
        let error = result.err().map_or(0, |error| error.to_errno());
        // SAFETY: The fence is alive by the type invariant.
        unsafe { bindings::rust_hmm_fence_signal(self.as_raw(), error) };
    }

    /// Returns the state of the fence. All writes of the operation are visible once the state is
    /// not [`FenceStatus::NotDone`].
    ///
    /// # Context
    ///
    /// Any.
    pub fn check(&self) -> FenceStatus {
        // SAFETY: The fence is alive by the type invariant.
        match unsafe { bindings::rust_hmm_fence_status(self.as_raw()) } {
            0 => FenceStatus::NotDone,
            error if error < 0 => FenceStatus::Failed(Error::from_errno(error)),
            _ => FenceStatus::Done,
        }
    }

    /// Whether a device of type `kind` signals the fence. If so, a device of that type that waits
    /// for it does not need to poll, because the signal alone wakes it.
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_of(&self, kind: FenceType) -> bool {
        // SAFETY: The fence is alive by the type invariant.
        let found = unsafe { bindings::rust_hmm_fence_kind(self.as_raw()) };
        kind != FenceType::NONE && core::ptr::eq(found, kind.as_ptr())
    }

    /// Waits until the fence is signalled, and returns its result. Waits for at most `timeout`, or
    /// without limit if that is `None`.
    ///
    /// # Errors
    ///
    /// * `ETIMEDOUT`: the fence was not signalled within `timeout`.
    /// * `EINTR`: a fatal signal is pending. Other signals do not end the wait.
    /// * `EDEADLK`: called from a callback.
    /// * `ENOMEM`: memory allocation failed.
    /// * The error of the fence.
    ///
    /// # Context
    ///
    /// May sleep. The caller must not hold a lock that is taken before the fence is signalled.
    pub fn synchronize(&self, timeout: Option<Delta>) -> Result {
        reentry::may_wait()?;
        if let Some(ended) = self.check().result() {
            return ended;
        }
        let completion = KBox::pin_init(TimedCompletion::new(), GFP_KERNEL)?;
        let since = Instant::<Monotonic>::now();
        loop {
            let left = match timeout {
                None => MAX_SLEEP_JIFFIES,
                Some(timeout) => {
                    let left = timeout - since.elapsed();
                    if left <= Delta::ZERO {
                        return Err(ETIMEDOUT);
                    }
                    let ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
                    kernel::time::msecs_to_jiffies(ms.max(1)).min(MAX_SLEEP_JIFFIES)
                }
            };
            self.sleep(&completion, left, true)?;
            if let Some(ended) = self.check().result() {
                return ended;
            }
        }
    }

    /// Sleeps until the fence is signalled, `completion` is completed, or `timeout` jiffies have
    /// passed. Does not allocate.
    ///
    /// # Errors
    ///
    /// * `EINTR`: a fatal signal or, unless `killable`, any signal is pending.
    ///
    /// # Context
    ///
    /// May sleep. Must not be called from a callback.
    pub fn sleep(&self, completion: &TimedCompletion, timeout: Jiffies, killable: bool) -> Result {
        // SAFETY: The fence is alive by the type invariant, and `completion` is borrowed until the
        // call returns.
        let ret = unsafe {
            bindings::rust_hmm_fence_wait(self.as_raw(), completion.as_raw(), timeout, killable)
        };
        if ret < 0 {
            return Err(EINTR);
        }
        Ok(())
    }

    /// Adds 1 to the eventfd `fd` of the current process when the fence is signalled, or
    /// immediately if it is signalled already. The eventfd remains referenced until the last
    /// reference of the fence is dropped.
    ///
    /// [`Self::check`] may report the signal shortly before the eventfd is written, so that user
    /// space should wait for the eventfd with `poll()`.
    ///
    /// # Errors
    ///
    /// * `EBADF`: `fd` is not an open descriptor.
    /// * `EINVAL`: `fd` is not an eventfd.
    /// * `EBUSY`: the fence has four eventfds already.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn eventfd(&self, fd: i32) -> Result {
        // SAFETY: The fence is alive by the type invariant.
        to_result(unsafe { bindings::rust_hmm_fence_eventfd(self.as_raw(), fd) })
    }
}

impl Clone for Fence {
    fn clone(&self) -> Self {
        // SAFETY: The fence is alive by the type invariant.
        unsafe { bindings::rust_hmm_fence_get(self.as_raw()) };
        // INVARIANT: The reference was just taken.
        Self(self.0)
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        // SAFETY: We own a reference by the type invariant, and this is its last use.
        unsafe { bindings::rust_hmm_fence_put(self.as_raw()) };
    }
}

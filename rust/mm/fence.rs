// SPDX-License-Identifier: GPL-2.0

//! Fences of operations that may fault, take an mmap lock or wait for user space.
//!
//! Nothing bounds the time of such an operation. So its fence is no `dma_fence`, with or without a time limit
//! (`Documentation/driver-api/dma-buf.rst`, "Indefinite DMA Fences"), and neither a `dma_fence` nor a sync file can be
//! made of it. [`DmaFence`] is another type, for hardware that works on memory which cannot move. [`Fence::of`] goes in
//! the one direction that is allowed: a fence that signals when a DMA fence does.
//!
//! [`Pending`] is the side that signals, once. [`Fence`] is the side that waits. Others observe a fence by an eventfd
//! ([`Fence::eventfd`]) or by the `poll` of a driver's file ([`Watch`](super::fence_watch::Watch)).

use super::{bell::Bell, dma_fence::DmaFence, notifier::Cookie};
use crate::{bindings, within};
use core::{mem::ManuallyDrop, ptr::NonNull};
use kernel::{
    error::to_result,
    ffi,
    prelude::*,
    time::{
        Delta,
        Instant,
        Jiffies,
        Monotonic, //
    },
};

/// Longest sleep of a wait before it looks at the clock again, in jiffies.
const LONGEST: Jiffies = 1 << 20;

/// `ECANCELED`, which the kernel crate of 7.2 does not name.
pub fn cancelled() -> Error {
    // CAST: A small constant.
    Error::from_errno(-(bindings::ECANCELED as ffi::c_int))
}

/// State of a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The operation has not ended.
    NotDone,
    /// The operation has succeeded.
    Done,
    /// The operation has failed, or was cancelled (`ECANCELED`).
    Failed(Error),
}

impl Status {
    /// Result of the operation, if it has ended.
    pub fn ended(self) -> Option<Result> {
        match self {
            Self::NotDone => None,
            Self::Done => Some(Ok(())),
            Self::Failed(error) => Some(Err(error)),
        }
    }
}

/// The side of a fence that signals it. Only its owner can. Dropped, the fence fails with `ECANCELED`.
///
/// # Invariants
///
/// The fence was made by [`Self::new`], and is not signalled.
#[must_use = "dropped, it is cancelled"]
pub struct Pending(Fence);

impl Pending {
    /// Makes a fence that devices of type `kind` signal.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new(kind: Cookie) -> Result<Self> {
        // INVARIANT: A new fence.
        Ok(Self(Fence::alloc(kind, false)?))
    }

    /// As [`Self::new`], for a driver in C, which gets both sides as one pointer.
    pub(crate) fn of_driver(kind: Cookie) -> Result<Self> {
        // INVARIANT: A new fence.
        Ok(Self(Fence::alloc(kind, true)?))
    }

    /// The side that waits.
    pub fn fence(&self) -> Fence {
        self.0.clone()
    }

    /// Gives both sides to a driver in C, with a reference.
    pub(crate) fn into_raw(self) -> *mut bindings::rust_hmm_fence {
        ManuallyDrop::new(self).0.as_raw()
    }

    /// Signals it, with the error if there is one.
    ///
    /// # Context
    ///
    /// Any, also interrupts.
    pub fn signal(self, result: Result) {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so that the fence is moved out once.
        let fence = unsafe { core::ptr::read(&this.0) };
        fence.end(result);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.end(Err(cancelled()));
    }
}

/// Memory for a fence that will stand for a DMA fence. It is allocated before the DMA fence is made,
/// because nothing may be allocated after that:
/// [`DmaFenceRoom::make`](super::dma_fence::DmaFenceRoom::make).
///
/// # Invariants
///
/// This is the only reference to the fence.
pub struct FenceRoom(Fence);

impl FenceRoom {
    /// Allocates the memory.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new() -> Result<Self> {
        // INVARIANT: A new fence.
        Ok(Self(Fence::alloc(Cookie::NONE, false)?))
    }

    /// Makes a fence of it that signals when `dma` does, with the same result.
    ///
    /// # Context
    ///
    /// Any.
    pub fn follow(self, dma: &DmaFence) -> Fence {
        // SAFETY: Both are alive, and the fence is ours alone, by their type invariants.
        unsafe { bindings::rust_hmm_fence_follow(self.0.as_raw(), dma.as_raw()) };
        self.0
    }
}

/// The side of a fence that waits for it. A clone is the same fence.
///
/// # Invariants
///
/// We own a reference of the fence.
pub struct Fence(NonNull<bindings::rust_hmm_fence>);

// SAFETY: All functions on a fence may be called by any task, and its reference count is atomic.
unsafe impl Send for Fence {}
// SAFETY: As for `Send`: its state is protected by its own lock.
unsafe impl Sync for Fence {}

impl Fence {
    fn alloc(kind: Cookie, by_driver: bool) -> Result<Self> {
        // SAFETY: No preconditions; the kind is only compared.
        let raw = unsafe { bindings::rust_hmm_fence_alloc(kind.as_ptr(), by_driver) };
        // INVARIANT: A new fence, whose reference is ours.
        Ok(Self(NonNull::new(raw).ok_or(ENOMEM)?))
    }

    /// Makes a fence that signals when `dma` does, with the same result.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn of(dma: &DmaFence) -> Result<Self> {
        Ok(FenceRoom::new()?.follow(dma))
    }

    /// # Safety
    ///
    /// `raw` must be a fence of which the caller gives a reference away.
    pub(crate) unsafe fn from_raw(raw: NonNull<bindings::rust_hmm_fence>) -> Self {
        // INVARIANT: By the function's requirements.
        Self(raw)
    }

    /// Takes a reference.
    ///
    /// # Safety
    ///
    /// `raw` must be a fence that is alive.
    pub(crate) unsafe fn get(raw: NonNull<bindings::rust_hmm_fence>) -> Self {
        // SAFETY: By the function's requirements; this reference stays where it is.
        let theirs = ManuallyDrop::new(unsafe { Self::from_raw(raw) });
        Self::clone(&theirs)
    }

    /// Gives the reference away.
    pub(crate) fn into_raw(self) -> *mut bindings::rust_hmm_fence {
        ManuallyDrop::new(self).as_raw()
    }

    pub(super) fn as_raw(&self) -> *mut bindings::rust_hmm_fence {
        self.0.as_ptr()
    }

    fn end(&self, result: Result) {
        let error = result.err().map_or(0, |error| error.to_errno());
        // SAFETY: Alive by the type invariant.
        unsafe { bindings::rust_hmm_fence_signal(self.as_raw(), error) };
    }

    /// State of the fence. What its operation did is visible when it has ended.
    ///
    /// # Context
    ///
    /// Any.
    pub fn check(&self) -> Status {
        // SAFETY: Alive by the type invariant.
        match unsafe { bindings::rust_hmm_fence_status(self.as_raw()) } {
            0 => Status::NotDone,
            error if error < 0 => Status::Failed(Error::from_errno(error)),
            _ => Status::Done,
        }
    }

    /// Whether a device of type `kind` signals it, so that another one of that type can be woken by the signal alone.
    pub fn is_of(&self, kind: Cookie) -> bool {
        // SAFETY: Alive by the type invariant.
        let found = unsafe { bindings::rust_hmm_fence_kind(self.as_raw()) };
        kind != Cookie::NONE && core::ptr::eq(found, kind.as_ptr())
    }

    /// Waits until it is signalled, at most for `timeout`; `None` is for ever. Returns how it ended.
    ///
    /// # Errors
    ///
    /// - `ETIMEDOUT`
    /// - `EINTR`: the task was killed. Other signals do not end the wait.
    /// - `EDEADLK`: within a callback
    /// - `ENOMEM`
    /// - the error of the fence
    ///
    /// # Context
    ///
    /// May sleep; no lock may be held that is taken before the fence is signalled.
    pub fn synchronize(&self, timeout: Option<Delta>) -> Result {
        within::may_wait()?;
        if let Some(ended) = self.check().ended() {
            return ended;
        }
        let bell = KBox::pin_init(Bell::new(), GFP_KERNEL)?;
        let since = Instant::<Monotonic>::now();
        loop {
            let left = match timeout {
                None => LONGEST,
                Some(timeout) => {
                    let left = timeout - since.elapsed();
                    if left <= Delta::ZERO {
                        return Err(ETIMEDOUT);
                    }
                    let ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
                    kernel::time::msecs_to_jiffies(ms.max(1)).min(LONGEST)
                }
            };
            self.sleep(&bell, left, true)?;
            if let Some(ended) = self.check().ended() {
                return ended;
            }
        }
    }

    /// Sleeps until it is signalled, `bell` is rung, or `timeout` jiffies have passed. Allocates nothing.
    ///
    /// # Errors
    ///
    /// - `EINTR`: the task was killed or, unless `killable`, has a signal.
    ///
    /// # Context
    ///
    /// May sleep; not within a callback.
    pub fn sleep(&self, bell: &Bell, timeout: Jiffies, killable: bool) -> Result {
        // SAFETY: Alive by the type invariant, and the bell is borrowed for as long as the call takes.
        let ret = unsafe {
            bindings::rust_hmm_fence_wait(self.as_raw(), bell.as_raw(), timeout, killable)
        };
        if ret < 0 {
            return Err(EINTR);
        }
        Ok(())
    }

    /// Adds 1 to the eventfd `fd` of the current process when it is signalled, or at once if it is. The eventfd stays
    /// in use until the last reference of the fence is dropped.
    ///
    /// The fence can be seen signalled shortly before that: wait for the eventfd by `poll()`.
    ///
    /// # Errors
    ///
    /// - `EBADF`: there is no such descriptor.
    /// - `EINVAL`: it is no eventfd.
    /// - `EBUSY`: the fence has four of them.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn eventfd(&self, fd: i32) -> Result {
        // SAFETY: Alive by the type invariant.
        to_result(unsafe { bindings::rust_hmm_fence_eventfd(self.as_raw(), fd) })
    }
}

impl Clone for Fence {
    fn clone(&self) -> Self {
        // SAFETY: Alive by the type invariant.
        unsafe { bindings::rust_hmm_fence_get(self.as_raw()) };
        // INVARIANT: The reference was just taken.
        Self(self.0)
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::rust_hmm_fence_put(self.as_raw()) };
    }
}

#[kunit_tests(rust_hmm_fence)]
mod tests {
    use super::*;
    use crate::thread::Thread;

    fn pending() -> Result<Pending> {
        Pending::new(Cookie::NONE)
    }

    #[test]
    fn a_fence_is_signalled_once_with_its_result() -> Result {
        let (good, bad) = (pending()?, pending()?);
        let (fence, failed) = (good.fence(), bad.fence());
        assert_eq!(fence.check(), Status::NotDone);
        good.signal(Ok(()));
        bad.signal(Err(EIO));
        assert_eq!(fence.check(), Status::Done);
        assert_eq!(failed.check(), Status::Failed(EIO));
        assert_eq!(failed.synchronize(None), Err(EIO));
        assert_eq!(fence.synchronize(Some(Delta::ZERO)), Ok(()));
        Ok(())
    }

    #[test]
    fn dropped_without_a_signal_it_is_cancelled() -> Result {
        let pending = pending()?;
        let fence = pending.fence();
        drop(pending);
        assert_eq!(fence.check(), Status::Failed(cancelled()));
        Ok(())
    }

    #[test]
    fn a_wait_ends_with_its_time_or_with_the_signal() -> Result {
        let pending = pending()?;
        let fence = pending.fence();
        let since = Instant::<Monotonic>::now();
        let limit = Delta::from_millis(30);
        assert_eq!(fence.synchronize(Some(limit)), Err(ETIMEDOUT));
        assert!(since.elapsed() >= limit);
        let thread = Thread::spawn(c"hmm-test", move || {
            kernel::time::delay::fsleep(Delta::from_millis(20));
            pending.signal(Err(ENODEV));
        })?;
        // Cancelled if the thread was stopped before it ran; but nothing stops it here.
        assert_eq!(fence.synchronize(None), Err(ENODEV));
        drop(thread);
        Ok(())
    }

    #[test]
    fn its_kind_is_that_of_the_device_that_signals_it() -> Result {
        let (mine, other) = (1u8, 2u8);
        let (mine, other) = (Cookie::of(&mine), Cookie::of(&other));
        let pending = Pending::new(mine)?;
        let fence = pending.fence();
        assert!(fence.is_of(mine) && !fence.is_of(other) && !fence.is_of(Cookie::NONE));
        pending.signal(Ok(()));
        assert!(fence.is_of(mine));
        Ok(())
    }

    #[test]
    fn a_number_that_is_no_eventfd_is_refused() -> Result {
        let fence = pending()?.fence();
        assert_eq!(fence.eventfd(-1), Err(EBADF));
        Ok(())
    }

    #[test]
    fn waiting_within_a_callback_is_refused() -> Result {
        let pending = pending()?;
        let _within = within::Within::enter();
        assert_eq!(pending.fence().synchronize(None), Err(within::deadlock()));
        Ok(())
    }
}

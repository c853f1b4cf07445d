// SPDX-License-Identifier: GPL-2.0

//! Fences on the kernel's `dma_fence`, so that those of any driver fit.
//!
//! A fence comes in three states, which are three types. [`FenceRoom`] is memory for one: to get it may
//! fail. With it [`Pending`] is made where nothing may fail any more: it is the side that signals, once.
//! [`Fence`] is the side that waits.
//!
//! C header: [`include/linux/dma-fence.h`](srctree/include/linux/dma-fence.h)

use super::{bell::Bell, notifier::Cookie};
use crate::{bindings, within};
use core::{mem::ManuallyDrop, ptr::NonNull};
use kernel::{
    ffi,
    prelude::*,
    sync::atomic::{ordering::Relaxed, Atomic},
    time::{Delta, Instant, Jiffies, Monotonic},
    types::NotThreadSafe, //
};

/// Longest sleep of a wait before it looks at the clock again, in jiffies.
const LONGEST: Jiffies = 1 << 20;

/// `ECANCELED`, which the kernel crate of 7.2 does not name.
pub fn cancelled() -> Error {
    // CAST: A small constant.
    Error::from_errno(-(bindings::ECANCELED as ffi::c_int))
}

/// How a fence stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// What it stands for goes on, or has not begun.
    NotDone,
    /// It is done.
    Done,
    /// It has failed, or was cancelled (`ECANCELED`).
    Failed(Error),
}

impl Status {
    /// The end as a result, if there is one.
    pub fn ended(self) -> Option<Result> {
        match self {
            Self::NotDone => None,
            Self::Done => Some(Ok(())),
            Self::Failed(error) => Some(Err(error)),
        }
    }
}

/// Fences that signal in the order in which they were made.
pub struct Timeline {
    context: u64,
    last: Atomic<u64>,
}

impl Timeline {
    /// A new one.
    pub fn new() -> Self {
        Self {
            // SAFETY: No preconditions.
            context: unsafe { bindings::dma_fence_context_alloc(1) },
            last: Atomic::new(0),
        }
    }
}

impl Default for Timeline {
    fn default() -> Self {
        Self::new()
    }
}

/// Memory for a fence.
///
/// # Invariants
///
/// It is ours, and not initialized.
pub struct FenceRoom(NonNull<bindings::dma_fence>);

// SAFETY: Memory may be used and freed anywhere.
unsafe impl Send for FenceRoom {}

impl FenceRoom {
    /// Allocates it. Context: may sleep. `ENOMEM`.
    pub fn new() -> Result<Self> {
        // SAFETY: No preconditions.
        let raw = unsafe { bindings::rust_hmm_fence_alloc() };
        // INVARIANT: Just allocated.
        Ok(Self(NonNull::new(raw).ok_or(ENOMEM)?))
    }

    /// Makes the fence; this cannot fail. `kind` names the type of device that signals it.
    ///
    /// Fences of one timeline must be made in the order in which they signal.
    pub fn make(self, timeline: &Timeline, kind: Cookie) -> Pending {
        let this = ManuallyDrop::new(self);
        let seqno = timeline.last.fetch_add(1, Relaxed) + 1;
        // SAFETY: It is ours and not initialized. The kind is only compared.
        unsafe {
            bindings::rust_hmm_fence_init(this.0.as_ptr(), kind.as_ptr(), timeline.context, seqno);
        }
        // INVARIANT: The first reference is ours, and nobody has signalled it.
        Pending(Fence(this.0))
    }
}

impl Drop for FenceRoom {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::rust_hmm_fence_free(self.0.as_ptr()) };
    }
}

/// A fence that will be signalled by whoever has this. Dropped, it fails with `ECANCELED`.
///
/// # Invariants
///
/// The fence is one of ours, and not signalled.
#[must_use = "dropped, it is cancelled"]
pub struct Pending(Fence);

impl Pending {
    /// The side that waits.
    pub fn fence(&self) -> Fence {
        self.0.clone()
    }

    /// Gives the duty to signal it to a driver in C, with a reference. Only of such a fence does
    /// `rust_hmm_fence_signal_once()` accept a signal.
    pub(crate) fn into_raw(self) -> *mut bindings::dma_fence {
        let this = ManuallyDrop::new(self);
        // SAFETY: A fence of ours by the type invariant.
        unsafe { bindings::rust_hmm_fence_set_by_driver(this.0.as_raw()) };
        this.0.as_raw()
    }

    /// Signals it, with the error if there is one. Context: any.
    pub fn signal(self, result: Result) {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so that the fence is taken out once.
        let fence = unsafe { core::ptr::read(&this.0) };
        let error = result.err().map_or(0, |error| error.to_errno());
        // SAFETY: A live fence of ours, that was not signalled by the type invariant.
        unsafe { bindings::rust_hmm_fence_signal(fence.as_raw(), error) };
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // SAFETY: As in `signal`.
        unsafe { bindings::rust_hmm_fence_signal(self.0.as_raw(), cancelled().to_errno()) };
    }
}

/// A fence, of ours or of another driver. A clone is the same fence.
///
/// # Invariants
///
/// We own a reference of the fence.
pub struct Fence(NonNull<bindings::dma_fence>);

// SAFETY: Fences are made to be used by several tasks, and released anywhere.
unsafe impl Send for Fence {}
// SAFETY: As above.
unsafe impl Sync for Fence {}

impl Fence {
    /// # Safety
    ///
    /// `raw` must be a fence of which the caller gives a reference away.
    pub(crate) unsafe fn from_raw(raw: NonNull<bindings::dma_fence>) -> Self {
        // INVARIANT: By the function's requirements.
        Self(raw)
    }

    /// Takes a reference.
    ///
    /// # Safety
    ///
    /// `raw` must be a fence that is alive.
    pub(crate) unsafe fn get(raw: NonNull<bindings::dma_fence>) -> Self {
        // SAFETY: By the function's requirements; this reference stays where it is.
        let theirs = ManuallyDrop::new(unsafe { Self::from_raw(raw) });
        Self::clone(&theirs)
    }

    /// Gives the reference away.
    pub(crate) fn into_raw(self) -> *mut bindings::dma_fence {
        ManuallyDrop::new(self).as_raw()
    }

    pub(super) fn as_raw(&self) -> *mut bindings::dma_fence {
        self.0.as_ptr()
    }

    /// How it stands. Context: any.
    pub fn check(&self) -> Status {
        // SAFETY: Alive by the type invariant.
        match unsafe { bindings::dma_fence_get_status(self.as_raw()) } {
            0 => Status::NotDone,
            error if error < 0 => Status::Failed(Error::from_errno(error)),
            _ => Status::Done,
        }
    }

    /// Whether it is one that a device of type `kind` signals, so that another one of that type need not
    /// have anybody look at it. Of one that is signalled this is not known.
    pub fn is_of(&self, kind: Cookie) -> bool {
        // SAFETY: Alive by the type invariant.
        let found = unsafe { bindings::rust_hmm_fence_type(self.as_raw()) };
        kind != Cookie::NONE && core::ptr::eq(found, kind.as_ptr())
    }

    /// Waits until it is signalled, at most for `timeout`; `None` is for ever. Returns how it ended.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`; `EINTR`: killed; `EDEADLK`: within a callback; `ENOMEM`; and that of the fence.
    /// Context: may sleep; no lock may be held that is taken before the fence is signalled.
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

    /// Sleeps until it is signalled, `bell` is rung, or `timeout` jiffies have passed. `EINTR`.
    pub(crate) fn sleep(&self, bell: &Bell, timeout: Jiffies, killable: bool) -> Result {
        // SAFETY: Alive by the type invariant, and the bell is borrowed for as long as the call takes.
        let ret = unsafe {
            bindings::rust_hmm_fence_wait(self.as_raw(), bell.as_raw(), timeout, killable)
        };
        if ret < 0 {
            return Err(EINTR);
        }
        Ok(())
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

/// From here until this is dropped the current task is on the way to signal a fence: lockdep then
/// reports memory that is allocated and mm locks that are taken.
pub struct Signalling {
    cookie: bool,
    _nts: NotThreadSafe,
}

impl Signalling {
    /// Begins here.
    pub fn begin() -> Self {
        Self {
            // SAFETY: No preconditions.
            cookie: unsafe { bindings::rust_hmm_fence_begin_signalling() },
            _nts: NotThreadSafe,
        }
    }
}

impl Drop for Signalling {
    fn drop(&mut self) {
        // SAFETY: It was begun by this task.
        unsafe { bindings::rust_hmm_fence_end_signalling(self.cookie) };
    }
}

#[kunit_tests(rust_hmm_fence)]
mod tests {
    use super::*;
    use crate::thread::Thread;

    fn pending() -> Result<Pending> {
        Ok(FenceRoom::new()?.make(&Timeline::new(), Cookie::NONE))
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
        drop(FenceRoom::new()?);
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
    fn its_kind_is_known_until_it_is_signalled() -> Result {
        let (mine, other) = (1u8, 2u8);
        let (mine, other) = (Cookie::of(&mine), Cookie::of(&other));
        let pending = FenceRoom::new()?.make(&Timeline::new(), mine);
        let fence = pending.fence();
        assert!(fence.is_of(mine) && !fence.is_of(other) && !fence.is_of(Cookie::NONE));
        pending.signal(Ok(()));
        assert!(!fence.is_of(mine));
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

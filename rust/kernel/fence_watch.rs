// SPDX-License-Identifier: GPL-2.0

//! Reports signalled fences by `poll()` of a driver's file.
//!
//! A file has one [`FenceWatch`]. Each fence that the file reports has a [`WatchedFence`], which is
//! counted from the signal of the fence until it is dropped. The file is ready while the count is
//! not 0.

use super::fence::Fence;
use crate::{
    bindings,
    kernel::{
        deferred::{
            Deferred,
            DropWaits, //
        },
        lock_classes, //
    }, //
};
use kernel::{
    ffi,
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic,
            AtomicFlag, //
        },
        poll::PollCondVar,
        Arc,
        LockClassKey, //
    },
    types::Opaque, //
};

/// The number of signalled fences of a file, and the tasks that poll the file for them.
pub struct FenceWatch {
    signalled: Atomic<usize>,
    changed: Deferred<Pollers>,
}

/// Wait queue of the tasks that poll the file. Dropping it waits for an RCU grace period.
#[pin_data]
struct Pollers {
    #[pin]
    changed: PollCondVar,
}

impl Pollers {
    fn new(name: &'static CStr, key: Pin<&'static LockClassKey>) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            changed <- PollCondVar::new(name, key),
        }? Error)
    }
}

impl DropWaits for Pollers {}

impl FenceWatch {
    /// Creates a watch without fences.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep. Dropping the last reference may sleep, too, except in a callback or in atomic
    /// context, where a worker frees it.
    pub fn new() -> Result<Arc<Self>> {
        let (name, key) = lock_classes::fence_watch();
        let pollers = Pollers::new(name, key);
        let watch = Self {
            signalled: Atomic::new(0),
            changed: Deferred::pinned(pollers, GFP_KERNEL_ACCOUNT)?,
        };
        Ok(Arc::new(watch, GFP_KERNEL_ACCOUNT)?)
    }

    /// Whether a watched fence has signalled.
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_ready(&self) -> bool {
        self.signalled.load(Relaxed) != 0
    }

    /// Returns the condition variable that is notified when [`Self::is_ready`] becomes true.
    ///
    /// # Context
    ///
    /// Any.
    pub fn changed(&self) -> &PollCondVar {
        &self.changed.changed
    }
}

/// A fence that a [`FenceWatch`] counts from its signal on, until this is dropped.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::sync::poll::PollCondVar;
/// use kernel::sync::Arc;
/// use rust_hmm::kernel::fence::Fence;
/// use rust_hmm::kernel::fence_watch::FenceWatch;
/// use rust_hmm::kernel::fence_watch::WatchedFence;
///
/// /// Adds a fence to those that `poll()` of a file waits for.
/// fn watch(file: &Arc<FenceWatch>, fence: Fence) -> Result<Pin<KBox<WatchedFence>>> {
///     WatchedFence::new(fence, file.clone())
/// }
///
/// /// Handles `poll()` of the file. Returns whether the file is readable.
/// fn poll(file: &FenceWatch, register_wait: impl FnOnce(&PollCondVar)) -> bool {
///     register_wait(file.changed());
///     file.is_ready()
/// }
/// ```
///
/// # Invariants
///
/// `raw` was given to `rust_hmm_fence_watch()` with `fence`, and its `data` points to this.
#[pin_data(PinnedDrop)]
pub struct WatchedFence {
    fence: Fence,
    watch: Arc<FenceWatch>,
    has_signalled: AtomicFlag,
    #[pin]
    raw: Opaque<bindings::rust_hmm_fence_watch>,
}

// SAFETY: The registration may be removed by any task; all else is `Send`.
unsafe impl Send for WatchedFence {}
// SAFETY: The only field that changes through a shared reference is atomic.
unsafe impl Sync for WatchedFence {}

impl WatchedFence {
    /// Registers `fence` with `watch`. It is counted immediately if it is signalled already.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new(fence: Fence, watch: Arc<FenceWatch>) -> Result<Pin<KBox<Self>>> {
        let watched = KBox::pin_init(
            pin_init!(Self {
                fence,
                watch,
                has_signalled: AtomicFlag::new(false),
                raw: Opaque::zeroed(),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let raw = watched.raw.get();
        // SAFETY: `raw` is ours, and pinned. `data` is used until `rust_hmm_fence_unwatch()` in
        // `drop`, and the box is pinned.
        // INVARIANT: `raw` is registered with `fence`, and its `data` points to this object.
        unsafe {
            (*raw).signalled = Some(Self::signalled);
            (*raw).data = core::ptr::from_ref::<Self>(&watched).cast_mut().cast();
            bindings::rust_hmm_fence_watch(watched.fence.as_raw(), raw);
        }
        Ok(watched)
    }

    /// # Safety
    ///
    /// Called once, as `rust_hmm_fence_watch::signalled`, with a `WatchedFence` that is not
    /// dropped.
    unsafe extern "C" fn signalled(data: *mut ffi::c_void) {
        // SAFETY: `data` points to a live `WatchedFence` by the function's requirements, of which
        // only shared references exist.
        let this = unsafe { &*data.cast::<Self>() };
        this.has_signalled.store(true, Relaxed);
        this.watch.signalled.add(1, Relaxed);
        this.watch.changed().notify_all();
    }
}

#[pinned_drop]
impl PinnedDrop for WatchedFence {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: `raw` is registered by the type invariant. After this call the callback neither
        // runs nor will run.
        unsafe { bindings::rust_hmm_fence_unwatch(self.fence.as_raw(), self.raw.get()) };
        if self.has_signalled.load(Relaxed) {
            self.watch.signalled.add(usize::MAX, Relaxed);
        }
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_fence_watch)]
mod tests {
    use super::*;
    use crate::kernel::{
        fence::DriverFence,
        identity::FenceType, //
    };
    use kernel::time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    };

    #[test]
    fn signalled_fence_is_counted_until_dropped() -> Result {
        let watch = FenceWatch::new()?;
        let one = DriverFence::new(FenceType::NONE)?;
        let two = DriverFence::new(FenceType::NONE)?;
        let first = WatchedFence::new(one.fence(), watch.clone())?;
        let second = WatchedFence::new(two.fence(), watch.clone())?;
        assert!(!watch.is_ready());
        one.signal(Ok(()));
        assert!(watch.is_ready());
        // Signalled before it is watched.
        let again = WatchedFence::new(first.fence.clone(), watch.clone())?;
        drop(first);
        assert!(watch.is_ready());
        drop(again);
        assert!(!watch.is_ready());
        // Dropped before the signal.
        drop(second);
        two.signal(Err(EIO));
        assert!(!watch.is_ready());
        Ok(())
    }

    #[test]
    fn signal_bounds_callbacks_with_interrupts_off() -> Result {
        const COUNT: usize = 1000;
        let watch = FenceWatch::new()?;
        let pending = DriverFence::new(FenceType::NONE)?;
        let mut watched = KVec::with_capacity(COUNT, GFP_KERNEL)?;
        for _ in 0..COUNT {
            let one = WatchedFence::new(pending.fence(), watch.clone())?;
            watched.push(one, GFP_KERNEL)?;
        }
        pending.signal(Ok(()));
        // Some fences in the middle are dropped before their callback is called.
        watched.truncate(COUNT - 10);
        let since = Instant::<Monotonic>::now();
        while watch.signalled.load(Relaxed) < COUNT - 10 && since.elapsed() < Delta::from_secs(20) {
            fsleep(Delta::from_millis(1));
        }
        assert_eq!(watch.signalled.load(Relaxed), COUNT - 10);
        // SAFETY: The helper has no preconditions.
        let longest = unsafe { bindings::rust_hmm_fence_longest_lot() };
        assert!(longest > 1 && longest <= 16);
        drop(watched);
        assert!(!watch.is_ready());
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Objects whose drop sleeps, but may happen in a context in which it would deadlock.
//!
//! Dropping a mirror waits for running callbacks, dropping a thread waits for its closure, and
//! dropping a node takes a mutex that is held while a file is opened. A driver that drops the last
//! reference to such an object in its own callback would deadlock. [`Deferred`] owns the object
//! together with a work item. Where the current task must not wait, the object is queued, and a
//! worker drops it after the callback has returned. In all other contexts it is dropped in place.
//!
//! The worker runs code of the module that owns the object. Therefore a module notifier waits for
//! all queued objects after the exit function of a module has returned and before its code is
//! freed.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

use crate::{
    bindings,
    kernel::reentry, //
};
use core::{
    marker::PhantomData,
    ops::Deref,
    ptr::NonNull, //
};
use kernel::{
    alloc::Flags,
    error::to_result,
    ffi,
    prelude::*,
    sync::{
        atomic::{
            ordering::Full,
            Atomic, //
        },
        Arc, //
    },
    types::Opaque, //
};

/// An object whose drop sleeps.
pub(crate) trait DropWaits: Send + 'static {
    /// Returns whether the drop would wait for the current task although that is not in a callback,
    /// for example because the task is a thread of the object.
    ///
    /// # Context
    ///
    /// Any but NMI.
    fn waits_for_current(&self) -> bool {
        false
    }
}

/// The object with the work item that drops it.
#[pin_data]
#[repr(C)]
struct DropWork<T> {
    // First, because a pointer to the work item is used as a pointer to the place.
    #[pin]
    work: Opaque<bindings::rust_hmm_deferred>,
    #[pin]
    object: T,
}

/// Owns a `T`, which is dropped in place if the current task may wait, and by a worker otherwise.
///
/// # Invariants
///
/// `place` was a pinned box and is ours. No other code uses its work item.
pub(crate) struct Deferred<T: DropWaits> {
    place: NonNull<DropWork<T>>,
    _owns: PhantomData<DropWork<T>>,
}

// SAFETY: It owns a `T`, which is `Send` by its trait.
unsafe impl<T: DropWaits> Send for Deferred<T> {}
// SAFETY: A shared reference gives shared references of the `T` only.
unsafe impl<T: DropWaits + Sync> Sync for Deferred<T> {}
// Moving a `Deferred` moves the pointer only, not the place.
impl<T: DropWaits> Unpin for Deferred<T> {}

impl<T: DropWaits> Deferred<T> {
    /// Allocates the place, then calls `make` for the object. A failed allocation is reported
    /// before `make` is called.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    /// - the errors of `make`
    ///
    /// # Context
    ///
    /// As allocations with `flags`, and as `make`.
    #[inline]
    pub(crate) fn new(make: impl FnOnce() -> Result<T>, flags: Flags) -> Result<Self> {
        let place = KBox::pin_init(
            try_pin_init!(DropWork {
                work: Opaque::zeroed(),
                object: make()?,
            }? Error),
            flags,
        )?;
        Ok(Self::of(place))
    }

    /// Allocates the place, and initializes a pinned object in it.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    /// - the errors of `object`
    ///
    /// # Context
    ///
    /// As allocations with `flags`, and as `object`.
    #[inline]
    pub(crate) fn pinned(object: impl PinInit<T, Error>, flags: Flags) -> Result<Self> {
        let place = KBox::pin_init(
            try_pin_init!(DropWork {
                work: Opaque::zeroed(),
                object <- object,
            }? Error),
            flags,
        )?;
        Ok(Self::of(place))
    }

    #[inline]
    fn of(place: Pin<KBox<DropWork<T>>>) -> Self {
        // SAFETY: The object is not moved: only shared references to it are given out, and
        // `drop_at` drops it in place.
        let place = KBox::leak(unsafe { Pin::into_inner_unchecked(place) });
        // INVARIANT: `place` was a pinned box and is ours; the work item is not used yet.
        Self {
            place: NonNull::from(place),
            _owns: PhantomData,
        }
    }

    /// Drops the object at `place`, and frees its memory.
    ///
    /// # Safety
    ///
    /// `place` must be that of a `Deferred<T>`, which does not use it after this call.
    unsafe extern "C" fn drop_at(place: *mut ffi::c_void) {
        // SAFETY: By the function's requirements and the type invariant, `place` was a pinned box
        // and is ours. It is dropped without being moved.
        drop(unsafe { Pin::new_unchecked(KBox::from_raw(place.cast::<DropWork<T>>())) });
    }
}

impl<T: DropWaits> Deref for Deferred<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: The place is ours by the type invariant, and stays until the drop.
        unsafe { &self.place.as_ref().object }
    }
}

impl<T: DropWaits> Drop for Deferred<T> {
    #[inline]
    fn drop(&mut self) {
        let place = self.place.as_ptr();
        if reentry::can_wait() && !self.waits_for_current() {
            // SAFETY: By the type invariant the place is ours, and it is not used after this.
            unsafe { Self::drop_at(place.cast()) };
        } else {
            // SAFETY: By the type invariant the place is ours and no other code uses its work item.
            // `drop_at::<T>` is the function for this place, and `T` is `Send`.
            unsafe { queue(place.cast(), Self::drop_at) };
        }
    }
}

/// The function of a [`Recurring`] work item.
pub(crate) trait RecurringWork: Send + Sync + 'static {
    /// Handles everything that was requested since the previous call.
    ///
    /// # Context
    ///
    /// A worker; may sleep.
    fn run(&self);
}

/// A work item that can be queued repeatedly. One run serves all requests made before it begins.
#[pin_data]
#[repr(C)]
pub(crate) struct Recurring<T> {
    // First, because a pointer to the work item is used as a pointer to the object.
    #[pin]
    item: Opaque<bindings::rust_hmm_deferred>,
    /// Whether the work item is queued, with a reference to the object. The caller that changes
    /// this to `true` owns the work item until the worker clears it.
    is_queued: Atomic<bool>,
    work: T,
}

// SAFETY: `is_queued` gives one caller at a time access to the work item, and `T` is `Send`.
unsafe impl<T: RecurringWork> Send for Recurring<T> {}
// SAFETY: `is_queued` gives one caller at a time access to the work item, and `T` is `Sync`.
unsafe impl<T: RecurringWork> Sync for Recurring<T> {}

impl<T: RecurringWork> Recurring<T> {
    /// Creates a work item that is not queued.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new(work: T) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                item: Opaque::zeroed(),
                is_queued: Atomic::new(false),
                work,
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Returns the work.
    pub(crate) fn work(&self) -> &T {
        &self.work
    }

    /// Requests a run of the work. Memory accesses before this call are ordered before that run.
    ///
    /// # Context
    ///
    /// Any but NMI.
    pub(crate) fn queue(self: &Arc<Self>) {
        // Full: pairs with the exchange in `run_at`. If the flag was set, that exchange comes
        // later, and its run sees the caller's earlier accesses.
        if self.is_queued.xchg(true, Full) {
            return;
        }
        let raw = Arc::into_raw(self.clone());
        // SAFETY: The worker owns the reference `raw`, which keeps the object alive. This caller
        // has set `is_queued`, so that no other caller uses the work item until the worker clears
        // it.
        unsafe { queue(raw.cast_mut().cast(), Self::run_at) };
    }

    /// # Safety
    ///
    /// `raw` must be from [`Arc::into_raw`]; the call takes over its reference.
    unsafe extern "C" fn run_at(raw: *mut ffi::c_void) {
        // SAFETY: `raw` is from `Arc::into_raw()` and its reference is ours, by the function's
        // requirements.
        let this = unsafe { Arc::from_raw(raw.cast::<Self>().cast_const()) };
        // Before the work, so that a concurrent request that this run may miss queues another one.
        // Full: pairs with the exchange in `queue`.
        this.is_queued.xchg(false, Full);
        this.work.run();
    }
}

/// Queues the object that begins with `work`. A worker calls `drop` with its address. Not inlined
/// into other modules, because all of them share one workqueue.
///
/// # Safety
///
/// `work` must be valid until `drop` is called, and no other code may use it. It must be sound that
/// any task calls `drop` once with its address.
#[cold]
#[inline(never)]
unsafe fn queue(
    work: *mut bindings::rust_hmm_deferred,
    drop: unsafe extern "C" fn(*mut ffi::c_void),
) {
    // SAFETY: `work` is valid and exclusive, by the function's requirements.
    unsafe {
        (*work).drop = Some(drop);
        bindings::rust_hmm_deferred_queue(work);
    }
}

/// Waits until all queued objects are dropped.
///
/// # Context
///
/// May sleep. Must not be called in a callback, because the drop of an object may wait for that.
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
pub(crate) fn flush() {
    // SAFETY: No preconditions.
    unsafe { bindings::rust_hmm_deferred_flush() };
}

/// Owns the library's workqueue.
pub(crate) struct Workqueue(());

impl Workqueue {
    /// Creates the workqueue, and registers the notifier that flushes it when a module is unloaded.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Safety
    ///
    /// Must be called once, by the library's `init`, before any object exists.
    pub(crate) unsafe fn new() -> Result<Self> {
        // SAFETY: Called once and before any object exists, by the function's requirements.
        to_result(unsafe { bindings::rust_hmm_deferred_init() })?;
        Ok(Self(()))
    }
}

impl Drop for Workqueue {
    fn drop(&mut self) {
        // SAFETY: `new` has created the workqueue. All drivers, which could queue objects, are
        // unloaded before the library.
        unsafe { bindings::rust_hmm_deferred_exit() };
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Objects whose drop waits, and that may be dropped where waiting would never end.
//!
//! The drop of a mirror waits for callbacks under way, that of a thread for its closure, that of a
//! node for a mutex that is held while a file is opened. A driver that drops the last reference of
//! such an object in its own callback would wait for itself. [`Deferred`] owns the object together
//! with a work item. Where the current task must not wait, the object is queued, and a worker drops
//! it as soon as the callback has returned. Everywhere else it is dropped in place.
//!
//! A worker runs code of the module that the object belongs to. So a module notifier waits for all
//! queued objects after a module's exit function has returned and before its code is freed.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

use crate::{
    bindings,
    within, //
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
        atomic::{ordering::Full, Atomic},
        Arc, //
    },
    types::Opaque, //
};

/// An object whose drop waits.
pub(crate) trait DropWaits: Send + 'static {
    /// Whether the drop would wait for the current task, although this is not in a callback: the
    /// task is a thread of the object.
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
struct Place<T> {
    // First: the address of the work item is that of the place.
    #[pin]
    work: Opaque<bindings::rust_hmm_deferred>,
    #[pin]
    object: T,
}

/// Owns a `T`, which is dropped in place where waiting is allowed, and by a worker elsewhere.
///
/// # Invariants
///
/// `place` was a pinned box and is ours. No other code uses its work item.
pub(crate) struct Deferred<T: DropWaits> {
    place: NonNull<Place<T>>,
    _owns: PhantomData<Place<T>>,
}

// SAFETY: It owns a `T`, which is `Send` by its trait.
unsafe impl<T: DropWaits> Send for Deferred<T> {}
// SAFETY: A shared reference gives shared references of the `T` only.
unsafe impl<T: DropWaits + Sync> Sync for Deferred<T> {}
// The place stays where it is, whatever becomes of its address.
impl<T: DropWaits> Unpin for Deferred<T> {}

impl<T: DropWaits> Deferred<T> {
    /// Allocates the place, then calls `make` for the object: a lack of memory is reported before
    /// `make` has started anything.
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
            try_pin_init!(Place {
                work: Opaque::zeroed(),
                object: make()?,
            }? Error),
            flags,
        )?;
        Ok(Self::of(place))
    }

    /// Allocates the place, and initializes an object in it that is pinned.
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
            try_pin_init!(Place {
                work: Opaque::zeroed(),
                object <- object,
            }? Error),
            flags,
        )?;
        Ok(Self::of(place))
    }

    #[inline]
    fn of(place: Pin<KBox<Place<T>>>) -> Self {
        // SAFETY: The object stays pinned: only shared references of it are given out, until its
        // drop.
        let place = KBox::leak(unsafe { Pin::into_inner_unchecked(place) });
        // INVARIANT: From a pinned box; the work item is not used yet.
        Self {
            place: NonNull::from(place),
            _owns: PhantomData,
        }
    }

    /// Drops the object at `place`, and frees its memory.
    ///
    /// # Safety
    ///
    /// `place` must be that of a `Deferred<T>` that gives it up.
    unsafe extern "C" fn drop_at(place: *mut ffi::c_void) {
        // SAFETY: By the function's requirements it is from a box, which was pinned and is dropped
        // without being moved.
        drop(unsafe { Pin::new_unchecked(KBox::from_raw(place.cast::<Place<T>>())) });
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
        if within::can_wait() && !self.waits_for_current() {
            // SAFETY: By the type invariant the place is ours, and it is not used after this.
            unsafe { Self::drop_at(place.cast()) };
        } else {
            // SAFETY: As above; `drop_at::<T>` is for this place.
            unsafe { queue(place.cast(), Self::drop_at) };
        }
    }
}

/// Work that comes again, as that of [`Recurring`].
pub(crate) trait Work: Send + Sync + 'static {
    /// Does what has come up since it was called before. Context: a worker; may sleep.
    fn run(&self);
}

/// Work that a worker does each time when it is asked for, once for all who ask before it begins.
#[pin_data]
#[repr(C)]
pub(crate) struct Recurring<T> {
    // First: the address of the work item is that of the object.
    #[pin]
    item: Opaque<bindings::rust_hmm_deferred>,
    /// Whether a worker has a reference. Who sets it may use the work item.
    is_queued: Atomic<bool>,
    work: T,
}

// SAFETY: The work item is used by one at a time, and the work may be sent and shared.
unsafe impl<T: Work> Send for Recurring<T> {}
// SAFETY: As above.
unsafe impl<T: Work> Sync for Recurring<T> {}

impl<T: Work> Recurring<T> {
    /// Not asked for yet. Context: may sleep. `ENOMEM`.
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

    /// The work.
    pub(crate) fn work(&self) -> &T {
        &self.work
    }

    /// Asks for it. What was done before is seen by the worker. Context: any but NMI.
    pub(crate) fn queue(self: &Arc<Self>) {
        if self.is_queued.xchg(true, Full) {
            return;
        }
        let raw = Arc::into_raw(self.clone());
        // SAFETY: The reference is the worker's, and nobody else uses the item until it has begun.
        unsafe { queue(raw.cast_mut().cast(), Self::run_at) };
    }

    /// # Safety
    ///
    /// `raw` must be from [`Arc::into_raw`], and its reference given up.
    unsafe extern "C" fn run_at(raw: *mut ffi::c_void) {
        // SAFETY: By the function's requirements.
        let this = unsafe { Arc::from_raw(raw.cast::<Self>().cast_const()) };
        // Before the work: who asks now has it done once more.
        this.is_queued.xchg(false, Full);
        this.work.run();
    }
}

/// Has a worker call `drop` for the object that begins with `work`. Not inlined: there is one queue
/// in all modules.
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
    // SAFETY: By the function's requirements.
    unsafe {
        (*work).drop = Some(drop);
        bindings::rust_hmm_deferred_queue(work);
    }
}

/// Waits until all objects that were queued are dropped.
///
/// # Context
///
/// May sleep; not in a callback, for whose end an object may wait.
#[cfg(CONFIG_KUNIT = "y")]
pub(crate) fn flush() {
    // SAFETY: No preconditions.
    unsafe { bindings::rust_hmm_deferred_flush() };
}

/// The library's workqueue, as long as this exists.
pub(crate) struct Workers(());

impl Workers {
    /// Makes the workqueue, and registers the notifier that flushes it when a module is unloaded.
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
    /// To be called by the library's `init`, before any object exists.
    pub(crate) unsafe fn new() -> Result<Self> {
        // SAFETY: Once, by the function's requirements.
        to_result(unsafe { bindings::rust_hmm_deferred_init() })?;
        Ok(Self(()))
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // SAFETY: Made by `new`. No driver is left that could queue an object.
        unsafe { bindings::rust_hmm_deferred_exit() };
    }
}

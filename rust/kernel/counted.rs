// SPDX-License-Identifier: GPL-2.0

//! Objects with counted references, whose owner waits until all references were dropped.
//!
//! There are two owners. The holder of a [`CountedBox`] creates references in periods, and each
//! wait calls a [`Waiter`] in intervals. Any task creates references to the object of a
//! [`DrainedBox`], which waits when it is dropped.
//!
//! A reference may be dropped in any context but NMI, also in a hard interrupt and with a raw
//! spinlock held. The drop subtracts from the count, and the last one completes a completion, whose
//! lock is a raw spinlock that is taken with interrupts disabled. It does not free the object. Only
//! the owner does, after its wait.
//!
//! The owner must not free the object when it finds that the count is 0, because the last reference
//! may still be about to complete the completion. Therefore a wait ends in one of two ways. Either
//! the owner itself makes the count 0, so that no reference completes anything. Or the owner waits
//! for the completion: `wait_for_completion()` returns only after `complete()` has released the
//! lock, which is its last access.

mod drained;

pub(crate) use drained::DrainedBox;

use super::completion::{
    TimedCompletion,
    WaitResult, //
};
#[cfg(CONFIG_RUST_HMM_CAPI)]
use core::mem::ManuallyDrop;
use core::{
    marker::PhantomData,
    ops::Deref,
    pin::Pin,
    ptr::NonNull, //
};
#[cfg(CONFIG_RUST_HMM_CAPI)]
use kernel::ffi;
use kernel::{
    alloc::Flags,
    prelude::*,
    sync::atomic::{
        ordering::{
            Full,
            Relaxed, //
        },
        Atomic, //
    },
    time::Jiffies, //
};

/// An object with the number of its references.
#[pin_data]
struct Counted<T> {
    /// Number of references that exist or are reserved, and one for [`References`] until it waits.
    count: Atomic<usize>,
    /// Completed once by the reference whose drop makes the count 0.
    #[pin]
    dropped: TimedCompletion,
    object: T,
}

impl<T: 'static> Counted<T> {
    /// Allocates an object whose number of references is `count`, pinned in a box of its own.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// As allocations with `flags`.
    fn allocate(object: T, count: usize, flags: Flags) -> Result<NonNull<Self>> {
        let place = KBox::pin_init(
            pin_init!(Self {
                count: Atomic::new(count),
                dropped <- TimedCompletion::new(),
                object,
            }),
            flags,
        )?;
        // SAFETY: The completion is not moved: only shared references to it are given out, and
        // `free` drops it in place.
        let place = KBox::into_raw(unsafe { Pin::into_inner_unchecked(place) });
        // SAFETY: A box is not null.
        Ok(unsafe { NonNull::new_unchecked(place) })
    }

    /// # Safety
    ///
    /// `place` must be from [`Self::allocate`]. Nothing may access it during the call or later.
    unsafe fn free(place: NonNull<Self>) {
        // SAFETY: `place` was a pinned box and is the caller's, by the function's requirements. It
        // is dropped without being moved.
        drop(unsafe { Pin::new_unchecked(KBox::from_raw(place.as_ptr())) });
    }
}

/// Owns an object, and waits for its references. Dropping it frees the object.
///
/// If a [`References`] was leaked, the object is leaked, too.
///
/// # Invariants
///
/// `place` is from [`Counted::allocate`] and is ours. Unless `is_used`, there is no reference, and
/// no drop of a reference accesses the place.
pub(crate) struct CountedBox<T: Sync + 'static> {
    place: NonNull<Counted<T>>,
    /// Whether a [`References`] exists, or was leaked.
    is_used: bool,
    _owns: PhantomData<Counted<T>>,
}

// SAFETY: The object may be dropped by another task, because it is `Send`, while there are
// references to it, because it is `Sync`.
unsafe impl<T: Send + Sync> Send for CountedBox<T> {}
// SAFETY: A shared box gives no access to the object.
unsafe impl<T: Send + Sync> Sync for CountedBox<T> {}

impl<T: Sync> CountedBox<T> {
    /// Allocates an object without references.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// As allocations with `flags`.
    pub(crate) fn new(object: T, flags: Flags) -> Result<Self> {
        // INVARIANT: The place is new and ours. There is no reference yet.
        Ok(Self {
            place: Counted::allocate(object, 0, flags)?,
            is_used: false,
            _owns: PhantomData,
        })
    }

    /// Begins a period in which references can be created. `waiter` is called during the wait at
    /// its end. Returns `None` if the [`References`] of a previous period was leaked.
    pub(crate) fn begin<W: Waiter<T>>(&mut self, waiter: W) -> Option<References<'_, T, W>> {
        if self.is_used {
            return None;
        }
        self.is_used = true;
        self.counted().count.store(1, Relaxed);
        Some(References {
            owner: self,
            reserved: 0,
            waiter,
        })
    }

    /// Makes kmemleak ignore the object, which a test leaks on purpose.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(crate) fn expect_leak(&self) {
        // SAFETY: The place is allocated by the type invariant.
        unsafe { crate::bindings::rust_hmm_kunit_expect_leak(self.place.as_ptr().cast()) };
    }

    #[inline(always)]
    fn counted(&self) -> &Counted<T> {
        // SAFETY: The place is ours by the type invariant.
        unsafe { self.place.as_ref() }
    }
}

impl<T: Sync> Drop for CountedBox<T> {
    fn drop(&mut self) {
        if self.is_used {
            // References may still use the object.
            return;
        }
        // SAFETY: By the type invariant, the place is ours, and no reference accesses it.
        unsafe { Counted::free(self.place) };
    }
}

/// Actions of a task while it waits for the references of a `T`.
pub(crate) trait Waiter<T> {
    /// Time after which a wait is interrupted by a call of [`Self::check`].
    const INTERVAL: Jiffies;

    /// Returns whether [`Self::check`] is called when the task was killed. Otherwise a kill does
    /// not interrupt the wait.
    fn is_killable(&self) -> bool;

    /// Called while `left` references are left: after each interval, and with `killed` when the
    /// task was killed.
    ///
    /// # Context
    ///
    /// May sleep.
    fn check(&mut self, object: &T, left: usize, killed: bool);
}

/// A period in which an object has references. Dropping it waits until all of them were dropped,
/// without a time limit and also if the task was killed.
pub(crate) struct References<'a, T: Sync + 'static, W: Waiter<T>> {
    owner: &'a mut CountedBox<T>,
    /// Number of references that are counted and not created yet.
    reserved: usize,
    waiter: W,
}

impl<T: Sync, W: Waiter<T>> References<'_, T, W> {
    /// Counts `count` references in advance. Not all of them need to be created.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.owner.counted().count.fetch_add(count, Relaxed);
        self.reserved += count;
    }

    /// Creates a reference.
    #[inline(always)]
    pub(crate) fn get(&mut self) -> CountedRef<T> {
        match self.reserved.checked_sub(1) {
            Some(rest) => self.reserved = rest,
            None => {
                // Relaxed is sufficient: the count is not 0, because it includes `self`.
                self.owner.counted().count.fetch_add(1, Relaxed);
            }
        }
        // INVARIANT: The count includes the new reference.
        CountedRef {
            place: self.owner.place,
        }
    }

    /// Returns the number of references.
    pub(crate) fn count(&self) -> usize {
        // One of the count is that of `self`.
        let count = self.owner.counted().count.load(Relaxed);
        count.saturating_sub(1 + self.reserved)
    }

    /// Waits until all references were dropped, and returns what `read` returns for the object.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn wait<R>(mut self, read: impl FnOnce(&T) -> R) -> R {
        self.wait_for_all();
        read(&self)
    }

    /// Waits until all references were dropped. Returns at once if there was a previous call.
    fn wait_for_all(&mut self) {
        if !self.owner.is_used {
            return;
        }
        // SAFETY: The place is that of the owner, which is borrowed by `self`.
        let counted = unsafe { self.owner.place.as_ref() };
        let own = 1 + core::mem::take(&mut self.reserved);
        // Full: pairs with the decrement in the drop of a reference. If this one is the last, all
        // accesses through the references precede the return.
        if counted.count.fetch_sub(own, Full) != own {
            loop {
                let killable = self.waiter.is_killable();
                let killed = match counted.dropped.wait(W::INTERVAL, killable) {
                    WaitResult::Completed => break,
                    WaitResult::TimedOut => false,
                    WaitResult::Killed => true,
                };
                let left = counted.count.load(Relaxed);
                self.waiter.check(&counted.object, left, killed);
            }
        }
        // INVARIANT: Either the count became 0 here, after all references were dropped without
        // making it 0. Or the last one has completed the completion, and no longer accesses the
        // place: the wait has returned after it released the completion's lock.
        self.owner.is_used = false;
    }
}

impl<T: Sync, W: Waiter<T>> Deref for References<'_, T, W> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.owner.counted().object
    }
}

impl<T: Sync, W: Waiter<T>> Drop for References<'_, T, W> {
    fn drop(&mut self) {
        self.wait_for_all();
    }
}

/// A reference to an object that its owner, a [`CountedBox`] or [`DrainedBox`], keeps until this is
/// dropped.
///
/// # Context
///
/// It may be dropped in any context but NMI, including hard interrupts.
///
/// # Invariants
///
/// The count of `place` includes this reference, so that the owner does not free the place.
pub(crate) struct CountedRef<T: Sync + 'static> {
    place: NonNull<Counted<T>>,
}

// SAFETY: The reference gives shared access to a `T` that is `Sync`, and never drops it.
unsafe impl<T: Sync> Send for CountedRef<T> {}
// SAFETY: As above.
unsafe impl<T: Sync> Sync for CountedRef<T> {}

#[cfg(CONFIG_RUST_HMM_CAPI)]
impl<T: Sync> CountedRef<T> {
    /// Converts the reference to a pointer, from which [`Self::from_raw`] makes a reference again.
    pub(crate) fn into_raw(self) -> *mut ffi::c_void {
        ManuallyDrop::new(self).place.as_ptr().cast()
    }

    /// # Safety
    ///
    /// `raw` must be from [`Self::into_raw`] of the same type. The call takes over its reference.
    pub(crate) unsafe fn from_raw(raw: *mut ffi::c_void) -> Self {
        // INVARIANT: `raw` is a counted reference, by the function's requirements.
        Self {
            // SAFETY: `raw` is from a `NonNull`, by the function's requirements.
            place: unsafe { NonNull::new_unchecked(raw.cast()) },
        }
    }

    /// Returns the object of a reference.
    ///
    /// # Safety
    ///
    /// `raw` must be from [`Self::into_raw`] of the same type, and its reference must not be taken
    /// over during `'a`.
    pub(crate) unsafe fn object_of<'a>(raw: *const ffi::c_void) -> &'a T {
        // SAFETY: The reference keeps the place valid, by the function's requirements.
        unsafe { &(*raw.cast::<Counted<T>>()).object }
    }
}

impl<T: Sync> Deref for CountedRef<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: The place is valid as long as the reference is counted, by the type invariant.
        unsafe { &self.place.as_ref().object }
    }
}

impl<T: Sync> Drop for CountedRef<T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: The place is valid as long as the reference is counted, by the type invariant.
        let counted = unsafe { self.place.as_ref() };
        // Full: pairs with the decrement in `wait_for_all`. Accesses through this reference precede
        // it; those of other references precede the completion.
        if counted.count.fetch_sub(1, Full) == 1 {
            // The count no longer includes the owner, which thus waits for the completion and keeps
            // the place until `complete()` has released the completion's lock.
            counted.dropped.complete();
        }
    }
}

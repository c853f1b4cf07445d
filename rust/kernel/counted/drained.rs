// SPDX-License-Identifier: GPL-2.0

//! The owner of an object to which any task creates references.

use super::{
    Counted,
    CountedRef, //
};
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    alloc::Flags,
    prelude::*,
    sync::atomic::ordering::{
        Full,
        Relaxed, //
    }, //
};

/// Owns an object, to which any task that can access the box creates references. Dropping it waits
/// until all of them were dropped, and drops the object. No signal ends the wait.
///
/// # Context
///
/// The drop may sleep.
///
/// # Invariants
///
/// `place` is from [`Counted::allocate`] and is ours. Its count includes `self`.
pub(crate) struct DrainedBox<T: Sync + 'static> {
    place: NonNull<Counted<T>>,
    _owns: PhantomData<Counted<T>>,
}

// SAFETY: The object may be dropped by another task, because it is `Send`, while there are
// references to it, because it is `Sync`.
unsafe impl<T: Send + Sync> Send for DrainedBox<T> {}
// SAFETY: A shared box creates references, which give shared access to a `T` that is `Sync`.
unsafe impl<T: Send + Sync> Sync for DrainedBox<T> {}

impl<T: Sync> DrainedBox<T> {
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
        // INVARIANT: The place is new and ours, and the one of the count is that of `self`.
        Ok(Self {
            place: Counted::allocate(object, 1, flags)?,
            _owns: PhantomData,
        })
    }

    /// Creates a reference.
    ///
    /// # Context
    ///
    /// Any but NMI.
    #[inline(always)]
    pub(crate) fn get(&self) -> CountedRef<T> {
        // Relaxed is sufficient: the count is not 0, because it includes `self`, and the drop of
        // the box comes after this use of it.
        self.counted().count.fetch_add(1, Relaxed);
        // INVARIANT: The count includes the new reference.
        CountedRef { place: self.place }
    }

    #[inline(always)]
    fn counted(&self) -> &Counted<T> {
        // SAFETY: The place is ours by the type invariant.
        unsafe { self.place.as_ref() }
    }
}

impl<T: Sync> Drop for DrainedBox<T> {
    fn drop(&mut self) {
        let counted = self.counted();
        // Full: pairs with the decrement in the drop of a reference. If this one is the last, all
        // accesses through the references precede the drop of the object.
        if counted.count.fetch_sub(1, Full) != 1 {
            counted.dropped.wait_uninterruptible();
        }
        // SAFETY: The place is ours by the type invariant. Either the count became 0 here, after
        // all references were dropped without making it 0. Or the last one has completed the
        // completion, and no longer accesses the place: the wait has returned after it released the
        // completion's lock. No reference can be created during the drop of the box.
        unsafe { Counted::free(self.place) };
    }
}

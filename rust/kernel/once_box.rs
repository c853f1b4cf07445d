// SPDX-License-Identifier: GPL-2.0

//! A pointer to a heap object that is set at most once.
//!
//! This is [`kernel::sync::SetOnce`] with a lookup that is an inlined load instead of a call of a C
//! function. The difference is measurable, because a migration looks up each of its pages.

use super::word::load_ptr;
use core::{
    marker::PhantomData,
    pin::Pin,
    ptr::null_mut, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::Full,
        Atomic, //
    }, //
};

/// A slot for one `T`.
///
/// # Invariants
///
/// The pointer is null, or was a pinned [`KBox`] and is ours. It changes once, from null.
pub(crate) struct OnceBox<T> {
    object: Atomic<*mut T>,
    _owns: PhantomData<KBox<T>>,
}

// SAFETY: Sending the slot sends the `T` that it owns.
unsafe impl<T: Send> Send for OnceBox<T> {}
// SAFETY: A shared slot gives out shared references of the `T`, and lets other tasks store one.
unsafe impl<T: Send + Sync> Sync for OnceBox<T> {}

impl<T> OnceBox<T> {
    /// Creates an empty slot.
    pub(crate) const fn empty() -> Self {
        // INVARIANT: The pointer is null.
        Self {
            object: Atomic::new(null_mut()),
            _owns: PhantomData,
        }
    }

    /// Returns the object, if one was stored. Callable from any context.
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&T> {
        // Acquire: pairs with the exchange in `put`, so that the object is initialized.
        //
        // SAFETY: The pointer is null or valid as long as the slot, by the type invariant.
        unsafe { load_ptr(&self.object).as_ref() }
    }

    /// Stores `object`, unless an object is stored already, and returns the stored one.
    ///
    /// # Context
    ///
    /// That of dropping `object`.
    pub(crate) fn put(&self, object: Pin<KBox<T>>) -> &T {
        // SAFETY: The object is not moved: the slot drops it in place.
        let raw = KBox::into_raw(unsafe { Pin::into_inner_unchecked(object) });
        // INVARIANT: `raw` is from a pinned box and ours.
        // Release: pairs with the acquire in `get`. The rest of the full barrier is not needed.
        match self.object.cmpxchg(null_mut(), raw, Full) {
            // SAFETY: The object is valid as long as the slot, by the type invariant.
            Ok(_) => unsafe { &*raw },
            Err(_) => {
                // SAFETY: `raw` is from `KBox::into_raw` and was not stored.
                drop(Pin::from(unsafe { KBox::from_raw(raw) }));
                // Load the pointer again: a failed exchange has no ordering.
                // SAFETY: The pointer is not null, and valid as long as the slot, by the type
                // invariant.
                unsafe { &*load_ptr(&self.object) }
            }
        }
    }
}

impl<T> Drop for OnceBox<T> {
    fn drop(&mut self) {
        let raw = load_ptr(&self.object);
        if !raw.is_null() {
            // SAFETY: The pointer is from a box by the type invariant, and `&mut self` excludes
            // borrows of the object.
            drop(Pin::from(unsafe { KBox::from_raw(raw) }));
        }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! A place that is filled once with an object on the heap.
//!
//! As [`kernel::sync::SetOnce`], whose lookup calls a C function. Here it is a load, which counts
//! where each page of a migration is looked up.

use super::word::load_ptr;
use core::{
    marker::PhantomData,
    pin::Pin,
    ptr::null_mut, //
};
use kernel::{
    prelude::*,
    sync::atomic::{ordering::Full, Atomic}, //
};

/// A place for a `T`.
///
/// # Invariants
///
/// The pointer is null, or was a pinned [`KBox`] and is ours. It changes once, from null.
pub(crate) struct OnceBox<T> {
    object: Atomic<*mut T>,
    _owns: PhantomData<KBox<T>>,
}

// SAFETY: It owns a `T`.
unsafe impl<T: Send> Send for OnceBox<T> {}
// SAFETY: It owns a `T`, which others get references to, and which others may put there.
unsafe impl<T: Send + Sync> Sync for OnceBox<T> {}

impl<T> OnceBox<T> {
    /// An empty place.
    pub(crate) const fn new() -> Self {
        // INVARIANT: Null.
        Self {
            object: Atomic::new(null_mut()),
            _owns: PhantomData,
        }
    }

    /// The object, if one was put there. Context: any.
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&T> {
        // SAFETY: Null or valid by the type invariant, as long as the place is.
        unsafe { load_ptr(&self.object).as_ref() }
    }

    /// Puts `object` there, unless another one is. Returns the one that is there. Context: as its
    /// drop.
    pub(crate) fn put(&self, object: Pin<KBox<T>>) -> &T {
        // SAFETY: It is not moved: the place drops it where it is.
        let raw = KBox::into_raw(unsafe { Pin::into_inner_unchecked(object) });
        // INVARIANT: From a pinned box, and ours.
        match self.object.cmpxchg(null_mut(), raw, Full) {
            // SAFETY: It stays as long as the place does, by the type invariant.
            Ok(_) => unsafe { &*raw },
            Err(_) => {
                // SAFETY: From `into_raw`; it was not put there.
                drop(Pin::from(unsafe { KBox::from_raw(raw) }));
                // Loaded again: an exchange that fails orders nothing.
                // SAFETY: As above; it was not null.
                unsafe { &*load_ptr(&self.object) }
            }
        }
    }
}

impl<T> Drop for OnceBox<T> {
    fn drop(&mut self) {
        let raw = load_ptr(&self.object);
        if !raw.is_null() {
            // SAFETY: From a box by the type invariant; nobody borrows the place any more.
            drop(Pin::from(unsafe { KBox::from_raw(raw) }));
        }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Stand-in for `kernel::sync::Arc`. The reference count is not a word of the model, so that it
//! adds no branches to the exploration. Like `refcount_t`, it orders operations before the drop of
//! a reference before the drop of the object.

#[cfg(feature = "explore")]
use crate::model::Order;
use crate::{
    alloc::{
        AllocError,
        Flags, //
    },
    error::Error,
    init::PinInit, //
};
use core::{
    marker::Unsize,
    mem::ManuallyDrop,
    ops::{
        CoerceUnsized,
        Deref, //
    },
    ptr::NonNull,
    sync::atomic::{
        AtomicUsize,
        Ordering::AcqRel,
        Ordering::Relaxed, //
    }, //
};

#[repr(C)]
struct Counted<T: ?Sized> {
    count: AtomicUsize,
    #[cfg(feature = "explore")]
    order: Order,
    value: ManuallyDrop<T>,
}

/// A counted reference.
pub struct Arc<T: ?Sized>(NonNull<Counted<T>>);

// SAFETY: As the kernel's.
unsafe impl<T: ?Sized + Send + Sync> Send for Arc<T> {}
// SAFETY: As the kernel's.
unsafe impl<T: ?Sized + Send + Sync> Sync for Arc<T> {}

impl<T: ?Sized + Unsize<U>, U: ?Sized> CoerceUnsized<Arc<U>> for Arc<T> {}

impl<T> Arc<T> {
    pub fn new(value: T, _flags: Flags) -> Result<Self, AllocError> {
        Ok(Self(NonNull::from(Box::leak(Box::new(Counted {
            count: AtomicUsize::new(1),
            #[cfg(feature = "explore")]
            order: Order::new(),
            value: ManuallyDrop::new(value),
        })))))
    }

    pub fn pin_init<E>(init: impl PinInit<T, E>, flags: Flags) -> Result<Self, Error>
    where
        Error: From<E>,
    {
        Ok(Self::new(init.make()?, flags)?)
    }

    pub fn into_raw(this: Self) -> *const T {
        let this = ManuallyDrop::new(this);
        // SAFETY: Alive.
        unsafe { &raw const *(*this.0.as_ptr()).value }
    }

    pub unsafe fn from_raw(raw: *const T) -> Self {
        let offset = core::mem::offset_of!(Counted<T>, value);
        let raw = raw.cast::<u8>().wrapping_sub(offset).cast_mut();
        // SAFETY: From `into_raw`.
        Self(unsafe { NonNull::new_unchecked(raw.cast()) })
    }
}

impl<T: ?Sized> Arc<T> {
    pub fn ptr_eq(this: &Self, other: &Self) -> bool {
        core::ptr::addr_eq(this.0.as_ptr(), other.0.as_ptr())
    }

    pub fn as_ptr(this: &Self) -> *const T {
        // SAFETY: Alive.
        unsafe { &raw const *(*this.0.as_ptr()).value }
    }
}

impl<T: ?Sized> Deref for Arc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: Alive by our reference.
        unsafe { &self.0.as_ref().value }
    }
}

impl<T: ?Sized> Clone for Arc<T> {
    fn clone(&self) -> Self {
        // SAFETY: Alive by our reference.
        unsafe { self.0.as_ref() }.count.fetch_add(1, Relaxed);
        Self(self.0)
    }
}

impl<T: ?Sized> Drop for Arc<T> {
    fn drop(&mut self) {
        // SAFETY: Alive by our reference.
        let counted = unsafe { self.0.as_ref() };
        #[cfg(feature = "explore")]
        counted.order.release();
        if counted.count.fetch_sub(1, AcqRel) != 1 {
            return;
        }
        #[cfg(feature = "explore")]
        counted.order.acquire();
        // SAFETY: The last reference.
        unsafe {
            ManuallyDrop::drop(&mut (*self.0.as_ptr()).value);
            drop(Box::from_raw(self.0.as_ptr()));
        }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! A shrinker: what gives memory back when the kernel needs it.
//!
//! C header: [`include/linux/shrinker.h`](srctree/include/linux/shrinker.h)

use crate::{
    bindings,
    deferred::{
        Deferred,
        DropWaits, //
    },
    within::Within, //
};
use core::ptr::NonNull;
use kernel::{ffi, prelude::*, sync::Arc};

pub(crate) mod owner;

/// What can give memory back. It borrows nothing: the kernel asks until the shrinker is dropped, which
/// `mem::forget` can prevent.
pub trait Shrink: Send + Sync + 'static {
    /// Objects that could be given back. Context: reclaim; any lock may be held by others. Functions of this library
    /// that wait fail with `EDEADLK`.
    fn count(&self) -> usize;

    /// Gives up to `objects` back, or has that done. Returns how many. Context: as [`Self::count`]; must not allocate
    /// with reclaim or wait for who does.
    fn scan(&self, objects: usize) -> usize;
}

/// A registered shrinker. Dropping it waits for calls that run.
///
/// # Context
///
/// The drop may sleep. In a callback, in atomic context and in a call of the shrinker it returns at once, and a worker
/// frees the shrinker.
pub struct Shrinker<T: Shrink> {
    _registered: Deferred<Registered<T>>,
}

/// The registration.
///
/// # Invariants
///
/// `raw` is registered, and its private data is `_data`.
struct Registered<T: Shrink> {
    raw: NonNull<bindings::shrinker>,
    _data: Arc<T>,
}

// SAFETY: It may be dropped anywhere that may sleep; the data is `Send + Sync`.
unsafe impl<T: Shrink> Send for Registered<T> {}
// SAFETY: There are no methods on a shared reference.
unsafe impl<T: Shrink> Sync for Registered<T> {}

impl<T: Shrink> DropWaits for Registered<T> {}

impl<T: Shrink> Shrinker<T> {
    /// Registers a shrinker. `name` is for debugging. Context: may sleep. `ENOMEM`.
    pub fn new(name: &'static CStr, data: Arc<T>) -> Result<Self> {
        Ok(Self {
            _registered: Deferred::new(|| Registered::new(name, data), GFP_KERNEL)?,
        })
    }
}

impl<T: Shrink> Registered<T> {
    fn new(name: &'static CStr, data: Arc<T>) -> Result<Self> {
        // SAFETY: The name is static.
        let raw = unsafe { bindings::rust_hmm_shrinker_alloc(name.as_char_ptr()) };
        let raw = NonNull::new(raw).ok_or(ENOMEM)?;
        // SAFETY: A new shrinker, not registered yet; the data lives until it was freed.
        // INVARIANT: Registered now.
        unsafe {
            (*raw.as_ptr()).count_objects = Some(Self::count);
            (*raw.as_ptr()).scan_objects = Some(Self::scan);
            (*raw.as_ptr()).private_data = Arc::as_ptr(&data).cast_mut().cast();
            bindings::shrinker_register(raw.as_ptr());
        }
        Ok(Self { raw, _data: data })
    }

    /// # Safety
    ///
    /// `raw` must be a registered shrinker of this type.
    unsafe fn data_of<'a>(raw: *mut bindings::shrinker) -> &'a T {
        // SAFETY: By the function's requirements; the data outlives the registration.
        unsafe { &*(*raw).private_data.cast::<T>() }
    }

    /// # Safety
    ///
    /// Called by the core for a registered shrinker of this type.
    unsafe extern "C" fn count(
        raw: *mut bindings::shrinker,
        _control: *mut bindings::shrink_control,
    ) -> ffi::c_ulong {
        let _within = Within::enter();
        // SAFETY: By the function's requirements.
        unsafe { Self::data_of(raw) }.count()
    }

    /// # Safety
    ///
    /// As [`Self::count`], with a valid control.
    unsafe extern "C" fn scan(
        raw: *mut bindings::shrinker,
        control: *mut bindings::shrink_control,
    ) -> ffi::c_ulong {
        // SAFETY: By the function's requirements.
        let (data, objects) = unsafe { (Self::data_of(raw), (*control).nr_to_scan) };
        let _within = Within::enter();
        match data.scan(objects) {
            // `SHRINK_STOP`: nothing to be had now.
            0 => ffi::c_ulong::MAX,
            given => given,
        }
    }
}

impl<T: Shrink> Drop for Registered<T> {
    fn drop(&mut self) {
        // SAFETY: Registered by the type invariant. This waits for running calls.
        unsafe { bindings::shrinker_free(self.raw.as_ptr()) };
    }
}

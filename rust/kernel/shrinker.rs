// SPDX-License-Identifier: GPL-2.0

//! Shrinkers, which free memory under memory pressure.
//!
//! C header: [`include/linux/shrinker.h`](srctree/include/linux/shrinker.h)

use crate::{
    bindings,
    kernel::{
        deferred::{
            Deferred,
            DropWaits, //
        },
        reentry::ReentryGuard, //
    }, //
};
use core::ptr::NonNull;
use kernel::{
    ffi,
    prelude::*,
    sync::Arc, //
};

pub(crate) mod owner;

/// A cache whose memory can be reclaimed. The type is `'static`, because the kernel calls it until
/// the [`Shrinker`] is dropped, which `mem::forget` can prevent.
pub trait Shrink: Send + Sync + 'static {
    /// Returns the number of objects that can be freed.
    ///
    /// # Context
    ///
    /// Reclaim: the calling task may hold any lock. Blocking functions of this library fail with
    /// `EDEADLK`.
    fn count(&self) -> usize;

    /// Frees up to `objects` objects, or queues that. Returns the number of objects.
    ///
    /// # Context
    ///
    /// As for [`Self::count`]. Must not allocate with reclaim, or wait for a task that does.
    fn scan(&self, objects: usize) -> usize;
}

/// A registered shrinker. Dropping it waits for running calls.
///
/// # Context
///
/// The drop may sleep. In a callback, in atomic context and in a call of the shrinker it returns
/// immediately, and a worker frees the shrinker.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::sync::Arc;
/// use kernel::sync::atomic::Atomic;
/// use kernel::sync::atomic::ordering::Relaxed;
/// use rust_hmm::kernel::shrinker::Shrink;
/// use rust_hmm::kernel::shrinker::Shrinker;
///
/// /// Number of cached objects.
/// struct Cache(Atomic<usize>);
///
/// impl Shrink for Cache {
///     fn count(&self) -> usize {
///         self.0.load(Relaxed)
///     }
///
///     fn scan(&self, objects: usize) -> usize {
///         let freed = objects.min(self.count());
///         self.0.store(self.count() - freed, Relaxed);
///         freed
///     }
/// }
///
/// let cache = Arc::new(Cache(Atomic::new(0)), GFP_KERNEL)?;
/// let shrinker = Shrinker::new(c"example", cache)?;
/// # Ok::<(), Error>(())
/// ```
pub struct Shrinker<T: Shrink> {
    _registered: Deferred<RegisteredShrinker<T>>,
}

/// Registration of a shrinker.
///
/// # Invariants
///
/// `raw` is registered, and its private data is `_data`.
struct RegisteredShrinker<T: Shrink> {
    raw: NonNull<bindings::shrinker>,
    _data: Arc<T>,
}

// SAFETY: The registration may be dropped by any task that may sleep, and the data is `Send +
// Sync`.
unsafe impl<T: Shrink> Send for RegisteredShrinker<T> {}
// SAFETY: There are no methods on a shared reference.
unsafe impl<T: Shrink> Sync for RegisteredShrinker<T> {}

impl<T: Shrink> DropWaits for RegisteredShrinker<T> {}

impl<T: Shrink> Shrinker<T> {
    /// Registers a shrinker. `name` is shown in debugfs.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`: memory allocation failed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new(name: &'static CStr, data: Arc<T>) -> Result<Self> {
        Ok(Self {
            _registered: Deferred::new(|| RegisteredShrinker::new(name, data), GFP_KERNEL)?,
        })
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
impl<T: Shrink> Shrinker<T> {
    /// Calls the shrinker as reclaim does. Returns the results of both callbacks.
    pub(crate) fn reclaim(&self, objects: usize) -> (usize, usize) {
        let raw = self._registered.raw.as_ptr();
        let mut control = bindings::shrink_control {
            nr_to_scan: objects,
            ..pin_init::zeroed()
        };
        // SAFETY: The shrinker is registered by the type invariant of `RegisteredShrinker`, and is
        // of this type. `control` is valid.
        unsafe {
            let count = RegisteredShrinker::<T>::count(raw, &mut control);
            (count, RegisteredShrinker::<T>::scan(raw, &mut control))
        }
    }
}

impl<T: Shrink> RegisteredShrinker<T> {
    fn new(name: &'static CStr, data: Arc<T>) -> Result<Self> {
        // SAFETY: The name is static.
        let raw = unsafe { bindings::rust_hmm_shrinker_alloc(name.as_char_ptr()) };
        let raw = NonNull::new(raw).ok_or(ENOMEM)?;
        // SAFETY: The shrinker is new and not yet registered. `data` lives until the shrinker is
        // freed.
        // INVARIANT: The shrinker is registered with `data` as its private data.
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
        // SAFETY: `private_data` is a `T` by the function's requirements, and outlives the
        // registration.
        unsafe { &*(*raw).private_data.cast::<T>() }
    }

    /// # Safety
    ///
    /// Called by the core for a registered shrinker of this type.
    unsafe extern "C" fn count(
        raw: *mut bindings::shrinker,
        _control: *mut bindings::shrink_control,
    ) -> ffi::c_ulong {
        let _within = ReentryGuard::enter();
        // SAFETY: `raw` is a registered shrinker of this type, by the function's requirements.
        unsafe { Self::data_of(raw) }.count()
    }

    /// # Safety
    ///
    /// As for [`Self::count`], with a valid `control`.
    unsafe extern "C" fn scan(
        raw: *mut bindings::shrinker,
        control: *mut bindings::shrink_control,
    ) -> ffi::c_ulong {
        // SAFETY: `raw` is a registered shrinker of this type and `control` is valid, by the
        // function's requirements.
        let (data, objects) = unsafe { (Self::data_of(raw), (*control).nr_to_scan) };
        let _within = ReentryGuard::enter();
        match data.scan(objects) {
            // `SHRINK_STOP`: no object can be freed now.
            0 => ffi::c_ulong::MAX,
            given => given,
        }
    }
}

impl<T: Shrink> Drop for RegisteredShrinker<T> {
    fn drop(&mut self) {
        // SAFETY: The shrinker is registered by the type invariant. The call waits for running
        // calls.
        unsafe { bindings::shrinker_free(self.raw.as_ptr()) };
    }
}

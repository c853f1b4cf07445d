// SPDX-License-Identifier: GPL-2.0

//! A map from addresses to reference-counted objects with lockless lookup.
//!
//! A lookup finds an object in an RCU read-side critical section, and takes a reference unless the
//! reference count is 0. Dropping the last reference drops the object immediately, and frees its
//! memory after a grace period.
//!
//! C headers: [`include/linux/xarray.h`](srctree/include/linux/xarray.h),
//! [`include/linux/refcount.h`](srctree/include/linux/refcount.h)

use crate::bindings;
use core::{
    marker::PhantomData,
    ops::Deref,
    ptr::NonNull, //
};
use kernel::{
    error::to_result,
    prelude::*,
    sync::{
        rcu,
        Refcount, //
    },
    types::Opaque, //
};

/// An object with its reference count, in one allocation.
#[pin_data]
#[repr(C)]
struct RcuCounted<T> {
    // First member, because the C helper gets the address of the object as that of its count.
    count: Refcount,
    #[pin]
    object: T,
}

/// A reference of an object that an [`RcuMap`] can find.
///
/// # Invariants
///
/// The pointer was a [`KBox`], and one reference of its count is ours.
pub(crate) struct RcuArc<T: Send + Sync> {
    place: NonNull<RcuCounted<T>>,
    _owns: PhantomData<RcuCounted<T>>,
}

// SAFETY: Gives out shared references of a `T` that is `Sync`. The last reference drops the `T`,
// which is `Send`.
unsafe impl<T: Send + Sync> Send for RcuArc<T> {}
// SAFETY: A shared `RcuArc` can be cloned and the clone sent, which is sound because `T` is `Send`
// and `Sync`.
unsafe impl<T: Send + Sync> Sync for RcuArc<T> {}

impl<T: Send + Sync> RcuArc<T> {
    /// Creates an object with one reference.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`: memory allocation failed.
    /// * Errors of `object`.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn pin_init(object: impl PinInit<T, Error>) -> Result<Self> {
        let place = KBox::pin_init(
            try_pin_init!(RcuCounted {
                count: Refcount::new(1),
                object <- object,
            }? Error),
            GFP_KERNEL_ACCOUNT,
        )?;
        // SAFETY: The object is not moved: only references of it are given out.
        let place = KBox::into_raw(unsafe { Pin::into_inner_unchecked(place) });
        // INVARIANT: `place` is from a box, and its reference count is 1.
        Ok(Self {
            place: NonNull::new(place).ok_or(EINVAL)?,
            _owns: PhantomData,
        })
    }

    /// Whether both refer to the same object.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.place == other.place
    }

    fn counted(&self) -> &RcuCounted<T> {
        // SAFETY: Our reference keeps the object valid, by the type invariant.
        unsafe { self.place.as_ref() }
    }
}

impl<T: Send + Sync> Clone for RcuArc<T> {
    fn clone(&self) -> Self {
        self.counted().count.inc();
        // INVARIANT: The reference was taken above.
        Self {
            place: self.place,
            _owns: PhantomData,
        }
    }
}

impl<T: Send + Sync> Deref for RcuArc<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.counted().object
    }
}

/// May sleep if this can be the last reference.
impl<T: Send + Sync> Drop for RcuArc<T> {
    fn drop(&mut self) {
        if !self.counted().count.dec_and_test() {
            return;
        }
        let place = self.place.as_ptr();
        // SAFETY: The reference count is 0, so that concurrent lookups only read the count and do
        // not take a reference. The object is dropped in place and thus stays pinned.
        unsafe { core::ptr::drop_in_place(&raw mut (*place).object) };
        // SAFETY: The memory is from a `KBox`, which kfree() can free. It is freed after a grace
        // period, because concurrent lookups may still read the count.
        unsafe { bindings::rust_hmm_free_rcu(place.cast()) };
    }
}

/// A map from addresses to objects.
///
/// # Invariants
///
/// The array is initialized. A pointer in it was a [`KBox`] of a [`RcuCounted<T>`], of which one
/// reference is the map's.
#[pin_data(PinnedDrop)]
pub(crate) struct RcuMap<T: Send + Sync> {
    #[pin]
    array: Opaque<bindings::xarray>,
    _owns: PhantomData<RcuArc<T>>,
}

// SAFETY: The XArray has a lock for changes, and its objects are `Send` and `Sync`.
unsafe impl<T: Send + Sync> Send for RcuMap<T> {}
// SAFETY: The XArray's lock serializes changes, lookups use RCU, and the objects are `Send` and
// `Sync`.
unsafe impl<T: Send + Sync> Sync for RcuMap<T> {}

impl<T: Send + Sync> RcuMap<T> {
    /// Creates an empty map.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // INVARIANT: The XArray is initialized and empty.
            array <- Opaque::ffi_init(|array| {
                // SAFETY: `array` is valid for writes, and the XArray is pinned.
                unsafe { bindings::xa_init_flags(array, 0) }
            }),
            _owns: PhantomData,
        })
    }

    /// Creates a map in static memory, which [`Self::init`] initializes.
    ///
    /// # Safety
    ///
    /// [`Self::init`] must be called before anything else is.
    pub(crate) const unsafe fn uninit() -> Self {
        // INVARIANT: The XArray is initialized before it is used, by the function's requirements.
        Self {
            array: Opaque::uninit(),
            _owns: PhantomData,
        }
    }

    /// Initializes an empty map.
    ///
    /// # Safety
    ///
    /// Must be called once for a map from [`Self::uninit`], before any other method.
    pub(crate) unsafe fn init(&'static self) {
        // SAFETY: The map is not used yet, by the function's requirements, and static memory does
        // not move.
        unsafe { bindings::xa_init_flags(self.array.get(), 0) };
    }

    /// Returns a reference of the object at `index`. Callable from any context but NMI.
    pub(crate) fn get(&self, index: usize) -> Option<RcuArc<T>> {
        let _section = rcu::read_lock();
        // SAFETY: The XArray is initialized by the type invariant.
        let place = unsafe { bindings::xa_load(self.array.get(), index) };
        let place = NonNull::new(place.cast::<RcuCounted<T>>())?;
        // SAFETY: By the type invariant the pointer is to a `RcuCounted<T>`, whose first member is
        // the count. `_section` delays the freeing of its memory.
        let counted = unsafe { bindings::rust_hmm_refcount_inc_not_zero(place.as_ptr().cast()) };
        // INVARIANT: The reference was taken above. Not `then_some()`, which would create an
        // `RcuArc` and drop it even if no reference was taken.
        counted.then(|| RcuArc {
            place,
            _owns: PhantomData,
        })
    }

    /// Stores `object` at `index`.
    ///
    /// # Errors
    ///
    /// * `EBUSY`: an object is stored there already.
    /// * `ENOMEM`: memory allocation failed.
    ///
    /// # Context
    ///
    /// May sleep. The caller excludes concurrent calls for the same index.
    pub(crate) fn insert(&self, index: usize, object: RcuArc<T>) -> Result {
        // INVARIANT: The reference passes to the map if the object is stored.
        // SAFETY: The XArray is initialized by the type invariant. The alignment of a box keeps the
        // pointer distinct from internal entries of the XArray.
        to_result(unsafe {
            bindings::rust_hmm_xa_insert(self.array.get(), index, object.place.as_ptr().cast())
        })?;
        core::mem::forget(object);
        Ok(())
    }

    /// Removes and returns the object at `index`. Callable from any context but NMI.
    pub(crate) fn remove(&self, index: usize) -> Option<RcuArc<T>> {
        // SAFETY: The XArray is initialized by the type invariant.
        let place = unsafe { bindings::xa_erase(self.array.get(), index) };
        // INVARIANT: The map's reference passes to the result.
        NonNull::new(place.cast()).map(|place| RcuArc {
            place,
            _owns: PhantomData,
        })
    }
}

#[pinned_drop]
impl<T: Send + Sync> PinnedDrop for RcuMap<T> {
    fn drop(self: Pin<&mut Self>) {
        let mut index = 0;
        loop {
            // SAFETY: The XArray is initialized by the type invariant.
            let found = unsafe {
                bindings::xa_find(
                    self.array.get(),
                    &mut index,
                    usize::MAX,
                    bindings::XA_PRESENT,
                )
            };
            if found.is_null() {
                break;
            }
            drop(self.remove(index));
        }
        // SAFETY: The XArray is initialized by the type invariant, and empty.
        unsafe { bindings::xa_destroy(self.array.get()) };
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_rcu_map)]
mod tests {
    use super::*;
    use crate::kernel::kthread::Thread;
    use kernel::{
        sync::{
            atomic::{
                ordering::Relaxed,
                Atomic, //
            },
            Arc, //
        },
        time::{
            delay::fsleep,
            Delta,
            Instant,
            Monotonic, //
        }, //
    };

    /// Counts how many objects were dropped.
    #[pin_data(PinnedDrop)]
    struct Counting {
        dropped: Arc<Atomic<usize>>,
    }

    #[pinned_drop]
    impl PinnedDrop for Counting {
        fn drop(self: Pin<&mut Self>) {
            self.dropped.fetch_add(1, Relaxed);
        }
    }

    fn counting(dropped: &Arc<Atomic<usize>>) -> Result<RcuArc<Counting>> {
        let dropped = dropped.clone();
        RcuArc::pin_init(try_pin_init!(Counting { dropped }? Error))
    }

    #[test]
    fn found_object_outlives_its_removal() -> Result {
        let dropped = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let map = KBox::pin_init(RcuMap::new(), GFP_KERNEL)?;
        assert!(map.get(0x1000).is_none());
        map.insert(0x1000, counting(&dropped)?)?;
        assert_eq!(map.insert(0x1000, counting(&dropped)?).err(), Some(EBUSY));
        assert_eq!(dropped.load(Relaxed), 1);
        let found = map.get(0x1000).ok_or(EINVAL)?;
        assert!(map.remove(0x1000).is_some_and(|one| one.is_same(&found)));
        assert!(map.get(0x1000).is_none());
        assert_eq!(dropped.load(Relaxed), 1);
        drop(found);
        assert_eq!(dropped.load(Relaxed), 2);
        map.insert(0x2000, counting(&dropped)?)?;
        drop(map);
        assert_eq!(dropped.load(Relaxed), 3);
        Ok(())
    }

    #[test]
    fn lookup_during_the_last_drop_is_safe() -> Result {
        let dropped = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let map = Arc::pin_init(RcuMap::new(), GFP_KERNEL)?;
        // Numbers of lookups that found an object, and of those that found none.
        let counts = Arc::new([Atomic::new(0usize), Atomic::new(0)], GFP_KERNEL)?;
        let stop = Arc::new(Atomic::new(0usize), GFP_KERNEL)?;
        let finder = map.clone();
        let seen = counts.clone();
        let ends = stop.clone();
        let thread = Thread::spawn(c"hmm-test", move || {
            let [found, missed] = &*seen;
            while ends.load(Relaxed) == 0 {
                for _ in 0..100 {
                    let count = finder.get(7).map_or(missed, |_| found);
                    count.fetch_add(1, Relaxed);
                }
                fsleep(Delta::from_micros(50));
            }
        })?;
        let [found, missed] = &*counts;
        let mut made = 0;
        let since = Instant::<Monotonic>::now();
        while found.load(Relaxed) < 1000 || missed.load(Relaxed) < 1000 {
            map.insert(7, counting(&dropped)?)?;
            if made % 64 == 0 {
                fsleep(Delta::from_micros(100));
            }
            drop(map.remove(7));
            made += 1;
            if since.elapsed() > Delta::from_secs(30) {
                return Err(ETIMEDOUT);
            }
        }
        stop.store(1, Relaxed);
        drop(thread);
        assert_eq!(dropped.load(Relaxed), made);
        Ok(())
    }
}

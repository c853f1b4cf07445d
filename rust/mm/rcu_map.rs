// SPDX-License-Identifier: GPL-2.0

//! A map from addresses to counted objects, in which a lookup takes no lock.
//!
//! A lookup finds an object in an RCU section and takes a reference of it, unless the last one has gone. The memory of an
//! object is therefore freed after a grace period; what is in it is dropped with the last reference.
//!
//! C headers: [`include/linux/xarray.h`](srctree/include/linux/xarray.h),
//! [`include/linux/refcount.h`](srctree/include/linux/refcount.h)

use crate::bindings;
use core::{marker::PhantomData, ops::Deref, ptr::NonNull};
use kernel::{
    error::to_result,
    prelude::*,
    sync::{rcu, Refcount},
    types::Opaque, //
};

/// An object with its count, in memory of its own.
#[pin_data]
#[repr(C)]
struct Counted<T> {
    // First, for the C side.
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
    place: NonNull<Counted<T>>,
    _owns: PhantomData<Counted<T>>,
}

// SAFETY: It gives shared references of a `T` that is `Sync`, and the last one drops the `T`, which is `Send`.
unsafe impl<T: Send + Sync> Send for RcuArc<T> {}
// SAFETY: As above.
unsafe impl<T: Send + Sync> Sync for RcuArc<T> {}

impl<T: Send + Sync> RcuArc<T> {
    /// The first reference of `object`. Context: may sleep. Errors: `ENOMEM`, or those of `object`.
    pub(crate) fn pin_init(object: impl PinInit<T, Error>) -> Result<Self> {
        let place = KBox::pin_init(
            try_pin_init!(Counted {
                count: Refcount::new(1),
                object <- object,
            }? Error),
            GFP_KERNEL_ACCOUNT,
        )?;
        // SAFETY: It is not moved again: only references to what is in it are given out.
        let place = KBox::into_raw(unsafe { Pin::into_inner_unchecked(place) });
        // INVARIANT: From a box, with one reference.
        Ok(Self {
            place: NonNull::new(place).ok_or(EINVAL)?,
            _owns: PhantomData,
        })
    }

    /// Whether both are of one object.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.place == other.place
    }

    fn counted(&self) -> &Counted<T> {
        // SAFETY: Valid by the type invariant.
        unsafe { self.place.as_ref() }
    }
}

impl<T: Send + Sync> Clone for RcuArc<T> {
    fn clone(&self) -> Self {
        self.counted().count.inc();
        // INVARIANT: The reference was just taken.
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

/// Context: may sleep if it can be the last reference.
impl<T: Send + Sync> Drop for RcuArc<T> {
    fn drop(&mut self) {
        if !self.counted().count.dec_and_test() {
            return;
        }
        let place = self.place.as_ptr();
        // SAFETY: That was the last reference, and a lookup takes none any more: it only reads the count. Nobody moves
        // the object, which was pinned.
        unsafe { core::ptr::drop_in_place(&raw mut (*place).object) };
        // SAFETY: From a box, whose memory `kfree()` frees. Lookups that have begun may still read the count.
        unsafe { bindings::rust_hmm_free_rcu(place.cast()) };
    }
}

/// A map from addresses to objects.
///
/// # Invariants
///
/// The array is initialized. A pointer in it was a [`KBox`] of a [`Counted<T>`], of which one reference is the map's.
#[pin_data(PinnedDrop)]
pub(crate) struct RcuMap<T: Send + Sync> {
    #[pin]
    array: Opaque<bindings::xarray>,
    _owns: PhantomData<RcuArc<T>>,
}

// SAFETY: The array has a lock for those who change it, and its objects may be sent and shared.
unsafe impl<T: Send + Sync> Send for RcuMap<T> {}
// SAFETY: As above.
unsafe impl<T: Send + Sync> Sync for RcuMap<T> {}

impl<T: Send + Sync> RcuMap<T> {
    /// An empty map.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // INVARIANT: Initialized, and nothing is in it.
            array <- Opaque::ffi_init(|array| {
                // SAFETY: `array` may be written, and stays where it is.
                unsafe { bindings::xa_init_flags(array, 0) }
            }),
            _owns: PhantomData,
        })
    }

    /// One for static memory, of which [`Self::init`] makes an empty map.
    ///
    /// # Safety
    ///
    /// [`Self::init`] must be called before anything else is.
    pub(crate) const unsafe fn uninit() -> Self {
        // INVARIANT: By the function's requirements it is initialized before it is used.
        Self {
            array: Opaque::uninit(),
            _owns: PhantomData,
        }
    }

    /// Makes the map empty.
    ///
    /// # Safety
    ///
    /// Called once, for what [`Self::uninit`] returned, before anything else is.
    pub(crate) unsafe fn init(&'static self) {
        // SAFETY: Nobody uses it yet, and it stays where it is.
        unsafe { bindings::xa_init_flags(self.array.get(), 0) };
    }

    /// The object at `index`. Context: any but NMI.
    pub(crate) fn get(&self, index: usize) -> Option<RcuArc<T>> {
        let _section = rcu::read_lock();
        // SAFETY: Initialized by the type invariant.
        let place = unsafe { bindings::xa_load(self.array.get(), index) };
        let place = NonNull::new(place.cast::<Counted<T>>())?;
        // SAFETY: The count is the first field. By the type invariant it was one of an object, whose memory stays for
        // as long as this section lasts.
        let counted = unsafe { bindings::rust_hmm_refcount_inc_not_zero(place.as_ptr().cast()) };
        // INVARIANT: The reference was just taken. Not `then_some()`: that would make one, and drop it, in any case.
        counted.then(|| RcuArc {
            place,
            _owns: PhantomData,
        })
    }

    /// Puts `object` at `index`, where nothing is. Context: may sleep; calls for one index must not run at once.
    ///
    /// # Errors
    ///
    /// `EBUSY`: something is there; `ENOMEM`.
    pub(crate) fn insert(&self, index: usize, object: RcuArc<T>) -> Result {
        // INVARIANT: The reference becomes that of the map, if it is stored.
        // SAFETY: Initialized by the type invariant; a box is aligned to more than the array's own values.
        to_result(unsafe {
            bindings::rust_hmm_xa_insert(self.array.get(), index, object.place.as_ptr().cast())
        })?;
        core::mem::forget(object);
        Ok(())
    }

    /// Takes away what is at `index`. Context: any but NMI.
    pub(crate) fn remove(&self, index: usize) -> Option<RcuArc<T>> {
        // SAFETY: Initialized by the type invariant.
        let place = unsafe { bindings::xa_erase(self.array.get(), index) };
        // INVARIANT: It was the map's reference.
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
            // SAFETY: Initialized by the type invariant.
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
        // SAFETY: Initialized by the type invariant, and empty.
        unsafe { bindings::xa_destroy(self.array.get()) };
    }
}

#[kunit_tests(rust_hmm_rcu_map)]
mod tests {
    use super::*;
    use crate::thread::Thread;
    use kernel::{
        sync::{
            atomic::{ordering::Relaxed, Atomic},
            Arc, //
        },
        time::{delay::fsleep, Delta, Instant, Monotonic},
    };

    /// Counts how often one was dropped.
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
    fn what_was_found_outlives_its_removal() -> Result {
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
    fn a_lookup_beside_the_last_drop_finds_nothing_or_an_object() -> Result {
        let dropped = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let map = Arc::pin_init(RcuMap::new(), GFP_KERNEL)?;
        // Lookups that found one, and those that found none.
        let counts = Arc::new([Atomic::new(0usize), Atomic::new(0)], GFP_KERNEL)?;
        let stop = Arc::new(Atomic::new(0usize), GFP_KERNEL)?;
        let (finder, seen, ends) = (map.clone(), counts.clone(), stop.clone());
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

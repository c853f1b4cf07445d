// SPDX-License-Identifier: GPL-2.0

//! One shrinker for many owners of memory: the page tables of all mirrors.
//!
//! Each piece of memory that an owner can free is a [`Reclaimable`] on the list of the memory
//! cgroup that the piece was charged to. Reclaim of a cgroup takes the first object of its list and
//! requests pages from the owner of the object. The owner chooses the pages to free, because nearly
//! always all of its memory is charged to one cgroup.
//!
//! An owner may have callbacks in a driver that can be unloaded. Therefore a mutex is held during a
//! request, and the end of the [`OwnerRegistration`] takes that mutex. Reclaim takes it with a
//! trylock.
//!
//! C header: [`include/linux/list_lru.h`](srctree/include/linux/list_lru.h)

use super::Shrink;
use crate::{
    bindings,
    kernel::{
        deferred::{
            Deferred,
            DropWaits, //
        },
        lock_classes,
        reentry::ReentryGuard, //
    }, //
};
use core::{
    mem::ManuallyDrop,
    ptr::NonNull, //
};
use kernel::{
    error::to_result,
    ffi,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// Maximum number of pages of one [`Reclaimable`]. Reclaim counts each object as this many pages.
pub(crate) const OBJECT_MAX_PAGES: usize = 32;

/// Number of pages of one request. The owner waits for concurrent walks of its memory once for each
/// request.
const REQUEST_PAGES: usize = 16 * OBJECT_MAX_PAGES;

/// An owner of memory. It is created before its registration, and may outlive it.
#[pin_data]
pub(crate) struct ReclaimOwner {
    /// `None` before and after the registration.
    #[pin]
    shrink: Mutex<Option<Arc<dyn Shrink>>>,
}

impl ReclaimOwner {
    /// Creates an owner that is not registered.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    ///
    /// # Context
    ///
    /// May sleep.
    // Not inlined, so that drivers share the library's code.
    #[inline(never)]
    pub(crate) fn new() -> Result<Arc<Self>> {
        let (name, class) = lock_classes::owner();
        Arc::pin_init(
            pin_init!(Self {
                shrink <- Mutex::new(None, name, class),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Registers `shrink`, from which reclaim then requests memory.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    ///
    /// # Context
    ///
    /// May sleep.
    #[inline(never)]
    pub(crate) fn register(this: &Arc<Self>, shrink: Arc<dyn Shrink>) -> Result<OwnerRegistration> {
        let registered = Deferred::new(|| Ok(RegisteredOwner(this.clone())), GFP_KERNEL_ACCOUNT)?;
        *this.shrink.lock() = Some(shrink);
        Ok(OwnerRegistration {
            _registered: registered,
        })
    }

    /// Requests up to `pages` pages from the owner. Returns the number of freed pages, and an upper
    /// bound of the number of scanned pages. Does nothing if there is a concurrent request, or if
    /// the registration ends concurrently. Context: reclaim.
    pub(crate) fn request(&self, pages: usize) -> (usize, usize) {
        let _within = ReentryGuard::enter();
        let Some(shrink) = self.shrink.try_lock() else {
            return (0, 0);
        };
        match &*shrink {
            Some(shrink) => {
                let scanned = pages.min(shrink.count());
                (shrink.scan(pages), scanned)
            }
            None => (0, 0),
        }
    }

    /// # Safety
    ///
    /// `raw` must be from [`Arc::into_raw`], with a reference that is not dropped meanwhile.
    unsafe extern "C" fn get(raw: *mut ffi::c_void) {
        // SAFETY: By the function's requirements. That reference is not dropped here.
        let owner = ManuallyDrop::new(unsafe { Arc::from_raw(raw.cast::<Self>().cast_const()) });
        // `reclaim` drops the new reference.
        let _raw = Arc::into_raw(Arc::clone(&owner));
    }

    /// # Safety
    ///
    /// `raw` must be from [`Arc::into_raw`], and its reference given up. `scanned` must be valid
    /// for a write.
    unsafe extern "C" fn reclaim(
        raw: *mut ffi::c_void,
        pages: ffi::c_ulong,
        scanned: *mut ffi::c_ulong,
    ) -> ffi::c_ulong {
        // SAFETY: By the function's requirements.
        let owner = unsafe { Arc::from_raw(raw.cast::<Self>().cast_const()) };
        let (given, looked_at) = owner.request(pages);
        // SAFETY: By the function's requirements.
        unsafe { scanned.write(looked_at) };
        given
    }
}

/// Reference to the owner whose drop ends the registration.
struct RegisteredOwner(Arc<ReclaimOwner>);

impl DropWaits for RegisteredOwner {}

impl Drop for RegisteredOwner {
    #[inline(never)]
    fn drop(&mut self) {
        // Waits for a concurrent request of reclaim. `shrink` is dropped without the lock,
        // because it may be the last reference.
        let shrink = self.0.shrink.lock().take();
        drop(shrink);
    }
}

/// Registration of an owner. Dropping it waits for a concurrent request of reclaim.
///
/// # Context
///
/// The drop may sleep. In a callback, in atomic context and in reclaim it returns at once, and a
/// worker ends the registration.
pub(crate) struct OwnerRegistration {
    _registered: Deferred<RegisteredOwner>,
}

/// A piece of memory that its owner may be able to free.
///
/// # Invariants
///
/// `raw` is an object of the library's list, and ours. It holds a reference of its owner.
pub(crate) struct Reclaimable {
    raw: NonNull<bindings::rust_hmm_reclaimable>,
    owner: ManuallyDrop<Arc<ReclaimOwner>>,
}

// SAFETY: Any task may use the object, because the list has a lock.
unsafe impl Send for Reclaimable {}
// SAFETY: Objects are added and removed under the lock of the list.
unsafe impl Sync for Reclaimable {}

impl Reclaimable {
    /// Creates the object of a piece of up to [`OBJECT_MAX_PAGES`] pages, charged to the cgroup of
    /// the current task. It is not on a list yet.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    ///
    /// # Context
    ///
    /// May sleep.
    #[inline(never)]
    pub(crate) fn new(owner: &Arc<ReclaimOwner>) -> Result<Self> {
        let owner = owner.clone();
        let raw = Arc::as_ptr(&owner).cast_mut().cast();
        // SAFETY: The library is loaded. The reference is kept until the object was freed.
        let raw = unsafe { bindings::rust_hmm_reclaimable_alloc(raw) };
        // INVARIANT: A new object.
        Ok(Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            owner: ManuallyDrop::new(owner),
        })
    }

    /// Adds the object to the list, if it is not on it. Context: atomic, but not an interrupt.
    #[inline(never)]
    pub(crate) fn add(&self) {
        // SAFETY: The object is valid by the type invariant.
        unsafe { bindings::rust_hmm_reclaimable_add(self.raw.as_ptr()) };
    }

    /// Removes the object from the list, if it is on it. Context: as [`Self::add`].
    #[inline(never)]
    pub(crate) fn remove(&self) {
        // SAFETY: The object is valid by the type invariant.
        unsafe { bindings::rust_hmm_reclaimable_del(self.raw.as_ptr()) };
    }
}

impl Drop for Reclaimable {
    #[inline(never)]
    fn drop(&mut self) {
        // SAFETY: `self` owns the object by the type invariant, and does not use it after this.
        unsafe { bindings::rust_hmm_reclaimable_free(self.raw.as_ptr()) };
        // SAFETY: `drop` runs once. The object was freed, so the shrinker cannot take a reference
        // to the owner from it.
        unsafe { ManuallyDrop::drop(&mut self.owner) };
    }
}

/// The shrinker, which is registered while the library is loaded.
pub(crate) struct Owners(());

impl Owners {
    /// Registers the shrinker.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Safety
    ///
    /// Must be called once, by the library's `init`, before any owner is created.
    pub(crate) unsafe fn new() -> Result<Self> {
        static OPS: bindings::rust_hmm_owner_ops = bindings::rust_hmm_owner_ops {
            get: Some(ReclaimOwner::get),
            reclaim: Some(ReclaimOwner::reclaim),
        };
        // SAFETY: Called once, by the function's requirements. The operations are static.
        to_result(unsafe {
            bindings::rust_hmm_owners_init(&OPS, OBJECT_MAX_PAGES, REQUEST_PAGES)
        })?;
        Ok(Self(()))
    }
}

impl Drop for Owners {
    fn drop(&mut self) {
        // SAFETY: `new` has registered the shrinker. All drivers were unloaded before the library,
        // so no object is left.
        unsafe { bindings::rust_hmm_owners_exit() };
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_shrinker_owner)]
mod tests {
    use super::*;
    use kernel::sync::atomic::{
        ordering::Relaxed,
        Atomic, //
    };

    /// Owner of some pages that counts the requests.
    struct Giver {
        pages: Atomic<usize>,
        requests: Atomic<usize>,
    }

    impl Shrink for Giver {
        fn count(&self) -> usize {
            self.pages.load(Relaxed)
        }

        fn scan(&self, objects: usize) -> usize {
            self.requests.fetch_add(1, Relaxed);
            let given = objects.min(self.count());
            self.pages.fetch_sub(given, Relaxed);
            given
        }
    }

    fn giver(pages: usize) -> Result<(Arc<ReclaimOwner>, Arc<Giver>, OwnerRegistration)> {
        let pages = Atomic::new(pages);
        let requests = Atomic::new(0);
        let giver = Arc::new(Giver { pages, requests }, GFP_KERNEL)?;
        let owner = ReclaimOwner::new()?;
        let registration = ReclaimOwner::register(&owner, giver.clone())?;
        Ok((owner, giver, registration))
    }

    /// Asks so many owners for `pages`, in the order of the list. There may be others than a
    /// test's.
    fn reclaim(times: usize, pages: usize) {
        for _ in 0..times {
            // SAFETY: No preconditions.
            unsafe { bindings::rust_hmm_owners_reclaim(pages) };
        }
    }

    /// More objects than all other owners have.
    const ALL: usize = 1000;

    #[test]
    fn owners_of_listed_objects_are_shrunk_in_turn() -> Result {
        let first = giver(ALL)?;
        let second = giver(ALL)?;
        let idle = giver(ALL)?;
        let objects = [
            Reclaimable::new(&first.0)?,
            Reclaimable::new(&second.0)?,
            Reclaimable::new(&idle.0)?,
        ];
        let requests = || [&first, &second, &idle].map(|giver| giver.1.requests.load(Relaxed));
        reclaim(ALL, 1);
        assert_eq!(requests(), [0, 0, 0]);
        let [one, two, _] = &objects;
        one.add();
        two.add();
        // Once is enough.
        two.add();
        reclaim(ALL, 1);
        let [first_requests, second_requests, none] = requests();
        assert!(first_requests != 0 && first_requests.abs_diff(second_requests) <= 1 && none == 0);
        assert_eq!(first.1.count(), ALL - first_requests);
        one.remove();
        one.remove();
        reclaim(ALL, 1);
        let [still, more, none] = requests();
        assert!(still == first_requests && more > second_requests && none == 0);
        drop(objects);
        reclaim(ALL, 1);
        assert_eq!(requests(), [still, more, 0]);
        Ok(())
    }

    #[test]
    fn unregistered_owner_is_not_called() -> Result {
        let (owner, giver, registration) = giver(ALL)?;
        let object = Reclaimable::new(&owner)?;
        object.add();
        drop(registration);
        assert!(Arc::into_unique_or_drop(giver).is_some());
        // Its memory may be there for longer.
        reclaim(ALL, 1);
        drop((owner, object));
        reclaim(ALL, 1);
        Ok(())
    }

    #[test]
    fn busy_owner_is_skipped() -> Result {
        let (owner, giver, _registration) = giver(ALL)?;
        let object = Reclaimable::new(&owner)?;
        object.add();
        let asking = owner.shrink.lock();
        reclaim(ALL, 1);
        assert_eq!(giver.requests.load(Relaxed), 0);
        drop(asking);
        reclaim(ALL, 1);
        assert_ne!(giver.requests.load(Relaxed), 0);
        Ok(())
    }
}

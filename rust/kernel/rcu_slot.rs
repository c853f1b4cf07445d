// SPDX-License-Identifier: GPL-2.0

//! RCU-protected pointers to objects that can be removed while they are read.
//!
//! C header: [`include/linux/rcupdate.h`](srctree/include/linux/rcupdate.h)

use super::word::load_ptr;
use crate::bindings;
use core::{
    marker::PhantomData,
    ptr::null_mut, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::{
                Acquire,
                Full,
                Relaxed, //
            },
            Atomic, //
        },
        rcu::Guard, //
    }, //
};

/// A slot for one `T`.
///
/// # Invariants
///
/// The pointer is null, or was a [`KBox`] and is ours. A removed object to which there may be a
/// reference is freed only after a grace period.
pub(crate) struct RcuSlot<T: Send + Sync> {
    object: Atomic<*mut T>,
    _owns: PhantomData<KBox<T>>,
}

// SAFETY: The slot owns a `T`, which may be sent and shared.
unsafe impl<T: Send + Sync> Send for RcuSlot<T> {}
// SAFETY: The pointer is only accessed atomically, and the `T` may be sent and shared.
unsafe impl<T: Send + Sync> Sync for RcuSlot<T> {}

impl<T: Send + Sync> RcuSlot<T> {
    /// Creates an empty slot.
    pub(crate) const fn empty() -> Self {
        // INVARIANT: The pointer is null.
        Self {
            object: Atomic::new(null_mut()),
            _owns: PhantomData,
        }
    }

    /// Returns the object, which remains valid as long as `guard` exists. Callable from any
    /// context.
    #[inline]
    pub(crate) fn get<'g>(&'g self, guard: &'g Guard) -> Option<&'g T> {
        let _ = guard;
        // Acquire: pairs with the exchange in `put`, so that the object is initialized.
        //
        // SAFETY: The pointer is null or valid by the type invariant. A removed object is freed
        // only after all RCU read-side critical sections have ended, and the slot is not dropped
        // while it is borrowed.
        unsafe { load_ptr(&self.object).as_ref() }
    }

    /// Whether the slot is empty.
    pub(crate) fn is_empty(&self) -> bool {
        // Pairs with the exchange in `Retired::take`: a caller that refills the slot does so after
        // all accesses that precede the removal.
        self.object.load(Acquire).is_null()
    }

    /// Removes the object, if there is one. Callable from any context.
    ///
    /// # Safety
    ///
    /// All calls of [`Self::get`] and [`Self::put`] must have happened before this call, and all
    /// references that `get` returned must have been dropped.
    pub(crate) unsafe fn take_unread(&self) -> Option<KBox<T>> {
        // Relaxed: the caller has synchronized with the task that stored the object.
        let raw = self.object.xchg(null_mut(), Relaxed);
        // SAFETY: The pointer is from a box and ours, by the type invariant. The object is not
        // borrowed, by the function's requirements.
        (!raw.is_null()).then(|| unsafe { KBox::from_raw(raw) })
    }

    /// Stores `object`, or returns it if the slot is not empty. Callable from any context.
    pub(crate) fn put(&self, object: KBox<T>) -> Result<(), KBox<T>> {
        let raw = KBox::into_raw(object);
        // INVARIANT: The pointer is from a box, and ours.
        // Release: pairs with the acquire in `get`. Acquire: as in `is_empty`, if the slot was
        // filled and emptied again since the caller called that.
        match self.object.cmpxchg(null_mut(), raw, Full) {
            Ok(_) => Ok(()),
            // SAFETY: `raw` is from `KBox::into_raw` and was not stored.
            Err(_) => Err(unsafe { KBox::from_raw(raw) }),
        }
    }
}

impl<T: Send + Sync> Drop for RcuSlot<T> {
    fn drop(&mut self) {
        // `&mut self` already orders this after all other accesses.
        let raw = self.object.xchg(null_mut(), Full);
        if !raw.is_null() {
            // SAFETY: The pointer is from a box by the type invariant, and `&mut self` excludes
            // borrows of the object.
            drop(unsafe { KBox::from_raw(raw) });
        }
    }
}

/// Up to `N` removed objects. Dropping this waits for a grace period and frees them.
///
/// # Context
///
/// The drop may sleep, and must be outside of RCU read-side critical sections.
///
/// # Invariants
///
/// The pointers come from boxes and are ours, and no slot has them.
pub(crate) struct Retired<T: Send + Sync, const N: usize> {
    objects: [*mut T; N],
    count: usize,
}

impl<T: Send + Sync, const N: usize> Retired<T, N> {
    /// Creates an empty list.
    pub(crate) const fn empty() -> Self {
        // INVARIANT: The list is empty.
        Self {
            objects: [null_mut(); N],
            count: 0,
        }
    }

    /// Removes the object at `place` and adds it to the list. Returns false if the slot is empty or
    /// the list is full. Callable from any context.
    pub(crate) fn take(&mut self, place: &RcuSlot<T>) -> bool {
        let Some(entry) = self.objects.get_mut(self.count) else {
            return false;
        };
        // Release: pairs with `is_empty`. Acquire: the object is dropped by this task, which must
        // see its contents. The grace period, not this barrier, orders the drop after the readers.
        let raw = place.object.xchg(null_mut(), Full);
        if raw.is_null() {
            return false;
        }
        // INVARIANT: The exchange removed the pointer from the slot, so that it is ours.
        *entry = raw;
        self.count += 1;
        true
    }

    /// Returns the number of objects.
    pub(crate) fn count(&self) -> usize {
        self.count
    }
}

impl<T: Send + Sync, const N: usize> Drop for Retired<T, N> {
    fn drop(&mut self) {
        if self.count == 0 {
            return;
        }
        // SAFETY: `synchronize_rcu()` may be called wherever sleeping is allowed.
        unsafe { bindings::synchronize_rcu() };
        for raw in self.objects.iter().take(self.count) {
            // SAFETY: The pointer is from a box by the type invariant. All read-side critical
            // sections that could have read it from the slot have ended.
            drop(unsafe { KBox::from_raw(*raw) });
        }
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_rcu_slot)]
mod tests {
    use super::*;
    use kernel::sync::{
        rcu,
        Arc, //
    };

    /// Counts how many objects were dropped.
    struct Counted(Arc<Atomic<usize>>, usize);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn taken_object_is_freed_once_after_a_grace_period() -> Result {
        let drops = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let counted =
            |number| Ok::<_, Error>(KBox::new(Counted(drops.clone(), number), GFP_KERNEL)?);
        let slots = [RcuSlot::empty(), RcuSlot::empty(), RcuSlot::empty()];
        let [first, second, empty] = &slots;
        assert!(first.put(counted(1)?).is_ok() && second.put(counted(2)?).is_ok());
        // The slot is not empty, so that the object is returned.
        assert_eq!(first.put(counted(3)?).map_err(|object| object.1), Err(3));
        assert_eq!(drops.load(Relaxed), 1);
        let mut retired = Retired::<_, 1>::empty();
        {
            let guard = rcu::read_lock();
            let seen = first.get(&guard).ok_or(EINVAL)?;
            assert!(!retired.take(empty) && retired.take(first));
            // The list is full.
            assert!(!retired.take(second));
            assert!(first.is_empty() && first.get(&guard).is_none());
            assert_eq!((seen.1, retired.count()), (1, 1));
        }
        assert_eq!(drops.load(Relaxed), 1);
        drop(retired);
        assert_eq!(drops.load(Relaxed), 2);
        assert!(first.put(counted(4)?).is_ok());
        drop(slots);
        assert_eq!(drops.load(Relaxed), 4);
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0

//! A place for an object that can be taken away while others look at it.
//!
//! C header: [`include/linux/rcupdate.h`](srctree/include/linux/rcupdate.h)

use super::word::load_ptr;
use crate::bindings;
use core::{marker::PhantomData, ptr::null_mut};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Full, Relaxed},
            Atomic, //
        },
        rcu::Guard,
    },
};

/// A place for a `T`.
///
/// # Invariants
///
/// The pointer is null, or was a [`KBox`] and is ours. Who takes it away frees it only after a grace period.
pub(crate) struct RcuSlot<T: Send + Sync> {
    object: Atomic<*mut T>,
    _owns: PhantomData<KBox<T>>,
}

// SAFETY: It owns a `T`, which may be sent and shared.
unsafe impl<T: Send + Sync> Send for RcuSlot<T> {}
// SAFETY: As above.
unsafe impl<T: Send + Sync> Sync for RcuSlot<T> {}

impl<T: Send + Sync> RcuSlot<T> {
    /// An empty place.
    pub(crate) const fn new() -> Self {
        // INVARIANT: Null.
        Self {
            object: Atomic::new(null_mut()),
            _owns: PhantomData,
        }
    }

    /// What is there. It stays as long as `guard` does. Context: any.
    #[inline]
    pub(crate) fn get<'g>(&'g self, guard: &'g Guard) -> Option<&'g T> {
        let _ = guard;
        // SAFETY: Null or valid by the type invariant. Who takes it away waits for the end of all read sections
        // before it is freed, and a drop of the place for the end of this borrow.
        unsafe { load_ptr(&self.object).as_ref() }
    }

    /// Whether nothing is there.
    pub(crate) fn is_empty(&self) -> bool {
        self.object.load(Acquire).is_null()
    }

    /// Takes the object away, if there is one. Context: any.
    ///
    /// # Safety
    ///
    /// All calls of [`Self::get`] and [`Self::put`] happened before this one, and no borrow that a
    /// `get` has returned is left.
    pub(crate) unsafe fn take_unread(&self) -> Option<KBox<T>> {
        // No ordering: the caller has synchronized with who put the object there.
        let raw = self.object.xchg(null_mut(), Relaxed);
        // SAFETY: From a box and ours, by the type invariant; it is not borrowed, by the function's
        // requirements.
        (!raw.is_null()).then(|| unsafe { KBox::from_raw(raw) })
    }

    /// Puts `object` there; if something else is, gives it back. Context: any.
    pub(crate) fn put(&self, object: KBox<T>) -> Result<(), KBox<T>> {
        let raw = KBox::into_raw(object);
        // INVARIANT: From a box, and ours.
        match self.object.cmpxchg(null_mut(), raw, Full) {
            Ok(_) => Ok(()),
            // SAFETY: From `into_raw`; nobody has got it.
            Err(_) => Err(unsafe { KBox::from_raw(raw) }),
        }
    }
}

impl<T: Send + Sync> Drop for RcuSlot<T> {
    fn drop(&mut self) {
        let raw = self.object.xchg(null_mut(), Full);
        if !raw.is_null() {
            // SAFETY: From a box by the type invariant; nobody borrows the place any more.
            drop(unsafe { KBox::from_raw(raw) });
        }
    }
}

/// Up to `N` objects that were taken away. Dropping it waits until nobody looks at them, and frees them. Context of
/// the drop: may sleep, so outside of any read section.
///
/// # Invariants
///
/// The pointers come from boxes and are ours, and no place has them.
pub(crate) struct Retired<T: Send + Sync, const N: usize> {
    objects: [*mut T; N],
    count: usize,
}

impl<T: Send + Sync, const N: usize> Retired<T, N> {
    /// None yet.
    pub(crate) const fn new() -> Self {
        // INVARIANT: There are none.
        Self {
            objects: [null_mut(); N],
            count: 0,
        }
    }

    /// Takes away what is at `place`. Returns whether something was, and there was room. Context: any.
    pub(crate) fn take(&mut self, place: &RcuSlot<T>) -> bool {
        let Some(room) = self.objects.get_mut(self.count) else {
            return false;
        };
        let raw = place.object.xchg(null_mut(), Full);
        if raw.is_null() {
            return false;
        }
        // INVARIANT: The place had it until now.
        *room = raw;
        self.count += 1;
        true
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }
}

impl<T: Send + Sync, const N: usize> Drop for Retired<T, N> {
    fn drop(&mut self) {
        if self.count == 0 {
            return;
        }
        // SAFETY: No requirements but that it may sleep; else the kernel complains.
        unsafe { bindings::synchronize_rcu() };
        for raw in self.objects.iter().take(self.count) {
            // SAFETY: From a box by the type invariant; all read sections that could know it have ended.
            drop(unsafe { KBox::from_raw(*raw) });
        }
    }
}

#[kunit_tests(rust_hmm_rcu_slot)]
mod tests {
    use super::*;
    use kernel::sync::{
        rcu,
        Arc, //
    };

    /// Counts its drops.
    struct Counted(Arc<Atomic<usize>>, usize);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn what_was_taken_is_freed_once_and_late() -> Result {
        let drops = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let counted =
            |number| Ok::<_, Error>(KBox::new(Counted(drops.clone(), number), GFP_KERNEL)?);
        let slots = [RcuSlot::new(), RcuSlot::new(), RcuSlot::new()];
        let [first, second, empty] = &slots;
        assert!(first.put(counted(1)?).is_ok() && second.put(counted(2)?).is_ok());
        // Full: it comes back.
        assert_eq!(first.put(counted(3)?).map_err(|object| object.1), Err(3));
        assert_eq!(drops.load(Relaxed), 1);
        let mut retired = Retired::<_, 1>::new();
        {
            let guard = rcu::read_lock();
            let seen = first.get(&guard).ok_or(EINVAL)?;
            assert!(!retired.take(empty) && retired.take(first));
            // No room.
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

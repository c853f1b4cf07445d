// SPDX-License-Identifier: GPL-2.0

//! Mirrors of a device, in any address space: for evictions, and for unplug.
//!
//! The mutex of the list is held for lookups only. The mutex of a slot is held while its mirror is
//! used, so that dropping a registration waits for users of that mirror and of no other. Table
//! locks are taken below the mutex of a slot.

use crate::{
    debug::events::EvictReason,
    kernel::lock_classes, //
};
use kernel::{
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// Operations of a mirror that the memory of its device calls.
pub(crate) trait MemoryClient: Send + Sync {
    /// Removes all entries, and waits for the TLB flush.
    ///
    /// # Context
    ///
    /// May sleep. Takes the table lock.
    fn remove_entries(&self);

    /// Called after an eviction whose address spaces were too many to be recorded; see
    /// [`Space::evicted`](crate::space::Space::evicted).
    fn evicted_from_many(&self, need: Option<EvictReason>, restore: bool);
}

/// A mirror in the list. The lock is held while the mirror is used, so that it cannot be dropped
/// meanwhile.
#[pin_data]
pub(crate) struct MirrorSlot {
    #[pin]
    mirror: Mutex<Option<Arc<dyn MemoryClient>>>,
}

/// Registration of a mirror. Dropping it waits for concurrent users of the mirror.
pub(crate) struct MirrorRegistration(Arc<MirrorSlot>);

impl Drop for MirrorRegistration {
    fn drop(&mut self) {
        *self.0.mirror.lock() = None;
    }
}

/// List of all mirrors of a device memory.
#[pin_data]
pub(super) struct MirrorList {
    #[pin]
    list: Mutex<KVec<Arc<MirrorSlot>>>,
}

impl MirrorList {
    pub(super) fn new() -> impl PinInit<Self> {
        let (name, key) = lock_classes::memory_mirrors();
        pin_init!(Self {
            list <- Mutex::new(KVec::new(), name, key),
        })
    }

    /// Adds a mirror.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn add(&self, mirror: Arc<dyn MemoryClient>) -> Result<MirrorRegistration> {
        let (name, key) = lock_classes::memory_mirror();
        let place = Arc::pin_init(
            pin_init!(MirrorSlot {
                mirror <- Mutex::new(Some(mirror), name, key),
            }),
            GFP_KERNEL,
        )?;
        let mut list = self.list.lock();
        let is_free = |place: &Arc<MirrorSlot>| {
            place
                .mirror
                .try_lock()
                .is_some_and(|mirror| mirror.is_none())
        };
        // A concurrent walk proceeds by index. Therefore a mirror keeps its index until it is
        // removed.
        while list.last().is_some_and(is_free) {
            list.pop();
        }
        match list.iter_mut().find(|place| is_free(place)) {
            Some(free) => *free = place.clone(),
            None => list.push(place.clone(), GFP_KERNEL)?,
        }
        Ok(MirrorRegistration(place))
    }

    /// Calls `each` for each mirror. A mirror that is added concurrently may be left out.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    pub(super) fn for_each(&self, mut each: impl FnMut(&dyn MemoryClient)) {
        let mut next = 0;
        loop {
            // Drop the lock of the list before the call, because adding a mirror takes it.
            let Some(place) = self.list.lock().get(next).cloned() else {
                break;
            };
            next += 1;
            let mirror = place.mirror.lock();
            if let Some(mirror) = mirror.as_ref() {
                each(&**mirror);
            }
        }
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_peers)]
mod tests {
    use super::*;
    use crate::{
        debug::events::EvictReason,
        kernel::kthread::Thread, //
    };
    use kernel::{
        sync::{
            atomic::{
                ordering::Relaxed,
                Atomic, //
            },
            SetOnce, //
        },
        time::{
            delay::fsleep,
            Delta,
            Instant,
            Monotonic, //
        }, //
    };

    /// A mirror that counts calls of `remove_entries`.
    struct Counting(Atomic<u32>);

    impl MemoryClient for Counting {
        fn remove_entries(&self) {
            self.0.add(1, Relaxed);
        }

        fn evicted_from_many(&self, _need: Option<EvictReason>, _restore: bool) {}
    }

    #[test]
    fn walk_visits_all_mirrors_during_changes() -> Result {
        fn add(mirrors: &MirrorList) -> Result<(MirrorRegistration, Arc<Counting>)> {
            let mirror = Arc::new(Counting(Atomic::new(0)), GFP_KERNEL)?;
            Ok((mirrors.add(mirror.clone())?, mirror))
        }
        let mirrors = Arc::pin_init(MirrorList::new(), GFP_KERNEL)?;
        let mut first = Some(add(&mirrors)?);
        let others = [add(&mirrors)?, add(&mirrors)?, add(&mirrors)?];
        let new = Arc::new(SetOnce::new(), GFP_KERNEL)?;
        let mut seen = 0;
        let mut thread = None;
        mirrors.for_each(|mirror| {
            mirror.remove_entries();
            seen += 1;
            if seen == 2 {
                // Remove a mirror that the walk has passed, and add one. Another task does it,
                // because this one holds the lock of a mirror.
                let first = first.take();
                let mirrors = mirrors.clone();
                let added = new.clone();
                thread = Some(Thread::spawn(c"hmm-test", move || {
                    drop(first);
                    added.populate(add(&mirrors));
                }));
                let since = Instant::<Monotonic>::now();
                while SetOnce::as_ref(&new).is_none() && since.elapsed() < Delta::from_secs(20) {
                    fsleep(Delta::from_millis(1));
                }
            }
        });
        assert!(thread.is_some_and(|thread| thread.is_ok()));
        assert!(SetOnce::as_ref(&new).is_some_and(|new| new.is_ok()));
        assert!(others.iter().all(|(_, mirror)| mirror.0.load(Relaxed) == 1));
        assert_eq!(mirrors.list.lock().len(), 4);
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Prepares an address space for interval notifiers.
//!
//! When the first interval notifier of an address space is inserted, the core allocates its
//! interval tree under the mmap lock, taken for writing. That wait is not interruptible, and all
//! later users of the lock queue behind the writer, including an exiting process. If two tasks
//! insert the first two notifiers concurrently, one may wait while the other already migrates and
//! holds the mmap lock for reading until its copies are complete. Therefore the library registers
//! each address space once, killably, before it inserts a notifier. All later insertions do without
//! the mmap lock.
//!
//! An address space is not registered as soon as a mirror is opened, because from then on each
//! change of the address space searches the interval tree.
//!
//! C header: [`include/linux/mmu_notifier.h`](srctree/include/linux/mmu_notifier.h)

use crate::{
    bindings,
    inject::{
        fails,
        FailPoint, //
    },
    kernel::{
        identity::MmId,
        lock_classes, //
    }, //
};
use kernel::{
    error::to_result,
    mm::MmWithUser,
    prelude::*,
    sync::{
        atomic::{
            ordering::{
                Acquire,
                Relaxed,
                Release, //
            },
            Atomic,
            AtomicFlag, //
        },
        Arc,
        Mutex, //
    }, //
};

/// Whether interval notifiers can be inserted into an address space without its mmap lock.
///
/// # Invariants
///
/// If `done`, the address space that `space` names has its tree of interval notifiers, which it
/// keeps to its end.
#[pin_data]
pub(crate) struct Registration {
    space: MmId,
    done: AtomicFlag,
    known: Arc<KnownSequence>,
    #[pin]
    lock: Mutex<()>,
}

/// An address space into which interval notifiers can be inserted without its mmap lock.
///
/// # Invariants
///
/// The address space has its tree of interval notifiers.
#[derive(Clone, Copy)]
pub(crate) struct RegisteredMm<'a> {
    mm: &'a MmWithUser,
    known: &'a Arc<KnownSequence>,
}

/// The last sequence of the core that a notifier of an address space had. Sequences never decrease.
pub(super) struct KnownSequence(Atomic<usize>);

impl KnownSequence {
    /// Returns the sequence.
    pub(super) fn get(&self) -> usize {
        self.0.load(Relaxed)
    }

    /// Records `seq`. May record an earlier sequence, if two are recorded concurrently.
    #[inline]
    pub(super) fn set(&self, seq: usize) {
        if self.get() != seq {
            self.0.store(seq, Relaxed);
        }
    }
}

impl Registration {
    /// Creates the state for the address space that `space` identifies. Its owner has a reference
    /// of the mm, so that `space` does not identify another one meanwhile.
    pub(crate) fn new(space: MmId) -> impl PinInit<Self, Error> {
        let (name, key) = lock_classes::registration();
        // INVARIANT: `done` is false.
        try_pin_init!(Self {
            space,
            done: AtomicFlag::new(false),
            known: Arc::new(KnownSequence(Atomic::new(0)), GFP_KERNEL_ACCOUNT)?,
            lock <- Mutex::new((), name, key),
        }? Error)
    }

    /// Registers `mm`, unless it is registered already.
    ///
    /// # Errors
    ///
    /// * `EINTR`: a fatal signal is pending, or another signal arrived before `mm` was registered.
    /// * `ENOMEM`: memory allocation failed.
    /// * `EINVAL`: `mm` is not the mm that this state is for.
    ///
    /// # Context
    ///
    /// May sleep. The caller must not hold the mmap lock.
    pub(crate) fn of<'a>(&'a self, mm: &'a MmWithUser) -> Result<RegisteredMm<'a>> {
        if MmId::of_user(mm) != self.space {
            return Err(EINVAL);
        }
        // Pairs with the release in `register`: the insertion that follows finds the tree of the
        // address space.
        if !self.done.load(Acquire) {
            self.register(mm)?;
        }
        // INVARIANT: `done` is true, so that `mm` has its interval tree by the type invariant.
        Ok(RegisteredMm {
            mm,
            known: &self.known,
        })
    }

    #[cold]
    #[inline(never)]
    fn register(&self, mm: &MmWithUser) -> Result {
        let _guard = self.lock.lock();
        // Recheck: another task may have registered the mm, and may hold the mmap lock now.
        // The mutex orders this load after the store.
        if self.done.load(Acquire) {
            return Ok(());
        }
        if fails(FailPoint::MmapLock) {
            return Err(EINTR);
        }
        // SAFETY: `mm` has a user.
        to_result(unsafe { bindings::rust_hmm_notifier_register(mm.as_raw()) })?;
        // INVARIANT: The mm was registered above.
        // Release: the tree was created before. Pairs with the acquire in `of`, which takes no
        // lock.
        self.done.store(true, Release);
        Ok(())
    }
}

impl<'a> RegisteredMm<'a> {
    /// Returns the address space.
    #[inline]
    pub(super) fn mm(self) -> &'a MmWithUser {
        self.mm
    }

    /// Returns the last known sequence of the address space.
    #[inline]
    pub(super) fn known(self) -> &'a Arc<KnownSequence> {
        self.known
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_registration)]
mod tests {
    use super::*;
    use crate::{
        inject::ArmedPoint,
        mm::vma::MmapGuard, //
    };
    use kernel::page::PAGE_SIZE;

    #[test]
    fn mmap_lock_is_taken_once() -> Result {
        // SAFETY: The helper has no preconditions. The test task has an mm.
        let addr = unsafe { bindings::rust_hmm_kunit_mmap(PAGE_SIZE) };
        assert_ne!(addr, 0);
        let current = current!();
        let mm = current.mm().ok_or(EINVAL)?;
        let registration = KBox::pin_init(Registration::new(MmId::of_user(mm)), GFP_KERNEL)?;
        let other = KBox::pin_init(Registration::new(MmId::for_test(1)), GFP_KERNEL)?;
        assert_eq!(other.of(mm).err(), Some(EINVAL));
        registration.of(mm)?;
        // Lockdep reports if the call takes the mmap lock, which this task holds.
        let _lock = MmapGuard::lock(mm)?;
        registration.of(mm)?;
        Ok(())
    }

    #[test]
    fn late_task_does_without_the_mmap_lock() -> Result {
        // SAFETY: The helper has no preconditions. The test task has an mm.
        let addr = unsafe { bindings::rust_hmm_kunit_mmap(PAGE_SIZE) };
        assert_ne!(addr, 0);
        let current = current!();
        let mm = current.mm().ok_or(EINVAL)?;
        let registration = KBox::pin_init(Registration::new(MmId::of_user(mm)), GFP_KERNEL)?;
        // Each attempt to take the mmap lock fails.
        let point = ArmedPoint::new(FailPoint::MmapLock, 1, true)?;
        assert_eq!(registration.register(mm), Err(EINTR));
        drop(point);
        registration.of(mm)?;
        let _point = ArmedPoint::new(FailPoint::MmapLock, 1, true)?;
        // A task that has loaded `done` before the registration above gets here after it. The task
        // that registered may hold the mmap lock by now.
        assert!(registration.done.load(Acquire));
        assert_eq!(registration.register(mm), Ok(()));
        Ok(())
    }
}

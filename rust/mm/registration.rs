// SPDX-License-Identifier: GPL-2.0

//! What an address space needs before interval notifiers can be inserted.
//!
//! At the first insertion the core allocates the interval tree of the address space. For that it takes
//! the mmap lock for writing, and the wait cannot be interrupted. All later users of the lock queue
//! behind that writer, also a process that exits. If two tasks insert the first two notifiers, one of
//! them may wait while the other one migrates, and holds the lock for reading until its copies are
//! done. So this library registers an address space once, by itself and killably, before it inserts
//! anything; all insertions that follow do without the lock.
//!
//! It is not done when a mirror is opened: from then on each change of the address space looks into
//! the tree.
//!
//! C header: [`include/linux/mmu_notifier.h`](srctree/include/linux/mmu_notifier.h)

use super::notifier::Cookie;
use crate::{
    bindings,
    inject::{fails, Point},
    locks,
};
use kernel::{
    error::to_result,
    mm::MmWithUser,
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Release},
            AtomicFlag, //
        },
        Mutex,
    },
};

/// Whether an address space takes interval notifiers without its mmap lock.
///
/// # Invariants
///
/// If `done`, the address space that `space` names has its tree of interval notifiers, which it
/// keeps to its end.
#[pin_data]
pub(crate) struct Registration {
    space: Cookie,
    done: AtomicFlag,
    #[pin]
    lock: Mutex<()>,
}

/// An address space in use that takes interval notifiers without its mmap lock.
///
/// # Invariants
///
/// It has its tree of interval notifiers.
#[derive(Clone, Copy)]
pub(crate) struct Registered<'a>(&'a MmWithUser);

impl Registration {
    /// That of the address space that `space` names. Its owner has a reference, so that the name is
    /// of no other one.
    pub(crate) fn new(space: Cookie) -> impl PinInit<Self> {
        let (name, key) = locks::registration();
        // INVARIANT: Not done.
        pin_init!(Self {
            space,
            done: AtomicFlag::new(false),
            lock <- Mutex::new((), name, key),
        })
    }

    /// Registers `mm`, unless that was done.
    ///
    /// # Errors
    ///
    /// - `EINTR`: the task was killed, or got a signal before this was done.
    /// - `ENOMEM`.
    /// - `EINVAL`: it is another address space.
    ///
    /// # Context
    ///
    /// May sleep; the mmap lock must not be held.
    pub(crate) fn of<'a>(&self, mm: &'a MmWithUser) -> Result<Registered<'a>> {
        if Cookie::of_space(mm) != self.space {
            return Err(EINVAL);
        }
        if !self.done.load(Acquire) {
            self.register(mm)?;
        }
        // INVARIANT: By the type invariant.
        Ok(Registered(mm))
    }

    #[cold]
    #[inline(never)]
    fn register(&self, mm: &MmWithUser) -> Result {
        let _guard = self.lock.lock();
        // Whoever was faster may hold the mmap lock by now.
        if self.done.load(Acquire) {
            return Ok(());
        }
        if fails(Point::MmapLock) {
            return Err(EINTR);
        }
        // SAFETY: `mm` is in use.
        to_result(unsafe { bindings::rust_hmm_notifier_register(mm.as_raw()) })?;
        // INVARIANT: Just registered.
        self.done.store(true, Release);
        Ok(())
    }
}

impl<'a> Registered<'a> {
    /// The address space.
    #[inline]
    pub(super) fn mm(self) -> &'a MmWithUser {
        self.0
    }
}

#[kunit_tests(rust_hmm_registration)]
mod tests {
    use super::*;
    use crate::mm::space::MmapGuard;
    use kernel::page::PAGE_SIZE;

    #[test]
    fn the_mmap_lock_is_needed_once() -> Result {
        // SAFETY: No preconditions; in a test.
        let addr = unsafe { bindings::rust_hmm_kunit_mmap(PAGE_SIZE) };
        assert_ne!(addr, 0);
        let current = current!();
        let mm = current.mm().ok_or(EINVAL)?;
        let registration = KBox::pin_init(Registration::new(Cookie::of_space(mm)), GFP_KERNEL)?;
        let other = KBox::pin_init(Registration::new(Cookie::of(&addr)), GFP_KERNEL)?;
        assert_eq!(other.of(mm).err(), Some(EINVAL));
        registration.of(mm)?;
        // Lockdep reports who waits for a lock that it holds.
        let _lock = MmapGuard::lock(mm)?;
        registration.of(mm)?;
        Ok(())
    }
}

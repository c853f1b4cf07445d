// SPDX-License-Identifier: GPL-2.0

//! Locks of the engines of a software device, with the data of the driver that they protect.
//!
//! A flush takes the lock of each walker in turn, also with the table lock held. So a task that
//! holds a walker's lock must not take the table lock. It must not wait for the lock of another
//! walker either, because the owner of that one may wait for the first. `owner` records the task
//! that holds the lock, so that such calls are refused: it is written with the lock held, and a
//! task that reads its own address there holds the lock.

use crate::kernel::{
    lock_classes,
    reentry,
    word::{
        peek_usize,
        store_usize, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        lock::{
            spinlock::SpinLockBackend,
            Guard, //
        },
        Arc,
        SpinLock, //
    }, //
};

/// Walker of one engine.
#[pin_data]
struct EngineWalker<T> {
    /// Task that holds the lock; 0 if it is not held.
    owner: Atomic<usize>,
    #[pin]
    data: SpinLock<T>,
}

/// Guard of a walker's lock.
pub(super) struct EngineGuard<'w, T> {
    owner: &'w Atomic<usize>,
    pub(super) data: Guard<'w, T, SpinLockBackend>,
}

impl<'w, T> EngineGuard<'w, T> {
    /// Creates the guard for `walker`, whose lock `task` has taken with `data`.
    #[inline]
    fn new(walker: &'w EngineWalker<T>, data: Guard<'w, T, SpinLockBackend>, task: usize) -> Self {
        store_usize(&walker.owner, task);
        Self {
            owner: &walker.owner,
            data,
        }
    }
}

impl<T> Drop for EngineGuard<'_, T> {
    fn drop(&mut self) {
        store_usize(self.owner, 0);
    }
}

/// Walkers of a device, one for each engine, shared by all its mirrors. Each walker has data of the
/// driver, such as a TLB, which only its engine and flushes access.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::mirror::Walkers;
///
/// // Two engines; the data of each is a TLB of one entry.
/// let walkers = Walkers::new(2, |_| Ok(None::<usize>))?;
/// walkers.with(1, |tlb| *tlb = Some(0x1000));
/// assert_eq!(walkers.with(0, |tlb| *tlb), Some(None));
/// assert_eq!(walkers.with(2, |tlb| *tlb), None);
/// # Ok::<(), Error>(())
/// ```
pub struct Walkers<T>(KVec<Pin<KBox<EngineWalker<T>>>>);

impl<T: Send + Unpin> Walkers<T> {
    /// Creates `count` walkers. `make` returns the data of the walker with the given index.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    /// - The error that `make` returned.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new(count: usize, mut make: impl FnMut(usize) -> Result<T>) -> Result<Arc<Self>> {
        let mut walkers = KVec::with_capacity(count, GFP_KERNEL)?;
        let (name, key) = lock_classes::walker();
        for index in 0..count {
            let data = make(index)?;
            let walker = KBox::pin_init(
                pin_init!(EngineWalker {
                    owner: Atomic::new(0),
                    data <- SpinLock::new(data, name, key),
                }),
                GFP_KERNEL,
            )?;
            walkers.push(walker, GFP_KERNEL)?;
        }
        Ok(Arc::new(Self(walkers), GFP_KERNEL)?)
    }

    /// Returns the number of walkers.
    ///
    /// # Context
    ///
    /// Any.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no walkers.
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Calls `f` with the data of walker `index`, with its lock held. Returns `None` if there is no
    /// such walker, or if taking its lock could deadlock, see
    /// [`Mirror::enter`](super::Mirror::enter).
    ///
    /// # Context
    ///
    /// Takes the walker's spinlock. `f` must not sleep or enter a walker.
    pub fn with<R>(&self, index: usize, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.hold(index).ok().map(|mut held| f(&mut held.data))
    }

    /// Takes the lock of walker `index`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there is no such walker.
    /// - `EDEADLK` if taking its lock could deadlock, see [`Mirror::enter`](super::Mirror::enter).
    pub(super) fn hold(&self, index: usize) -> Result<EngineGuard<'_, T>> {
        let walker = self.0.get(index).ok_or(EINVAL)?;
        let task = reentry::current_task();
        // No race: only this task stores its own address in `owner`.
        if peek_usize(&walker.owner) == task {
            return Err(reentry::deadlock());
        }
        let data = match walker.data.try_lock() {
            Some(data) => data,
            // A task in one walker must not wait for another, whose owner may wait for the first
            // one.
            None if self.0.iter().any(|one| one.owner.load(Relaxed) == task) => {
                return Err(reentry::deadlock());
            }
            None => walker.data.lock(),
        };
        Ok(EngineGuard::new(walker, data, task))
    }

    /// Calls `flush` with the data of each walker, with its lock held. Thus waits until all
    /// accesses that began before have ended.
    ///
    /// # Context
    ///
    /// Takes the spinlock of each walker. The table lock may be held. `flush` must not sleep.
    pub(super) fn drain(&self, mut flush: impl FnMut(&mut T)) {
        let task = reentry::current_task();
        for walker in &self.0 {
            let data = walker.data.lock();
            flush(&mut EngineGuard::new(walker, data, task).data);
        }
    }
}

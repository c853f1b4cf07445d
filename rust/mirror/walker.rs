// SPDX-License-Identifier: GPL-2.0

//! Access by engines of a software device, through translations that they keep.
//!
//! As hardware does, an engine walks the page table while it changes, and keeps what it finds in a
//! TLB until it is told to flush. What makes that safe is the *drain*: an invalidation changes the
//! entries, flushes, and then takes each walker's lock once before it returns. A walker holds its
//! lock from the walk, or from the look at a kept translation, to the end of the access. So either
//! it saw the table after the change, or the invalidation waits for it.

use super::{Device, Inner, Mirror, Place, PlaceMut};
use crate::{
    locks,
    pgtable::{Entry, Leaf},
};
use kernel::{
    prelude::*,
    sync::{
        atomic::ordering::Acquire,
        lock::{spinlock::SpinLockBackend, Guard},
        Arc,
        SpinLock, //
    },
};

/// The walkers of a device, one for each engine, shared by all its mirrors. Each holds data of the
/// driver, such as a TLB, which only its engine and flushes touch.
pub struct Walkers<T>(KVec<Pin<KBox<SpinLock<T>>>>);

impl<T: Send + Unpin> Walkers<T> {
    /// Makes `count` walkers. Context: may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, or what `make` returns.
    pub fn new(count: usize, mut make: impl FnMut(usize) -> Result<T>) -> Result<Arc<Self>> {
        let mut walkers = KVec::with_capacity(count, GFP_KERNEL)?;
        let (name, key) = locks::walker();
        for index in 0..count {
            let data = make(index)?;
            let walker = KBox::pin_init(SpinLock::new(data, name, key), GFP_KERNEL)?;
            walkers.push(walker, GFP_KERNEL)?;
        }
        Ok(Arc::new(Self(walkers), GFP_KERNEL)?)
    }

    /// Number of walkers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Calls `f` with the data of walker `index`, under its lock. `None` if there is no such walker.
    ///
    /// Context: takes a spinlock; `f` must not sleep or enter a walker.
    pub fn with<R>(&self, index: usize, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.0.get(index).map(|walker| f(&mut walker.lock()))
    }

    /// Waits until nobody is within an access that began before.
    pub(super) fn drain(&self) {
        for walker in &self.0 {
            drop(walker.lock());
        }
    }
}

/// Why a translation that the driver kept cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// It was removed or changed, and the flush is under way, or it has gained rights: walk again.
    Changing,
    /// It was removed or changed, and the flush that should have removed it is over: a bug of the
    /// driver's flush. It cannot be used.
    Stale,
    /// It does not allow to write.
    ReadOnly,
}

/// A walker's lock, held: an access of an engine under way. Atomic context.
///
/// What a translation names cannot go away before this is dropped.
pub struct Section<'m, D: Device> {
    walker: Guard<'m, D::Walker, SpinLockBackend>,
    inner: &'m Inner<D>,
}

impl<D: Device> Mirror<D> {
    /// Begins an access by walker `index`, see [`Device::walkers`].
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is no such walker. Context: takes a spinlock; a thread can be in one
    /// section at a time.
    pub fn enter(&self, index: usize) -> Result<Section<'_, D>> {
        let inner = self.inner();
        let walkers = inner.walkers.as_ref().ok_or(EINVAL)?;
        let walker = walkers.0.get(index).ok_or(EINVAL)?;
        Ok(Section {
            walker: walker.lock(),
            inner,
        })
    }
}

impl<D: Device> Section<'_, D> {
    /// The driver's data of this walker.
    pub fn data(&mut self) -> &mut D::Walker {
        &mut self.walker
    }

    /// Walks the table for the page at `addr`.
    pub fn walk(&self, addr: usize) -> Option<Leaf> {
        self.inner.reader.walk(addr)
    }

    fn check(&self, addr: usize, kept: Entry) -> Result<Entry, Unresolved> {
        match self.walk(addr) {
            Some(now) if kept.is_valid() && !kept.is_outdated_by(now.entry) => Ok(now.entry),
            // A change counts itself before it is seen, and until after its flush.
            _ if self.inner.changing.load(Acquire) != 0 => Err(Unresolved::Changing),
            _ => Err(Unresolved::Stale),
        }
    }

    /// Where the page at `addr` is, to be read, by what [`Self::walk`] gave for it in this section
    /// or an earlier one.
    ///
    /// # Errors
    ///
    /// See [`Unresolved`].
    pub fn resolve(&self, addr: usize, kept: &Leaf) -> Result<Place<'_>, Unresolved> {
        self.check(addr, kept.entry)?;
        // SAFETY: The entry is in the table, and the drain waits for this section.
        unsafe { self.inner.place(kept.entry) }.ok_or(Unresolved::Changing)
    }

    /// As [`Self::resolve`], to be written.
    ///
    /// # Errors
    ///
    /// See [`Unresolved`].
    pub fn resolve_mut(&self, addr: usize, kept: &Leaf) -> Result<PlaceMut<'_>, Unresolved> {
        let now = self.check(addr, kept.entry)?;
        if !kept.entry.is_writable() {
            return Err(if now.is_writable() {
                Unresolved::Changing
            } else {
                Unresolved::ReadOnly
            });
        }
        // SAFETY: As in `resolve`, and the entry is writable.
        unsafe { self.inner.place_mut(kept.entry) }.ok_or(Unresolved::Changing)
    }
}

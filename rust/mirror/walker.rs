// SPDX-License-Identifier: GPL-2.0

//! Access by engines of a software device, through translations that they keep.
//!
//! As hardware does, an engine walks the page table while it changes, and keeps what it finds in a
//! TLB until it is told to flush. What makes that safe is the *drain*: an invalidation changes the
//! entries, and then takes each walker's lock once, to flush its TLB, before it returns. A walker
//! holds its lock from the walk, or from the look at a kept translation, to the end of the access.
//! So either it saw the table after the change, or the invalidation waits for it.

use super::{Device, Inner, Mirror, Place, PlaceMut, Target};
use crate::{
    locks,
    mm::word::{peek_usize, store_usize},
    pgtable::{Entry, Leaf},
    within,
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Relaxed},
            Atomic, //
        },
        lock::{spinlock::SpinLockBackend, Guard},
        Arc,
        SpinLock, //
    },
};

/// One engine's.
#[pin_data]
struct Walker<T> {
    /// The task that is in it; 0 if none.
    owner: Atomic<usize>,
    #[pin]
    data: SpinLock<T>,
}

/// A walker's lock, held.
struct Held<'w, T> {
    owner: &'w Atomic<usize>,
    data: Guard<'w, T, SpinLockBackend>,
}

impl<'w, T> Held<'w, T> {
    /// That of `walker`, whose lock `task` has taken.
    #[inline]
    fn new(walker: &'w Walker<T>, data: Guard<'w, T, SpinLockBackend>, task: usize) -> Self {
        store_usize(&walker.owner, task);
        Self {
            owner: &walker.owner,
            data,
        }
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        store_usize(self.owner, 0);
    }
}

/// The walkers of a device, one for each engine, shared by all its mirrors. Each holds data of the
/// driver, such as a TLB, which only its engine and flushes touch.
pub struct Walkers<T>(KVec<Pin<KBox<Walker<T>>>>);

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
            let walker = KBox::pin_init(
                pin_init!(Walker {
                    owner: Atomic::new(0),
                    data <- SpinLock::new(data, name, key),
                }),
                GFP_KERNEL,
            )?;
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

    /// Calls `f` with the data of walker `index`, under its lock. `None` if there is no such walker, or
    /// if the task is in one already and would wait for ever; see [`Mirror::enter`].
    ///
    /// Context: takes a spinlock; `f` must not sleep or enter a walker.
    pub fn with<R>(&self, index: usize, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.hold(index).ok().map(|mut held| f(&mut held.data))
    }

    fn hold(&self, index: usize) -> Result<Held<'_, T>> {
        let walker = self.0.get(index).ok_or(EINVAL)?;
        let task = within::current_task();
        // Nobody else writes our name there.
        if peek_usize(&walker.owner) == task {
            return Err(within::deadlock());
        }
        let data = match walker.data.try_lock() {
            Some(data) => data,
            // Who has one must not wait for another: its owner may wait for ours.
            None if self.0.iter().any(|one| one.owner.load(Relaxed) == task) => {
                return Err(within::deadlock());
            }
            None => walker.data.lock(),
        };
        Ok(Held::new(walker, data, task))
    }

    /// Waits until nobody is within an access that began before, and calls `flush` with the data of
    /// each walker, under its lock.
    pub(super) fn drain(&self, mut flush: impl FnMut(&mut T)) {
        let task = within::current_task();
        for walker in &self.0 {
            let data = walker.data.lock();
            flush(&mut Held::new(walker, data, task).data);
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

/// What a device has found in the table that it walks by itself: a page of 4 KiB, by the address
/// that the device uses for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Address of the page.
    pub address: u64,
    /// Whether the device may write.
    pub writable: bool,
}

/// A walker's lock, held: an access of an engine under way. Atomic context.
///
/// What a translation names cannot go away before this is dropped.
pub struct Section<'m, D: Device> {
    walker: Held<'m, D::Walker>,
    inner: &'m Inner<D>,
}

impl<D: Device> Mirror<D> {
    /// Begins an access by walker `index`, see [`Device::walkers`].
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is no such walker. `EDEADLK` if the task is in it, or is in another one and
    /// this one is in use. Context: takes a spinlock; a thread should be in one section at a time.
    pub fn enter(&self, index: usize) -> Result<Section<'_, D>> {
        let inner = self.inner();
        let walkers = inner.walkers.as_ref().ok_or(EINVAL)?;
        Ok(Section {
            walker: walkers.hold(index)?,
            inner,
        })
    }
}

impl<D: Device> Section<'_, D> {
    /// The driver's data of this walker.
    pub fn data(&mut self) -> &mut D::Walker {
        &mut self.walker.data
    }

    /// Walks the table for the page at `addr`.
    pub fn walk(&self, addr: usize) -> Option<Leaf> {
        self.inner.reader.walk(addr)
    }

    /// What is wrong with a translation that the table does not have.
    fn outdated(&self) -> Unresolved {
        // A change counts itself before it is seen, and until after its flush.
        match self.inner.changing.load(Acquire) {
            0 => Unresolved::Stale,
            _ => Unresolved::Changing,
        }
    }

    fn check(&self, addr: usize, kept: Entry) -> Result<Entry, Unresolved> {
        match self.walk(addr) {
            Some(now) if kept.is_valid() && !kept.is_outdated_by(now.entry) => Ok(now.entry),
            _ => Err(self.outdated()),
        }
    }

    /// Compares a translation that the device has found in its table with the library's tree.
    fn compare(&self, addr: usize, found: Seen) -> Result<Entry, Unresolved> {
        match self.walk(addr) {
            Some(Leaf { entry, .. })
                if self.inner.reader.page_address(entry) == found.address
                    && (!found.writable || entry.may_be_dirty()) =>
            {
                Ok(entry)
            }
            _ => Err(self.outdated()),
        }
    }

    /// Reads the word at `address`, a multiple of 8, of the table that the device walks by itself
    /// ([`Device::table_memory`]), for software that takes the place of its walker. Only the tables
    /// on the way to the page at `addr` can be read; [`Mirror::table_root`] is the first one.
    ///
    /// # Errors
    ///
    /// * [`Unresolved::Changing`]: none of these tables is there, and a change is under way. The
    ///   table may have been replaced: see [`Self::reach`].
    /// * [`Unresolved::Stale`]: none of them is there, which is a bug: the entry that leads there is
    ///   wrong, or the device is closed.
    pub fn table_word(&self, addr: usize, address: u64) -> Result<u64, Unresolved> {
        let word = self.inner.reader.image_word(addr, address);
        word.ok_or_else(|| self.outdated())
    }

    /// Where the page at `addr` is, to be read, by what the device has found in the table that it
    /// walks by itself, in this section or an earlier one. As an IOMMU does, it gives access to what
    /// the library has mapped at `addr`, and to nothing else: the table of the device is not
    /// trusted.
    ///
    /// # Errors
    ///
    /// * [`Unresolved::Changing`]: the library's tree has another page there, or less rights, and a
    ///   change is under way. Hardware would use the page that it has found, which stays until the
    ///   flush has ended. Software uses what [`Self::walk`] finds, with [`Self::resolve`], and so
    ///   accesses the page as after the change. It need not wait.
    /// * [`Unresolved::Stale`]: the same, and no change is under way: a flush or an entry is wrong.
    pub fn reach(&self, addr: usize, found: Seen) -> Result<Place<'_>, Unresolved> {
        let entry = self.compare(addr, found)?;
        let entry = self.frame(addr, entry)?;
        // SAFETY: The entry is in the table, and the drain waits for this section.
        unsafe { self.inner.place(entry) }.ok_or(Unresolved::Changing)
    }

    /// As [`Self::reach`], to be written. [`Unresolved::ReadOnly`] if `found` or the entry does not
    /// permit that, also of a page that is exclusive.
    pub fn reach_mut(&self, addr: usize, found: Seen) -> Result<PlaceMut<'_>, Unresolved> {
        let entry = self.compare(addr, found)?;
        if !found.writable || !entry.is_writable() {
            return Err(Unresolved::ReadOnly);
        }
        let entry = self.frame(addr, entry)?;
        // SAFETY: As in `reach`, and the entry is writable.
        unsafe { self.inner.place_mut(entry) }.ok_or(Unresolved::Changing)
    }

    /// The entry with its page frame, which a table of DMA addresses does not hold.
    #[inline]
    fn frame(&self, addr: usize, entry: Entry) -> Result<Entry, Unresolved> {
        match self.inner.dma().filter(|_| !entry.is_device()) {
            None => Ok(entry),
            Some(windows) => {
                let frame = windows.cursor().frame(addr).ok_or(Unresolved::Changing)?;
                Ok(entry.with_number(frame))
            }
        }
    }

    /// Where the device finds the page at `addr`, by what [`Self::walk`] gave for it in this section or an earlier
    /// one; see [`TableGuard::target`](super::TableGuard::target). Good until the section is dropped.
    ///
    /// # Errors
    ///
    /// See [`Unresolved`]; [`Unresolved::Stale`] also of system memory if the table holds page frames.
    pub fn target(&self, addr: usize, kept: &Leaf, write: bool) -> Result<Target, Unresolved> {
        self.check(addr, kept.entry)?;
        if write && !kept.entry.is_writable() {
            return Err(Unresolved::ReadOnly);
        }
        self.inner.target(kept).ok_or(Unresolved::Stale)
    }

    /// Where the page at `addr` is, to be read, by what [`Self::walk`] gave for it in this section
    /// or an earlier one.
    ///
    /// # Errors
    ///
    /// See [`Unresolved`].
    pub fn resolve(&self, addr: usize, kept: &Leaf) -> Result<Place<'_>, Unresolved> {
        self.check(addr, kept.entry)?;
        let entry = self.frame(addr, kept.entry)?;
        // SAFETY: The entry is in the table, and the drain waits for this section.
        unsafe { self.inner.place(entry) }.ok_or(Unresolved::Changing)
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
        let entry = self.frame(addr, kept.entry)?;
        // SAFETY: As in `resolve`, and the entry is writable.
        unsafe { self.inner.place_mut(entry) }.ok_or(Unresolved::Changing)
    }
}

// SPDX-License-Identifier: GPL-2.0

//! The mirror's part in a migration: announce it, and keep the device reading. `switch.rs` switches
//! its entries.
//!
//! What makes it right is described in `Documentation/faultless.rst`.

use super::{
    remove,
    switch::{forget_moved, switch_to_system},
    transaction::{Identity, Request},
    Announced, Device, Inner, Mirror, State,
};
use crate::{
    events::Need,
    mm::{
        addr::PageRange,
        device_pages::DeviceRange,
        migrate::Moved,
        notifier::{Cookie, IntervalNotifier, Seq},
        page::DirtyBatch,
        range_fault::AddressSpace,
        space::{fatal_signal_pending, MmapGuard},
    },
    pgtable::{Flushed, Flushing, Table},
    phases::{Lap, Phase},
};
use kernel::{
    page::PAGE_MASK,
    prelude::*,
    sync::atomic::ordering::Relaxed,
    time::{delay::fsleep, Delta}, //
};

/// Times that a step may be announced anew; each costs one collision with an invalidation, or a
/// [`PAUSE`].
const TRIES: usize = 1024;

/// Time to wait for one of too many migrations of a mirror to end.
const PAUSE: Delta = Delta::from_millis(1);

/// Pauses in which faults that had to try again may go first.
const GIVE_WAY: usize = 8;

impl<D: Device> Inner<D> {
    /// Makes the entries of `range` read-only, so that nothing can be written to a page while it is
    /// copied. To be flushed before the pages are isolated.
    fn protect(
        &self,
        table: &mut Table<D::Format>,
        range: PageRange,
    ) -> Option<super::invalidate::Flush<D>> {
        if self.device().test_keep_write() {
            return None;
        }
        self.change(table, None, |table, batch| {
            let mut dirty = DirtyBatch::new();
            table.for_each(range, batch, |span, entry| {
                if entry.is_writable() {
                    Self::retire(&mut dirty, span.pages(), *entry);
                    *entry = entry.write_protected();
                }
            });
        })
        .1
    }
}

/// Tries to announce a step. There are [`TRIES`].
pub(crate) struct Tries {
    left: usize,
    /// As many migrations of the mirror run as can be.
    crowded: bool,
    lap: Lap,
}

impl Tries {
    /// All of them.
    pub(crate) fn new() -> Self {
        Self {
            left: TRIES,
            crowded: false,
            lap: Lap::start(),
        }
    }

    /// Begins a try, with no lock held. [`Mirror::announce`] ends it, with the mmap lock held.
    ///
    /// The first one lets faults go first that had to try again: migrations in a row would starve
    /// them, as each undoes what a fault has just collected.
    ///
    /// Waits for the invalidations that began before: they may still remove what the step is
    /// about to isolate, and would not be told that it has begun (H4).
    ///
    /// # Errors
    ///
    /// `EINTR`: killed. `EBUSY`: there is no try left.
    pub(crate) fn next<D: Device>(&mut self, mirror: &Mirror<D>) -> Result<Seq> {
        if self.left == TRIES {
            for _ in 0..GIVE_WAY {
                if mirror.inner().starved.load(Relaxed) == 0 {
                    break;
                }
                fsleep(PAUSE);
            }
        }
        if core::mem::take(&mut self.crowded) {
            // Gives the other migrations time.
            fsleep(PAUSE);
        }
        self.left = self.left.checked_sub(1).ok_or(EBUSY)?;
        if fatal_signal_pending() {
            return Err(EINTR);
        }
        Ok(mirror.notifier().read_begin())
    }
}

impl<D: Device> Mirror<D> {
    /// Announces a step, unless an invalidation began after `seq`, from [`Tries::next`]: `None`,
    /// and all that was found out since then is to be found out again. The mmap lock must have been
    /// taken after that, and be held; the range must be in one mapping.
    ///
    /// # Errors
    ///
    /// Those of [`Transactions::begin`](super::transaction::Transactions::begin), but for `EBUSY`.
    pub(crate) fn announce(
        &self,
        seq: Seq,
        tries: &mut Tries,
        request: Request,
    ) -> Result<Option<Announced<'_, D>>> {
        let mut guard = self.notifier().lock();
        if self.notifier().read_retry(&guard, seq) {
            return Ok(None);
        }
        tries.lap.end(Phase::Wait);
        let State {
            table,
            transactions,
            ..
        } = &mut *guard;
        let begun = transactions.begin(request);
        let flush = match begun {
            Ok(()) if request.faultless => self.inner().protect(table, request.range),
            _ => None,
        };
        drop(guard);
        tries.lap.end(Phase::Collect);
        if flush.is_some() {
            Flushing::end(flush, self.inner());
            tries.lap.end(Phase::Flush);
        }
        match begun {
            Ok(()) => Ok(Some(Announced::new(self, request.name, request.range))),
            Err(error) if error == EBUSY => {
                tries.crowded = true;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Announces a step and returns with the mmap lock held. The step is about the part of the
    /// range that lies in the mapping at its start.
    ///
    /// # Errors
    ///
    /// `EINVAL` if nothing is mapped there. `EINTR`: killed. `EFAULT`: the process is gone.
    /// `EBUSY`.
    pub(crate) fn begin<'a>(
        &self,
        space: &'a AddressSpace<'_, Inner<D>>,
        mut request: Request,
    ) -> Result<(MmapGuard<'a>, Announced<'_, D>)> {
        let asked = request.range;
        let mut tries = Tries::new();
        loop {
            let seq = tries.next(self)?;
            let mmap = space.mmap_lock_here()?;
            let end = mmap.vma_lookup(asked.start()).ok_or(EINVAL)?.end();
            request.range = PageRange::new(asked.start(), asked.end().min(end))?;
            if let Some(announced) = self.announce(seq, &mut tries, request)? {
                return Ok((mmap, announced));
            }
        }
    }
}

/// A mirror, as a CPU fault on memory of its device sees it.
pub(crate) trait Peer: Send + Sync {
    /// Announces the migration of pages for which the device has an entry; no others, so that an
    /// invalidation that began before has none of them (H4): nothing is waited for (H14). `false`
    /// if there are none, or no room.
    fn begin(&self, name: Cookie, owner: Cookie, range: PageRange) -> bool;

    /// Switches them. They become read-only: an event may be under way that takes write access.
    fn switch(&self, name: Cookie, moved: &Moved<'_>) -> Flushed;

    /// Removes the entries of pages that have moved.
    fn forget_moved(&self, moved: &Moved<'_>) -> Flushed;

    /// Ends it.
    fn end(&self, name: Cookie);

    /// Removes all entries. Context: may sleep; takes the table lock.
    fn forget(&self);

    /// An eviction for `need` is over. Context: may sleep.
    fn evicted(&self, need: Need);

    /// Gives up copies in `block` of the device's memory. Context: may sleep; takes the table lock.
    fn collapse(&self, block: DeviceRange);

    /// Maps again what the device is to have mapped always. Context: may sleep; no lock may be held
    /// but that of the mirror's place.
    fn restore(&self);
}

impl<D: Device> Peer for IntervalNotifier<Inner<D>> {
    fn begin(&self, name: Cookie, owner: Cookie, range: PageRange) -> bool {
        let inner = self.subscriber();
        let mut lap = Lap::start();
        let mut guard = self.lock();
        let State {
            table,
            transactions,
            ..
        } = &mut *guard;
        if table.live() == 0 {
            return false;
        }
        let request = Request {
            name,
            identity: Identity::current(owner),
            range,
            faultless: true,
        };
        if transactions.begin(request).is_err() {
            return false;
        }
        // In one pass: pages without an entry are let go, the others are write-protected.
        let keep_write = inner.device().test_keep_write();
        let mut behind = range.start();
        let mut any = false;
        let ((), flush) = inner.change(table, None, |table, batch| {
            let mut dirty = DirtyBatch::new();
            table.for_each(range, batch, |span, entry| {
                any = true;
                if let Ok(gap) = PageRange::new(behind, span.start()) {
                    transactions.release(name, gap);
                }
                behind = span.end();
                if entry.is_writable() && !keep_write {
                    Inner::<D>::retire(&mut dirty, span.pages(), *entry);
                    *entry = entry.write_protected();
                }
            });
        });
        if let Ok(gap) = PageRange::new(behind, range.end()) {
            transactions.release(name, gap);
        }
        if !any {
            transactions.end(name);
        }
        drop(guard);
        lap.end(Phase::Collect);
        if flush.is_some() {
            Flushing::end(flush, inner);
            lap.end(Phase::Flush);
        }
        any
    }

    fn switch(&self, name: Cookie, moved: &Moved<'_>) -> Flushed {
        switch_to_system(self, name, moved, false, |_, _| ())
    }

    fn forget_moved(&self, moved: &Moved<'_>) -> Flushed {
        forget_moved(self, moved)
    }

    fn end(&self, name: Cookie) {
        self.lock().transactions.end(name);
        self.subscriber().ended.notify_all();
    }

    fn forget(&self) {
        if let Ok(all) = PageRange::new(0, usize::MAX & PAGE_MASK) {
            remove(self, all);
        }
    }

    fn collapse(&self, block: DeviceRange) {
        self.subscriber().collapse(self, None, Some(block));
    }

    fn evicted(&self, need: Need) {
        self.subscriber().evicted(need);
    }

    fn restore(&self) {
        // Else it will fault, which is no error.
        let _ = self.subscriber().restore(self);
    }
}

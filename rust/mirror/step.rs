// SPDX-License-Identifier: GPL-2.0

//! The mirror's part in a migration: announce it, and keep the device reading. `switch.rs` switches its entries.
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
        notifier::{Cookie, IntervalNotifier},
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

/// Tries to announce a step; each costs one collision with an invalidation, or a [`PAUSE`].
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

impl<D: Device> Mirror<D> {
    /// Announces a step and returns with the mmap lock held. The step is about the part of the range that lies in
    /// the mapping at its start.
    ///
    /// Waits for the invalidations that began before: they may still remove what the step is
    /// about to isolate, and would not be told that it has begun (H4).
    ///
    /// # Errors
    ///
    /// `EINVAL` if nothing is mapped there. `EINTR`: killed. `EFAULT`: the process is gone. `EBUSY`.
    pub(crate) fn begin<'a>(
        &self,
        space: &'a AddressSpace<'_, Inner<D>>,
        mut request: Request,
    ) -> Result<(MmapGuard<'a>, Announced<'_, D>)> {
        let asked = request.range;
        let mut lap = Lap::start();
        // Migrations in a row would starve faults: each undoes what a fault has just collected.
        for _ in 0..GIVE_WAY {
            if self.inner().starved.load(Relaxed) == 0 {
                break;
            }
            fsleep(PAUSE);
        }
        for _ in 0..TRIES {
            if fatal_signal_pending() {
                return Err(EINTR);
            }
            let seq = self.notifier.read_begin();
            let mmap = space.mmap_lock()?;
            let end = mmap.vma_lookup(asked.start()).ok_or(EINVAL)?.end();
            request.range = PageRange::new(asked.start(), asked.end().min(end))?;
            let mut guard = self.notifier.lock();
            if self.notifier.read_retry(&guard, seq) {
                continue;
            }
            lap.end(Phase::Wait);
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
            lap.end(Phase::Collect);
            if flush.is_some() {
                Flushing::end(flush, self.inner());
                lap.end(Phase::Flush);
            }
            match begun {
                Ok(()) => return Ok((mmap, Announced::new(self, request.name, request.range))),
                Err(error) if error == EBUSY => {
                    // As many as can be run already: give them time.
                    drop(mmap);
                    fsleep(PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
        Err(EBUSY)
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

    /// Maps again what the device is to have mapped always. Context: may sleep; no lock may be held but that of the
    /// mirror's place.
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

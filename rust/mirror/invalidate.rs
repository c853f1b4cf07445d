// SPDX-License-Identifier: GPL-2.0

//! Invalidation of the entries of a mirror.
//!
//! For each notifier event, a space invalidates the range in all its mirrors. A mirror removes or
//! write-protects its entries under the table lock, marks the pages that the device wrote dirty,
//! and flushes the device's TLBs. Entries that an in-flight migration will replace stay during the
//! migration's own event.

use super::{
    flushes::{
        Flush,
        PendingFlush, //
    },
    in_flight::InFlightMigration,
    Device,
    MirrorShared,
    MirrorState, //
};
use crate::{
    debug::{
        events::Event,
        stats::Counter, //
    },
    kernel::{
        reentry::ReentryGuard,
        word::peek_usize, //
    },
    mm::{
        addr::PageRange,
        folio::DirtyBatch,
        notifier::{
            NotifierEvent,
            NotifierRange, //
        }, //
    },
    pgtable::{
        DevicePte,
        FlushBatch,
        Flushed,
        Flusher,
        Flushing,
        Table,
        Unwritten, //
    },
    policy, //
};
use kernel::sync::atomic::ordering::{
    Full,
    Relaxed,
    Release, //
};

/// Outstanding flush of a change of a whole range, see [`MirrorShared::change_all`].
#[must_use = "the device may still use the old entries"]
pub(super) struct RangeFlush<D: Device> {
    /// `None` if no translation of the range was stale.
    flush: Option<Flush<D>>,
    range: PageRange,
}

impl<D: Device> RangeFlush<D> {
    /// Waits for the flush that `inner` has started. Returns its proof for the range.
    ///
    /// # Context
    ///
    /// As [`Flusher::wait`].
    pub(super) fn wait(self, inner: &MirrorShared<D>) -> Flushed<'_> {
        Flushing::end(self.flush, inner).of_all(self.range)
    }
}

impl<D: Device> Flusher for MirrorShared<D> {
    type Pending = PendingFlush<D::Flush>;

    fn start(&self, range: PageRange) -> PendingFlush<D::Flush> {
        let dma = self.dma();
        let _within = ReentryGuard::enter();
        PendingFlush {
            tick: dma.map(|windows| windows.tick()),
            flush: self.device.flush_start(range),
            range,
        }
    }

    fn wait(&self, pending: PendingFlush<D::Flush>) {
        let PendingFlush { flush, range, tick } = pending;
        {
            let _within = ReentryGuard::enter();
            if let Some(walkers) = &self.walkers {
                walkers.drain(|walker| self.device.flush_walker(&flush, walker, range));
            }
            self.device.flush_wait(flush);
        }
        // Unmap after the flush, because the device may use the mappings until then, and before the
        // caller frees or migrates the pages.
        if let (Some(windows), Some(tick)) = (self.dma(), tick) {
            windows.unmap(range, tick);
        }
        // Release: the flush, the drain and the unmapping end before the decrement. Pairs with the
        // increment of an invalidation that then finds no entry and no update in flight, and
        // returns without a flush. The decrements of several flushes are one release sequence.
        self.changing.fetch_sub(1, Release);
    }
}

impl<D: Device> MirrorShared<D> {
    /// Calls `f` to change the table, and starts a flush if the changes require one. The caller
    /// waits for it with [`Flushing::wait`].
    ///
    /// With `range`, flushes that range also if concurrent updates have not completed their
    /// flushes.
    ///
    /// # Context
    ///
    /// The table lock is held. It may be released before the wait.
    pub(crate) fn change<R>(
        &self,
        table: &mut Table<D::Format>,
        range: Option<PageRange>,
        f: impl FnOnce(&mut Table<D::Format>, &mut FlushBatch<D::Format>) -> R,
    ) -> (R, Option<Flush<D>>) {
        self.change_beside(0, table, range, f)
    }

    /// As [`Self::change`], for a change after which no translation of the old entries of `range`
    /// may be in use: flushes all of it if concurrent updates have not completed their flushes.
    pub(super) fn change_all<R>(
        &self,
        table: &mut Table<D::Format>,
        range: PageRange,
        f: impl FnOnce(&mut Table<D::Format>, &mut FlushBatch<D::Format>) -> R,
    ) -> (R, RangeFlush<D>) {
        let (result, flush) = self.change(table, Some(range), f);
        (result, RangeFlush { flush, range })
    }

    /// As [`Self::change`], for an event that already started `own` flushes of the range, which are
    /// not regarded as concurrent.
    fn change_beside<R>(
        &self,
        own: usize,
        table: &mut Table<D::Format>,
        range: Option<PageRange>,
        f: impl FnOnce(&mut Table<D::Format>, &mut FlushBatch<D::Format>) -> R,
    ) -> (R, Option<Flush<D>>) {
        // Count the update before its first entry changes. A walker or an invalidation that
        // observes a changed entry also observes the count.
        let others = self.changing.fetch_add(1, Full) > own;
        let mut batch = table.batch();
        let result = f(table, &mut batch);
        if let Some(range) = range.filter(|_| others) {
            batch.extend(range);
        }
        if batch.is_empty() {
            // Nothing was changed. This continues the release sequence of the other decrements.
            self.changing.fetch_sub(1, Release);
            return (result, None);
        }
        (result, Some(batch.start(self)))
    }

    /// Writes the unwritten entries after their flush has completed.
    ///
    /// # Context
    ///
    /// May sleep. Takes the table lock.
    #[inline]
    pub(super) fn write_sizes(&self, unwritten: Option<Unwritten>) {
        if let Some(unwritten) = unwritten {
            self.write_now(unwritten);
        }
    }

    // Not inlined, because most formats have no unwritten entries.
    #[inline(never)]
    fn write_now(&self, unwritten: Unwritten) {
        let mut guard = self.lock();
        let ((), flush) = self.change(&mut guard.table, None, |table, batch| {
            table.write_sizes(unwritten, batch);
        });
        drop(guard);
        // No flush is necessary, because these entries are empty in the device's table.
        let _flushed: Flushed<'_> = Flushing::end(flush, self);
    }

    /// Retires the DMA windows of `range`, which the process has unmapped.
    ///
    /// The first and the last block may have other mappings. While the device has entries there,
    /// their window stays: pages that are on the device now may migrate back, and that cannot wait
    /// for memory for a new window. It is retired when the last of these mappings is unmapped.
    fn retire_windows(&self, table: &Table<D::Format>, range: PageRange) {
        let Some(windows) = self.dma() else {
            return;
        };
        let in_use = |addr| policy::block(addr).filter(|block| table.any(*block, |_| true));
        let first = in_use(range.start());
        let start = first.map_or(range.start(), |block| block.end());
        let last = in_use(range.end() - 1);
        let end = last.map_or(range.end(), |block| block.start());
        if let Ok(range) = PageRange::new(start, end) {
            windows.retire_windows(range);
        }
    }

    /// Adds the pages of `entry` to `dirty` if the device may have written them. Called before an
    /// entry is removed or write-protected.
    ///
    /// The caller must drop `dirty` while the pages are still mapped by the CPU: before the
    /// notifier callback returns or the table lock is released.
    #[inline]
    pub(crate) fn retire(dirty: &mut DirtyBatch, pages: usize, entry: DevicePte) {
        if entry.may_have_dirtied() {
            // SAFETY: The entry is in the table. Its pages are mapped by the CPU until a notifier
            // callback of this mirror returns, or isolated until a migration is finalized. `dirty`
            // is dropped before that.
            unsafe { dirty.add(entry.number(), pages) };
        }
    }

    /// Invalidates the range of `event`. Returns whether entries have changed, and the flush if one
    /// was started.
    ///
    /// # Context
    ///
    /// The table lock is held. Must not allocate or wait for memory.
    pub(super) fn invalidated(
        &self,
        state: &mut MirrorState<D::Format>,
        event: &NotifierRange<'_>,
    ) -> (bool, Option<Flush<D>>) {
        let MirrorState {
            table,
            in_flight,
            lost,
            immovable,
        } = state;
        let own = in_flight.handle_event(event);
        let own = own.and_then(|name| in_flight.get(name, event.range.start()));
        // Pages that leave the device memory can migrate to it again.
        if own.is_none_or(InFlightMigration::takes_device_pages) {
            immovable.remove(event.range);
        }
        let is_foreign = own.is_none();
        let keeps_reads = event.reason.keeps_reads();
        // Flushes that other windows started for this event cover its whole range. Relaxed: this
        // task has started them and sees its own increments. Others are counted by `change_beside`.
        let own_flushes = match peek_usize(&self.changing) {
            0 => 0,
            _ => self.flushes.count(event.number()),
        };
        let range = Some(event.range);
        let (changed, flush) = self.change_beside(own_flushes, table, range, |table, batch| {
            let mut dirty = DirtyBatch::empty();
            if own.is_none() && !keeps_reads {
                return table.remove_all(event.range, batch, |entry, pages| {
                    Self::retire(&mut dirty, pages, entry);
                });
            }
            if own.is_some_and(|own| own.keeps_all(event.range)) {
                return 0;
            }
            let mut changed = 0;
            let split = |span| own.is_some_and(|own| own.divides(span));
            table.for_each_split(event.range, batch, split, |span, entry| {
                if own.is_some_and(|own| own.keeps(span, *entry)) {
                    return;
                }
                if keeps_reads && !entry.is_exclusive() {
                    if entry.is_writable() {
                        Self::retire(&mut dirty, span.pages(), *entry);
                        *entry = entry.write_protected();
                        changed += span.pages();
                    }
                    return;
                }
                Self::retire(&mut dirty, span.pages(), *entry);
                *entry = DevicePte::NONE;
                changed += span.pages();
            });
            changed
        });
        if event.reason == NotifierEvent::Unmap {
            self.retire_windows(table, event.range);
        }
        if changed != 0 && self.space.attributes().any_accessed() {
            lost.add(event.range);
        }
        self.stats.add(Counter::Invalidations, 1);
        self.stats.add(Counter::InvalidatedPages, changed as u64);
        // try_to_unmap() and try_to_migrate() send the same events for an eviction as for other
        // reasons. Therefore a foreign event during an eviction counts as part of it.
        let may_evict =
            matches!(event.reason, NotifierEvent::Clear | NotifierEvent::Migrate) && is_foreign;
        if may_evict && changed != 0 {
            let memory = self.device.memory();
            if memory.is_some_and(|memory| memory.evicts_from(self.space.name())) {
                self.taken.add(changed, Relaxed);
            }
        }
        let range = event.range;
        let reason = event.reason;
        self.emit(&Event::Invalidate {
            range,
            reason,
            changed,
        });
        (changed != 0, flush)
    }
}

/// Removes the entries of `range`, and waits for the TLB flush.
///
/// # Context
///
/// May sleep. Takes the table lock.
pub(super) fn remove<D: Device>(inner: &MirrorShared<D>, range: PageRange) {
    remove_some(inner, range, |_, _| true);
}

/// As [`remove`], for entries that `which` selects.
pub(super) fn remove_some<D: Device>(
    inner: &MirrorShared<D>,
    range: PageRange,
    mut which: impl FnMut(PageRange, DevicePte) -> bool,
) {
    let mut guard = inner.lock();
    let MirrorState {
        table, in_flight, ..
    } = &mut *guard;
    let mut changed = 0;
    let mut behind = range.start();
    let ((), flush) = inner.change(table, Some(range), |table, batch| {
        let mut dirty = DirtyBatch::empty();
        table.for_each(range, batch, |span, entry| {
            if which(span, *entry) {
                MirrorShared::<D>::retire(&mut dirty, span.pages(), *entry);
                *entry = DevicePte::NONE;
                changed += span.pages();
                return;
            }
            // An entry that stays must keep its mark. Otherwise the migration would not replace it,
            // and it would outlive its page.
            if let Ok(removed) = PageRange::new(behind, span.start()) {
                in_flight.unmark(removed);
            }
            behind = span.end();
        });
    });
    // An in-flight migration must not install the removed entries again.
    if let Ok(removed) = PageRange::new(behind, range.end()) {
        in_flight.unmark(removed);
    }
    // Wait with the table lock held. A task that finds no entry for a page under the lock relies on
    // no TLB having its translation.
    if let Some(flush) = flush {
        flush.wait(inner);
    }
    inner.stats.add(Counter::InvalidatedPages, changed as u64);
}

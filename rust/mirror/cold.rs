// SPDX-License-Identifier: GPL-2.0

//! Reclaim of page-table pages: first free ones, then those in which no entry was installed
//! recently.
//!
//! Reclaim removes the entries of cold table pages like an invalidation: under the table lock, with
//! a flush before the pages are freed. If the device uses the entries again, it faults, and they
//! are installed again.

use super::{
    in_flight::InFlightMigrations,
    Device,
    MirrorShared,
    MirrorState, //
};
use crate::{
    debug::stats::Counter,
    kernel::shrinker::{
        owner,
        Shrink, //
    },
    mm::folio::DirtyBatch,
    pgtable::{
        DevicePte,
        FlushBatch,
        Table, //
    }, //
};

impl<D: Device> Shrink for MirrorShared<D> {
    fn count(&self) -> usize {
        self.reader.table_pages()
    }

    fn scan(&self, objects: usize) -> usize {
        let free = self.reader.free_tables(objects);
        let more = objects.saturating_sub(free);
        if more == 0 || !self.give_up_cold(more.div_ceil(owner::OBJECT_MAX_PAGES)) {
            return free;
        }
        free + self.reader.free_tables(more)
    }
}

impl<D: Device> MirrorShared<D> {
    /// Removes the entries of cold chunks, among the next `chunks` chunks of table pages. Returns
    /// whether there were any.
    ///
    /// A chunk is skipped if one of its entries must stay, because the chunk could not be freed
    /// then. Such entries are those
    ///
    /// - of a page that an in-flight migration may switch
    /// - of a page that the device accesses exclusively
    ///
    /// Nothing is removed in a space that has memory which a device must always have mapped. Pinned
    /// host memory is not accessed through the table.
    ///
    /// # Context
    ///
    /// Reclaim. Any lock may be held, and therefore the table lock is taken by trylock.
    // Not inlined, because little stack is left in reclaim.
    #[inline(never)]
    fn give_up_cold(&self, chunks: usize) -> bool {
        let Some(mut guard) = self.try_lock() else {
            return false;
        };
        // Check under the table lock: after the attribute was set, present pages are mapped under
        // this lock and must stay mapped.
        if self.space.attributes().any_accessed() {
            return false;
        }
        let MirrorState {
            table, in_flight, ..
        } = &mut *guard;
        let (changed, flush) = self.change(table, None, |table, batch| {
            let chunks = chunks.min(table.chunks());
            (0..chunks)
                .map(|_| Self::remove_if_cold(table, in_flight, batch))
                .sum::<usize>()
        });
        // Wait under the table lock. Otherwise an invalidation could find no entry for a page while
        // a TLB still holds its translation.
        let any = flush.is_some();
        if let Some(flush) = flush {
            flush.wait(self);
        }
        self.stats.add(Counter::InvalidatedPages, changed as u64);
        any
    }

    /// Removes the entries of the next chunk, if it is cold and no entry must stay. Returns the
    /// number of pages that were mapped. Not inlined, so that its stack frame is free during the
    /// flush.
    #[inline(never)]
    fn remove_if_cold(
        table: &mut Table<D::Format>,
        in_flight: &InFlightMigrations,
        batch: &mut FlushBatch<D::Format>,
    ) -> usize {
        let Some(cold) = table.next_cold(DevicePte::is_exclusive) else {
            return 0;
        };
        if cold.ranges().any(|range| in_flight.overlap(range)) {
            return 0;
        }
        let mut changed = 0;
        let mut dirty = DirtyBatch::empty();
        for range in cold.ranges() {
            table.remove_all(range, batch, |entry, pages| {
                Self::retire(&mut dirty, pages, entry);
                changed += pages;
            });
        }
        changed
    }
}

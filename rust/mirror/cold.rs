// SPDX-License-Identifier: GPL-2.0

//! Reclaim of table pages: free ones first, then those in which nothing was installed for long.
//!
//! Reclaim removes the entries of cold table pages as an invalidation does: under the table lock,
//! with a flush before the pages are freed. The device faults when it uses them, and gets them
//! again.

use super::{
    invalidate::{Inner, State},
    transaction::Transactions,
    Device, //
};
use crate::{
    mm::{
        page::DirtyBatch,
        shrinker::{owner, Shrink}, //
    },
    pgtable::{Entry, FlushBatch, Table},
    stats::Counter, //
};

impl<D: Device> Shrink for Inner<D> {
    fn count(&self) -> usize {
        self.reader.table_pages()
    }

    fn scan(&self, objects: usize) -> usize {
        let free = self.reader.free_tables(objects);
        let more = objects.saturating_sub(free);
        if more == 0 || !self.give_up_cold(more.div_ceil(owner::PAGES)) {
            return free;
        }
        free + self.reader.free_tables(more)
    }
}

impl<D: Device> Inner<D> {
    /// Looks at up to `chunks` chunks of table pages, and removes the entries of those that are
    /// cold. Returns whether there were any.
    ///
    /// A chunk stays as a whole if it has an entry that must stay, because it could not be freed:
    ///
    /// - of a page that a running migration may switch
    /// - of a page that the device accesses exclusively
    ///
    /// In a space with memory that a device is to have mapped always nothing is removed. Locked
    /// host memory is pinned and not accessed through the table.
    ///
    /// # Context
    ///
    /// Reclaim: any lock may be held, so that the table lock is only tried.
    // Not inlined: reclaim has little stack left.
    #[inline(never)]
    fn give_up_cold(&self, chunks: usize) -> bool {
        let Some(mut guard) = self.try_lock() else {
            return false;
        };
        // Under the lock: once the attribute is set, what is present is mapped under the lock, and
        // must stay.
        if self.space.attributes().any_accessed() {
            return false;
        }
        let State {
            table,
            transactions,
            ..
        } = &mut *guard;
        let (changed, flush) = self.change(table, None, |table, batch| {
            let chunks = chunks.min(table.chunks());
            (0..chunks)
                .map(|_| Self::remove_if_cold(table, transactions, batch))
                .sum::<usize>()
        });
        // Waited for under the lock: a page that is unmapped meanwhile must not be found absent
        // here and still be in a TLB.
        let any = flush.is_some();
        if let Some(flush) = flush {
            flush.wait(self);
        }
        self.stats.add(Counter::InvalidatedPages, changed as u64);
        any
    }

    /// Removes the entries of the next chunk, if it is cold and none of them must stay. Returns how
    /// many pages they had. The stack is free again when the flush is waited for.
    #[inline(never)]
    fn remove_if_cold(
        table: &mut Table<D::Format>,
        transactions: &Transactions,
        batch: &mut FlushBatch<D::Format>,
    ) -> usize {
        let Some(cold) = table.next_cold(Entry::is_exclusive) else {
            return 0;
        };
        if cold.ranges().any(|range| transactions.overlap(range)) {
            return 0;
        }
        let mut changed = 0;
        let mut dirty = DirtyBatch::new();
        for range in cold.ranges() {
            table.remove_all(range, batch, |entry, pages| {
                Self::retire(&mut dirty, pages, entry);
                changed += pages;
            });
        }
        changed
    }
}

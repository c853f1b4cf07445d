// SPDX-License-Identifier: GPL-2.0

//! Gives up table pages that were not written for long, for their memory.

use super::{
    invalidate::{Inner, State},
    Device, //
};
use crate::{mm::page::DirtyBatch, stats::Counter};

/// Chunks that are looked at while the table lock is held.
const CHUNKS: usize = 8;

impl<D: Device> Inner<D> {
    /// Looks at some chunks of table pages, and removes the entries of one that is cold. The device
    /// faults when it uses them, and gets them again. Returns the number of pages without an entry.
    ///
    /// A chunk stays as a whole if it has an entry that must stay, because it could not be freed:
    ///
    /// - of a page that a running migration may switch
    /// - of a page that the device accesses exclusively
    ///
    /// In a space with memory that a device is to have mapped always nothing is removed.
    ///
    /// # Context
    ///
    /// May sleep; no lock of the library may be held. Not in reclaim, which may hold what the table
    /// lock is waited for with.
    pub(crate) fn remove_cold(&self) -> usize {
        if self.space.attributes().any_accessed() {
            return 0;
        }
        let mut guard = self.lock();
        let State {
            table,
            transactions,
            ..
        } = &mut *guard;
        let Some(cold) = table.cold_chunk(CHUNKS) else {
            return 0;
        };
        let mut ranges = cold.ranges();
        if ranges.any(|range| {
            transactions.overlap(range) || table.any(range, |entry| entry.is_exclusive())
        }) {
            return 0;
        }
        let mut changed = 0;
        let ((), flush) = self.change(table, None, |table, batch| {
            let mut dirty = DirtyBatch::new();
            for range in cold.ranges() {
                table.remove_all(range, batch, |entry, pages| {
                    Self::retire(&mut dirty, pages, entry);
                    changed += pages;
                });
            }
        });
        // Waited for under the lock: a page that is unmapped meanwhile must not be found absent
        // here and still be in a TLB.
        if let Some(flush) = flush {
            flush.wait(self);
        }
        self.stats.add(Counter::InvalidatedPages, changed as u64);
        changed
    }
}

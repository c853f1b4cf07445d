// SPDX-License-Identifier: GPL-2.0

//! Finds cold chunks: chunks in which each table page is free, or has not been written for a while.
//!
//! A hardware walker does not mark the tables that it reads, so that only writes count. A table
//! page of level 0 is *warm* once entries were installed in it. A search clears the mark, and the
//! next search of the chunk considers the page cold if it was not marked again (second chance).
//! Memory is freed by chunks. Therefore a chunk with a warm page, or with a page of another level,
//! is not cold.
//!
//! Table pages are linked and marked under the table lock.

use super::{
    chunk::{
        PageMeta,
        CHUNK, //
    },
    entry::DevicePte,
    format::{
        range_of,
        shift,
        span_of,
        Format, //
    },
    pool::Pool,
    table::Table,
    tree::{
        self,
        Slot, //
    }, //
};
use crate::mm::addr::PageRange;
use kernel::sync::{
    atomic::ordering::Relaxed,
    rcu, //
};

/// Bit of [`PageMeta::word`]: the page is a table of level 0, and the upper bits are the first
/// address that it covers. If the bit is clear, the upper bits are the index of the next page in
/// the page's list, if any.
const IN_USE: usize = 1;

/// Bit of [`PageMeta::word`]: the page was written since the last search.
const WARM: usize = 2;

/// Position of the index of the next page in [`PageMeta::word`].
const NEXT_SHIFT: u32 = 2;

/// Ranges that the tables of a cold chunk cover.
pub(crate) struct ColdChunk {
    starts: [usize; CHUNK],
    count: usize,
    /// Size in bytes of each range.
    size: usize,
}

impl ColdChunk {
    /// Iterates over the ranges. Each may have entries only in a part of it.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = PageRange> + '_ {
        let starts = self.starts.iter().take(self.count);
        starts.filter_map(|start| range_of(*start, start | (self.size - 1)))
    }
}

impl PageMeta {
    /// Records that the page was added to a list, before page `next`. The page covers no range.
    pub(super) fn set_next(&self, next: u32) {
        // CAST: `usize` has at least 32 bits.
        self.word.store((next as usize) << NEXT_SHIFT, Relaxed);
    }

    /// Returns the index of the next page in the page's list.
    pub(super) fn next(&self) -> u32 {
        // CAST: `set_next()` stored 32 bits.
        (self.word.load(Relaxed) >> NEXT_SHIFT) as u32
    }

    /// Records that the page was linked as a table of level 0 whose range begins at `start`. The
    /// page is warm.
    fn covers_from(&self, start: usize) {
        self.word.store(start | IN_USE | WARM, Relaxed);
    }

    /// Records that the page was written.
    #[inline]
    pub(super) fn warm(&self) {
        let word = self.word.load(Relaxed);
        if word & (IN_USE | WARM) == IN_USE {
            self.word.store(word | WARM, Relaxed);
        }
    }
}

impl<F: Format> Pool<F> {
    /// Records that table page `index` was linked at `level`, for a range that contains `addr`.
    pub(super) fn linked(&self, index: u32, level: u32, addr: usize) {
        if level != 0 {
            return;
        }
        let guard = rcu::read_lock();
        if let Some(page) = self.page(&guard, index) {
            page.meta.covers_from(span_of::<F>(1, addr).0);
        }
    }
}

impl<F: Format> Table<F> {
    /// Returns the highest number that a chunk may have. Number 0 is the chunk of the root.
    pub(crate) fn chunks(&self) -> usize {
        self.pool.top.load(Relaxed).saturating_sub(1)
    }

    /// Examines the chunk after the one that the last call examined, and clears its marks. Returns
    /// the ranges that its tables cover if the chunk is cold, has tables in use, and has no entry
    /// for which `stays` returns true. `stays` gets entries with the page numbers that are stored
    /// in the table.
    pub(crate) fn next_cold(&mut self, stays: impl Fn(DevicePte) -> bool) -> Option<ColdChunk> {
        self.hand = if self.hand < self.chunks() {
            self.hand + 1
        } else {
            1
        };
        let guard = rcu::read_lock();
        let chunk = self.pool.chunks.get(&guard, self.hand)?;
        let mut cold = ColdChunk {
            starts: [0; CHUNK],
            count: 0,
            size: 1 << shift::<F>(1),
        };
        let mut places = cold.starts.iter_mut();
        for meta in chunk.meta.iter() {
            // Relaxed: words with `IN_USE` are changed under the table lock, which is held. Those
            // of pages in lists are skipped.
            let word = meta.word.load(Relaxed);
            if word & IN_USE == 0 {
                continue;
            }
            if word & WARM != 0 {
                meta.word.store(word & !WARM, Relaxed);
            } else if let Some(place) = places.next() {
                *place = word & !(IN_USE | WARM);
                cold.count += 1;
            }
        }
        // The remaining pages are warm, of another level, or about to be linked.
        if cold.count == 0 || cold.count + chunk.free.load(Relaxed) != chunk.pages() {
            return None;
        }
        // All cells can be searched, because the cells of free pages are empty.
        let stays =
            |cell| matches!(tree::decode(tree::load(cell)), Slot::Leaf(entry) if stays(entry));
        (!chunk.cells.iter().any(stays)).then_some(cold)
    }
}

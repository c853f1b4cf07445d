// SPDX-License-Identifier: GPL-2.0

//! Cold chunks: those of which all table pages are free, or have not been written for long.
//!
//! A device that walks leaves no trace, so that only writes count. A table page of level 0 in which
//! entries are installed is *warm*. A look at its chunk clears the mark, and the next one finds it
//! cold if it is not marked again: a second chance. Memory is freed by chunks, so a chunk with a
//! single warm page, or with a page of another level, is not cold.
//!
//! Tables are linked and marked under the owner's lock.

use super::{
    chunk::{Meta, CHUNK},
    entry::Entry,
    format::{shift, Format},
    pool::Pool,
    table::{range_of, span_of, Table},
    tree::{self, Slot}, //
};
use crate::mm::addr::PageRange;
use kernel::sync::{
    atomic::ordering::Relaxed,
    rcu, //
};

/// In [`Meta::word`]: the page is a table of level 0, and the upper bits are its first address.
/// Without this bit they are the index of the next page in a list, if it is in one.
const IN_USE: usize = 1;

/// The same: it was written since the last look.
const WARM: usize = 2;

/// Bits of the index.
const SHIFT: u32 = 2;

/// What the tables of a chunk cover.
pub(crate) struct ColdChunk {
    starts: [usize; CHUNK],
    count: usize,
    /// Bytes that each of them covers.
    size: usize,
}

impl ColdChunk {
    /// The ranges. Entries may be only in a part of each.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = PageRange> + '_ {
        let starts = self.starts.iter().take(self.count);
        starts.filter_map(|start| range_of(*start, start | (self.size - 1)))
    }
}

impl Meta {
    /// The page was put into a list, before page `next`. It covers nothing.
    pub(super) fn set_next(&self, next: u32) {
        // CAST: From 32 bits to more.
        self.word.store((next as usize) << SHIFT, Relaxed);
    }

    /// The page behind it in its list.
    pub(super) fn next(&self) -> u32 {
        // CAST: What was stored had 32 bits.
        (self.word.load(Relaxed) >> SHIFT) as u32
    }

    /// The page was linked as a table of level 0 that begins at `start`. It is warm.
    fn covers_from(&self, start: usize) {
        self.word.store(start | IN_USE | WARM, Relaxed);
    }

    /// The page was written.
    #[inline]
    pub(super) fn warm(&self) {
        let word = self.word.load(Relaxed);
        if word & (IN_USE | WARM) == IN_USE {
            self.word.store(word | WARM, Relaxed);
        }
    }
}

impl<F: Format> Pool<F> {
    /// Takes note that table page `index` of `level` was linked, for addresses with `addr` among
    /// them.
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
    /// Chunks that there may be, but for that of the root.
    pub(crate) fn chunks(&self) -> usize {
        self.pool.top.load(Relaxed).saturating_sub(1)
    }

    /// Looks at the chunk behind the one that the call before has looked at, and clears its marks.
    /// Returns what its tables cover if it is cold, has tables in use, and has no entry for which
    /// `stays` holds. The numbers of the entries are those of the table.
    pub(crate) fn next_cold(&mut self, stays: impl Fn(Entry) -> bool) -> Option<ColdChunk> {
        self.hand = match self.hand < self.chunks() {
            true => self.hand + 1,
            false => 1,
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
        // Others than these and the free ones are warm, of another level, or about to be used.
        if cold.count == 0 || cold.count + chunk.free.load(Relaxed) != chunk.pages() {
            return None;
        }
        // Free ones are empty.
        let stays =
            |cell| matches!(tree::decode(tree::load(cell)), Slot::Leaf(entry) if stays(entry));
        (!chunk.cells.iter().any(stays)).then_some(cold)
    }
}

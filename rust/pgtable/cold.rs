// SPDX-License-Identifier: GPL-2.0

//! Cold chunks: those of which all table pages are free, or have not been written for long.
//!
//! A device that walks leaves no trace, so that only writes count. A table page of level 0 that is
//! installed to is *warm*. A pass over the chunks clears the mark, and finds a table page cold that is
//! not marked any more: a second chance. Memory is freed by chunks, so a chunk with a single warm
//! page, or with a page of another level, is not cold.
//!
//! All this is changed under the owner's lock.

use super::{
    chunk::{Meta, CHUNK},
    format::Format,
    pool::Pool,
    table::{range_of, span_of, Table}, //
};
use crate::mm::addr::PageRange;
use kernel::sync::{
    atomic::ordering::Relaxed,
    rcu, //
};

/// In [`Meta::covers`]: the page is a table of level 0, and the other bits are its first address.
const IN_USE: usize = 1;

/// The same: it was written since the last pass.
const WARM: usize = 2;

/// What the tables of a chunk cover.
pub(crate) struct ColdChunk {
    ranges: [Option<PageRange>; CHUNK],
}

impl ColdChunk {
    /// The ranges. Entries may be only in a part of each.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = PageRange> + '_ {
        self.ranges.iter().flatten().copied()
    }
}

impl Meta {
    /// The page was linked as a table of level 0 that begins at `start`. It is warm.
    fn covers_from(&self, start: usize) {
        self.covers.store(start | IN_USE | WARM, Relaxed);
    }

    /// The page was written.
    pub(super) fn warm(&self) {
        let covers = self.covers.load(Relaxed);
        if covers & (IN_USE | WARM) == IN_USE {
            self.covers.store(covers | WARM, Relaxed);
        }
    }

    /// The page left the tree.
    pub(super) fn covers_nothing(&self) {
        self.covers.store(0, Relaxed);
    }
}

impl<F: Format> Pool<F> {
    /// Takes note that table page `index` of `level` was linked, for addresses with `addr` among them.
    pub(super) fn linked(&self, index: u32, level: u32, addr: usize) {
        if level != 0 {
            return;
        }
        let guard = rcu::read_lock();
        if let Some(page) = self.page(&guard, index) {
            page.meta.covers_from(span_of::<F>(1, addr).0);
        }
    }

    /// Takes note that table page `index` left the tree.
    pub(super) fn unlinked(&self, index: u32) {
        let guard = rcu::read_lock();
        if let Some(page) = self.page(&guard, index) {
            page.meta.covers_nothing();
        }
    }
}

impl<F: Format> Table<F> {
    /// Looks at up to `chunks` chunks, from where the call before ended, for one that is cold and has
    /// tables in use. Table pages that it passes are not warm any more.
    pub(crate) fn cold_chunk(&mut self, chunks: usize) -> Option<ColdChunk> {
        // The first chunk has the root.
        let top = self.pool.top.load(Relaxed);
        for _ in 0..chunks.min(top.saturating_sub(1)) {
            self.hand = match self.hand + 1 {
                next if next < top => next,
                _ => 1,
            };
            let found = self.cool(self.hand);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Clears the marks of chunk `number`. Returns what its tables cover if it is cold.
    fn cool(&self, number: usize) -> Option<ColdChunk> {
        let guard = rcu::read_lock();
        let chunk = self.pool.chunks.get(&guard, number)?;
        let mut cold = ColdChunk {
            ranges: [None; CHUNK],
        };
        let mut tables = 0;
        for (meta, place) in chunk.meta.iter().zip(&mut cold.ranges) {
            let covers = meta.covers.load(Relaxed);
            if covers & WARM != 0 {
                meta.covers.store(covers & !WARM, Relaxed);
            } else if covers & IN_USE != 0 {
                let start = covers & !IN_USE;
                *place = range_of(start, span_of::<F>(1, start).1);
                tables += 1;
            }
        }
        // Others than these and the free ones are warm, of another level, or about to be used.
        let is_cold = tables != 0 && tables + chunk.free.load(Relaxed) == chunk.pages();
        is_cold.then_some(cold)
    }
}

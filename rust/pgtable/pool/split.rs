// SPDX-License-Identifier: GPL-2.0

//! Splits of huge leaves: a table page replaces the leaf, and the pool keeps free pages for that.

use super::Pool;
use crate::pgtable::{
    chunk::TablePage,
    entry::DevicePte,
    flush::FlushBatch,
    format::{
        order,
        range_of,
        slot_of,
        slots,
        span_of,
        Format, //
    },
    list::PageList,
    tree, //
};
use kernel::sync::{
    atomic::ordering::Relaxed,
    rcu, //
};

/// Number of huge leaves for which one free page each is kept for splits. Beyond that, one page is
/// kept for [`LEAVES_PER_RESERVED_PAGE`] huge leaves.
const SPLIT_RESERVE_LEAVES: usize = 8;

/// Number of further huge leaves that share one page kept for splits. A page for each leaf would
/// cost as much memory as mapping its pages one by one. Few leaves are split in a row, and the next
/// fault or migration refills the pool. So many leaves fill a table of level 1 in most formats: the
/// reserve adds at most as many pages as there are such tables.
const LEAVES_PER_RESERVED_PAGE: usize = 512;

impl<F: Format> Pool<F> {
    /// Adds `more`, which may be negative, to the number of huge leaves.
    pub(in crate::pgtable) fn count_huge(&self, more: isize) {
        let now = self.huge.load(Relaxed).saturating_add_signed(more);
        self.huge.store(now, Relaxed);
    }

    /// Returns the number of free pages to keep for splits.
    pub(super) fn kept(&self) -> usize {
        let huge = self.huge.load(Relaxed);
        huge.min(SPLIT_RESERVE_LEAVES) + huge / LEAVES_PER_RESERVED_PAGE
    }

    /// Returns whether there are fewer free pages than to be kept for splits.
    pub(in crate::pgtable) fn is_short(&self) -> bool {
        let kept = self.kept();
        kept != 0 && self.free.lock().leaves.len < kept
    }

    /// Takes a page that was kept for a split.
    pub(in crate::pgtable) fn take_kept(&self) -> Option<u32> {
        let mut list = PageList::EMPTY;
        let guard = rcu::read_lock();
        self.pop_free(&guard, &mut self.free.lock(), &mut list, false)?;
        Some(list.head)
    }

    /// Replaces the leaf `huge` in `slot` of `page`, of `level`, by the empty table page `child`
    /// with the same pages.
    pub(in crate::pgtable) fn split(
        &self,
        page: &TablePage<'_, F>,
        slot: usize,
        level: u32,
        huge: DevicePte,
        child: u32,
    ) -> Option<u32> {
        let guard = rcu::read_lock();
        let below = self.page(&guard, child)?;
        let step = 1usize << order::<F>(level - 1);
        let slots = slots::<F>(level - 1);
        let mut next = huge;
        for cell in below.cells.iter().take(slots) {
            tree::store(cell, tree::leaf(next));
            next = next.plus(step);
        }
        // CAST: At most 2048.
        below.set_used(slots as u32);
        below.widen(0, slots - 1);
        page.store(slot, tree::table(child));
        self.count_huge(-1);
        Some(child)
    }

    /// Publishes the table `child`, by which [`Self::split`] has replaced the leaf for `addr` in
    /// the table `above` of `level`: records it and writes the images.
    #[inline]
    pub(in crate::pgtable) fn publish_split(
        &self,
        above: u32,
        level: u32,
        addr: usize,
        child: u32,
        batch: &mut FlushBatch<F>,
    ) {
        self.linked(child, level - 1, addr);
        if self.has_images() {
            let slot = slot_of::<F>(level, addr);
            self.publish(child, level - 1, addr, 0..slots::<F>(level - 1), batch);
            self.publish(above, level, addr, slot..slot + 1, batch);
            // A TLB may hold the leaf, and must not hold a small entry of the same range as well.
            let (start, end) = span_of::<F>(level, addr);
            if let Some(span) = range_of(start, end) {
                batch.extend(span);
            }
        }
    }
}

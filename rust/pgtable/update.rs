// SPDX-License-Identifier: GPL-2.0

//! A pass over the present leaves of a range.

use super::{
    chunk::TablePage,
    dma::DmaTranslator,
    entry::DevicePte,
    flush::FlushBatch,
    format::{
        order,
        range_of,
        shift,
        slot_of,
        span_of,
        Format,
        MAX_LEVELS, //
    },
    pool::Pool,
    tree::{
        self,
        PteCell,
        Slot, //
    }, //
};
use crate::mm::addr::PageRange;
use core::slice;
use kernel::{
    page::{
        PAGE_MASK,
        PAGE_SHIFT, //
    },
    sync::{
        rcu::{
            self,
            Guard, //
        },
        Arc, //
    }, //
};

/// Changes that a pass has made.
#[derive(Default)]
pub(super) struct UpdateStats {
    /// First and last address of the entries of which the device may hold a stale translation.
    pub(super) hull: Option<(usize, usize)>,
    /// Number of pages of these entries.
    pub(super) outdated: usize,
    /// Number of pages whose entry was removed.
    pub(super) removed: usize,
}

impl UpdateStats {
    /// Adds `pages` outdated pages from `first` to `last`. Calls are in order of ascending
    /// addresses.
    #[inline]
    fn outdated(&mut self, first: usize, last: usize, pages: usize) {
        let first = self.hull.map_or(first, |(first, _)| first);
        self.hull = Some((first, last));
        self.outdated += pages;
    }
}

/// Operation of a pass on leaves.
pub(super) trait Visitor<F: Format> {
    /// Returns whether the huge leaf of `span` must be split even if the range covers it
    /// completely.
    fn splits(&mut self, span: PageRange) -> bool;

    /// Visits the leaves among `cells` of `level`, the first of which is for address `start`.
    /// Returns the number of removed leaves.
    fn leaves(
        &mut self,
        level: u32,
        cells: &[PteCell],
        start: usize,
        changes: &mut UpdateStats,
        dma: &mut DmaTranslator<'_, F>,
    ) -> u32;
}

/// Visitor that calls a function for each leaf.
pub(super) struct ForEach<S, C> {
    pub(super) split: S,
    pub(super) f: C,
}

impl<F, S, C> Visitor<F> for ForEach<S, C>
where
    F: Format,
    S: FnMut(PageRange) -> bool,
    C: FnMut(PageRange, &mut DevicePte),
{
    fn splits(&mut self, span: PageRange) -> bool {
        (self.split)(span)
    }

    // Not inlined: as the only caller of `f`, it has `f` inlined into its loop.
    #[inline(never)]
    fn leaves(
        &mut self,
        level: u32,
        cells: &[PteCell],
        mut start: usize,
        changes: &mut UpdateStats,
        dma: &mut DmaTranslator<'_, F>,
    ) -> u32 {
        let size = 1usize << shift::<F>(level);
        let mut removed = 0u32;
        let mut outdated = 0usize;
        let mut first = usize::MAX;
        let mut last = 0;
        for cell in cells {
            let at = start;
            // Wraps behind the last page of the address space, which no range contains.
            start = start.wrapping_add(size);
            let Slot::Leaf(raw) = tree::decode(tree::load(cell)) else {
                continue;
            };
            let Ok(span) = PageRange::new(at, start) else {
                continue;
            };
            let old = dma.seen(at, raw);
            let mut new = old;
            (self.f)(span, &mut new);
            if new == old {
                continue;
            }
            // A page that cannot be mapped has its entry removed, so that the device faults.
            let new = dma.replace(span, raw, old, new).unwrap_or(DevicePte::NONE);
            let word = if new.is_valid() {
                tree::leaf(new)
            } else {
                // OVERFLOW: A table has at most 2048 slots.
                removed = removed.wrapping_add(1);
                tree::EMPTY
            };
            tree::store(cell, word);
            // The cells are visited in order of ascending addresses.
            if raw.is_outdated_by(new) {
                first = first.min(at);
                last = span.end() - 1;
                outdated = outdated.wrapping_add(1);
            }
        }
        let pages = size >> PAGE_SHIFT;
        if outdated != 0 {
            changes.outdated(first, last, outdated * pages);
        }
        // CAST: A table has at most 2048 slots.
        changes.removed += removed as usize * pages;
        removed
    }
}

/// Visitor that removes each leaf and calls a function for it.
pub(super) struct Unmap<C>(pub(super) C);

impl<F: Format, C: FnMut(DevicePte, usize)> Visitor<F> for Unmap<C> {
    fn splits(&mut self, _span: PageRange) -> bool {
        false
    }

    #[inline(never)]
    fn leaves(
        &mut self,
        level: u32,
        cells: &[PteCell],
        start: usize,
        changes: &mut UpdateStats,
        dma: &mut DmaTranslator<'_, F>,
    ) -> u32 {
        match level {
            // The most frequent case, in which the level is a compile-time constant.
            0 => self.remove(0, cells, start, changes, dma),
            level => self.remove(level, cells, start, changes, dma),
        }
    }
}

impl<C: FnMut(DevicePte, usize)> Unmap<C> {
    /// See [`Visitor::leaves`].
    #[inline(always)]
    fn remove<F: Format>(
        &mut self,
        level: u32,
        cells: &[PteCell],
        start: usize,
        changes: &mut UpdateStats,
        dma: &mut DmaTranslator<'_, F>,
    ) -> u32 {
        let shift = shift::<F>(level);
        let pages = 1usize << order::<F>(level);
        let start_of = |index: usize| start.wrapping_add(index << shift);
        let end_from = |start: usize| start | ((1 << shift) - 1);
        let is_used = |cell: &PteCell| tree::load(cell) != tree::EMPTY;
        let first = cells.iter().position(is_used);
        let (Some(first), Some(last)) = (first, cells.iter().rposition(is_used)) else {
            return 0;
        };
        let used = cells.get(first..=last).unwrap_or_default();
        let mut empty = 0;
        let mut next = start_of(first);
        for cell in used {
            let at = next;
            next = next.wrapping_add(1 << shift);
            // Not a leaf: the cells have no table entries.
            let Some(raw) = tree::entry(tree::load(cell)) else {
                empty += 1;
                continue;
            };
            if F::DMA {
                (self.0)(dma.seen(at, raw), pages);
                if let Some(span) = range_of(at, end_from(at)) {
                    dma.retire(span, raw);
                }
            } else {
                (self.0)(raw, pages);
            }
            tree::store(cell, tree::EMPTY);
        }
        let removed = used.len() - empty;
        changes.outdated(start_of(first), end_from(start_of(last)), removed * pages);
        changes.removed += removed * pages;
        // CAST: A table has at most 2048 slots.
        removed as u32
    }
}

/// One pass over existing entries.
pub(super) struct Update<'t, F: Format, V> {
    pub(super) pool: &'t Arc<Pool<F>>,
    pub(super) batch: &'t mut FlushBatch<F>,
    pub(super) changes: UpdateStats,
    pub(super) visitor: V,
    pub(super) dma: DmaTranslator<'t, F>,
}

impl<F: Format, V: Visitor<F>> Update<'_, F, V> {
    /// Visits `first..=last` in the tree below table `root`.
    ///
    /// Most ranges lie within one table. The tables above it are only read on the way down.
    pub(super) fn tree(&mut self, root: u32, first: usize, last: usize) {
        let guard = rcu::read_lock();
        let mut level = F::LEVELS - 1;
        let mut index = root;
        while level != 0 && span_of::<F>(level, first).1 >= last {
            let word = self.pool.load(&guard, index, slot_of::<F>(level, first));
            match tree::decode(word) {
                Slot::Empty => return,
                Slot::Table(child) => index = child,
                // The leaf may have to be split, which `table` does.
                Slot::Leaf(_) => break,
            }
            level -= 1;
        }
        if self.table(&guard, level, index, first, last) {
            self.prune(&guard, root, level, (first, last));
        }
    }

    /// Removes the table of `level` for `first`, which has become empty, and the tables above it
    /// that become empty by that.
    #[inline(never)]
    fn prune(&mut self, guard: &Guard, root: u32, below: u32, (first, last): (usize, usize)) {
        let pool = self.pool;
        let mut path = [root; MAX_LEVELS];
        let mut index = root;
        for level in (below + 1..F::LEVELS).rev() {
            if let Some(place) = path.get_mut(level as usize) {
                *place = index;
            }
            match tree::decode(pool.load(guard, index, slot_of::<F>(level, first))) {
                Slot::Table(child) => index = child,
                // Does not happen: the pass has just walked these tables.
                _ => return,
            }
        }
        for level in below + 1..F::LEVELS {
            let above = path.get(level as usize);
            let Some((above, page)) =
                above.and_then(|above| Some((*above, pool.page(guard, *above)?)))
            else {
                break;
            };
            let slot = slot_of::<F>(level, first);
            page.store(slot, tree::EMPTY);
            self.unlinked(above, level, slot, index, (first, last));
            let used = page.used() - 1;
            page.set_used(used);
            if used != 0 {
                break;
            }
            index = above;
        }
    }

    /// Publishes that `slot` of table `index` has lost the empty table `child`, which covered
    /// `first..=last` and more.
    fn unlinked(
        &mut self,
        index: u32,
        level: u32,
        slot: usize,
        child: u32,
        (first, last): (usize, usize),
    ) {
        self.pool
            .publish(index, level, first, slot..slot + 1, self.batch);
        if let Some(span) = range_of(first, last | !PAGE_MASK) {
            self.batch.detach(self.pool, span, child);
        }
    }

    /// Visits `first..=last` in table `index`. Returns whether the table has become empty.
    fn table(&mut self, guard: &Guard, level: u32, index: u32, first: usize, last: usize) -> bool {
        let pool = self.pool;
        let Some(page) = pool.page(guard, index) else {
            return false;
        };
        if level == 0 {
            return self.pages(&page, index, first, last);
        }
        let mut used = page.used();
        let size = 1usize << shift::<F>(level);
        let (low, high) = page.bounds();
        let from = slot_of::<F>(level, first).max(low);
        let to = slot_of::<F>(level, last).min(high);
        let (base, _) = span_of::<F>(level + 1, first);
        let mut start = base.wrapping_add(from << shift::<F>(level));
        let count = (to + 1).saturating_sub(from);
        let cells = page.cells(from).get(..count).unwrap_or_default();
        for (slot, cell) in (from..).zip(cells) {
            let end = start | (size - 1);
            let mut found = tree::decode(tree::load(cell));
            if let Slot::Leaf(huge) = found {
                let whole = first <= start && end <= last;
                let split =
                    !whole || range_of(start, end).is_some_and(|span| self.visitor.splits(span));
                if split {
                    let child = pool.take_kept();
                    let child = child.and_then(|child| pool.split(&page, slot, level, huge, child));
                    if let Some(child) = child {
                        pool.publish_split(index, level, start, child, self.batch);
                        found = Slot::Table(child);
                    }
                }
            }
            match found {
                Slot::Empty => {}
                Slot::Table(child) => {
                    if self.table(guard, level - 1, child, first.max(start), last.min(end)) {
                        tree::store(cell, tree::EMPTY);
                        used -= 1;
                        let part = (first.max(start), last.min(end));
                        self.unlinked(index, level, slot, child, part);
                    }
                }
                Slot::Leaf(_) => {
                    let one = slice::from_ref(cell);
                    let changes = &mut self.changes;
                    let dma = &mut self.dma;
                    if self.visitor.leaves(level, one, start, changes, dma) != 0 {
                        used -= 1;
                        pool.count_huge(-1);
                    }
                    pool.publish(index, level, start, slot..slot + 1, self.batch);
                }
            }
            start = start.wrapping_add(size);
        }
        page.set_used(used);
        used == 0
    }

    /// As [`Self::table`], for `page` of level 0.
    #[inline]
    fn pages(&mut self, page: &TablePage<'_, F>, index: u32, first: usize, last: usize) -> bool {
        let (low, high) = page.bounds();
        let from = slot_of::<F>(0, first).max(low);
        let to = slot_of::<F>(0, last).min(high) + 1;
        let cells = page.cells.get(from..to).unwrap_or_default();
        let start = span_of::<F>(1, first).0 + (from << PAGE_SHIFT);
        let changes = &mut self.changes;
        let dma = &mut self.dma;
        let used = page.used() - self.visitor.leaves(0, cells, start, changes, dma);
        page.set_used(used);
        if used == 0 {
            self.pool.publish_empty(index, first, from..to, self.batch);
        } else {
            self.pool.publish(index, 0, first, from..to, self.batch);
        }
        used == 0
    }
}

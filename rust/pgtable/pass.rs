// SPDX-License-Identifier: GPL-2.0

//! A pass over the leaves of a range, as far as there are any.

use super::{
    dma::Translator,
    entry::Entry,
    flush::FlushBatch,
    format::{shift, Format, MOST_LEVELS},
    pool::Pool,
    table::{range_of, slot_of, span_of},
    tree::{self, Cell, Slot},
};
use crate::mm::addr::PageRange;
use core::slice;
use kernel::{page::PAGE_SHIFT, sync::rcu};

/// What a pass has changed.
#[derive(Default)]
pub(super) struct Changes {
    /// The first and the last address of entries of which the device may hold more than is left.
    pub(super) hull: Option<(usize, usize)>,
    /// Pages of these.
    pub(super) outdated: usize,
    /// Pages that have no entry any more.
    pub(super) removed: usize,
}

impl Changes {
    /// Adds `pages` pages from `first` to `last`. They come from low to high addresses.
    fn outdated(&mut self, first: usize, last: usize, pages: usize) {
        let first = self.hull.map_or(first, |(first, _)| first);
        self.hull = Some((first, last));
        self.outdated += pages;
    }
}

/// What a pass does with leaves.
pub(super) trait Visitor<F: Format> {
    /// Whether a huge leaf is to be split in any case.
    fn splits(&mut self, span: PageRange) -> bool;

    /// Visits the leaves among `cells` of `level`, of which the first is for `start`. Returns how many were
    /// removed.
    fn leaves(
        &mut self,
        level: u32,
        cells: &[Cell],
        start: usize,
        changes: &mut Changes,
        dma: &mut Translator<'_, F>,
    ) -> u32;
}

/// Calls functions.
pub(super) struct Each<S, C> {
    pub(super) split: S,
    pub(super) f: C,
}

impl<F, S, C> Visitor<F> for Each<S, C>
where
    F: Format,
    S: FnMut(PageRange) -> bool,
    C: FnMut(PageRange, &mut Entry),
{
    fn splits(&mut self, span: PageRange) -> bool {
        (self.split)(span)
    }

    // The only place that calls `f`, so that it becomes part of the loop.
    #[inline(never)]
    fn leaves(
        &mut self,
        level: u32,
        cells: &[Cell],
        mut start: usize,
        changes: &mut Changes,
        dma: &mut Translator<'_, F>,
    ) -> u32 {
        let size = 1usize << shift::<F>(level);
        let mut removed = 0u32;
        let (mut outdated, mut first, mut last) = (0usize, usize::MAX, 0);
        for cell in cells {
            let end = start | (size - 1);
            if let (Slot::Leaf(raw), Some(span)) =
                (tree::decode(tree::load(cell)), range_of(start, end))
            {
                let old = dma.seen(start, raw);
                let mut new = old;
                (self.f)(span, &mut new);
                if new != old {
                    // What cannot be mapped is not there: the device faults.
                    let new = dma.replace(span, raw, old, new).unwrap_or(Entry::NONE);
                    let word = if new.is_valid() {
                        tree::leaf(new)
                    } else {
                        // OVERFLOW: A table has at most 1024 slots.
                        removed = removed.wrapping_add(1);
                        tree::EMPTY
                    };
                    tree::store(cell, word);
                    // They come from low to high addresses.
                    if raw.is_outdated_by(new) {
                        first = first.min(start);
                        last = end;
                        outdated = outdated.wrapping_add(1);
                    }
                }
            }
            start = start.wrapping_add(size);
        }
        let pages = size >> PAGE_SHIFT;
        if outdated != 0 {
            changes.outdated(first, last, outdated * pages);
        }
        // CAST: A table has at most 1024 slots.
        changes.removed += removed as usize * pages;
        removed
    }
}

/// Removes everything, and calls a function.
pub(super) struct Remove<C>(pub(super) C);

impl<F: Format, C: FnMut(Entry, usize)> Visitor<F> for Remove<C> {
    fn splits(&mut self, _span: PageRange) -> bool {
        false
    }

    #[inline(never)]
    fn leaves(
        &mut self,
        level: u32,
        cells: &[Cell],
        start: usize,
        changes: &mut Changes,
        dma: &mut Translator<'_, F>,
    ) -> u32 {
        let size = 1usize << shift::<F>(level);
        let pages = size >> PAGE_SHIFT;
        let mut removed = 0u32;
        let (mut first, mut last) = (usize::MAX, 0);
        for (index, cell) in cells.iter().enumerate() {
            let Slot::Leaf(raw) = tree::decode(tree::load(cell)) else {
                continue;
            };
            if F::DMA {
                let at = start.wrapping_add(index << shift::<F>(level));
                (self.0)(dma.seen(at, raw), pages);
                if let Some(span) = range_of(at, at | (size - 1)) {
                    dma.retire(span, raw);
                }
            } else {
                (self.0)(raw, pages);
            }
            tree::store(cell, tree::EMPTY);
            // OVERFLOW: A table has at most 1024 slots.
            removed = removed.wrapping_add(1);
            first = first.min(index);
            last = index;
        }
        if removed != 0 {
            let start_of = |index: usize| start.wrapping_add(index << shift::<F>(level));
            // CAST: From 32 bits to more.
            let count = removed as usize * pages;
            changes.outdated(start_of(first), start_of(last) | (size - 1), count);
            changes.removed += count;
        }
        removed
    }
}

/// One pass over existing entries.
pub(super) struct Pass<'t, F: Format, V> {
    pub(super) pool: &'t Pool<F>,
    pub(super) batch: &'t mut FlushBatch<F>,
    pub(super) changes: Changes,
    pub(super) visitor: V,
    pub(super) dma: Translator<'t, F>,
}

impl<F: Format, V: Visitor<F>> Pass<'_, F, V> {
    /// Visits `first..=last` in the tree below table `root`.
    ///
    /// Most ranges lie within one table. The tables above it are only read on the way down, and
    /// changed where the table below has become empty.
    pub(super) fn tree(&mut self, root: u32, first: usize, last: usize) {
        let pool = self.pool;
        let guard = rcu::read_lock();
        let (mut level, mut index) = (F::LEVELS - 1, root);
        let mut path = [root; MOST_LEVELS];
        while level != 0 {
            if span_of::<F>(level, first).1 < last {
                break;
            }
            match tree::decode(pool.load(&guard, index, slot_of::<F>(level, first))) {
                Slot::Empty => return,
                Slot::Table(child) => index = child,
                // It may have to be split.
                Slot::Leaf(_) => break,
            }
            level -= 1;
            if let Some(place) = path.get_mut(level as usize) {
                *place = index;
            }
        }
        let mut is_empty = self.table(level, index, first, last);
        let above = path.iter().zip(0u32..).skip(level as usize + 1);
        for (&index, level) in above.take_while(|(_, level)| *level < F::LEVELS) {
            if !is_empty {
                break;
            }
            let Some(page) = pool.page(&guard, index) else {
                break;
            };
            let slot = slot_of::<F>(level, first);
            if let Slot::Table(child) = tree::decode(page.load(slot)) {
                page.store(slot, tree::EMPTY);
                self.unlinked(index, level, slot, child, (first, last));
            }
            let used = page.used() - 1;
            page.set_used(used);
            is_empty = used == 0;
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
        if let Some(span) = range_of(first, last | 0xfff) {
            self.batch.detach(span, child);
        }
    }

    /// Visits `first..=last` in table `index`. Says whether the table has become empty.
    pub(super) fn table(&mut self, level: u32, index: u32, first: usize, last: usize) -> bool {
        let pool = self.pool;
        let guard = rcu::read_lock();
        let Some(page) = pool.page(&guard, index) else {
            return false;
        };
        let mut used = page.used();
        let size = 1usize << shift::<F>(level);
        let (low, high) = page.bounds();
        let from = slot_of::<F>(level, first).max(low);
        let to = slot_of::<F>(level, last).min(high);
        let (base, _) = span_of::<F>(level + 1, first);
        let mut start = base.wrapping_add(from << shift::<F>(level));
        let count = (to + 1).saturating_sub(from);
        let cells = page.cells(from).get(..count).unwrap_or_default();
        if level == 0 {
            used -= self
                .visitor
                .leaves(0, cells, start, &mut self.changes, &mut self.dma);
            page.set_used(used);
            pool.publish(index, 0, first, from..to + 1, self.batch);
            return used == 0;
        }
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
                    if self.table(level - 1, child, first.max(start), last.min(end)) {
                        tree::store(cell, tree::EMPTY);
                        used -= 1;
                        let part = (first.max(start), last.min(end));
                        self.unlinked(index, level, slot, child, part);
                    }
                }
                Slot::Leaf(_) => {
                    let one = slice::from_ref(cell);
                    let (changes, dma) = (&mut self.changes, &mut self.dma);
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
}

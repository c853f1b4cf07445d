// SPDX-License-Identifier: GPL-2.0

//! Installation of new entries: links table pages and splits huge leaves with reserved table pages,
//! and merges aligned runs of entries into huge leaves.
//!
//! `huge` has the huge leaves. `tables` finds and links the tables above an entry.

use super::{
    dma::DmaTranslator,
    entry::DevicePte,
    flush::FlushBatch,
    format::{
        can_hold,
        has_leaves,
        reaches,
        slot_of,
        slots,
        span_of,
        Format, //
    },
    prealloc::Prealloc,
    table::Table,
    tree::{
        self,
        Slot, //
    }, //
};
use crate::{
    inject::{
        fails,
        FailPoint, //
    },
    mm::addr::{
        PageRange,
        PMD_SIZE, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::rcu, //
};

mod huge;
mod tables;

use huge::is_run;

/// Returns the part of `range` that its first table of level 0 covers.
fn in_first_table<F: Format>(range: PageRange) -> Result<PageRange> {
    let (_, end) = span_of::<F>(1, range.start());
    PageRange::new(range.start(), range.end().min(end.saturating_add(1)))
}

impl<F: Format> Table<F> {
    /// Calls `f` with the address and the entry of each page of `range`, which must lie in one
    /// aligned block of [`PMD_SIZE`]. `f` may set, change or remove the entry.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the range crosses a block boundary or is not covered by the table; or the format
    ///   cannot encode an entry; or the spares or the batch belong to another table.
    /// - `ENOMEM`: the spares are not complete.
    ///
    /// In these cases the table was not changed, except that parts of the range may have been
    /// installed if it spans several tables. In a table of DMA addresses also:
    ///
    /// - `EBUSY`: the page that a page replaces is still mapped for the device. The caller should
    ///   retry.
    /// - `ENOMEM`, `ENODEV`: a page cannot be mapped for the device.
    ///
    /// The other pages of the range were then installed.
    ///
    /// # Context
    ///
    /// Any but interrupts. Does not allocate with reclaim, so that the table lock may be held. `f`
    /// must not do so either.
    pub fn install(
        &mut self,
        range: PageRange,
        prealloc: &mut Prealloc<F>,
        batch: &mut FlushBatch<F>,
        mut f: impl FnMut(usize, &mut DevicePte),
    ) -> Result {
        if fails(FailPoint::Install) {
            return Err(ENOMEM);
        }
        let last = range.end() - 1;
        if !reaches::<F>(range) || range.start() / PMD_SIZE != last / PMD_SIZE {
            return Err(EINVAL);
        }
        // Table pages are named by their index in the pool.
        if !batch.is_of(&self.pool) || !prealloc.is_of(&self.pool) {
            return Err(EINVAL);
        }
        self.near.get_mut().forget();
        let mut result = Ok(());
        let mut next = Some(range);
        while let Some(rest) = next {
            let part = in_first_table::<F>(rest)?;
            // An error of one table does not keep the pages of the others from being installed.
            result = result.and(self.install_in_table(part, prealloc, batch, &mut f));
            next = rest.from_address(part.end());
        }
        if result.is_err() {
            self.remove_empty_tables(range, batch)?;
        }
        result
    }

    /// Removes tables of level 0 below `range` that have no entries, because none of their pages
    /// could be mapped for the device. This is done at the end of an install: the tables above them
    /// might otherwise be removed and made again for each table, for which the spares do not
    /// suffice.
    fn remove_empty_tables(&mut self, range: PageRange, batch: &mut FlushBatch<F>) -> Result {
        let mut next = Some(range);
        while let Some(rest) = next {
            let part = in_first_table::<F>(rest)?;
            let start = part.start();
            if let Some(Slot::Table(child)) = self
                .table_above(start)?
                .map(|above| self.decode(above, 1, start))
            {
                let guard = rcu::read_lock();
                let is_empty = self
                    .pool
                    .page(&guard, child)
                    .is_some_and(|page| page.used() == 0);
                if is_empty {
                    self.for_each(part, batch, |_, _| ());
                }
            }
            next = rest.from_address(part.end());
        }
        Ok(())
    }

    /// As [`Self::install`], within one table of level 0.
    fn install_in_table(
        &mut self,
        range: PageRange,
        prealloc: &mut Prealloc<F>,
        batch: &mut FlushBatch<F>,
        f: &mut impl FnMut(usize, &mut DevicePte),
    ) -> Result {
        let mut scratch = core::mem::take(&mut prealloc.scratch);
        let result = self.update(range, prealloc, batch, &mut scratch, f);
        prealloc.scratch = scratch;
        result
    }

    fn update(
        &mut self,
        range: PageRange,
        prealloc: &mut Prealloc<F>,
        batch: &mut FlushBatch<F>,
        scratch: &mut [DevicePte],
        f: &mut impl FnMut(usize, &mut DevicePte),
    ) -> Result {
        let first = slot_of::<F>(0, range.start());
        let (start, end) = span_of::<F>(1, range.start());
        let span = PageRange::new(start, end.saturating_add(1))?;
        let above = self.table_above(range.start())?;
        let old = match above {
            Some(index) => self.decode(index, 1, start),
            None => Slot::Empty,
        };
        let part = scratch
            .get_mut(first..first + range.pages())
            .ok_or(ENOMEM)?;

        // Collect the old and the new entries; the table is not changed yet. `windows` is cloned
        // because `self` is borrowed mutably below.
        let windows = if F::DMA {
            self.windows().cloned()
        } else {
            None
        };
        let mut dma = DmaTranslator::<F>::new(windows.as_ref());
        let guard = rcu::read_lock();
        let below = match old {
            Slot::Table(child) => self.pool.page(&guard, child),
            _ => None,
        };
        let mut changed = false;
        let cells = below.as_ref().map_or(&[][..], |page| page.cells(first));
        let mut cells = cells.iter();
        let mut huge = match old {
            Slot::Leaf(huge) => huge.plus(first),
            _ => DevicePte::NONE,
        };
        let mut next = range.start();
        for entry in part.iter_mut() {
            let before = match cells.next() {
                Some(cell) => tree::entry(tree::load(cell)).unwrap_or(DevicePte::NONE),
                None => {
                    let before = huge;
                    // Most pages had no entry.
                    if before.is_valid() {
                        huge = before.plus(1);
                    }
                    before
                }
            };
            let addr = next;
            next = next.wrapping_add(PAGE_SIZE);
            let before = dma.seen(addr, before);
            let mut new = before;
            f(addr, &mut new);
            *entry = new;
            if new != before {
                changed = true;
                // The DMA address of a system page is known only after it is mapped.
                let is_known = !F::DMA || new.is_device();
                if new.is_valid() && is_known && !can_hold::<F>(self.pool.with_address(new)) {
                    return Err(EINVAL);
                }
            }
        }
        if !changed {
            return Ok(());
        }

        let whole = range.pages() == slots::<F>(0);
        if whole && const { has_leaves::<F>(1) } && is_run(scratch) {
            let new = scratch.first().copied().unwrap_or_default();
            if !F::DMA || new.is_device() {
                return self.set_huge(span, old, new, scratch, prealloc, batch, &mut dma);
            }
            // If their DMA addresses are not contiguous, small entries are installed.
            if let Ok((raw, fresh)) = dma.map(span, new) {
                let result = self.set_huge(span, old, raw, scratch, prealloc, batch, &mut dma);
                return result.inspect_err(|_| dma.release(&fresh));
            }
        }
        let child = match old {
            Slot::Table(child) => child,
            Slot::Leaf(huge) => {
                let above = above.ok_or(EINVAL)?;
                let page = self.pool.page(&guard, above).ok_or(EINVAL)?;
                let slot = slot_of::<F>(1, start);
                let child = self.pool.pop(&mut prealloc.pages.leaves).ok_or(ENOMEM)?;
                self.pool.split(&page, slot, 1, huge, child).ok_or(EINVAL)?;
                self.pool.publish_split(above, 1, start, child, batch);
                child
            }
            Slot::Empty => {
                if scratch_is_empty(scratch, first, range.pages()) {
                    return Ok(());
                }
                let above = self.make_table_above(start, prealloc, batch)?;
                self.make_table(above, 1, start, prealloc, batch)?
            }
        };
        self.commit(child, range, scratch, batch, &mut dma)
    }

    /// Writes the entries of `range` from `scratch` to the table `child` of level 0.
    fn commit(
        &mut self,
        child: u32,
        range: PageRange,
        scratch: &[DevicePte],
        batch: &mut FlushBatch<F>,
        dma: &mut DmaTranslator<'_, F>,
    ) -> Result {
        let mut result = Ok(());
        let first = slot_of::<F>(0, range.start());
        let guard = rcu::read_lock();
        let page = self.pool.page(&guard, child).ok_or(EINVAL)?;
        let before = page.used();
        let mut used = before;
        let new = scratch.get(first..first + range.pages());
        let mut next = range.start();
        for (cell, new) in page.cells(first).iter().zip(new.unwrap_or_default()) {
            let addr = next;
            next = next.wrapping_add(PAGE_SIZE);
            let raw = tree::entry(tree::load(cell)).unwrap_or(DevicePte::NONE);
            let (old, new) = if F::DMA {
                let span = PageRange::from_pages(addr, 1)?;
                let old = dma.seen(span.start(), raw);
                if old == *new {
                    continue;
                }
                match dma.replace(span, raw, old, *new) {
                    Ok(new) => (raw, new),
                    Err(error) => {
                        result = Err(error);
                        (raw, DevicePte::NONE)
                    }
                }
            } else {
                (raw, *new)
            };
            if old == new {
                continue;
            }
            if old.is_valid() {
                used -= 1;
                batch.record(PageRange::from_pages(addr, 1)?, old, new);
            }
            if new.is_valid() {
                used += 1;
                tree::store(cell, tree::leaf(new));
            } else {
                tree::store(cell, tree::EMPTY);
            }
        }
        page.set_used(used);
        page.meta.warm();
        self.live = self.live + used as usize - before as usize;
        let end = first + range.pages();
        page.widen(first, end - 1);
        self.pool
            .publish(child, 0, range.start(), first..end, batch);
        if used == 0 && result.is_ok() {
            // Removes the table, and the tables above it that have become empty.
            self.for_each(range, batch, |_, _| ());
        }
        result
    }
}

fn scratch_is_empty(scratch: &[DevicePte], first: usize, pages: usize) -> bool {
    scratch
        .iter()
        .skip(first)
        .take(pages)
        .all(|entry| !entry.is_valid())
}

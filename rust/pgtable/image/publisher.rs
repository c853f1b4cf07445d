// SPDX-License-Identifier: GPL-2.0

//! Writes changed entries of a table page to its image, so that the image is valid at each write.

use super::written;
use crate::{
    kernel::word::{
        peek_u32,
        store_u32, //
    },
    mm::{
        addr::PageRange,
        table_memory::{
            order_writes,
            TableUnit, //
        }, //
    },
    pgtable::{
        chunk::TablePage,
        flush::FlushBatch,
        format::{
            device_order,
            order,
            run_below,
            shift,
            slot_bits,
            slot_order,
            smallest_run,
            Format,
            Word,
            Write, //
        },
        pool::Pool,
        sizes::SizeCell,
        tree::{
            self,
            Slot, //
        }, //
    }, //
};
use core::ops::Range;
use kernel::{
    page::PAGE_SHIFT,
    sync::{
        atomic::Atomic,
        rcu::Guard, //
    }, //
};

/// In a form: an entry of the group is valid.
pub(super) const VALID: u32 = 1 << 31;

/// Writes entries of one table page to its image.
pub(in crate::pgtable) struct Publisher<'p, F: Format> {
    pub(in crate::pgtable) pool: &'p Pool<F>,
    pub(super) guard: &'p Guard,
    pub(in crate::pgtable) page: TablePage<'p, F>,
    pub(in crate::pgtable) unit: TableUnit<'p>,
    pub(super) forms: &'p [Atomic<u32>],
    pub(in crate::pgtable) places: &'p [SizeCell],
    pub(in crate::pgtable) level: u32,
    /// Address that the first entry is for.
    pub(super) base: usize,
    /// Entries that may have changed.
    pub(in crate::pgtable) changed: Range<usize>,
}

impl<F: Format> Publisher<'_, F> {
    /// Encodes `word`; of the entries of a CPU page, that of device page `part`.
    #[inline(always)]
    fn encode(&self, word: u64, run: u32, part: usize) -> F::Word {
        match tree::decode(word) {
            Slot::Empty => F::Word::EMPTY,
            Slot::Leaf(entry) => F::leaf(
                device_order::<F>(self.level, run),
                self.pool.seen_by_device(entry).plus(part),
            ),
            Slot::Table(child) => self.encode_table(child),
        }
    }

    // Not inlined, to keep it out of the loops over leaves.
    #[inline(never)]
    fn encode_table(&self, child: u32) -> F::Word {
        match self.pool.address(self.guard, child) {
            Some(address) => {
                // The table that this links was written before.
                order_writes();
                F::table(self.level, address)
            }
            None => F::Word::EMPTY,
        }
    }

    /// Writes the entries of `slots`. Returns whether one of them is valid.
    pub(in crate::pgtable) fn write(&self, slots: Range<usize>, run: u32) -> bool {
        self.write_those(slots, run, |_| true)
    }

    /// As [`Self::write`], but only the entries for which `which` returns true of their words.
    #[inline]
    fn write_those(&self, slots: Range<usize>, run: u32, which: impl Fn(u64) -> bool) -> bool {
        let mut any = 0;
        for (slot, cell) in slots.clone().zip(self.page.cells(slots.start)) {
            let word = tree::load(cell);
            any |= word;
            if which(word) {
                for (part, entry) in self.entries(slot..slot + 1).enumerate() {
                    self.encode(word, run, part).write(&self.unit, entry);
                }
            }
        }
        if !slots.is_empty() {
            self.written(slots);
        }
        any != tree::EMPTY
    }

    /// Returns whether an entry of `slots` is valid.
    fn is_any_valid(&self, slots: Range<usize>) -> bool {
        let cells = self.page.cells(slots.start).iter().take(slots.len());
        cells.map(tree::load).any(|word| word != tree::EMPTY)
    }

    /// Empties the entries of `slot`.
    pub(in crate::pgtable) fn write_empty(&self, slot: usize) {
        for entry in self.entries(slot..slot + 1) {
            F::Word::EMPTY.write(&self.unit, entry);
        }
        self.written(slot..slot + 1);
    }

    /// Returns the entries of the image for `slots` of the tree.
    #[inline]
    fn entries(&self, slots: Range<usize>) -> Range<usize> {
        let order = slot_order::<F>(self.level);
        slots.start << order..slots.end << order
    }

    /// Reports that the entries of `slots` were written.
    fn written(&self, slots: Range<usize>) {
        written::<F>(&self.pool.memory, &self.unit, self.entries(slots));
    }

    /// Writes the changed entries, and those of runs that they complete or break.
    pub(in crate::pgtable) fn publish(&self, batch: &mut FlushBatch<F>) {
        let largest = run_below::<F>(self.level, slot_bits::<F>(self.level));
        if largest == 0 {
            return if F::break_before_make() {
                self.write_sized(self.changed.clone(), 0, batch)
            } else {
                self.write(self.changed.clone(), 0);
            };
        }
        let size = 1usize << largest;
        let first = self.changed.start & !(size - 1);
        for start in (first..self.changed.end).step_by(size) {
            self.publish_run(start, largest, batch);
        }
    }

    /// The same, of the entries from `start` on that a run of `1 << run` may have.
    fn publish_run(&self, start: usize, run: u32, batch: &mut FlushBatch<F>) {
        let size = 1usize << run;
        let cells = self.page.cells(start).get(..size).unwrap_or_default();
        if tree::is_run(cells, order::<F>(self.level)) {
            return self.write_group(start..start + size, run, batch);
        }
        let smaller = run_below::<F>(self.level, run);
        if smaller == 0 {
            return self.write_group(start..start + size, 0, batch);
        }
        for start in (start..start + size).step_by(1 << smaller) {
            self.publish_run(start, smaller, batch);
        }
    }

    /// As [`Self::publish`], if no entry of the table is left.
    pub(in crate::pgtable) fn publish_empty(&self, batch: &mut FlushBatch<F>) {
        if F::break_before_make() || run_below::<F>(self.level, slot_bits::<F>(self.level)) != 0 {
            return self.publish(batch);
        }
        F::Word::clear(&self.unit, self.entries(self.changed.clone()));
        self.written(self.changed.clone());
    }

    /// Writes entries that are a run of `1 << run`, or with 0 none.
    fn write_group(&self, slots: Range<usize>, run: u32, batch: &mut FlushBatch<F>) {
        if F::break_before_make() {
            return self.write_sized(slots, run, batch);
        }
        let smallest = smallest_run::<F>();
        let size = 1usize << smallest;
        for start in slots.step_by(size) {
            let form = self.forms.get(start >> smallest);
            let before = form.map_or(0, peek_u32);
            let is_valid = self.resize(start..start + size, before & !VALID, run);
            if let Some(form) = form {
                store_u32(form, if is_valid { run | VALID } else { run });
            }
            if before & VALID != 0 && before & !VALID != run {
                if let Some(span) = self.span(start, size) {
                    batch.extend(span);
                }
            }
        }
    }

    /// Writes the entries of a group that was in runs of `1 << before`, and is in runs of `1 <<
    /// run`. Returns whether an entry of the group is valid.
    fn resize(&self, group: Range<usize>, before: u32, run: u32) -> bool {
        let first = self.changed.start.clamp(group.start, group.end);
        let end = self.changed.end.clamp(first, group.end);
        if before < run {
            self.write(first..end, run);
        }
        if before != run {
            let first_valid = self.write(group.start..first, run);
            let last_valid = self.write(end..group.end, run);
            if before > run {
                self.write_those(first..end, run, |word| word != tree::EMPTY);
                self.write_those(first..end, run, |word| word == tree::EMPTY);
            }
            return first_valid || last_valid || self.is_any_valid(first..end);
        }
        self.write(first..end, run)
            || self.is_any_valid(group.start..first)
            || self.is_any_valid(end..group.end)
    }

    /// Addresses of `count` entries from `start` on.
    pub(in crate::pgtable) fn span(&self, start: usize, count: usize) -> Option<PageRange> {
        let shift = shift::<F>(self.level);
        let first = self.base.checked_add(start << shift)?;
        PageRange::from_pages(first, count << (shift - PAGE_SHIFT as u32)).ok()
    }
}

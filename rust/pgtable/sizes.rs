// SPDX-License-Identifier: GPL-2.0

//! Break-before-make: changes the size of image entries for an MMU that must not find two sizes for
//! one address ([`Format::break_before_make`]).
//!
//! The entry is empty until a flush has ended:
//!
//! 1. The change of the tree empties the entry in the image. The flush of the change covers it.
//! 2. The device faults. The fault handler, or the switch of a migration right after its own
//!    change, finds the entry *unwritten* and starts a second flush: that of step 1 may be under
//!    way in another task.
//! 3. After the second flush the current entry of the tree is written.
//!
//! A removed entry keeps its size until such a flush, because another one may be installed before
//! the flush of the removal has ended. An entry of the same size is written at once.
//!
//! The table lock is held for each step but the wait for the flush. The library does not read the
//! image, so that it stores the last written size of each entry.

use super::{
    entry::DevicePte,
    flush::FlushBatch,
    format::{
        device_order,
        run_below,
        shift,
        slot_bits,
        slot_of,
        span_of,
        Format, //
    },
    image::Publisher,
    pool::Pool,
    table::Table,
    tree::{
        self,
        Slot, //
    }, //
};
use crate::mm::addr::PageRange;
use core::{
    marker::PhantomData,
    ops::Range, //
};
use kernel::sync::{
    atomic::{
        ordering::Relaxed,
        Atomic, //
    },
    rcu, //
};

/// The format `F`, for MMUs that need break-before-make: of 64-bit Arm those without FEAT_BBM level
/// 2.
///
/// # Examples
///
/// ```
/// use rust_hmm::pgtable::BreakBeforeMake;
/// use rust_hmm::pgtable::Format;
/// use rust_hmm::pgtable::formats::Lpae;
///
/// assert!(BreakBeforeMake::<Lpae>::break_before_make());
/// assert!(!Lpae::break_before_make());
/// ```
pub struct BreakBeforeMake<F>(PhantomData<fn() -> F>);

impl<F: Format> Format for BreakBeforeMake<F> {
    type Word = F::Word;

    const LEVELS: u32 = F::LEVELS;
    const BITS: u32 = F::BITS;
    const PAGE_SHIFT: u32 = F::PAGE_SHIFT;
    const LEAVES: &'static [u32] = F::LEAVES;
    const DMA: bool = F::DMA;

    fn break_before_make() -> bool {
        true
    }

    fn can_hold(entry: DevicePte) -> bool {
        F::can_hold(entry)
    }

    fn can_link(address: u64) -> bool {
        F::can_link(address)
    }

    fn table(level: u32, address: u64) -> Self::Word {
        F::table(level, address)
    }

    fn leaf(order: u32, entry: DevicePte) -> Self::Word {
        F::leaf(order, entry)
    }
}

/// Size of the last written entry, as long as a TLB may cache that entry.
///
/// The lowest bits are the size, the others the time at which the entry was emptied.
#[derive(Clone, Copy)]
struct WrittenSize(u64);

impl WrittenSize {
    /// No TLB caches an entry.
    const NONE: Self = Self(0);
    /// Bits of a size: 0 is none, [`Self::TABLE_SIZE`] that of a table, and each other one more
    /// than log2 of the device pages of a leaf.
    const SIZE_MASK: u64 = 0x7f;
    const TABLE_SIZE: u64 = 0x7f;
    /// Bit: the image has the entry.
    const WRITTEN: u64 = 0x80;
    const TIME_SHIFT: u32 = 8;

    fn is_written(self) -> bool {
        self.0 & Self::WRITTEN != 0
    }

    /// Whether an entry of `size` may be written now. Not in place of a removed table, because the
    /// new table has another address.
    fn permits(self, size: u64) -> bool {
        match self.0 & Self::SIZE_MASK {
            0 => true,
            Self::TABLE_SIZE => size == Self::TABLE_SIZE && self.is_written(),
            same => same == size,
        }
    }

    fn written(size: u64) -> Self {
        Self(size | Self::WRITTEN)
    }

    fn emptied(self, time: u64) -> Self {
        Self(self.0 & Self::SIZE_MASK | time << Self::TIME_SHIFT)
    }

    /// The same after a flush that was started at `time`.
    fn flushed(self, time: u64) -> Self {
        if !self.is_written() && self.0 >> Self::TIME_SHIFT <= time {
            Self::NONE
        } else {
            self
        }
    }
}

/// Stores the [`WrittenSize`] of an entry. Changed under the table lock.
pub(super) struct SizeCell(Atomic<u64>);

impl SizeCell {
    /// Of an empty entry.
    pub(super) const fn new() -> Self {
        Self(Atomic::new(WrittenSize::NONE.0))
    }

    /// Clears the size of an empty entry that no TLB caches.
    pub(super) fn clear(&self) {
        self.set(WrittenSize::NONE);
    }

    // Relaxed: sizes and clock are read and changed under the table lock.
    fn get(&self) -> WrittenSize {
        WrittenSize(self.0.load(Relaxed))
    }

    fn set(&self, past: WrittenSize) {
        self.0.store(past.0, Relaxed);
    }
}

/// Counts flushes of unwritten entries. A flush covers the entries that were emptied before it.
pub(super) struct FlushClock(Atomic<u64>);

impl FlushClock {
    pub(super) const fn new() -> Self {
        Self(Atomic::new(0))
    }

    fn now(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Returns the time of a flush that is about to start. Entries that are emptied from now on
    /// have a later time.
    fn tick(&self) -> u64 {
        let now = self.now();
        // OVERFLOW: Not in 56 bits.
        self.0.store(now.wrapping_add(1), Relaxed);
        now
    }
}

impl<F: Format> Publisher<'_, F> {
    /// Writes `slots`, which are a run of `1 << run` entries, or with 0 none. Empties those that
    /// may not be written now.
    pub(super) fn write_sized(&self, slots: Range<usize>, run: u32, batch: &mut FlushBatch<F>) {
        let size = 1usize << run;
        for start in slots.step_by(size) {
            self.write_one(start..start + size, run, batch);
        }
    }

    /// As [`Self::write_sized`], of one leaf, one table, or one empty entry.
    fn write_one(&self, slots: Range<usize>, run: u32, batch: &mut FlushBatch<F>) {
        let new = match tree::decode(self.page.load(slots.start)) {
            Slot::Empty => None,
            Slot::Leaf(_) => Some(u64::from(device_order::<F>(self.level, run)) + 1),
            Slot::Table(_) => Some(WrittenSize::TABLE_SIZE),
        };
        let places = self.places.get(slots.clone()).unwrap_or_default();
        let permitted = new.filter(|size| places.iter().all(|place| place.get().permits(*size)));
        if let Some(size) = permitted {
            self.write(slots, run);
            places
                .iter()
                .for_each(|place| place.set(WrittenSize::written(size)));
            return;
        }
        let now = self.pool.clock.now();
        for (slot, place) in slots.zip(places) {
            let past = place.get();
            if past.is_written() {
                self.write_empty(slot);
                place.set(past.emptied(now));
                if let Some(span) = self.span(slot, 1) {
                    batch.extend(span);
                }
            }
        }
    }

    /// Range of slots from the first to the last unwritten one of the runs that `slots` are in: a
    /// broken run is written as a whole, so that the device faults at one page of it.
    fn unwritten(&self, slots: Range<usize>) -> Option<Range<usize>> {
        let size = 1usize << run_below::<F>(self.level, slot_bits::<F>(self.level));
        let slots = slots.start & !(size - 1)..slots.end.next_multiple_of(size);
        let cells = self.page.cells(slots.start).iter();
        let places = self.places.get(slots.clone()).unwrap_or_default();
        let is_unwritten = cells
            .zip(places)
            .map(|(cell, place)| tree::load(cell) != tree::EMPTY && !place.get().is_written());
        let mut all = slots
            .zip(is_unwritten)
            .filter_map(|(slot, is)| is.then_some(slot));
        let first = all.next()?;
        Some(first..all.last().unwrap_or(first) + 1)
    }
}

/// Present entries that the image lacks because their size changes. [`Table::write_sizes`] writes
/// them after the flush.
#[must_use = "the device would fault"]
pub(crate) struct Unwritten {
    range: PageRange,
    /// Time of the flush.
    time: u64,
}

impl<F: Format> Table<F> {
    /// Returns the unwritten entries for pages of `range`, and adds them to `batch`.
    #[inline]
    pub(crate) fn unwritten(
        &mut self,
        range: PageRange,
        batch: &mut FlushBatch<F>,
    ) -> Option<Unwritten> {
        if F::break_before_make() {
            self.find_unwritten(range, batch)
        } else {
            None
        }
    }

    // Rare, and not in faults of other formats.
    #[inline(never)]
    fn find_unwritten(&mut self, range: PageRange, batch: &mut FlushBatch<F>) -> Option<Unwritten> {
        let mut found: Option<PageRange> = None;
        let last = range.end() - 1;
        self.pool.each_image(
            self.root,
            F::LEVELS - 1,
            (range.start(), last),
            &mut |image, slots| {
                let span = image
                    .unwritten(slots)
                    .and_then(|slots| image.span(slots.start, slots.len()));
                if let Some(span) = span {
                    found = Some(found.map_or(span, |found| found.union(&span)));
                }
            },
        );
        let range = found?;
        batch.extend(range);
        let time = self.pool.clock.tick();
        Some(Unwritten { range, time })
    }

    /// Writes the current entries of `unwritten`, whose flush has ended.
    pub(crate) fn write_sizes(&mut self, unwritten: Unwritten, batch: &mut FlushBatch<F>) {
        let Unwritten { range, time } = unwritten;
        let first = range.start();
        let last = range.end() - 1;
        self.pool.each_image(
            self.root,
            F::LEVELS - 1,
            (first, last),
            &mut |image, slots| {
                let whole = |slot: &usize| {
                    let span = image.span(*slot, 1);
                    span.is_some_and(|span| range.intersect(&span) == Some(span))
                };
                let Some(from) = slots.clone().find(whole) else {
                    return;
                };
                let end = slots.rev().find(whole).map_or(from, |last| last + 1);
                for place in image.places.get(from..end).unwrap_or_default() {
                    place.set(place.get().flushed(time));
                }
                image.changed = from..end;
                image.publish(batch);
            },
        );
    }
}

impl<F: Format> Pool<F> {
    /// Calls `f` with the image of each table below table `index` of `level` that is about
    /// addresses from `first` to `last`, and the slots for these; with that of `index` at the end.
    fn each_image(
        &self,
        index: u32,
        level: u32,
        (first, last): (usize, usize),
        f: &mut impl FnMut(&mut Publisher<'_, F>, Range<usize>),
    ) {
        let guard = rcu::read_lock();
        let Some(page) = self.page(&guard, index) else {
            return;
        };
        let slots = slot_of::<F>(level, first)..slot_of::<F>(level, last) + 1;
        let (mut start, _) = span_of::<F>(level, first);
        for slot in slots.clone() {
            let end = start | ((1 << shift::<F>(level)) - 1);
            if let Slot::Table(child) = tree::decode(page.load(slot)) {
                self.each_image(child, level - 1, (first.max(start), last.min(end)), f);
            }
            start = end.wrapping_add(1);
        }
        if let Some(mut image) = self.publisher(&guard, index, level, first, slots.clone()) {
            f(&mut image, slots);
        }
    }
}

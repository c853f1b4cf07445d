// SPDX-License-Identifier: GPL-2.0

//! Images of table pages, in the format of the device and where it reads them.
//!
//! Each change of the tree is written to the image before its flush starts. A walker that reads the
//! image at any time finds the old or the new translation of a page:
//!
//! - Each entry is replaced by one write.
//! - A table is written before the entry that links it. It is used again, or freed, after the flush
//!   that follows its removal.
//! - Each entry of a run is right without the others. When a page is removed from a run, the
//!   entries of the others lose the run first; when a page completes one, they gain it last. So an
//!   entry that a walker takes for a part of a run is written only while the other pages have
//!   entries. A TLB may still have kept the run from before, or the page that another one has
//!   replaced: the flush covers all of the run.
//!
//! An MMU that requires break-before-make finds an empty entry in between (`sizes`).

use super::{
    chunk::TablePage,
    entry::DevicePte,
    flush::FlushBatch,
    format::{
        device_order,
        device_page,
        fan,
        order,
        run_below,
        shift,
        slot_bits,
        slot_of,
        slot_order,
        smallest_run,
        span_of,
        unit,
        Format,
        Word,
        Write, //
    },
    pool::Pool,
    reader::TableReader,
    sizes::SizeCell,
    tree::{
        self,
        Slot, //
    }, //
};
use crate::{
    kernel::word::{
        peek_u32,
        store_u32, //
    },
    mm::{
        addr::PageRange,
        table_memory::{
            order_writes,
            TableMemory,
            TableUnit,
            TableUnits, //
        }, //
    }, //
};
use core::{
    marker::PhantomData,
    ops::Range, //
};
use kernel::{
    page::{
        PAGE_MASK,
        PAGE_SHIFT, //
    },
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        rcu::{
            self,
            Guard, //
        }, //
    }, //
};

/// In a form: an entry of the group is valid.
const VALID: u32 = 1 << 31;

/// The images of the table pages of a chunk.
pub(super) struct Images<F: Format> {
    units: TableUnits,
    /// For each group of entries that may be a run of the smallest size: the form in which it was
    /// written last, log2 of the entries of its run, or 0, and [`VALID`]. Changed by the owner of
    /// the table only.
    forms: KVVec<Atomic<u32>>,
    /// With break-before-make, instead of `forms`: one for each entry. Changed likewise.
    places: KVVec<SizeCell>,
    _format: PhantomData<F>,
}

/// Groups of a table page.
fn groups<F: Format>() -> usize {
    match smallest_run::<F>() {
        0 => 0,
        _ if F::break_before_make() => 0,
        run => fan::<F>() >> run,
    }
}

/// Places of a table page.
fn places<F: Format>() -> usize {
    if F::break_before_make() {
        fan::<F>()
    } else {
        0
    }
}

impl<F: Format> Images<F> {
    /// Images of `count` empty tables; `None` without table memory. Context: may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `ENODEV` if the device is closed; `EINVAL` if the format cannot express where the
    /// memory is.
    pub(super) fn new(memory: &TableMemory, count: usize) -> Result<Option<Self>> {
        let Some(units) = TableUnits::new(memory, count, unit::<F>())? else {
            return Ok(None);
        };
        {
            let guard = rcu::read_lock();
            let mut all = (0..count).filter_map(|index| units.get(&guard, index));
            if !all.all(|unit| {
                written::<F>(memory, &unit, 0..fan::<F>());
                F::can_link(unit.address())
            }) {
                return Err(EINVAL);
            }
        }
        let mut forms = KVVec::with_capacity(count * groups::<F>(), GFP_KERNEL_ACCOUNT)?;
        for _ in 0..count * groups::<F>() {
            forms.push(Atomic::new(0), GFP_KERNEL_ACCOUNT)?;
        }
        let mut all = KVVec::with_capacity(count * places::<F>(), GFP_KERNEL_ACCOUNT)?;
        for _ in 0..count * places::<F>() {
            all.push(SizeCell::new(), GFP_KERNEL_ACCOUNT)?;
        }
        Ok(Some(Self {
            units,
            forms,
            places: all,
            _format: PhantomData,
        }))
    }

    /// Returns the number of bytes of the images and their metadata.
    pub(super) fn bytes(&self) -> usize {
        self.units.allocated()
            + self.forms.len() * size_of::<Atomic<u32>>()
            + self.places.len() * size_of::<SizeCell>()
    }

    /// Image of page `index` of the chunk; `None` if the device is closed.
    pub(super) fn unit<'g>(&'g self, guard: &'g Guard, index: usize) -> Option<TableUnit<'g>> {
        self.units.get(guard, index)
    }

    fn forms(&self, index: usize) -> &[Atomic<u32>] {
        let first = index * groups::<F>();
        self.forms
            .get(first..first + groups::<F>())
            .unwrap_or_default()
    }

    fn places(&self, index: usize) -> &[SizeCell] {
        let first = index * places::<F>();
        self.places
            .get(first..first + places::<F>())
            .unwrap_or_default()
    }

    /// Clears the sizes of the entries of page `index`, which no TLB caches.
    #[inline]
    pub(super) fn clear_sizes(&self, index: usize) {
        self.places(index).iter().for_each(SizeCell::clear);
    }

    /// Empties that of page `index`, which is in `memory`, and which no device walks.
    pub(super) fn clear(&self, memory: &TableMemory, guard: &Guard, index: usize) {
        if let Some(unit) = self.unit(guard, index) {
            for slot in 0..fan::<F>() {
                F::Word::EMPTY.write(&unit, slot);
            }
            written::<F>(memory, &unit, 0..fan::<F>());
        }
        for form in self.forms(index) {
            form.store(0, Relaxed);
        }
    }
}

/// Reports that entries `slots` of a table were written.
#[inline]
fn written<F: Format>(memory: &TableMemory, unit: &TableUnit<'_>, slots: Range<usize>) {
    let bytes = size_of::<F::Word>();
    // CAST: Both have 64 bits.
    memory.written(
        unit.address() + (slots.start * bytes) as u64,
        slots.len() * bytes,
    );
}

/// Writes entries of one table page to its image.
pub(super) struct Publisher<'p, F: Format> {
    pub(super) pool: &'p Pool<F>,
    guard: &'p Guard,
    pub(super) page: TablePage<'p, F>,
    pub(super) unit: TableUnit<'p>,
    forms: &'p [Atomic<u32>],
    pub(super) places: &'p [SizeCell],
    pub(super) level: u32,
    /// Address that the first entry is for.
    base: usize,
    /// Entries that may have changed.
    pub(super) changed: Range<usize>,
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
    pub(super) fn write(&self, slots: Range<usize>, run: u32) -> bool {
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
    pub(super) fn write_empty(&self, slot: usize) {
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
    pub(super) fn publish(&self, batch: &mut FlushBatch<F>) {
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
    pub(super) fn span(&self, start: usize, count: usize) -> Option<PageRange> {
        let shift = shift::<F>(self.level);
        let first = self.base.checked_add(start << shift)?;
        PageRange::from_pages(first, count << (shift - PAGE_SHIFT as u32)).ok()
    }
}

impl<F: Format> Pool<F> {
    /// Writes entries `changed` of table `index`, which is that of `level` for `addr`, to its
    /// image. Does nothing without images. To be called before the flush of `batch` starts, by the
    /// owner of the table.
    #[inline]
    pub(super) fn publish(
        &self,
        index: u32,
        level: u32,
        addr: usize,
        changed: Range<usize>,
        batch: &mut FlushBatch<F>,
    ) {
        if self.has_images() && !changed.is_empty() {
            self.publish_image(index, level, addr, changed, batch);
        }
    }

    // Not in the loops of tables without.
    #[inline(never)]
    fn publish_image(
        &self,
        index: u32,
        level: u32,
        addr: usize,
        changed: Range<usize>,
        batch: &mut FlushBatch<F>,
    ) {
        let guard = rcu::read_lock();
        if let Some(publisher) = self.publisher(&guard, index, level, addr, changed) {
            publisher.publish(batch);
        }
    }

    /// For entries `changed` of table `index`, as [`Self::publish`]. `None` without images, or if
    /// the device is closed.
    #[inline]
    pub(super) fn publisher<'p>(
        &'p self,
        guard: &'p Guard,
        index: u32,
        level: u32,
        addr: usize,
        changed: Range<usize>,
    ) -> Option<Publisher<'p, F>> {
        let page = self.page(guard, index)?;
        let (images, at) = self.images(guard, index)?;
        Some(Publisher {
            pool: self,
            guard,
            page,
            unit: images.unit(guard, at)?,
            forms: images.forms(at),
            places: images.places(at),
            level,
            base: span_of::<F>(level + 1, addr).0,
            changed,
        })
    }

    /// Address of the image of table `index`; `None` without table memory, or if the device is
    /// closed.
    pub(super) fn address(&self, guard: &Guard, index: u32) -> Option<u64> {
        let (images, at) = self.images(guard, index)?;
        images.unit(guard, at).map(|unit| unit.address())
    }

    /// The entry with the address that the device uses, in device pages: that of the first one.
    #[inline]
    pub(super) fn seen_by_device(&self, entry: DevicePte) -> DevicePte {
        device_page::<F>(self.with_address(entry))
    }

    /// The entry with the address that the device uses, in CPU pages.
    #[inline]
    pub(super) fn with_address(&self, entry: DevicePte) -> DevicePte {
        if entry.is_device() {
            entry.with_number(entry.number().wrapping_add(self.device_pages()))
        } else {
            entry
        }
    }
}

impl<F: Format> TableReader<F> {
    /// Reads the word at `address`, a multiple of 8 and where the device finds it, of one of the
    /// tables on the way to `addr`. `None` if none of them is there. Context: any.
    pub(crate) fn image_word(&self, addr: usize, address: u64) -> Option<u64> {
        // CAST: A table has at most 16 KiB.
        let bytes = unit::<F>() as u64;
        let base = address & !(bytes - 1);
        let slot = (address & (bytes - 1)) / 8;
        let mut index = self.root;
        let guard = rcu::read_lock();
        for level in (0..F::LEVELS).rev() {
            let (images, at) = self.pool.images(&guard, index)?;
            let image = images.unit(&guard, at)?;
            if image.address() == base {
                // CAST: Both have 64 bits.
                return Some(image.read_u64(slot as usize));
            }
            let word = self.pool.load(&guard, index, slot_of::<F>(level, addr));
            match tree::decode(word) {
                Slot::Table(child) => index = child,
                Slot::Empty | Slot::Leaf(_) => return None,
            }
        }
        None
    }

    /// Address for the device of the device page of `addr`, whose CPU page has `entry`.
    #[inline]
    pub(crate) fn page_address(&self, entry: DevicePte, addr: usize) -> u64 {
        let part = (addr & !PAGE_MASK) >> F::PAGE_SHIFT;
        // CAST: Both have 64 bits.
        (self.pool.seen_by_device(entry).plus(part).number() as u64) << F::PAGE_SHIFT
    }
}

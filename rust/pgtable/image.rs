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
    entry::DevicePte,
    flush::FlushBatch,
    format::{
        device_page,
        fan,
        slot_of,
        smallest_run,
        span_of,
        unit,
        Format,
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
use crate::mm::table_memory::{
    TableMemory,
    TableUnit,
    TableUnits, //
};
use core::{
    marker::PhantomData,
    ops::Range, //
};
use kernel::{
    page::PAGE_MASK,
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

mod publisher;

pub(super) use publisher::Publisher;

/// The images of the table pages of a chunk.
pub(super) struct Images<F: Format> {
    units: TableUnits,
    /// For each group of entries that may be a run of the smallest size: the form in which it was
    /// written last, log2 of the entries of its run, or 0, and [`VALID`](publisher::VALID). Changed
    /// by the owner of the table only.
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
            F::Word::clear(&unit, 0..fan::<F>());
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

    /// As [`Self::publish`], for a table of level 0 in which no entry is left.
    #[inline]
    pub(super) fn publish_empty(
        &self,
        index: u32,
        addr: usize,
        changed: Range<usize>,
        batch: &mut FlushBatch<F>,
    ) {
        if self.has_images() && !changed.is_empty() {
            self.publish_empty_image(index, addr, changed, batch);
        }
    }

    // As `publish_image`.
    #[inline(never)]
    fn publish_empty_image(
        &self,
        index: u32,
        addr: usize,
        changed: Range<usize>,
        batch: &mut FlushBatch<F>,
    ) {
        let guard = rcu::read_lock();
        if let Some(publisher) = self.publisher(&guard, index, 0, addr, changed) {
            publisher.publish_empty(batch);
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

// SPDX-License-Identifier: GPL-2.0

//! A table of DMA addresses with its software device, and the pages that are mapped.

use super::super::*;
use crate::{
    mm::{
        addr::{
            PMD_ORDER,
            PMD_SIZE, //
        },
        dma::DmaDevice,
        folio::{
            Effort,
            LockedFolio, //
        },
        table_memory::TableMemory, //
    },
    pgtable::{
        FlushBatch,
        Flusher,
        Radix4, //
    }, //
};
use kernel::page::PAGE_SIZE;

/// A device whose flushes complete immediately.
struct AtOnce;

impl Flusher for AtOnce {
    type Pending = ();

    fn start(&self, _range: PageRange) {}

    fn wait(&self, (): ()) {}
}

/// A table of format `F`, its device and its windows, and the page frames that are mapped.
pub(super) struct FixtureOf<F: Format> {
    pub(super) device: Arc<DmaDevice>,
    pub(super) windows: Arc<DmaWindows>,
    pub(super) table: Table<DmaFormat<F>>,
    pub(super) folio: LockedFolio,
}

pub(super) type Fixture = FixtureOf<Radix4>;

impl<F: Format> FixtureOf<F> {
    pub(super) fn new() -> Result<Self> {
        let device = DmaDevice::software(c"hmm-kunit")?;
        let windows = DmaWindows::new(&device)?;
        Ok(Self {
            table: Table::with(Some(windows.clone()), TableMemory::none())?,
            device,
            windows,
            // The kernel reads the `struct page` of each frame that is mapped.
            folio: LockedFolio::alloc_system(None, 0, PMD_ORDER, Effort::Must)?,
        })
    }

    /// Returns entries for consecutive frames, by the index of the frame.
    pub(super) fn contiguous(&self) -> impl Fn(usize) -> DevicePte + Copy {
        let first = self.folio.pfn();
        move |index| DevicePte::system(first + index, true)
    }

    /// Returns entries of which no two neighbours have consecutive frames.
    pub(super) fn scattered(&self) -> impl Fn(usize) -> DevicePte + Copy {
        let entry = self.contiguous();
        move |index| entry(3 * index % PMD_PAGES)
    }

    pub(super) fn flush(batch: FlushBatch<DmaFormat<F>>) {
        batch.start(&AtOnce).wait(&AtOnce);
    }

    pub(super) fn install(
        &mut self,
        range: PageRange,
        entry: impl Fn(usize) -> DevicePte,
    ) -> Result {
        let mut prealloc = self.table.reader().prealloc();
        prealloc.refill()?;
        let mut batch = self.table.batch();
        let result = self
            .table
            .install(range, &mut prealloc, &mut batch, |addr, slot| {
                if let Some(index) = range.index_of(addr) {
                    *slot = entry(index);
                }
            });
        Self::flush(batch);
        result
    }

    /// Removes entries. Returns the tick of the flush that they wait for.
    pub(super) fn remove(&mut self, range: PageRange) -> u32 {
        let mut batch = self.table.batch();
        self.table
            .for_each(range, &mut batch, |_, entry| *entry = DevicePte::NONE);
        let tick = self.windows.tick();
        Self::flush(batch);
        tick
    }
}

impl<F: Format> Drop for FixtureOf<F> {
    /// Empties the table before it is freed, as the mirror does.
    fn drop(&mut self) {
        if let Ok(all) = pages(0, 16 * PMD_PAGES) {
            let tick = self.remove(all);
            self.windows.unmap(all, tick);
        }
    }
}

pub(super) fn pages(first: usize, count: usize) -> Result<PageRange> {
    PageRange::from_pages(16 * PMD_SIZE + first * PAGE_SIZE, count)
}

// SPDX-License-Identifier: GPL-2.0

//! The memory of a device: allocation, the CPU fault on it, eviction.

use crate::{
    mirror::{Place, PlaceMut},
    mm::{
        addr::PMD_PAGES,
        device_pages::{CpuFault, DevicePageOps, DevicePages, DeviceRange, FaultError, Kind},
        migrate::{Isolated, Select},
        notifier::Cookie,
        page::{CpuPages, CpuPagesMut, LockedFolio},
    },
    stats::{Counter, Stats},
};
use kernel::prelude::*;

mod cpu_fault;
mod evict;

/// One copy of a folio: 1 or 512 pages.
pub struct Copy<'a> {
    /// Where the contents come from; `None` asks for zeros.
    pub source: Option<Place<'a>>,
    /// Where they go.
    pub destination: PlaceMut<'a>,
}

/// What a driver says about its memory.
pub trait MemoryOps: Send + Sync + Sized + 'static {
    /// Copies the contents of a folio, or fills it with zeros.
    ///
    /// No CPU can change the source meanwhile. Context: the mmap lock is held and the pages are
    /// locked; may sleep; must not take the table lock of a mirror.
    ///
    /// # Errors
    ///
    /// Any. The folio then stays where it is, with its contents.
    fn copy(&self, copy: &Copy<'_>) -> Result;

    /// Whether the next allocation, of a folio of `order`, is to fail. For tests.
    fn fail_allocation(&self, order: u32) -> bool {
        let _ = order;
        false
    }
}

struct Ops<M> {
    driver: M,
    stats: Stats,
}

/// The memory of one device, shared by all mirrors of it.
///
/// Dropping it evicts all pages and waits for the last one. Context: may sleep.
#[pin_data(PinnedDrop)]
pub struct Memory<M: MemoryOps> {
    #[pin]
    pages: DevicePages<Ops<M>>,
}

impl<M: MemoryOps> Memory<M> {
    /// Prepares memory of at most `max_pages` pages of 4 KiB. It grows when it is used.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINVAL` if the limit or the start is invalid, see [`DevicePages::new`].
    pub fn new(driver: M, kind: Kind, max_pages: usize) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            pages <- DevicePages::new(
                kind,
                max_pages,
                Ops {
                    driver,
                    stats: Stats::new(),
                },
            ),
        }? Error)
    }

    /// The driver's side.
    pub fn driver(&self) -> &M {
        &self.pages.data().driver
    }

    /// Counters of CPU faults and evictions.
    pub fn stats(&self) -> &Stats {
        &self.pages.data().stats
    }

    /// How the CPU sees the memory.
    pub fn kind(&self) -> Kind {
        self.pages.kind()
    }

    /// Pages in use and pages that there are by now.
    pub fn usage(&self) -> (usize, usize) {
        (self.pages.used(), self.pages.total())
    }

    /// Most pages that there can be.
    pub fn limit(&self) -> usize {
        self.pages.limit()
    }

    pub(crate) fn owner(&self) -> Cookie {
        self.pages.owner()
    }

    /// Makes room; see [`DevicePages::grow`].
    pub(crate) fn grow(&self, pages: usize) -> Result {
        self.pages.grow(pages)
    }

    /// The device page number of page frame `pfn`, if it is one of this device.
    pub(crate) fn entry_number(&self, pfn: usize) -> Option<usize> {
        self.pages.lookup(pfn)
    }

    pub(crate) fn pfn(&self, number: usize) -> Option<usize> {
        self.pages.pfn(number)
    }

    /// The selection that takes this memory's pages.
    pub(crate) fn select(&self) -> Select {
        self.pages.data().select(&self.pages)
    }

    /// Whether a test wants the next allocation to fail.
    pub(crate) fn driver_fails(&self, order: u32) -> bool {
        self.driver().fail_allocation(order)
    }

    pub(crate) fn alloc(&self, order: u32) -> Option<LockedFolio> {
        if self.driver_fails(order) {
            return None;
        }
        self.pages.alloc(order)
    }

    /// Fills all destinations of `isolated`; see [`Ops::copy_all`].
    pub(crate) fn copy_all(&self, isolated: &mut Isolated<'_>) -> usize {
        self.pages.data().copy_all(&self.pages, isolated)
    }
}

#[pinned_drop]
impl<M: MemoryOps> PinnedDrop for Memory<M> {
    fn drop(self: Pin<&mut Self>) {
        self.evict_until_empty();
    }
}

impl<M: MemoryOps> Ops<M> {
    fn select(&self, pages: &DevicePages<Self>) -> Select {
        match pages.kind() {
            Kind::Private => Select::Private,
            Kind::Coherent { .. } => Select::Coherent,
        }
    }

    /// Fills all destinations of `isolated`, and takes back those that could not be filled.
    /// Returns the number of pages that failed.
    fn copy_all(&self, pages: &DevicePages<Self>, isolated: &mut Isolated<'_>) -> usize {
        let mut failed = 0;
        let mut next = 0;
        while let Some(entry) = isolated.entry_from(next) {
            next = entry.index + entry.pages;
            if entry.destination == 0 {
                continue;
            }
            let range = |pfn: usize| {
                pages.lookup(pfn).map(|first| DeviceRange {
                    first,
                    count: entry.pages,
                })
            };
            let copied = {
                let source = match entry.source {
                    crate::mm::migrate::Source::Hole => Some(None),
                    crate::mm::migrate::Source::Page(pfn) => {
                        place(isolated.source(entry.index), range(pfn)).map(Some)
                    }
                };
                let destination =
                    place_mut(isolated.destination(entry.index), range(entry.destination));
                match (source, destination) {
                    (Some(source), Some(destination)) => self.driver.copy(&Copy {
                        source,
                        destination,
                    }),
                    // Memory of another device that nobody here can read.
                    _ => Err(EINVAL),
                }
            };
            if copied.is_err() {
                isolated.abandon(entry.index);
                failed += entry.pages;
            }
        }
        failed
    }
}

fn place<'a>(cpu: Option<CpuPages<'a>>, device: Option<DeviceRange>) -> Option<Place<'a>> {
    cpu.map(Place::Cpu).or(device.map(Place::Device))
}

fn place_mut<'a>(
    cpu: Option<CpuPagesMut<'a>>,
    device: Option<DeviceRange>,
) -> Option<PlaceMut<'a>> {
    cpu.map(PlaceMut::Cpu).or(device.map(PlaceMut::Device))
}

impl<M: MemoryOps> DevicePageOps for Ops<M> {
    fn migrate_to_ram(pages: &DevicePages<Self>, fault: CpuFault<'_>) -> Result<(), FaultError> {
        let ops = pages.data();
        let moved = cpu_fault::serve(pages, &fault)?;
        ops.stats.add(Counter::CpuFaults, 1);
        ops.stats.add(Counter::CpuFaultPages, moved as u64);
        Ok(())
    }
}

// A copy is of one page or of one PMD.
const _: () = assert!(PMD_PAGES.is_power_of_two());

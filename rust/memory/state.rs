// SPDX-License-Identifier: GPL-2.0

//! Operations on the pages of a device memory: CPU faults, copies, and the release of pages.
//!
//! The core calls these from a CPU fault, with the mmap lock and the page locked, and when a page
//! is freed, in any context. Callbacks of the driver are called within a [`ReentryGuard`], so that
//! functions which would wait for the caller return `EDEADLK`.

use super::{
    arrivals::Arrivals,
    connection_cache::ConnectionCache,
    copy::{
        Cancel,
        CopyBatch, //
    },
    copying::Copying,
    cpu_fault,
    lru::Lru,
    mirrors::MirrorList,
    splits::Splits,
    steps::Steps,
    victims::Victims,
    worker::DeferredWork,
    CopyContext,
    CopyEndpoint,
    Memory,
    MemoryOps, //
};
use crate::{
    debug::{
        events::Event,
        stats::{
            Counter,
            Stats, //
        },
        trace, //
    },
    inject::DeviceFaults,
    kernel::reentry::ReentryGuard,
    mm::{
        addr::PMD_PAGES,
        device_pages::{
            CpuFault,
            DevicePageOps,
            DevicePages,
            DeviceRange,
            FaultError,
            MemoryKind, //
        },
        migrate::{
            Isolated,
            MigrateEntry,
            Source, //
        }, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            AtomicFlag, //
        },
        rcu, //
    }, //
};

/// State of a device memory, stored with its pages.
pub(super) struct MemoryState<M: MemoryOps> {
    pub(super) driver: M,
    /// Number of the memory in tracepoints.
    pub(super) id: u32,
    pub(super) stats: Stats,
    pub(super) mirrors: Pin<KBox<MirrorList>>,
    /// Spaces that have lost pages to an eviction and whose mirrors have not been notified yet.
    pub(super) victims: Pin<KBox<Victims>>,
    pub(super) lru: Lru,
    /// Number of evictions that are isolating pages.
    pub(super) evicting: Atomic<usize>,
    /// Steps of migrations to this memory.
    pub(super) arrivals: Pin<KBox<Arrivals>>,
    /// Steps of migrations from this memory.
    pub(super) departures: Pin<KBox<Steps>>,
    pub(super) connections: Pin<KBox<ConnectionCache>>,
    pub(super) deferred_work: Pin<KBox<DeferredWork>>,
    pub(super) splits: Pin<KBox<Splits<M>>>,
    /// Whether copies of the last step to this memory were still outstanding after the last one had
    /// been submitted.
    pub(super) is_asynchronous: AtomicFlag,
    pub(super) faults: DeviceFaults,
}

impl<M: MemoryOps> MemoryState<M> {
    /// Hands out the copies of all entries of `isolated` that have a destination. Returns their
    /// number.
    ///
    /// # Safety
    ///
    /// `isolated` must not be changed or dropped until `batch` was dropped.
    #[inline(never)]
    unsafe fn hand_out_all<R>(
        &self,
        pages: &DevicePages<Self>,
        other: Option<&DevicePages<Self>>,
        isolated: &Isolated<'_, R>,
        batch: &mut CopyBatch<'_>,
    ) -> usize {
        let _within = ReentryGuard::enter();
        // Pages move between system memory and this device. Pages that the CPU can address are
        // named by page frame number, all others by device page number.
        let private = matches!(pages.kind(), MemoryKind::Private);
        let cpu_sources = isolated.has_cpu_sources();
        let mut find_source = pages.pfn_lookup();
        let device_source = |pfn| find_source(pfn).map(CopyEndpoint::Device);
        let cpu_source = |pfn| Some(CopyEndpoint::Cpu(pfn));
        let mut find = pages.pfn_lookup();
        let mut device = |entry: &MigrateEntry| find(entry.destination).map(CopyEndpoint::Device);
        let cpu = |entry: &MigrateEntry| {
            let is_cpu = isolated.is_addressable(entry);
            is_cpu.then_some(CopyEndpoint::Cpu(entry.destination))
        };
        let copies = Copies {
            driver: &self.driver,
            other: other.map(|other| &other.data().driver),
            isolated,
            batch,
        };
        // A loop for each direction, so that its pages do not select theirs one by one.
        //
        // SAFETY: The requirements are those of this function.
        let count = unsafe {
            if let Some(other) = other {
                let mut find_other = other.pfn_lookup();
                let mut other = |pfn| find_other(pfn).map(CopyEndpoint::Device);
                let destination =
                    |entry: &MigrateEntry| cpu(entry).or_else(|| other(entry.destination));
                if cpu_sources {
                    copies.hand_out(cpu_source, destination)
                } else {
                    copies.hand_out(device_source, destination)
                }
            } else if !cpu_sources {
                copies.hand_out(device_source, |entry| cpu(entry).or_else(|| device(entry)))
            } else if private {
                copies.hand_out(cpu_source, |entry| device(entry).or_else(|| cpu(entry)))
            } else {
                copies.hand_out(cpu_source, |entry| cpu(entry).or_else(|| device(entry)))
            }
        };
        self.driver.ring_doorbell();
        count
    }
}

/// Copies of a migration, before the driver gets their jobs.
struct Copies<'m, 'a, 'b, M, R> {
    driver: &'m M,
    /// Driver of the destinations, if they are in the memory of another device.
    other: Option<&'m M>,
    isolated: &'m Isolated<'a, R>,
    batch: &'m mut CopyBatch<'b>,
}

impl<M: MemoryOps, R> Copies<'_, '_, '_, M, R> {
    /// Hands out the copies of all entries that have a destination. Returns their number. `source`
    /// finds the source with a page frame number, `destination` the destination of an entry.
    ///
    /// # Safety
    ///
    /// As for [`MemoryState::hand_out_all`].
    #[inline(always)]
    unsafe fn hand_out(
        self,
        mut source: impl FnMut(usize) -> Option<CopyEndpoint>,
        mut destination: impl FnMut(&MigrateEntry) -> Option<CopyEndpoint>,
    ) -> usize {
        let Self {
            driver,
            other,
            isolated,
            batch,
        } = self;
        let mut count = 0;
        batch.reserve(isolated.capacity());
        let with_destination = isolated.entries().filter(|entry| entry.destination != 0);
        for entry in with_destination {
            count += 1;
            let source = match entry.source {
                Source::Hole => Some(None),
                Source::Page(pfn) => source(pfn).map(Some),
            };
            let (Some(source), Some(destination)) = (source, destination(&entry)) else {
                // Memory of another device, which neither the CPU nor this driver can access.
                // Without a job, the entry counts as not copied.
                continue;
            };
            // SAFETY: The source is an isolated page and the destination belongs to the migration
            // alone. Both stay so until `batch` is dropped, by the function's requirements.
            unsafe {
                match other {
                    Some(other) => {
                        let job = batch.job(entry.index, entry.pages, source, destination);
                        driver.copy_to(other, job);
                    }
                    None => {
                        let index = entry.index;
                        let pages = entry.pages;
                        batch.hand_out(driver, index, pages, source, destination);
                    }
                }
            }
        }
        count
    }
}

impl<M: MemoryOps> Memory<M> {
    /// Returns the driver as the copier of a migration between system memory and this memory.
    pub(crate) fn copier(&self) -> Copier<'_, M> {
        Copier::new(self.pages(), None)
    }

    /// Returns the driver as the copier of a migration from this memory to `other`.
    pub(crate) fn copier_to<'c>(&'c self, other: &'c Self) -> Copier<'c, M> {
        Copier::new(self.pages(), Some(other.pages()))
    }
}

/// The driver that copies the pages of a migration.
pub(crate) struct Copier<'c, M: MemoryOps> {
    pages: &'c DevicePages<MemoryState<M>>,
    /// Memory of the destinations, if that of another device.
    other: Option<&'c DevicePages<MemoryState<M>>>,
}

impl<'c, M: MemoryOps> Copier<'c, M> {
    /// Selects the driver of `pages`, for copies between system memory and `pages`; with `other`,
    /// from `pages` to `other`.
    pub(super) fn new(
        pages: &'c DevicePages<MemoryState<M>>,
        other: Option<&'c DevicePages<MemoryState<M>>>,
    ) -> Self {
        Self { pages, other }
    }

    /// Submits the copies to all destinations of `copying`, and returns while they are outstanding.
    ///
    /// # Errors
    ///
    /// - Those of [`Copying::submit`].
    pub(crate) fn submit<'a, R>(
        self,
        copying: &mut Copying<'c, 'a, R>,
        copies: &'c mut CopyContext,
    ) -> Result {
        let Self { pages, other } = self;
        copying.submit(copies, pages.data(), pages.data().id, |isolated, batch| {
            // SAFETY: `Copying` owns both. It drops `batch`, which waits for the copies, before it
            // changes or returns the pages. If it is leaked, so are the pages.
            unsafe { pages.data().hand_out_all(pages, other, isolated, batch) }
        })
    }
}

impl<M: MemoryOps> Cancel for MemoryState<M> {
    fn cancel(&self) {
        let _within = ReentryGuard::enter();
        self.driver.cancelled();
    }
}

impl<M: MemoryOps> DevicePageOps for MemoryState<M> {
    fn migrate_to_ram(pages: &DevicePages<Self>, fault: CpuFault<'_>) -> Result<(), FaultError> {
        let ops = pages.data();
        let served = cpu_fault::handle(pages, &fault);
        let moved = match served {
            Ok(moved) => Ok(moved),
            Err(FaultError::Retry) => Ok(0),
            Err(FaultError::NoMemory) => Err(ENOMEM),
            Err(FaultError::Lost) => Err(EIO),
        };
        let address = fault.address();
        trace::cpu_fault(ops.id, address, moved);
        if ops.driver.wants_events() {
            let _within = ReentryGuard::enter();
            let space = fault.vma().space();
            ops.driver.event(space, &Event::CpuFault { address, moved });
        }
        if let Ok(moved) = moved {
            ops.stats.add(Counter::CpuFaults, 1);
            ops.stats.add(Counter::CpuFaultPages, moved as u64);
        }
        served.map(|_| ())
    }

    fn freed(pages: &DevicePages<Self>, range: DeviceRange) {
        // Pages are also freed in interrupts, which may occur while the task enters itself in the
        // table of callbacks. With a preemption count, `rcu::read_lock()` suffices: it makes
        // functions that wait refuse, and costs less for each page.
        let _within = (!cfg!(CONFIG_PREEMPT_COUNT)).then(ReentryGuard::enter_anywhere);
        let _section = rcu::read_lock();
        pages.data().driver.freed(range);
    }

    #[inline]
    fn pages_released(pages: &DevicePages<Self>, range: DeviceRange) {
        if range.count < PMD_PAGES {
            pages.data().lru.freed(range.first / PMD_PAGES);
        }
    }

    fn growing(pages: &DevicePages<Self>, range: DeviceRange) -> Result {
        pages.data().lru.prepare(range.first / PMD_PAGES)
    }
}

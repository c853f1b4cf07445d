// SPDX-License-Identifier: GPL-2.0

//! The memory of a device: allocation, the CPU fault on it, eviction.

use crate::{
    connection::Connection,
    events::Event,
    mirror::Peer,
    mm::{
        addr::{PageRange, PMD_PAGES},
        device_pages::{
            CpuFault, DevicePageOps, DevicePages, DeviceRange, FaultError, Kind, MAX_PIECES,
            PIECE_PAGES,
        },
        migrate::{Constant, Isolated, Migrated, Select, Source},
        notifier::Cookie,
        page::LockedFolio,
        trace,
    },
    policy::window::Windows,
    stats::{Counter, Stats},
    watch::{self, Seat},
    within::Within,
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic, AtomicFlag},
        Arc,
        SetOnce, //
    },
};

mod copy;
mod cpu_fault;
mod dma_copy;
mod evict;
mod idle;
mod known;
mod lru;
mod peers;
mod room;
mod unplug;
mod watched;

pub(crate) use copy::{Copies, End, Failed, RawJob};
pub use copy::{Copy, CopyJob};
pub use dma_copy::DmaCopy;
use idle::Idle;
use known::Known;
use lru::Lru;
pub(crate) use lru::Turn;
use peers::Peers;
pub(crate) use peers::Registration;

/// What a driver says about its memory.
pub trait MemoryOps: Send + Sync + Sized + 'static {
    /// Copies the contents of a folio, or fills it with zeros: at once, or later by whoever gets
    /// the job. If it fails the folio stays where it is, with its contents.
    ///
    /// Nobody can change the source meanwhile. Context: the mmap lock is held and the pages are
    /// locked, until all jobs are done; may sleep. Neither this nor who does the job later may take
    /// the table lock of a mirror or allocate with reclaim. From within this and [`Self::kick`],
    /// functions that wait fail with `EDEADLK`.
    fn copy(&self, job: CopyJob);

    /// Copies right now, for who can: that spares a job, its account, and waiting for it. `None`: give a
    /// job to [`Self::copy`]. Context and failures as there.
    fn copy_at_once(&self, copy: &Copy<'_>) -> Option<Result> {
        let _ = copy;
        None
    }

    /// All jobs of a step were handed over: start what was only queued.
    fn kick(&self) {}

    /// Jobs were cancelled, see [`CopyJob::is_cancelled`]: those that wait in a queue should end
    /// now, for a task that was killed waits for them. Context: as [`Self::copy`].
    fn cancelled(&self) {}

    /// Where to take the next folio of `order` from, as a device page number: for a driver that has its
    /// own allocator. If it is not free there, or for `None`, the library chooses. Context: as
    /// [`Self::copy`].
    fn choose(&self, order: u32) -> Option<usize> {
        let _ = order;
        None
    }

    /// A folio of the device's memory is about to be free. Context: any, also interrupts.
    fn freed(&self, range: DeviceRange) {
        let _ = range;
    }

    /// How this memory and `other`, that of another device of this driver, reach each other. `kind` is how
    /// the CPU sees the other one. Asked once for each pair of devices; of both answers the lesser counts.
    fn connection(&self, other: &Self, kind: Kind) -> Connection {
        let _ = (other, kind);
        Connection::None
    }

    /// As [`Self::copy`], from this memory to that of `other`, to which there is a connection. By default
    /// the job is dropped, which fails it.
    fn copy_to(&self, other: &Self, job: CopyJob) {
        let _ = (other, job);
    }

    /// Whether [`Self::event`] is to be called now: somebody wants to know. Context: as there.
    #[inline]
    fn wants_events(&self) -> bool {
        false
    }

    /// Something has happened in the address space `space`, to this memory: [`Event::CpuFault`]. Context: a folio
    /// lock is held, and the mmap lock; must not sleep or allocate with reclaim. Functions that wait fail with
    /// `EDEADLK`.
    fn event(&self, space: Cookie, event: &Event) {
        let _ = (space, event);
    }

    /// Whether the next allocation, of a folio of `order`, is to fail. For tests.
    fn fail_allocation(&self, order: u32) -> bool {
        let _ = order;
        false
    }
}

struct Ops<M> {
    driver: M,
    /// For tracepoints.
    id: u32,
    stats: Stats,
    peers: Pin<KBox<Peers>>,
    lru: Lru,
    windows: Windows,
    /// Evictions that isolate pages now.
    evicting: Atomic<usize>,
    /// The device is gone.
    gone: AtomicFlag,
    known: Pin<KBox<Known>>,
}

/// The memory of one device, shared by all mirrors of it.
///
/// Dropping it evicts all pages and waits for the last one. Context: may sleep.
#[pin_data(PinnedDrop)]
pub struct Memory<M: MemoryOps> {
    /// From the first use on. Gone before the pages are, of which it has a reference.
    idle: SetOnce<Idle<M>>,
    _seat: Seat,
    pages: Arc<DevicePages<Ops<M>>>,
}

impl<M: MemoryOps> Memory<M> {
    /// Prepares memory of at most `max_pages` pages of 4 KiB. It grows when it is used.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINVAL` if the limit or the start is invalid, see [`DevicePages::new`].
    pub fn new(driver: M, kind: Kind, max_pages: usize) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            idle: SetOnce::new(),
            pages: Self::pages(driver, kind, max_pages)?,
            _seat: Seat::new(watch::Kind::Device, pages.data().id, 0, pages.clone())?,
        }? Error)
    }

    // Not on the stack of whoever makes the device, too.
    #[inline(never)]
    fn pages(driver: M, kind: Kind, max_pages: usize) -> Result<Arc<DevicePages<Ops<M>>>> {
        // Before anything of that size is allocated.
        if max_pages > MAX_PIECES * PIECE_PAGES {
            return Err(EINVAL);
        }
        let ops = Ops {
            driver,
            id: trace::new_device(),
            stats: Stats::new(),
            peers: KBox::pin_init(Peers::new(), GFP_KERNEL)?,
            known: KBox::pin_init(Known::new(), GFP_KERNEL)?,
            windows: Windows::new()?,
            evicting: Atomic::new(0),
            gone: AtomicFlag::new(false),
            lru: Lru::new(max_pages.div_ceil(PMD_PAGES))?,
        };
        Arc::pin_init(DevicePages::new(kind, max_pages, ops), GFP_KERNEL)
    }

    /// The driver's side.
    pub fn driver(&self) -> &M {
        &self.pages.data().driver
    }

    /// Counters of CPU faults and evictions.
    pub fn stats(&self) -> &Stats {
        &self.pages.data().stats
    }

    /// Its number in what the library tells: tracepoints, debugfs.
    pub(crate) fn number(&self) -> u32 {
        self.pages.data().id
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

    /// Adds a mirror of the address space `space`.
    pub(crate) fn add_peer(&self, space: Cookie, peer: Arc<dyn Peer>) -> Result<Registration> {
        self.pages.data().windows.forget(space.number());
        self.pages.data().peers.add(space, peer)
    }

    pub(crate) fn owner(&self) -> Cookie {
        self.pages.owner()
    }

    /// Pieces of 256 MiB that there are, and of these those of which nothing is in use.
    pub fn pieces(&self) -> (usize, usize) {
        self.pages.pieces_idle()
    }

    /// Makes room; see [`DevicePages::grow`].
    pub(crate) fn grow(&self, pages: usize) -> Result {
        if self.is_gone() {
            return Err(ENODEV);
        }
        if self.idle.as_ref().is_none() {
            // Another thread may be faster; then this one's goes at once.
            self.idle.populate(Idle::new(self.pages.clone())?);
        }
        self.pages.grow(pages)
    }

    /// The device page number of page frame `pfn`, if it is one of this device.
    pub(crate) fn entry_number(&self, pfn: usize) -> Option<usize> {
        self.pages.lookup(pfn)
    }

    /// As [`Self::entry_number`], for frames that are close together.
    pub(crate) fn numbers(&self) -> impl FnMut(usize) -> Option<usize> + '_ {
        self.pages.finder()
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
        self.pages.data().fails(order)
    }

    pub(crate) fn alloc(&self, order: u32) -> Option<LockedFolio> {
        self.allocator().alloc(order)
    }

    /// Copies each page to its folio, one of ours; the numbers tell them apart, below 512. Says which could not be copied.
    pub(crate) fn copy_pages<'c>(
        &self,
        pairs: &[(usize, Constant, LockedFolio)],
        copies: &'c mut Copies,
    ) -> Failed<'c> {
        let ops = self.pages.data();
        let cancelled = || {
            let _within = Within::enter();
            ops.driver.cancelled();
        };
        copies.run(&cancelled, |batch| {
            let _within = Within::enter();
            batch.reserve(pairs.len());
            for (index, source, folio) in pairs {
                let destination = match (self.kind(), self.pages.number_of(folio)) {
                    (Kind::Private, Some(number)) => End::Device(number),
                    (Kind::Coherent { .. }, Some(_)) => End::Cpu(folio.pfn()),
                    _ => {
                        batch.fail(*index);
                        continue;
                    }
                };
                let source = End::Cpu(source.page().first_pfn());
                // SAFETY: Source and destination are alive as long as `pairs` is borrowed, which is longer than
                // `batch` exists; nobody else has the folio.
                unsafe { batch.hand_out(self.driver(), *index, 1, Some(source), destination) };
            }
            self.driver().kick();
        })
    }

    /// For some allocations in a row.
    pub(crate) fn allocator(&self) -> Allocator<'_, M> {
        Allocator {
            pages: &self.pages,
            _within: Within::enter(),
        }
    }

    /// Whether the CPU cannot address it.
    pub(crate) fn is_private(&self) -> bool {
        self.kind() == Kind::Private
    }

    /// What the drivers have said of connections.
    pub(crate) fn known(&self) -> &Known {
        &self.pages.data().known
    }

    /// Has drivers asked again for connections: the hardware has changed.
    pub fn connections_changed(&self) {
        known::forget();
    }

    /// See [`Peers::keep_reading`].
    pub(crate) fn keep_reading<'a, E>(
        &self,
        space: Cookie,
        range: PageRange,
        migrate: impl FnOnce() -> Result<Migrated<'a>, E>,
    ) -> Result<(), E> {
        let peers = &self.pages.data().peers;
        peers.keep_reading(space, self.owner(), range, migrate)
    }

    /// Copies what is isolated of this memory to destinations in `other`.
    pub(crate) fn copy_to<'c>(
        &self,
        other: &Self,
        isolated: &mut Isolated<'_>,
        copies: &'c mut Copies,
    ) -> Failed<'c> {
        let ops = self.pages.data();
        ops.copy_each(&self.pages, Some(&other.pages), isolated, copies)
    }

    /// Fills all destinations of `isolated`; see [`Ops::copy_all`].
    pub(crate) fn copy_all<'c>(
        &self,
        isolated: &mut Isolated<'_>,
        copies: &'c mut Copies,
    ) -> Failed<'c> {
        self.pages.data().copy_all(&self.pages, isolated, copies)
    }
}

/// Allocates pages of a device's memory. The task is within a callback as long as this exists.
pub(crate) struct Allocator<'m, M: MemoryOps> {
    pages: &'m DevicePages<Ops<M>>,
    _within: Within,
}

impl<M: MemoryOps> Allocator<'_, M> {
    /// Whether a test wants the next allocation to fail.
    pub(crate) fn driver_fails(&self, order: u32) -> bool {
        self.pages.data().driver.fail_allocation(order)
    }

    /// A folio of `order`, if there is one.
    pub(crate) fn alloc(&self, order: u32) -> Option<LockedFolio> {
        let ops = self.pages.data();
        if ops.gone.load(Relaxed) || self.driver_fails(order) {
            return None;
        }
        // What the driver says is a wish: only free pages are taken.
        let chosen = |number| Some((number, self.pages.alloc_at(number, order)?));
        let (number, folio) = ops
            .driver
            .choose(order)
            .and_then(chosen)
            .or_else(|| self.pages.alloc_numbered(order))?;
        ops.lru.touch(number / PMD_PAGES);
        Some(folio)
    }
}

#[pinned_drop]
impl<M: MemoryOps> PinnedDrop for Memory<M> {
    fn drop(self: Pin<&mut Self>) {
        known::forget();
        self.evict_until_empty();
    }
}

impl<M: MemoryOps> Ops<M> {
    /// Asks the driver whether the next allocation is to fail.
    fn fails(&self, order: u32) -> bool {
        let _within = Within::enter();
        self.driver.fail_allocation(order)
    }

    fn select(&self, pages: &DevicePages<Self>) -> Select {
        match pages.kind() {
            Kind::Private => Select::Private,
            Kind::Coherent { .. } => Select::Coherent,
        }
    }

    /// Fills all destinations of `isolated`, and takes back those that could not be filled. Says
    /// which these were, by the index of their entries.
    fn copy_all<'c>(
        &self,
        pages: &DevicePages<Self>,
        isolated: &mut Isolated<'_>,
        copies: &'c mut Copies,
    ) -> Failed<'c> {
        self.copy_each(pages, None, isolated, copies)
    }

    /// As [`Self::copy_all`]; with `other`, from this memory to that one.
    fn copy_each<'c>(
        &self,
        pages: &DevicePages<Self>,
        other: Option<&DevicePages<Self>>,
        isolated: &mut Isolated<'_>,
        copies: &'c mut Copies,
    ) -> Failed<'c> {
        let cancelled = || {
            let _within = Within::enter();
            self.driver.cancelled();
        };
        let failed = copies.run(&cancelled, |batch| {
            let _within = Within::enter();
            // Pages move between the system and this device. Memory that the CPU can address is addressed.
            let private = matches!(pages.kind(), Kind::Private);
            let from_private = private && !isolated.has_cpu_sources();
            let mut find = pages.finder();
            let mut device = |pfn| find(pfn).map(End::Device);
            batch.reserve(isolated.room());
            let with_destination = isolated.entries().filter(|entry| entry.destination != 0);
            for entry in with_destination {
                let source = match entry.source {
                    Source::Hole => Some(None),
                    Source::Page(pfn) if from_private => device(pfn).map(Some),
                    Source::Page(pfn) => isolated
                        .source(entry.index)
                        .map(|cpu| End::Cpu(cpu.first_pfn()))
                        .or_else(|| device(pfn))
                        .map(Some),
                };
                let cpu = || {
                    let cpu = isolated.destination(entry.index);
                    cpu.map(|cpu| End::Cpu(cpu.first_pfn()))
                };
                let destination = if let Some(other) = other {
                    cpu().or_else(|| other.lookup(entry.destination).map(End::Device))
                } else if private && !from_private {
                    device(entry.destination).or_else(cpu)
                } else {
                    cpu().or_else(|| device(entry.destination))
                };
                let (Some(source), Some(destination)) = (source, destination) else {
                    // Memory of another device that nobody here can read.
                    batch.fail(entry.index);
                    continue;
                };
                // SAFETY: Isolated pages and their destinations, which stay as they are while
                // `isolated` is borrowed; that is longer than `batch` exists.
                unsafe {
                    match other {
                        Some(other) => {
                            let job = batch.job(entry.index, entry.pages, source, destination);
                            self.driver.copy_to(&other.data().driver, job);
                        }
                        None => {
                            let (index, pages) = (entry.index, entry.pages);
                            batch.hand_out(&self.driver, index, pages, source, destination);
                        }
                    }
                }
            }
            self.driver.kick();
        });
        if failed.any() {
            let mut next = 0;
            while let Some(entry) = isolated.entry_from(next) {
                next = entry.index + entry.pages;
                if failed.is(entry.index) {
                    isolated.abandon(entry.index);
                }
            }
        }
        failed
    }
}

impl<M: MemoryOps> DevicePageOps for Ops<M> {
    fn migrate_to_ram(pages: &DevicePages<Self>, fault: CpuFault<'_>) -> Result<(), FaultError> {
        let ops = pages.data();
        let moved = cpu_fault::serve(pages, &fault);
        let traced = moved.map_err(|error| match error {
            FaultError::NoMemory => ENOMEM,
            FaultError::Lost => EIO,
        });
        let address = fault.address();
        trace::cpu_fault(ops.id, address, traced);
        if ops.driver.wants_events() {
            let _within = Within::enter();
            let moved = traced;
            let space = fault.vma().space();
            ops.driver.event(space, &Event::CpuFault { address, moved });
        }
        let moved = moved?;
        ops.stats.add(Counter::CpuFaults, 1);
        ops.stats.add(Counter::CpuFaultPages, moved as u64);
        Ok(())
    }

    fn freed(pages: &DevicePages<Self>, range: DeviceRange) {
        pages.data().driver.freed(range);
    }
}

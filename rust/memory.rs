// SPDX-License-Identifier: GPL-2.0

//! Device memory: allocation, CPU faults, eviction.
//!
//! A [`Memory`] is shared by all mirrors of the device. Its pages are ordinary pages of the
//! processes that map them. CPU faults and eviction need no mirror, because the process that
//! migrated a page may have exited or forked since.
//!
//! - `arrivals` and `steps` count migrations to and from the memory. An unplug waits for both.
//! - `reclaim` and `evict` free blocks, in the order that `lru` records. One task at a time claims
//!   a block.
//! - `splits` splits huge pages in a workqueue, because a CPU fault has a reference that prevents
//!   it. `worker` frees idle chunks in a thread, because reclaim cannot take the memory hotplug
//!   lock.
//! - `copy` and `copying` pass copies to the driver, and wait for them with the pages locked.
//! - `pipeline` is the sequence of all migrations, from the isolation to the end.

use crate::{
    debug::{
        registry::{
            self,
            DebugEntry, //
        },
        stats::Stats,
        trace, //
    },
    inject::DeviceFaults,
    kernel::{
        deferred::{
            Deferred,
            DropWaits, //
        },
        identity::{
            MemoryId,
            PgmapOwner, //
        },
        lock_classes, //
    },
    mm::{
        addr::PMD_PAGES,
        device_pages::{
            DevicePages,
            DeviceRange,
            MemoryKind,
            Owner,
            MAX_PAGES, //
        },
        migrate::Origin, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic,
            AtomicFlag, //
        },
        Arc,
        SetOnce, //
    }, //
};

mod allocator;
mod arrivals;
mod connect;
mod connection;
mod connection_cache;
mod copy;
mod copying;
mod cpu_fault;
mod debugfs;
mod dma_copy;
mod evict;
mod lru;
mod mirrors;
mod no_memory;
mod ops;
pub(crate) mod pipeline;
mod reclaim;
mod splits;
mod state;
mod steps;
mod unplug;
mod victims;
mod worker;

pub(crate) use allocator::Allocator;
pub(crate) use arrivals::Arrival;
use arrivals::Arrivals;
pub use connection::Connection;
use connection_cache::ConnectionCache;
#[cfg(CONFIG_RUST_HMM_CAPI)]
pub(crate) use copy::RawCopyJob;
pub(crate) use copy::{
    CopyContext,
    CopyEndpoint, //
};
pub use copy::{
    CopyDesc,
    CopyJob, //
};
pub(crate) use copying::Copying;
pub use dma_copy::DmaCopy;
use lru::Lru;
pub(crate) use lru::LruStamp;
use mirrors::MirrorList;
pub(crate) use mirrors::{
    MemoryClient,
    MirrorRegistration, //
};
pub use no_memory::NoMemory;
pub use ops::MemoryOps;
use splits::Splits;
pub(crate) use state::Copier;
use state::MemoryState;
pub(crate) use steps::StepGuard;
use steps::Steps;
use victims::Victims;
use worker::{
    DeferredWork,
    MemoryWorker, //
};

/// Memory of one device, shared by all its mirrors.
///
/// Dropping it evicts all pages, and waits until all are free. The driver copies the evicted pages.
/// Therefore `M` must own the copy engine.
///
/// # Context
///
/// The drop may sleep. In a callback, with a table lock held or in a section it returns at once;
/// a worker then evicts the pages after the callback has returned.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::memory::CopyJob;
/// use rust_hmm::memory::Memory;
/// use rust_hmm::memory::MemoryOps;
/// use rust_hmm::mm::device_pages::MemoryKind;
///
/// struct Vram;
///
/// impl MemoryOps for Vram {
///     // This device cannot copy: the pages stay in system memory.
///     fn copy(&self, job: CopyJob) {
///         job.complete(Err(EOPNOTSUPP));
///     }
/// }
///
/// let memory = KBox::pin_init(Memory::new(Vram, MemoryKind::Private, 4096), GFP_KERNEL)?;
/// assert_eq!(memory.limit(), 4096);
/// // In a suspend callback: no page stays on the device.
/// assert_eq!(memory.evict_all()?, 0);
/// # Ok::<(), Error>(())
/// ```
pub struct Memory<M: MemoryOps> {
    parts: Deferred<MemoryParts<M>>,
}

/// Parts of a device memory, in the order of their drop.
struct MemoryParts<M: MemoryOps> {
    /// Set on first use. Dropped before `pages`, to which it has a reference.
    worker: SetOnce<MemoryWorker<M>>,
    _debug_entry: DebugEntry,
    pages: Arc<DevicePages<MemoryState<M>>>,
}

impl<M: MemoryOps> DropWaits for MemoryParts<M> {
    /// The worker thread of the memory frees chunks. If it drops the last reference, the drop would
    /// wait for the thread itself.
    fn waits_for_current(&self) -> bool {
        self.worker.as_ref().is_some_and(MemoryWorker::is_current)
    }
}

impl<M: MemoryOps> MemoryParts<M> {
    fn new(
        owner: Option<Arc<Owner>>,
        driver: M,
        kind: MemoryKind,
        max_pages: usize,
    ) -> Result<Self> {
        let pages = Self::pages(owner, driver, kind, max_pages)?;
        Ok(Self {
            worker: SetOnce::new(),
            _debug_entry: DebugEntry::new(
                registry::ObjectKind::Device,
                pages.data().id,
                0,
                pages.clone(),
            )?,
            pages,
        })
    }

    // Not inlined: this saves stack of the caller.
    #[inline(never)]
    fn pages(
        owner: Option<Arc<Owner>>,
        driver: M,
        kind: MemoryKind,
        max_pages: usize,
    ) -> Result<Arc<DevicePages<MemoryState<M>>>> {
        // Checked before an allocation whose size depends on it.
        if max_pages > MAX_PAGES {
            return Err(EINVAL);
        }
        let ops = MemoryState {
            driver,
            id: trace::new_device(),
            stats: Stats::new(),
            mirrors: KBox::pin_init(MirrorList::new(), GFP_KERNEL)?,
            victims: KBox::pin_init(Victims::new(), GFP_KERNEL)?,
            connections: KBox::pin_init(ConnectionCache::new(), GFP_KERNEL)?,
            deferred_work: KBox::pin_init(DeferredWork::new(), GFP_KERNEL)?,
            splits: KBox::pin_init(Splits::new(), GFP_KERNEL)?,
            evicting: Atomic::new(0),
            arrivals: KBox::pin_init(Arrivals::new(), GFP_KERNEL)?,
            departures: KBox::pin_init(
                Steps::new(lock_classes::departures(), lock_classes::departures_idle()),
                GFP_KERNEL,
            )?,
            lru: Lru::new(max_pages.div_ceil(PMD_PAGES))?,
            is_asynchronous: AtomicFlag::new(false),
            faults: DeviceFaults::new(),
        };
        let pages = DevicePages::of_owner(owner, kind, max_pages, ops);
        Arc::pin_init(pages, GFP_KERNEL)
    }
}

impl<M: MemoryOps> Memory<M> {
    /// Creates memory of at most `max_pages` pages of `PAGE_SIZE`. Their numbers are below
    /// `max_pages`. The memory grows on demand. It may end within a huge page; the pages behind the
    /// last whole one are used as small pages.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    /// - `EINVAL` if the limit or the start is invalid, see
    ///   [`OwnedDevicePages::new`](crate::mm::device_pages::OwnedDevicePages::new).
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new(driver: M, kind: MemoryKind, max_pages: usize) -> impl PinInit<Self, Error> {
        Self::of_owner(None, driver, kind, max_pages)
    }

    /// Creates one of several memories of a device (tiles), all of which have the same `owner`.
    /// Otherwise as [`Self::new`].
    ///
    /// The driver lists the other memories in [`Device::tile`](crate::mirror::Device::tile).
    /// Device page numbers in [`MemoryOps`] and [`CopyJob`] begin at 0 in each memory. Numbers in
    /// device PTEs count all memories of the owner, see [`Self::locate`].
    ///
    /// # Errors
    ///
    /// - Those of [`Self::new`].
    /// - `EINVAL` if the owner would have more than [`MAX_PAGES`] pages.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new_tile(
        owner: Arc<Owner>,
        driver: M,
        kind: MemoryKind,
        max_pages: usize,
    ) -> impl PinInit<Self, Error> {
        Self::of_owner(Some(owner), driver, kind, max_pages)
    }

    fn of_owner(
        owner: Option<Arc<Owner>>,
        driver: M,
        kind: MemoryKind,
        max_pages: usize,
    ) -> impl PinInit<Self, Error> {
        try_init!(Self {
            parts: Deferred::new(|| MemoryParts::new(owner, driver, kind, max_pages), GFP_KERNEL)?,
        }? Error)
    }

    /// Converts `range`, whose numbers are those of the owner as in
    /// [`PageMemory::Device`](crate::mirror::PageMemory::Device), to numbers of this memory.
    /// Returns `None` if the pages belong to another memory.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn locate(&self, range: DeviceRange) -> Option<DeviceRange> {
        let first = self.local(range.first)?;
        Some(DeviceRange { first, ..range })
    }

    /// Converts the owner's number of a page to its number in this memory. Returns `None` if the
    /// page belongs to another memory.
    #[inline]
    pub(crate) fn local(&self, number: usize) -> Option<usize> {
        let local = number.checked_sub(self.pages().first())?;
        (local < self.limit()).then_some(local)
    }

    /// Returns the pages of the memory.
    #[inline]
    fn pages(&self) -> &Arc<DevicePages<MemoryState<M>>> {
        &self.parts.pages
    }

    /// Returns the driver's object.
    ///
    /// # Context
    ///
    /// Any.
    pub fn driver(&self) -> &M {
        &self.pages().data().driver
    }

    /// Returns the counters of CPU faults and evictions.
    ///
    /// # Context
    ///
    /// Any.
    pub fn stats(&self) -> &Stats {
        &self.pages().data().stats
    }

    /// Returns the number of the memory in tracepoints and debugfs.
    pub(crate) fn number(&self) -> u32 {
        self.pages().data().id
    }

    /// Returns the failures to inject into the device. Only for drivers for tests.
    ///
    /// # Context
    ///
    /// Any.
    pub fn faults(&self) -> &DeviceFaults {
        &self.pages().data().faults
    }

    /// Returns how the CPU can access the memory.
    ///
    /// # Context
    ///
    /// Any.
    pub fn kind(&self) -> MemoryKind {
        self.pages().kind()
    }

    /// Returns the number of pages in use, and of those that exist now.
    ///
    /// # Context
    ///
    /// Any.
    pub fn usage(&self) -> (usize, usize) {
        (self.pages().used(), self.pages().total())
    }

    /// Returns the maximum number of pages.
    ///
    /// # Context
    ///
    /// Any.
    pub fn limit(&self) -> usize {
        self.pages().limit()
    }

    /// Registers a mirror. Context: may sleep.
    pub(crate) fn add_peer(&self, mirror: Arc<dyn MemoryClient>) -> Result<MirrorRegistration> {
        self.pages().data().mirrors.add(mirror)
    }

    pub(crate) fn owner(&self) -> PgmapOwner {
        self.pages().owner()
    }

    /// Identifies the memory among those of the same owner.
    pub(crate) fn tile(&self) -> MemoryId {
        self.pages().tile()
    }

    /// Returns whether the owner may have other memories. If not, the owner's page numbers are
    /// those of this memory.
    #[inline]
    pub(crate) fn shares_owner(&self) -> bool {
        self.pages().shares_owner()
    }

    /// Returns the number of chunks of 256 MiB, and how many of them have no page in use.
    ///
    /// # Context
    ///
    /// Any.
    pub fn chunks(&self) -> (usize, usize) {
        self.pages().idle_chunks()
    }

    /// Adds pages to the memory until `pages` are free or the limit is reached; see
    /// [`DevicePages::add_chunks`].
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the device was unplugged.
    /// - `ENOMEM`
    /// - Those of [`DevicePages::add_chunks`].
    ///
    /// # Context
    ///
    /// May sleep; neither the mmap lock nor a folio lock may be held.
    pub(crate) fn add_chunks(&self, pages: usize) -> Result {
        if self.is_gone() {
            return Err(ENODEV);
        }
        self.start_worker()?;
        self.pages().add_chunks(pages)
    }

    /// Starts the worker thread, and allows splits of huge pages. Called before the first chunk is
    /// added.
    fn start_worker(&self) -> Result {
        self.pages().data().splits.open(self.pages());
        if self.parts.worker.as_ref().is_none() {
            // If a concurrent task has set it, this new worker is dropped at once.
            self.parts
                .worker
                .populate(MemoryWorker::new(self.pages().clone())?);
        }
        Ok(())
    }

    /// Returns the number in this memory of page frame `pfn`, or `None` if it belongs to another
    /// memory.
    pub(crate) fn lookup(&self, pfn: usize) -> Option<usize> {
        self.pages().lookup(pfn)
    }

    /// Returns the owner's number of the first page of this memory.
    #[inline]
    pub(crate) fn first_number(&self) -> usize {
        self.pages().first()
    }

    /// Returns the owner's number of page frame `pfn`, as device PTEs have it, or `None` if the
    /// page belongs to another memory.
    pub(crate) fn entry_number(&self, pfn: usize) -> Option<usize> {
        Some(self.pages().first() + self.pages().lookup(pfn)?)
    }

    /// Returns a function that does the same as [`Self::entry_number`], and is faster for page
    /// frames that are close together.
    pub(crate) fn numbers(&self) -> impl FnMut(usize) -> Option<usize> + '_ {
        let first = self.pages().first();
        let mut find = self.pages().pfn_lookup();
        move |pfn| Some(first + find(pfn)?)
    }

    /// Returns the page frame number of page `local` of this memory, or `None` if its chunk does
    /// not exist.
    pub(crate) fn pfn(&self, local: usize) -> Option<usize> {
        self.pages().pfn(local)
    }

    /// Identifies this memory as the source of an isolation.
    pub(crate) fn origin(&self) -> Origin {
        self.pages().origin()
    }

    /// Returns whether a test makes the next allocation fail.
    pub(crate) fn fails_allocation(&self) -> bool {
        self.pages().data().faults.fails_allocation()
    }

    /// Begins a step of a migration to this memory.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the device was unplugged.
    pub(crate) fn arrive(&self) -> Result<Arrival<'_>> {
        self.pages().data().arrivals.begin()
    }

    /// Begins a step of a migration from this memory. Must be called before the first page is
    /// isolated. An unplug waits until the step is dropped, because its copies need the device: the
    /// caller drops it when the copies have completed and the pages are mapped again.
    pub(crate) fn depart(&self) -> StepGuard<'_> {
        self.pages().data().departures.begin()
    }

    /// Allocates one folio, see [`Self::allocator`].
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(crate) fn alloc(
        &self,
        arrival: &Arrival<'_>,
        order: u32,
    ) -> Option<crate::mm::folio::LockedFolio> {
        self.allocator(1).alloc(arrival, order)
    }

    /// Requests that the huge page that begins at device page `number` is split, as a CPU fault
    /// does.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(crate) fn split_later(
        &self,
        number: usize,
    ) -> Result<Arc<crate::kernel::completion::TimedCompletion>> {
        self.pages().data().splits.begin(number, true)
    }

    /// Returns whether the huge page that begins at device page `number` is being split.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(crate) fn is_to_be_split(&self, number: usize) -> bool {
        self.pages().data().splits.is_splitting(number)
    }

    /// Returns an allocator that takes at most `ahead` small pages before they are needed. The
    /// caller keeps the folios as long as the allocator exists. Otherwise a block of which one was
    /// allocated would not stay a candidate for eviction.
    pub(crate) fn allocator(&self, ahead: usize) -> Allocator<'_, M> {
        Allocator::new(self.pages(), ahead)
    }

    /// Returns whether the CPU cannot address the memory.
    pub(crate) fn is_private(&self) -> bool {
        self.kind() == MemoryKind::Private
    }

    /// Returns the cached connections to other memories.
    pub(crate) fn connections(&self) -> &ConnectionCache {
        &self.pages().data().connections
    }

    /// Invalidates all cached connections, so that drivers are queried again. A driver calls this
    /// after a change of the hardware.
    ///
    /// # Context
    ///
    /// Any.
    pub fn invalidate_connections(&self) {
        connection_cache::invalidate();
    }

    /// Returns the driver as the copier of a migration between system memory and this memory.
    pub(crate) fn copier(&self) -> Copier<'_, M> {
        Copier::new(self.pages(), None)
    }

    /// Returns the driver as the copier of a migration from this memory to `other`.
    pub(crate) fn copier_to<'c>(&'c self, other: &'c Self) -> Copier<'c, M> {
        Copier::new(self.pages(), Some(other.pages()))
    }

    /// Stores whether copies of a step to this memory were still outstanding after the last one had
    /// been submitted.
    pub(crate) fn set_asynchronous(&self, yes: bool) {
        let flag = &self.pages().data().is_asynchronous;
        // The flag rarely changes. Not writing it keeps its cache line shared.
        if yes != flag.load(Relaxed) {
            flag.store(yes, Relaxed);
        }
    }

    /// Returns the flag that [`Self::set_asynchronous`] stored. If it is set, other steps may
    /// overlap with the copies of the next one.
    pub(crate) fn is_asynchronous(&self) -> bool {
        self.pages().data().is_asynchronous.load(Relaxed)
    }
}

impl<M: MemoryOps> Drop for MemoryParts<M> {
    fn drop(&mut self) {
        connection_cache::invalidate();
        self.evict_until_empty(evict::STAY_REPORT_ROUNDS);
        // Waits for the work items that hold references to the pages: the last reference must be
        // dropped here.
        self.pages.data().splits.close();
    }
}

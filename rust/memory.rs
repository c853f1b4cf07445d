// SPDX-License-Identifier: GPL-2.0

//! The memory of a device: allocation, the CPU fault on it, eviction.

use crate::{
    deferred::{
        Deferred,
        DropWaits, //
    },
    locks,
    mirror::Peer,
    mm::{
        addr::PMD_PAGES,
        device_pages::{DevicePages, DeviceRange, Kind, Owner, MAX_PAGES},
        mask::Mask,
        migrate::{Isolated, Origin},
        notifier::Cookie,
        trace,
    },
    policy::window::Windows,
    stats::Stats,
    watch::{self, Seat},
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic, AtomicFlag},
        Arc,
        SetOnce, //
    },
};

mod allocator;
mod arrivals;
mod chores;
mod copy;
mod copying;
#[cfg(CONFIG_KUNIT = "y")]
mod costs;
mod cpu_fault;
mod dma_copy;
mod driver;
mod evict;
mod known;
mod lru;
mod ops;
mod peers;
mod room;
mod splits;
mod steps;
mod unplug;
mod victims;
mod watched;

pub(crate) use allocator::Allocator;
pub(crate) use arrivals::Arrival;
use arrivals::Arrivals;
use chores::{Chores, Worker};
pub(crate) use copy::{Copies, End, RawJob};
pub use copy::{Copy, CopyJob};
pub(crate) use copying::Copying;
pub use dma_copy::DmaCopy;
pub use driver::MemoryOps;
use known::Known;
use lru::Lru;
pub(crate) use lru::Turn;
use ops::Ops;
use peers::Peers;
pub(crate) use peers::Registration;
use splits::Splits;
pub(crate) use steps::Step;
use steps::Steps;
use victims::Victims;

/// The memory of one device, shared by all mirrors of it.
///
/// Dropping it evicts all pages and waits for the last one. The copies of that are made by the
/// driver, so that what copies must be owned by `M`.
///
/// # Context
///
/// The drop may sleep. In a callback, with a table lock held and in a section it returns at once,
/// and a worker does all of this when the callback has returned.
pub struct Memory<M: MemoryOps> {
    parts: Deferred<Parts<M>>,
}

/// The parts of a device's memory, in the order of their drop.
struct Parts<M: MemoryOps> {
    /// From the first use on. Gone before the pages are, of which it has a reference.
    worker: SetOnce<Worker<M>>,
    _seat: Seat,
    pages: Arc<DevicePages<Ops<M>>>,
}

impl<M: MemoryOps> DropWaits for Parts<M> {
    /// Pages are split and given back by a thread of the memory's own.
    fn waits_for_current(&self) -> bool {
        self.worker.as_ref().is_some_and(Worker::is_current)
    }
}

impl<M: MemoryOps> Parts<M> {
    fn new(owner: Option<Arc<Owner>>, driver: M, kind: Kind, max_pages: usize) -> Result<Self> {
        let pages = Self::pages(owner, driver, kind, max_pages)?;
        Ok(Self {
            worker: SetOnce::new(),
            _seat: Seat::new(watch::Kind::Device, pages.data().id, 0, pages.clone())?,
            pages,
        })
    }

    // Not on the stack of whoever makes the device, too.
    #[inline(never)]
    fn pages(
        owner: Option<Arc<Owner>>,
        driver: M,
        kind: Kind,
        max_pages: usize,
    ) -> Result<Arc<DevicePages<Ops<M>>>> {
        // Before anything of that size is allocated.
        if max_pages > MAX_PAGES {
            return Err(EINVAL);
        }
        let ops = Ops {
            driver,
            id: trace::new_device(),
            stats: Stats::new(),
            peers: KBox::pin_init(Peers::new(), GFP_KERNEL)?,
            victims: KBox::pin_init(Victims::new(), GFP_KERNEL)?,
            known: KBox::pin_init(Known::new(), GFP_KERNEL)?,
            chores: KBox::pin_init(Chores::new(), GFP_KERNEL)?,
            splits: KBox::pin_init(Splits::new(), GFP_KERNEL)?,
            windows: Windows::new()?,
            evicting: Atomic::new(0),
            arrivals: KBox::pin_init(Arrivals::new(), GFP_KERNEL)?,
            departures: KBox::pin_init(
                Steps::new(locks::departures(), locks::departures_idle()),
                GFP_KERNEL,
            )?,
            lru: Lru::new(max_pages.div_ceil(PMD_PAGES))?,
            is_asynchronous: AtomicFlag::new(false),
        };
        let pages = DevicePages::of_owner(owner, kind, max_pages, ops);
        Arc::pin_init(pages, GFP_KERNEL)
    }
}

impl<M: MemoryOps> Memory<M> {
    /// Prepares memory of at most `max_pages` pages of 4 KiB. It grows when it is used.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINVAL` if the limit or the start is invalid, see [`DevicePages::new`].
    pub fn new(driver: M, kind: Kind, max_pages: usize) -> impl PinInit<Self, Error> {
        Self::of_owner(None, driver, kind, max_pages)
    }

    /// As [`Self::new`], one of several memories of a device (tiles), all of which have the same
    /// `owner`.
    ///
    /// The driver lists the other memories in [`Device::tile`](crate::mirror::Device::tile).
    /// Numbers of pages in [`MemoryOps`] and [`CopyJob`] begin at 0 in each memory. Those in entries
    /// are the owner's, see [`Self::locate`].
    ///
    /// # Errors
    ///
    /// As there; `EINVAL` if the owner would have more than [`MAX_PAGES`] pages.
    pub fn new_tile(
        owner: Arc<Owner>,
        driver: M,
        kind: Kind,
        max_pages: usize,
    ) -> impl PinInit<Self, Error> {
        Self::of_owner(Some(owner), driver, kind, max_pages)
    }

    fn of_owner(
        owner: Option<Arc<Owner>>,
        driver: M,
        kind: Kind,
        max_pages: usize,
    ) -> impl PinInit<Self, Error> {
        try_init!(Self {
            parts: Deferred::new(|| Parts::new(owner, driver, kind, max_pages), GFP_KERNEL)?,
        }? Error)
    }

    /// The pages of this memory that `range` names, whose numbers are the owner's: that of
    /// [`Place::Device`](crate::mirror::Place::Device). `None` if they are another memory's.
    /// Context: any.
    #[inline]
    pub fn locate(&self, range: DeviceRange) -> Option<DeviceRange> {
        let first = self.local(range.first)?;
        Some(DeviceRange { first, ..range })
    }

    /// The number in this memory of page `number` of the owner, if it is one of this memory.
    #[inline]
    pub(crate) fn local(&self, number: usize) -> Option<usize> {
        let local = number.checked_sub(self.pages().first())?;
        (local < self.limit()).then_some(local)
    }

    /// The pages of the memory.
    #[inline]
    fn pages(&self) -> &Arc<DevicePages<Ops<M>>> {
        &self.parts.pages
    }

    /// The driver's side.
    pub fn driver(&self) -> &M {
        &self.pages().data().driver
    }

    /// Counters of CPU faults and evictions.
    pub fn stats(&self) -> &Stats {
        &self.pages().data().stats
    }

    /// Its number in what the library tells: tracepoints, debugfs.
    pub(crate) fn number(&self) -> u32 {
        self.pages().data().id
    }

    /// How the CPU sees the memory.
    pub fn kind(&self) -> Kind {
        self.pages().kind()
    }

    /// Pages in use and pages that there are by now.
    pub fn usage(&self) -> (usize, usize) {
        (self.pages().used(), self.pages().total())
    }

    /// Most pages that there can be.
    pub fn limit(&self) -> usize {
        self.pages().limit()
    }

    /// Adds a mirror of the address space `space`.
    pub(crate) fn add_peer(&self, space: Cookie, peer: Arc<dyn Peer>) -> Result<Registration> {
        self.pages().data().windows.forget(space.number());
        self.pages().data().peers.add(peer)
    }

    pub(crate) fn owner(&self) -> Cookie {
        self.pages().owner()
    }

    /// Its name, where several memories may have the same owner.
    pub(crate) fn tile(&self) -> Cookie {
        self.pages().tile()
    }

    /// Whether the owner may have other memories. If not, numbers of the owner begin at 0, too.
    #[inline]
    pub(crate) fn shares_owner(&self) -> bool {
        self.pages().shares_owner()
    }

    /// Pieces of 256 MiB that there are, and of these those of which nothing is in use.
    pub fn pieces(&self) -> (usize, usize) {
        self.pages().pieces_idle()
    }

    /// Makes room; see [`DevicePages::grow`].
    pub(crate) fn grow(&self, pages: usize) -> Result {
        if self.is_gone() {
            return Err(ENODEV);
        }
        self.start_worker()?;
        self.pages().grow(pages)
    }

    /// Starts the worker thread, and lets huge pages be split. Called before the first piece is
    /// added.
    fn start_worker(&self) -> Result {
        self.pages().data().splits.open(self.pages());
        if self.parts.worker.as_ref().is_none() {
            // Another thread may be faster; then this one's goes at once.
            self.parts
                .worker
                .populate(Worker::new(self.pages().clone())?);
        }
        Ok(())
    }

    /// The number in this memory of page frame `pfn`, if it is one of this memory.
    pub(crate) fn lookup(&self, pfn: usize) -> Option<usize> {
        self.pages().lookup(pfn)
    }

    /// The first number that this memory has in entries.
    #[inline]
    pub(crate) fn first_number(&self) -> usize {
        self.pages().first()
    }

    /// The owner's number of page frame `pfn`, if it is in this memory.
    pub(crate) fn entry_number(&self, pfn: usize) -> Option<usize> {
        Some(self.pages().first() + self.pages().lookup(pfn)?)
    }

    /// As [`Self::entry_number`], for frames that are close together.
    pub(crate) fn numbers(&self) -> impl FnMut(usize) -> Option<usize> + '_ {
        let (first, mut find) = (self.pages().first(), self.pages().finder());
        move |pfn| Some(first + find(pfn)?)
    }

    /// The page frame of page `local` of this memory, if it is there.
    pub(crate) fn pfn(&self, local: usize) -> Option<usize> {
        self.pages().pfn(local)
    }

    /// This memory, as pages are isolated from it.
    pub(crate) fn origin(&self) -> Origin {
        self.pages().origin()
    }

    /// Whether a test wants the next allocation to fail.
    pub(crate) fn driver_fails(&self, order: u32) -> bool {
        self.pages().data().fails(order)
    }

    /// Begins a step that may bring pages. `ENODEV` if the device is gone.
    pub(crate) fn arrive(&self) -> Result<Arrival<'_>> {
        self.pages().data().arrivals.begin()
    }

    /// Begins a step that takes pages out, before it isolates the first. The step lasts until the
    /// copies have ended and the pages are mapped again: unplug waits for it, because the copies need
    /// the device.
    pub(crate) fn depart(&self) -> Step<'_> {
        self.pages().data().departures.begin()
    }

    /// One allocation, see [`Self::allocator`].
    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) fn alloc(
        &self,
        arrival: &Arrival<'_>,
        order: u32,
    ) -> Option<crate::mm::page::LockedFolio> {
        self.allocator(1).alloc(arrival, order)
    }

    /// As a fault has the huge page that begins at device page `number` split.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) fn split_later(&self, number: usize) -> Result<Arc<crate::mm::bell::Bell>> {
        self.pages().data().splits.begin(number, true)
    }

    /// Whether the huge page that begins at device page `number` is about to be split.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) fn is_to_be_split(&self, number: usize) -> bool {
        self.pages().data().splits.is_splitting(number)
    }

    /// For some allocations in a row, of at most `ahead` small pages, which are taken before they
    /// are needed. The caller keeps the folios as long as this exists: only so does a block of
    /// which one was taken stay a candidate for eviction.
    pub(crate) fn allocator(&self, ahead: usize) -> Allocator<'_, M> {
        Allocator::new(self.pages(), ahead)
    }

    /// Whether the CPU cannot address it.
    pub(crate) fn is_private(&self) -> bool {
        self.kind() == Kind::Private
    }

    /// What the drivers have said of connections.
    pub(crate) fn known(&self) -> &Known {
        &self.pages().data().known
    }

    /// Has drivers asked again for connections: the hardware has changed.
    pub fn connections_changed(&self) {
        known::forget();
    }

    /// Copies what is isolated of this memory to destinations in `other`.
    pub(crate) fn copy_to<R>(
        &self,
        other: &Self,
        isolated: &mut Isolated<'_, R>,
        copies: &mut Copies,
    ) -> Mask {
        let ops = self.pages().data();
        ops.copy_each(self.pages(), Some(other.pages()), isolated, copies)
    }

    /// Submits copies to all destinations of `copying`; see [`Ops::submit_all`].
    pub(crate) fn submit_all<'c, 'a, R>(
        &'c self,
        copying: &mut Copying<'c, 'a, R>,
        copies: &'c mut Copies,
    ) -> Result {
        let ops = self.pages().data();
        ops.submit_all(self.pages(), copying, copies)
    }

    /// Notes whether copies of a step to this memory were outstanding when all had been submitted.
    pub(crate) fn set_asynchronous(&self, yes: bool) {
        let flag = &self.pages().data().is_asynchronous;
        // The cache line of what changes rarely is not written for each step.
        if yes != flag.load(Relaxed) {
            flag.store(yes, Relaxed);
        }
    }

    /// Whether they were at the last step, so that others may overlap with the copies of the next
    /// one.
    pub(crate) fn is_asynchronous(&self) -> bool {
        self.pages().data().is_asynchronous.load(Relaxed)
    }
}

impl<M: MemoryOps> Drop for Parts<M> {
    fn drop(&mut self) {
        known::forget();
        self.evict_until_empty();
        // Work items hold references to the pages, of which the last one must be dropped here.
        self.pages.data().splits.close();
    }
}

// SPDX-License-Identifier: GPL-2.0

//! A mirror: a device page table that follows the address space of a process.
//!
//! [`Mirror`] owns the one lock, the *table lock*, under which the table is read and changed. The
//! table changes in three ways only: a [fault](Mirror::fault) installs what the CPU's page table
//! says, an invalidation removes or write-protects, and a migration switches entries that its
//! transaction still owns (`transaction`).

use crate::{
    attributes::Map,
    events::{Event as Told, Need},
    host_lock::HostLocks,
    locks,
    memory::{Memory, MemoryOps, Registration},
    mm::{
        addr::PageRange,
        dma::{DmaDevice, Windows},
        notifier::{Cookie, Event, IntervalNotifier, Reason, Subscriber},
        page::DirtyBatch,
        range_fault::AddressSpace,
        trace::Who,
    },
    pgtable::{Entry, FlushBatch, Flusher, Flushing, Format, Reader, Spares, Table},
    stats::{Counter, Stats},
    watch::{Kind, Seat},
    within::{self, Within},
};
use core::ops::ControlFlow;
use kernel::{
    mm::MmWithUser,
    page::PAGE_MASK,
    prelude::*,
    sync::{
        atomic::{
            ordering::{Full, Relaxed, Release},
            Atomic, //
        },
        Arc, CondVar, LockClassKey,
    },
    time::{Instant, Monotonic},
};

mod access;
mod attributes;
mod exclusive;
mod fault;
mod replica;
mod serve;
mod step;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;
pub(crate) mod transaction;
mod walker;
mod watch;

pub use access::{Place, PlaceMut, TableGuard, Target};
pub use fault::{Location, Snapshot};
pub use serve::Served;
pub(crate) use step::{Peer, Switched};
pub use walker::{Section, Unresolved, Walkers};

use replica::Replicas;
use transaction::Transactions;

/// What a driver says about the address-space side of its device.
pub trait Device: Send + Sync + Sized + 'static {
    /// The driver's view of its memory.
    type Memory: MemoryOps;

    /// How the device's page table looks.
    type Format: Format;

    /// What each walker of a software device holds, such as a TLB; `()` for other devices.
    type Walker: Send + Unpin + 'static;

    /// A TLB flush under way.
    type Flush: Send;

    /// The device's memory, if it has any.
    fn memory(&self) -> Option<&Memory<Self::Memory>>;

    /// Who accesses the system memory that the page table names: for a format of DMA addresses
    /// ([`OfDma`](crate::pgtable::OfDma)), and only for such a one. Asked once per mirror. Pages are mapped for it when
    /// entries are installed, and unmapped when [`Self::flush_wait`] has returned after they went.
    fn dma(&self) -> Option<&Arc<DmaDevice>> {
        None
    }

    /// Whether [`Self::flush_wait`] may sleep now. If so, events that must not wait are refused: the OOM
    /// reaper then leaves the memory that is mirrored to the process itself.
    fn flush_sleeps(&self) -> bool {
        true
    }

    /// The walkers that access memory through mirrors of this device. Asked once per mirror.
    fn walkers(&self) -> Option<Arc<Walkers<Self::Walker>>> {
        None
    }

    /// Whether a faultless migration is to leave writable entries as they are. That loses writes:
    /// it is there to prove that a test finds it.
    fn test_keep_write(&self) -> bool {
        false
    }

    /// Whether [`Self::event`] is to be called now: somebody wants to know. Context: as there.
    #[inline]
    fn wants_events(&self) -> bool {
        false
    }

    /// Something has happened to the memory that mirror number `mirror` of this device shows: see [`crate::events`].
    ///
    /// Context: what the event is about may be going on, up to an invalidation that must not wait for memory: the
    /// table lock may be held. Must not sleep or allocate with reclaim; functions of this library that wait fail with
    /// `EDEADLK`.
    fn event(&self, mirror: u32, event: &Told) {
        let _ = (mirror, event);
    }

    /// Starts to flush all translations of `range` from the device's TLBs.
    ///
    /// Entries in the range were just removed or write-protected; the device must not walk the
    /// table for them in between. Context: the table lock is held; must not allocate with reclaim.
    /// Functions of this library that wait fail with `EDEADLK`; walkers may be entered.
    fn flush_start(&self, range: PageRange) -> Self::Flush;

    /// Waits until the device uses no flushed translation any more.
    ///
    /// Context: called with or without the table lock; must not allocate with reclaim. As in
    /// [`Self::flush_start`], functions that wait fail with `EDEADLK`.
    fn flush_wait(&self, flush: Self::Flush);
}

/// What the table lock protects.
pub(crate) struct State<F: Format> {
    pub(crate) table: Table<F>,
    pub(crate) transactions: Transactions,
    /// Where entries went of memory that the device is to have mapped always, see
    /// [`Attributes::accessed_by`](crate::attributes::Attributes::accessed_by).
    pub(crate) lost: Option<PageRange>,
}

/// What the notifier calls.
pub(crate) struct Inner<D: Device> {
    device: D,
    /// For tracepoints.
    pub(crate) who: Who,
    stats: Stats,
    reader: Reader<D::Format>,
    /// The pages that are mapped for DMA.
    pub(crate) dma: Option<Arc<Windows>>,
    walkers: Option<Arc<Walkers<D::Walker>>>,
    /// Changes of entries from before the first one until after the flush. While there are any, an
    /// invalidation that finds no entries must flush too: they may be gone, and still in use.
    changing: Atomic<usize>,
    /// Faults in this address space that had to try again: new migrations, also those of other
    /// mirrors, let them go first for a while.
    starved: &'static Atomic<usize>,
    attributes: Pin<KBox<Map>>,
    replicas: Pin<KBox<Replicas>>,
    /// Pages that an eviction has taken, which is not told yet.
    taken: Atomic<usize>,
    /// When it was made: times are counted from here.
    born: Instant<Monotonic>,
    /// A migration has ended: who wants to install entries may try again.
    ended: Pin<KBox<CondVar>>,
}

/// A flush under way.
pub(crate) type Flush<D> = Flushing<Pending<<D as Device>::Flush>, <D as Device>::Format>;

/// The device's part of it, and what is unmapped at its end: what was retired in a range before this tick.
pub(crate) struct Pending<P> {
    flush: P,
    retired: Option<(PageRange, u32)>,
}

impl<D: Device> Flusher for Inner<D> {
    type Pending = Pending<D::Flush>;

    fn start(&self, range: PageRange) -> Pending<D::Flush> {
        let dma = self.dma();
        let _within = Within::enter();
        Pending {
            retired: dma.map(|windows| (range, windows.tick())),
            flush: self.device.flush_start(range),
        }
    }

    fn wait(&self, pending: Pending<D::Flush>) {
        {
            let _within = Within::enter();
            self.device.flush_wait(pending.flush);
        }
        if let Some(walkers) = &self.walkers {
            walkers.drain();
        }
        // The device uses none of it any more, and whoever owns the pages does not have them yet.
        if let (Some(windows), Some((range, tick))) = (self.dma(), pending.retired) {
            windows.unmap(range, tick);
        }
        self.changing.fetch_sub(1, Release);
        self.replicas.free_retired(&self.changing);
    }
}

impl<D: Device> Inner<D> {
    /// Lets `f` change the table. If that needs a flush it is started; to be waited for by
    /// [`Flushing::wait`], with or without the table lock.
    ///
    /// With `range` it is also flushed if flushes by others are under way.
    pub(crate) fn change<R>(
        &self,
        table: &mut Table<D::Format>,
        range: Option<PageRange>,
        f: impl FnOnce(&mut Table<D::Format>, &mut FlushBatch<D::Format>) -> R,
    ) -> (R, Option<Flush<D>>) {
        // Before the first entry changes: who sees one change, sees this.
        let others = self.changing.fetch_add(1, Full) != 0;
        let mut batch = table.batch();
        let result = f(table, &mut batch);
        if let Some(range) = range.filter(|_| others) {
            batch.cover(range);
        }
        if batch.is_empty() {
            self.changing.fetch_sub(1, Release);
            self.replicas.free_retired(&self.changing);
            return (result, None);
        }
        (result, Some(batch.start(self)))
    }

    pub(crate) fn device(&self) -> &D {
        &self.device
    }

    /// The pages that are mapped for DMA. Nothing in mirrors of other formats.
    #[inline]
    fn dma(&self) -> Option<&Arc<Windows>> {
        match D::Format::DMA {
            true => self.dma.as_ref(),
            false => None,
        }
    }

    /// Sees to it that the pages of `range` can be mapped. Context: may sleep; no lock may be held. `ENOMEM`; `ENODEV`.
    #[inline]
    pub(crate) fn prepare(&self, range: PageRange) -> Result {
        self.dma().map_or(Ok(()), |windows| windows.prepare(range))
    }

    /// Tells of `event`: who traces, and the driver. Context: any in which the event may happen.
    #[inline]
    pub(crate) fn tell(&self, event: &Told) {
        self.who.trace(event);
        if self.device.wants_events() {
            let _within = Within::enter();
            self.device.event(self.who.mirror(), event);
        }
    }

    /// An eviction that took pages of this mirror is over.
    pub(crate) fn evicted(&self, need: Need) {
        let pages = self.taken.xchg(0, Relaxed);
        if pages != 0 {
            self.tell(&Told::Evict { need, pages });
        }
    }

    /// Notes the pages of an entry as dirty that goes away or can no longer be written.
    #[inline]
    pub(crate) fn retire(dirty: &mut DirtyBatch, pages: usize, entry: Entry) {
        if entry.may_be_dirty() && !entry.is_device() {
            // SAFETY: The entry is in the table, so the pages are still mapped by the CPU: the
            // callback that announces the end of that has not returned, and does not before the batch
            // is dropped.
            unsafe { dirty.add(entry.number(), pages) };
        }
    }
}

impl<D: Device> Subscriber for Inner<D> {
    type Protected = State<D::Format>;
    type Pending = Flush<D>;

    fn invalidate(
        &self,
        state: &mut State<D::Format>,
        event: &Event<'_>,
    ) -> ControlFlow<(), Option<Flush<D>>> {
        if !event.blockable && self.device.flush_sleeps() {
            return ControlFlow::Break(());
        }
        let State {
            table,
            transactions,
            lost,
        } = state;
        let own = transactions.note(event);
        if event.reason == Reason::Unmap {
            self.attributes.lose(event.range);
        }
        let own = own.and_then(|name| transactions.get(name));
        let is_foreign = own.is_none();
        let keeps_reads = event.reason.keeps_reads();
        let copies = self.replicas.any();
        let mut changed = 0;
        let ((), flush) = self.change(table, Some(event.range), |table, batch| {
            let mut dirty = DirtyBatch::new();
            let (dirty, changed) = (&mut dirty, &mut changed);
            if own.is_none() && !keeps_reads && !copies {
                return table.remove_all(event.range, batch, move |entry, pages| {
                    Self::retire(dirty, pages, entry);
                    *changed += pages;
                });
            }
            let split = |span| own.is_some_and(|own| own.divides(span));
            // Called for each page: what does not change is part of it.
            table.for_each_split(event.range, batch, split, move |span, entry| {
                if own.is_some_and(|own| own.keeps(span, *entry)) {
                    return;
                }
                if keeps_reads && !entry.is_exclusive() {
                    if entry.is_writable() {
                        Self::retire(dirty, span.pages(), *entry);
                        *entry = entry.write_protected();
                        *changed += span.pages();
                    }
                    return;
                }
                Self::retire(dirty, span.pages(), *entry);
                if copies {
                    self.retire_copies(span, *entry);
                }
                *entry = Entry::NONE;
                *changed += span.pages();
            });
        });
        if let Some(windows) = self.dma().filter(|_| event.reason == Reason::Unmap) {
            windows.forget(event.range);
        }
        if changed != 0 && self.attributes.any_accessed() {
            *lost = Some(lost.map_or(event.range, |lost| lost.hull(&event.range)));
        }
        self.stats.add(Counter::Invalidations, 1);
        self.stats.add(Counter::InvalidatedPages, changed as u64);
        // By physical page the kernel unmaps as for any other reason.
        let may_evict = matches!(event.reason, Reason::Clear | Reason::Migrate) && is_foreign;
        if may_evict && changed != 0 {
            let memory = self.device.memory();
            if memory.is_some_and(|memory| memory.is_evicting()) {
                self.taken.add(changed, Relaxed);
            }
        }
        let (range, reason) = (event.range, event.reason);
        self.tell(&Told::Invalidate {
            range,
            reason,
            changed,
        });
        ControlFlow::Continue(flush)
    }

    fn finish(&self, flush: Flush<D>) {
        flush.wait(self);
    }
}

/// A device page table that follows the address space of a process.
///
/// Dropping it waits for callbacks that run, and flushes what the device still has; the address space
/// may be gone already. Context: may sleep; never from within a callback, for whose end it may wait.
pub struct Mirror<D: Device> {
    // First: no CPU fault may use the notifier when it goes.
    registration: Option<Registration>,
    _seat: Seat,
    pub(crate) notifier: Arc<IntervalNotifier<Inner<D>>>,
    host_locks: Pin<KBox<HostLocks>>,
}

impl<D: Device> Mirror<D> {
    /// Starts to mirror `mm` for `device`. Use [`new_mirror!`](crate::new_mirror), which makes a
    /// lock class for the caller.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINTR` if killed; `EDEADLK` within a callback; `EINVAL` if the format and [`Device::dma`] do not agree;
    /// `ENODEV` if the device of the latter is gone. Context: may sleep.
    pub fn new(
        mm: &MmWithUser,
        device: D,
        name: &'static CStr,
        key: Pin<&'static LockClassKey>,
    ) -> Result<Self> {
        within::may_wait()?;
        let dma = match device.dma() {
            Some(device) => Some(Windows::new(device)?),
            None => None,
        };
        let state = State {
            table: Table::with_windows(dma.clone())?,
            transactions: Transactions::new()?,
            lost: None,
        };
        let (ended_name, ended_key) = locks::ended();
        let inner = Inner {
            walkers: device.walkers(),
            reader: state.table.reader(),
            dma,
            device,
            who: Who::new(mm),
            stats: Stats::new(),
            changing: Atomic::new(0),
            starved: fault::starved(Cookie::of_space(mm)),
            attributes: Map::new()?,
            replicas: Replicas::new()?,
            taken: Atomic::new(0),
            born: Instant::now(),
            ended: KBox::pin_init(CondVar::new(ended_name, ended_key), GFP_KERNEL_ACCOUNT)?,
        };
        let notifier = Arc::pin_init(
            IntervalNotifier::new(mm, inner, state, name, key),
            GFP_KERNEL_ACCOUNT,
        )?;
        let registration = match notifier.subscriber().device().memory() {
            Some(memory) => Some(memory.add_peer(notifier.space(), notifier.clone())?),
            None => None,
        };
        let who = notifier.subscriber().who;
        let seat = Seat::new(Kind::Mirror, who.mirror(), who.pid(), notifier.clone())?;
        Ok(Self {
            registration,
            _seat: seat,
            notifier,
            host_locks: KBox::pin_init(HostLocks::new(), GFP_KERNEL_ACCOUNT)?,
        })
    }

    /// The driver's side.
    pub fn device(&self) -> &D {
        &self.notifier.subscriber().device
    }

    /// Counters of this mirror.
    pub fn stats(&self) -> &Stats {
        &self.notifier.subscriber().stats
    }

    /// Names the address space that it shows, as long as it exists. Context: any.
    pub fn space_name(&self) -> Cookie {
        self.notifier.space()
    }

    /// Whether the address space is still in use. It may end right after. Context: any.
    pub fn is_alive(&self) -> bool {
        self.notifier.is_alive()
    }

    /// Keeps the address space from being torn down. `EFAULT` if it is gone; `ENODEV` if the device is.
    pub(crate) fn space(&self) -> Result<AddressSpace<'_, Inner<D>>> {
        if self.device().memory().is_some_and(Memory::is_gone) {
            return Err(ENODEV);
        }
        AddressSpace::new(&self.notifier)
    }

    /// Removes the device's entries for `range`: the device no longer needs it.
    ///
    /// Pages that live in device memory stay there.
    ///
    /// # Errors
    ///
    /// `EDEADLK` within a callback. Context: may sleep.
    pub fn discard(&self, range: PageRange) -> Result {
        within::may_wait()?;
        remove(&self.notifier, range);
        Ok(())
    }

    /// Removes the entries of `range` for which `which` says so.
    pub(crate) fn remove_some(
        &self,
        range: PageRange,
        which: impl FnMut(PageRange, Entry) -> bool,
    ) {
        remove_some(&self.notifier, range, which);
    }

    /// What an update of the table needs; not filled yet.
    pub(crate) fn spares(&self) -> Spares<D::Format> {
        self.inner().reader.spares()
    }

    /// The locked ranges of the address space.
    pub(crate) fn host_locks(&self) -> &HostLocks {
        &self.host_locks
    }

    pub(crate) fn inner(&self) -> &Inner<D> {
        self.notifier.subscriber()
    }
}

impl<D: Device> Drop for Mirror<D> {
    fn drop(&mut self) {
        if within::may_wait().is_err() {
            // It may wait for the very callback that it is in. There is nowhere to put it meanwhile for
            // which the driver's module would wait.
            pr_err!("a mirror is dropped within a callback: that may never end\n");
        }
        // No CPU fault uses it from here on.
        self.registration = None;
        // What the device has written is dirty, and it uses nothing any more.
        if let Ok(all) = PageRange::new(0, usize::MAX & PAGE_MASK) {
            remove(&self.notifier, all);
        }
    }
}

/// Removes the entries of `range`, and waits until the device uses none of them.
fn remove<D: Device>(notifier: &IntervalNotifier<Inner<D>>, range: PageRange) {
    remove_some(notifier, range, |_, _| true);
}

/// As [`remove`], of the entries for which `which` says so.
fn remove_some<D: Device>(
    notifier: &IntervalNotifier<Inner<D>>,
    range: PageRange,
    mut which: impl FnMut(PageRange, Entry) -> bool,
) {
    let inner = notifier.subscriber();
    let mut guard = notifier.lock();
    let State {
        table,
        transactions,
        ..
    } = &mut *guard;
    // A migration under way must not bring them back.
    transactions.unmark(range);
    let mut changed = 0;
    let ((), flush) = inner.change(table, Some(range), |table, batch| {
        let mut dirty = DirtyBatch::new();
        table.for_each(range, batch, |span, entry| {
            if which(span, *entry) {
                Inner::<D>::retire(&mut dirty, span.pages(), *entry);
                inner.retire_copies(span, *entry);
                *entry = Entry::NONE;
                changed += span.pages();
            }
        });
    });
    // Waited for under the lock: a page that is unmapped meanwhile must not be found absent
    // here and still be in a TLB.
    if let Some(flush) = flush {
        flush.wait(inner);
    }
    inner.stats.add(Counter::InvalidatedPages, changed as u64);
}

/// Creates a [`Mirror`] with a lock class of the caller's own, which may be given a name.
#[macro_export]
macro_rules! new_mirror {
    ($mm:expr, $device:expr $(, $name:literal)? $(,)?) => {
        $crate::mirror::Mirror::new(
            $mm,
            $device,
            ::kernel::optional_name!($($name)?),
            ::kernel::static_lock_class!(),
        )
    };
}

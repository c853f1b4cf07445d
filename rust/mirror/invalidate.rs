// SPDX-License-Identifier: GPL-2.0

//! What a space tells its mirrors: entries go, the device is flushed, and what it wrote is dirty.

use super::{
    flushes::Flushes,
    transaction::{Transaction, Transactions},
    Device, Walkers,
};
use crate::{
    events::{Event as Told, Need},
    locks,
    memory::Memory,
    mm::{
        addr::PageRange,
        dma::Windows,
        notifier::{Cookie, Event, Member, Reason},
        page::DirtyBatch,
        rcu_map::RcuArc,
        trace::Who,
        word::peek_usize,
    },
    pgtable::{Entry, FlushBatch, Flushed, Flusher, Flushing, Format, Reader, Table, Unwritten},
    policy::Immovable,
    space::{Space, Window},
    stats::{Counter, Stats},
    within::Within,
};
use kernel::{
    mm::MmWithUser,
    prelude::*,
    sync::{
        atomic::{
            ordering::{Full, Relaxed, Release},
            Atomic, //
        },
        lock::mutex::MutexGuard,
        Arc,
        CondVar,
        LockClassKey,
        Mutex, //
    },
};

/// What the table lock protects.
pub(crate) struct State<F: Format> {
    pub(crate) table: Table<F>,
    pub(crate) transactions: Transactions,
    /// Where entries went of memory that the device is to have mapped always, see
    /// [`Attributes::accessed_by`](crate::attributes::Attributes::accessed_by).
    pub(crate) lost: Option<PageRange>,
    /// Where faults need not look for pages that could move.
    pub(crate) immovable: Immovable,
}

/// A mirror, as far as others use it: its space, migrations of other mirrors, evictions.
#[pin_data]
pub(crate) struct Inner<D: Device> {
    pub(super) device: D,
    /// Under the table lock.
    #[pin]
    state: Mutex<State<D::Format>>,
    #[pin]
    pub(super) flushes: Flushes<Flush<D>>,
    /// For tracepoints.
    pub(crate) who: Who,
    pub(super) stats: Stats,
    pub(super) reader: Reader<D::Format>,
    /// The pages that are mapped for DMA.
    pub(crate) dma: Option<Arc<Windows>>,
    pub(super) walkers: Option<Arc<Walkers<D::Walker>>>,
    /// Changes of entries from before the first one until after the flush. While there are any, an
    /// invalidation that finds no entries must flush too: they may be gone, and still in use.
    pub(super) changing: Atomic<usize>,
    /// What is known of the address space.
    pub(super) space: RcuArc<Space>,
    /// Names the device by what its mirrors share: its memory, or who accesses memory for it. The
    /// device keeps that, so that nothing else has the name as long as there is a mirror.
    pub(super) shared_name: Option<Cookie>,
    /// Pages that an eviction has taken, which is not told yet.
    taken: Atomic<usize>,
    /// A migration has ended: who wants to install entries may try again.
    pub(super) ended: Pin<KBox<CondVar>>,
}

/// A flush under way.
pub(crate) type Flush<D> = Flushing<Pending<<D as Device>::Flush>, <D as Device>::Format>;

/// The device's part of a flush of `range`, and the DMA mappings that are unmapped after it: those
/// of the range that were retired before the tick.
pub(crate) struct Pending<P> {
    flush: P,
    range: PageRange,
    tick: Option<u32>,
}

impl<D: Device> Flusher for Inner<D> {
    type Pending = Pending<D::Flush>;

    fn start(&self, range: PageRange) -> Pending<D::Flush> {
        let dma = self.dma();
        let _within = Within::enter();
        Pending {
            tick: dma.map(|windows| windows.tick()),
            flush: self.device.flush_start(range),
            range,
        }
    }

    fn wait(&self, pending: Pending<D::Flush>) {
        let Pending { flush, range, tick } = pending;
        {
            let _within = Within::enter();
            if let Some(walkers) = &self.walkers {
                walkers.drain(|walker| self.device.flush_walker(&flush, walker, range));
            }
            self.device.flush_wait(flush);
        }
        // The device uses none of it any more, and whoever owns the pages does not have them yet.
        if let (Some(windows), Some(tick)) = (self.dma(), tick) {
            windows.unmap(range, tick);
        }
        self.changing.fetch_sub(1, Release);
    }
}

impl<D: Device> Inner<D> {
    /// For a mirror of `mm` with `state`, whose lock has that class.
    pub(super) fn new(
        mm: &MmWithUser,
        space: RcuArc<Space>,
        device: D,
        state: State<D::Format>,
        dma: Option<Arc<Windows>>,
        (name, key): (&'static CStr, Pin<&'static LockClassKey>),
    ) -> impl PinInit<Self, Error> {
        let (ended, ended_key) = locks::ended();
        let who = Who::new(mm);
        try_pin_init!(Self {
            walkers: device.walkers(),
            shared_name: {
                let memory = device.memory().map(Memory::owner);
                memory.or_else(|| dma.as_ref().map(|windows| Cookie::of(windows.device())))
            },
            reader: state.table.reader(),
            dma,
            device,
            state <- Mutex::new(state, name, key),
            flushes <- Flushes::new(),
            who,
            stats: Stats::new(),
            changing: Atomic::new(0),
            space,
            taken: Atomic::new(0),
            ended: KBox::pin_init(CondVar::new(ended, ended_key), GFP_KERNEL_ACCOUNT)?,
        }? Error)
    }

    /// Takes the table lock. Context: may sleep; below the mmap lock and folio locks.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, State<D::Format>> {
        self.state.lock()
    }

    /// Takes the table lock, if nobody has it. Context: any but interrupts.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, State<D::Format>>> {
        self.state.try_lock()
    }

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
        self.change_beside(0, table, range, f)
    }

    /// As [`Self::change`], of an event that has begun `own` flushes, which have covered the range.
    fn change_beside<R>(
        &self,
        own: usize,
        table: &mut Table<D::Format>,
        range: Option<PageRange>,
        f: impl FnOnce(&mut Table<D::Format>, &mut FlushBatch<D::Format>) -> R,
    ) -> (R, Option<Flush<D>>) {
        // Before the first entry changes: who sees one change, sees this.
        let others = self.changing.fetch_add(1, Full) > own;
        let mut batch = table.batch();
        let result = f(table, &mut batch);
        if let Some(range) = range.filter(|_| others) {
            batch.cover(range);
        }
        if batch.is_empty() {
            self.changing.fetch_sub(1, Release);
            return (result, None);
        }
        (result, Some(batch.start(self)))
    }

    /// Writes the unwritten entries, whose flush has ended. Context: may sleep; takes the table
    /// lock.
    #[inline]
    pub(super) fn write_sizes(&self, unwritten: Option<Unwritten>) {
        if let Some(unwritten) = unwritten {
            self.write_now(unwritten);
        }
    }

    // Rare: tables of most formats have none.
    #[inline(never)]
    fn write_now(&self, unwritten: Unwritten) {
        let mut guard = self.lock();
        let ((), flush) = self.change(&mut guard.table, None, |table, batch| {
            table.write_sizes(unwritten, batch);
        });
        drop(guard);
        // None: an entry that cannot be written yet is empty already.
        let _flushed: Flushed = Flushing::end(flush, self);
    }

    pub(crate) fn device(&self) -> &D {
        &self.device
    }

    /// The pages that are mapped for DMA. Nothing in mirrors of other formats.
    #[inline]
    pub(super) fn dma(&self) -> Option<&Arc<Windows>> {
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
    // Always inlined: which event it is, is constant then.
    #[inline(always)]
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

    /// Notes the pages of an entry as dirty that goes away or can no longer be written. `dirty` is dropped before the
    /// callback, or the lock, ends that keeps the CPU's mapping.
    #[inline]
    pub(crate) fn retire(dirty: &mut DirtyBatch, pages: usize, entry: Entry) {
        if entry.may_have_dirtied() {
            // SAFETY: In the table: the CPU maps them until a callback returns, not before the batch is dropped.
            unsafe { dirty.add(entry.number(), pages) };
        }
    }
}

impl<D: Device> Member<Window> for Inner<D> {
    type Protected = State<D::Format>;

    fn mutex(&self) -> &Mutex<Self::Protected> {
        &self.state
    }

    fn is_told_by(&self, window: &Window) -> bool {
        window.is_of(&self.space)
    }
}

impl<D: Device> Inner<D> {
    /// Takes away what `event` is about. Returns whether it had entries that changed, and a flush that was begun.
    pub(super) fn invalidated(
        &self,
        state: &mut State<D::Format>,
        event: &Event<'_>,
    ) -> (bool, Option<Flush<D>>) {
        let State {
            table,
            transactions,
            lost,
            immovable,
        } = state;
        let own = transactions.note(event);
        let own = own.and_then(|name| transactions.get(name, event.range.start()));
        // What leaves the device may come again.
        if own.is_none_or(Transaction::takes_device_pages) {
            immovable.forget(event.range);
        }
        let is_foreign = own.is_none();
        let keeps_reads = event.reason.keeps_reads();
        // A flush that another window has begun for this event covers all of it.
        let own_flushes = match peek_usize(&self.changing) {
            0 => 0,
            _ => self.flushes.count(event.number()),
        };
        let range = Some(event.range);
        let (changed, flush) = self.change_beside(own_flushes, table, range, |table, batch| {
            let mut dirty = DirtyBatch::new();
            if own.is_none() && !keeps_reads {
                return table.remove_all(event.range, batch, |entry, pages| {
                    Self::retire(&mut dirty, pages, entry);
                });
            }
            let mut changed = 0;
            let split = |span| own.is_some_and(|own| own.divides(span));
            // Called for each page: what does not change is part of it.
            table.for_each_split(event.range, batch, split, |span, entry| {
                if own.is_some_and(|own| own.keeps(span, *entry)) {
                    return;
                }
                if keeps_reads && !entry.is_exclusive() {
                    if entry.is_writable() {
                        Self::retire(&mut dirty, span.pages(), *entry);
                        *entry = entry.write_protected();
                        changed += span.pages();
                    }
                    return;
                }
                Self::retire(&mut dirty, span.pages(), *entry);
                *entry = Entry::NONE;
                changed += span.pages();
            });
            changed
        });
        if let Some(windows) = self.dma().filter(|_| event.reason == Reason::Unmap) {
            windows.forget(event.range);
        }
        if changed != 0 && self.space.attributes().any_accessed() {
            *lost = Some(lost.map_or(event.range, |lost| lost.hull(&event.range)));
        }
        self.stats.add(Counter::Invalidations, 1);
        self.stats.add(Counter::InvalidatedPages, changed as u64);
        // By physical page the kernel unmaps as for any other reason.
        let may_evict = matches!(event.reason, Reason::Clear | Reason::Migrate) && is_foreign;
        if may_evict && changed != 0 {
            let memory = self.device.memory();
            if memory.is_some_and(|memory| memory.evicts_from(self.space.name())) {
                self.taken.add(changed, Relaxed);
            }
        }
        let (range, reason) = (event.range, event.reason);
        self.tell(&Told::Invalidate {
            range,
            reason,
            changed,
        });
        (changed != 0, flush)
    }
}

/// Removes the entries of `range`, and waits until the device uses none of them.
pub(super) fn remove<D: Device>(inner: &Inner<D>, range: PageRange) {
    remove_some(inner, range, |_, _| true);
}

/// As [`remove`], of the entries for which `which` says so.
pub(super) fn remove_some<D: Device>(
    inner: &Inner<D>,
    range: PageRange,
    mut which: impl FnMut(PageRange, Entry) -> bool,
) {
    let mut guard = inner.lock();
    let State {
        table,
        transactions,
        ..
    } = &mut *guard;
    let mut changed = 0;
    let mut behind = range.start();
    let ((), flush) = inner.change(table, Some(range), |table, batch| {
        let mut dirty = DirtyBatch::new();
        table.for_each(range, batch, |span, entry| {
            if which(span, *entry) {
                Inner::<D>::retire(&mut dirty, span.pages(), *entry);
                *entry = Entry::NONE;
                changed += span.pages();
                return;
            }
            // An entry that stays keeps its mark: without it, it would not be switched, and outlive its page.
            if let Ok(removed) = PageRange::new(behind, span.start()) {
                transactions.unmark(removed);
            }
            behind = span.end();
        });
    });
    // A migration under way must not bring back what was removed.
    if let Ok(removed) = PageRange::new(behind, range.end()) {
        transactions.unmark(removed);
    }
    // Waited for under the lock: a page that is unmapped meanwhile must not be found absent
    // here and still be in a TLB.
    if let Some(flush) = flush {
        flush.wait(inner);
    }
    inner.stats.add(Counter::InvalidatedPages, changed as u64);
}

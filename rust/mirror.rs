// SPDX-License-Identifier: GPL-2.0

//! A mirror: a device page table that follows the address space of a process.
//!
//! [`Mirror`] owns the one lock, the *table lock*, under which the table is read and changed. The
//! table changes in three ways only: a [fault](Mirror::fault) installs what the CPU's page table
//! says, an invalidation removes or write-protects, and a migration switches entries that its
//! transaction still owns (`transaction`).

use crate::{
    memory::{Memory, MemoryOps},
    mm::{
        addr::PageRange,
        notifier::{Event, IntervalNotifier, Subscriber},
        page,
        range_fault::AddressSpace,
    },
    pgtable::{Entry, Table},
    stats::{Counter, Stats},
};
use core::ops::ControlFlow;
use kernel::{
    mm::MmWithUser,
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Relaxed, Release},
            Atomic, //
        },
        LockClassKey,
    },
};

mod access;
mod exclusive;
mod fault;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;
pub(crate) mod transaction;

pub use access::{Place, PlaceMut, TableGuard};
pub use fault::{Location, Snapshot};

use transaction::Transactions;

/// What a driver says about the address-space side of its device.
pub trait Device: Send + Sync + Sized + 'static {
    /// The driver's view of its memory.
    type Memory: MemoryOps;

    /// A TLB flush under way.
    type Flush: Send;

    /// Whether [`Self::flush_wait`] may sleep. If so, events that must not wait are refused.
    const FLUSH_SLEEPS: bool = true;

    /// The device's memory, if it has any.
    fn memory(&self) -> Option<&Memory<Self::Memory>>;

    /// Starts to flush all translations of `range` from the device's TLBs.
    ///
    /// Entries in the range were just removed or write-protected; the device must not walk the
    /// table for them in between. Context: the table lock is held; must not allocate with reclaim.
    fn flush_start(&self, range: PageRange) -> Self::Flush;

    /// Waits until the device uses no flushed translation any more.
    ///
    /// Context: called with or without the table lock; must not allocate with reclaim.
    fn flush_wait(&self, flush: Self::Flush);
}

/// What the table lock protects.
pub(crate) struct State {
    pub(crate) table: Table,
    pub(crate) transactions: Transactions,
}

/// What the notifier calls.
pub(crate) struct Inner<D: Device> {
    device: D,
    stats: Stats,
    /// Flushes that an invalidation has started and not yet waited for. While there are any, an
    /// invalidation that finds no entries must flush too: the entries may be gone, and still in
    /// use.
    flushing: Atomic<usize>,
}

impl<D: Device> Inner<D> {
    /// Marks the page of an entry dirty that goes away or can no longer be written.
    fn retire(entry: Entry) {
        if entry.may_be_dirty() && !entry.is_device() {
            // SAFETY: The entry is in the table, so the page is still mapped by the CPU: the
            // callback that announces the end of that has not returned.
            unsafe { page::mark_dirty(entry.number()) };
        }
    }
}

impl<D: Device> Subscriber for Inner<D> {
    type Protected = State;
    type Pending = D::Flush;

    fn invalidate(
        &self,
        state: &mut State,
        event: &Event<'_>,
    ) -> ControlFlow<(), Option<D::Flush>> {
        if !event.blockable && D::FLUSH_SLEEPS {
            return ControlFlow::Break(());
        }
        let own = state.transactions.note(event);
        let mut changed = 0u64;
        state.table.for_each(event.range, |_, entry| {
            if !entry.is_valid() {
                return;
            }
            if own && entry.is_device() {
                // Our own migration takes pages of system memory only: these stay.
                return;
            }
            if event.reason.keeps_reads() && !entry.is_exclusive() {
                if entry.is_writable() {
                    Self::retire(*entry);
                    *entry = entry.write_protected();
                    changed += 1;
                }
                return;
            }
            Self::retire(*entry);
            *entry = Entry::NONE;
            changed += 1;
        });
        self.stats.add(Counter::Invalidations, 1);
        self.stats.add(Counter::InvalidatedPages, changed);
        if changed == 0 && self.flushing.load(Acquire) == 0 {
            return ControlFlow::Continue(None);
        }
        self.flushing.fetch_add(1, Relaxed);
        ControlFlow::Continue(Some(self.device.flush_start(event.range)))
    }

    fn finish(&self, flush: D::Flush) {
        self.device.flush_wait(flush);
        self.flushing.fetch_sub(1, Release);
    }
}

/// A device page table that follows the address space of a process.
///
/// Dropping it waits for callbacks that run; the address space may be gone already. Context: may
/// sleep; never from within a [`Device`] method.
#[pin_data]
pub struct Mirror<D: Device> {
    #[pin]
    pub(crate) notifier: IntervalNotifier<Inner<D>>,
}

impl<D: Device> Mirror<D> {
    /// Starts to mirror `mm` for `device`. Use [`new_mirror!`](crate::new_mirror), which makes a
    /// lock class for the caller.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINTR` if killed. Context: may sleep.
    pub fn new<'a>(
        mm: &'a MmWithUser,
        device: D,
        name: &'static CStr,
        key: Pin<&'static LockClassKey>,
    ) -> Result<impl PinInit<Self, Error> + use<'a, D>> {
        let state = State {
            table: Table::new()?,
            transactions: Transactions::default(),
        };
        let inner = Inner {
            device,
            stats: Stats::new(),
            flushing: Atomic::new(0),
        };
        Ok(try_pin_init!(Self {
            notifier <- IntervalNotifier::new(mm, inner, state, name, key),
        }? Error))
    }

    /// The driver's side.
    pub fn device(&self) -> &D {
        &self.notifier.subscriber().device
    }

    /// Counters of this mirror.
    pub fn stats(&self) -> &Stats {
        &self.notifier.subscriber().stats
    }

    /// Whether the address space is still in use. It may end right after.
    pub fn is_alive(&self) -> bool {
        self.notifier.mm().is_some()
    }

    /// Keeps the address space from being torn down. `EFAULT` if it is gone.
    pub(crate) fn space(&self) -> Result<AddressSpace<'_, Inner<D>>> {
        AddressSpace::new(&self.notifier)
    }

    /// Removes the device's entries for `range`: the device no longer needs it.
    ///
    /// Pages that live in device memory stay there. Context: may sleep.
    pub fn discard(&self, range: PageRange) {
        let inner = self.notifier.subscriber();
        let mut guard = self.notifier.lock();
        let mut changed = 0u64;
        guard.table.for_each(range, |_, entry| {
            if entry.is_valid() {
                Inner::<D>::retire(*entry);
                *entry = Entry::NONE;
                changed += 1;
            }
        });
        if changed != 0 {
            // Waited for under the lock: a page that is unmapped meanwhile must not be found
            // absent here and still be in a TLB.
            inner.device.flush_wait(inner.device.flush_start(range));
        }
        inner.stats.add(Counter::InvalidatedPages, changed);
    }
}

/// Creates a [`Mirror`] with a lock class of the caller's own.
#[macro_export]
macro_rules! new_mirror {
    ($mm:expr, $device:expr) => {
        $crate::mirror::Mirror::new(
            $mm,
            $device,
            ::kernel::optional_name!(),
            ::kernel::static_lock_class!(),
        )
    };
}

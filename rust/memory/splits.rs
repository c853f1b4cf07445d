// SPDX-License-Identifier: GPL-2.0

//! Huge pages that are split, because a CPU has touched one that cannot come back as such.
//!
//! The core splits only a folio that nobody else holds, but the fault holds it until its handler
//! has returned. So a work item of the workqueue `rust_hmm` splits it, one for each page, and all
//! at once: the flush of a device of one process must not hold up another process. It takes mmap
//! locks by trylock, and gives up after [`PATIENCE`].
//!
//! A task that has faulted in user mode sleeps until the work item has ended, before it returns to
//! user mode. Others cannot, because their callers in the kernel repeat the fault at once. These
//! return early as long as the work item tries, and fail after it has given up.

use super::{MemoryOps, Ops};
use crate::{
    deferred::{Recurring, Work},
    locks,
    mm::{
        bell::Bell,
        device_pages::{DevicePages, MmapLocks},
        migrate::Batch,
        task_work, //
    },
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc,
        Mutex, //
    },
    time::{delay::fsleep, Delta, Instant, Monotonic},
};

mod table;

pub(super) use table::Met;
use table::{Item, Table};

/// Time after which a work item gives up.
const PATIENCE: Delta = Delta::from_secs(2);

/// Tries of a work item in quick succession: the faulting task is about to release the folio.
const QUICK_TRIES: usize = 200;

/// Pause after a quick try, and after others.
const QUICK: Delta = Delta::from_micros(50);
const SLOW: Delta = Delta::from_millis(1);

/// Of faults that meet a work item and cannot release the mmap lock, one of so many does more than
/// return.
const VISITS: usize = 64;

/// The work item that splits a page.
struct Splitter<M: MemoryOps> {
    // Before the item, whose drop lets the memory be torn down.
    pages: Arc<DevicePages<Ops<M>>>,
    item: Item,
}

impl<M: MemoryOps> Splitter<M> {
    /// Returns whether the page is no longer huge.
    fn split(&self) -> bool {
        let begin = Instant::<Monotonic>::now();
        let mut batch = None;
        let mut tries = 0;
        while self.item.is_wanted() && begin.elapsed() < PATIENCE {
            batch = batch.or_else(|| Batch::new().ok());
            if let Some(batch) = &mut batch {
                if self.pages.split(self.item.number, MmapLocks::Own, batch) {
                    return true;
                }
            }
            fsleep(if tries < QUICK_TRIES { QUICK } else { SLOW });
            tries += 1;
        }
        false
    }
}

impl<M: MemoryOps> Work for Splitter<M> {
    fn run(&self) {
        let is_split = self.split();
        self.item.end(is_split);
    }
}

/// The huge pages of a memory that are split.
#[pin_data]
pub(super) struct Splits<M: MemoryOps> {
    table: Arc<Table>,
    /// What work items refer to; `None` before the first use and at the end.
    #[pin]
    pages: Mutex<Option<Arc<DevicePages<Ops<M>>>>>,
    /// Faults that met a work item, and could not release the mmap lock.
    visits: Atomic<usize>,
}

impl<M: MemoryOps> Splits<M> {
    pub(super) fn new() -> impl PinInit<Self, Error> {
        let (name, key) = locks::split_pages();
        try_pin_init!(Self {
            table: Table::new()?,
            pages <- Mutex::new(None, name, key),
            visits: Atomic::new(0),
        })
    }

    /// Lets work items begin. `pages` are those that have this. Context: may sleep.
    pub(super) fn open(&self, pages: &Arc<DevicePages<Ops<M>>>) {
        let mut place = self.pages.lock();
        if place.is_none() {
            *place = Some(pages.clone());
        }
    }

    /// Lets no work item begin, and waits for those that have begun. To be called when no page is
    /// left that a CPU could touch. Context: may sleep.
    pub(super) fn close(&self) {
        let pages = self.pages.lock().take();
        drop(pages);
        self.table.wait_until_idle();
    }

    /// Looks for the huge page that begins at device page `number`, for a fault that can sleep or
    /// not. Context: may sleep; a folio lock may be held.
    pub(super) fn meet(&self, number: usize, can_sleep: bool) -> Met {
        self.table.meet(number, can_sleep)
    }

    /// Has the huge page that begins at device page `number` split, soon. Returns the bell that
    /// rings when that has ended.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    /// - `ENODEV` if the memory is torn down
    ///
    /// # Context
    ///
    /// May sleep for memory. A folio lock may be held.
    pub(super) fn begin(&self, number: usize, can_sleep: bool) -> Result<Arc<Bell>> {
        let pages = self.pages.lock().clone().ok_or(ENODEV)?;
        let (bell, item) = self.table.begin(number, can_sleep)?;
        if let Some(item) = item {
            Recurring::new(Splitter { pages, item })?.queue();
        }
        Ok(bell)
    }

    /// A new huge page begins at device page `number`: the one that was there before is not split
    /// any more. Context: may sleep; a folio lock may be held.
    pub(super) fn forget(&self, number: usize) {
        self.table.forget(number);
    }

    /// Whether a fault that has met a work item is to return at once, so that it does not hold the
    /// page. One that cannot release the mmap lock (`!can_retry`) has to call notifiers from time
    /// to time: a range fault would be repeated until the work item gives up. Context: any.
    pub(super) fn returns_at_once(&self, can_retry: bool) -> bool {
        can_retry || self.visits.fetch_add(1, Relaxed) % VISITS != 0
    }

    /// Whether the huge page that begins at device page `number` is about to be split.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(super) fn is_splitting(&self, number: usize) -> bool {
        matches!(self.table.meet(number, true), Met::Splitting(_))
    }
}

/// Has the current task sleep until `bell` rings, before it returns to user mode. Returns whether
/// it will; if not, it is a kernel thread, or exits, or there is no memory. Context: may sleep.
pub(super) fn sleep_before_return(bell: Arc<Bell>) -> bool {
    task_work::sleep_before_return(bell).is_ok()
}

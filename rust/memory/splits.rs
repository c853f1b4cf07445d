// SPDX-License-Identifier: GPL-2.0

//! Splitting of huge device pages, for CPU faults that cannot bring them back whole.
//!
//! The core does not split a folio that has extra references, and the fault has one until its
//! handler returns. So a work item of the workqueue `rust_hmm` splits the folio. Each folio has a
//! work item of its own, and these run concurrently, because a device flush for one process must
//! not delay another process. A work item takes mmap locks by trylock, and gives up after
//! [`SPLIT_TIMEOUT`].
//!
//! A task that faulted in user mode sleeps until the work item has ended, before it returns to user
//! mode. For other faults the kernel repeats the fault immediately, so that the handler cannot
//! sleep for it. Such a fault returns early while the work item is running, and fails after the
//! work item has given up.

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
use super::Memory;
use super::{
    MemoryOps,
    MemoryState, //
};
use crate::{
    kernel::{
        completion::TimedCompletion,
        deferred::{
            Recurring,
            RecurringWork, //
        },
        lock_classes,
        task_work, //
    },
    mm::{
        device_pages::{
            DevicePages,
            MmapLocks, //
        },
        migrate::Batch, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    }, //
};

mod table;

pub(super) use table::Met;
use table::{
    SplitItem,
    SplitTable, //
};

/// Time after which a work item gives up.
const SPLIT_TIMEOUT: Delta = Delta::from_secs(2);

/// Number of tries with the short pause. The faulting task is about to release its reference.
const SPLIT_FAST_TRIES: usize = 200;

/// Pause after each of the first [`SPLIT_FAST_TRIES`] tries, and after later ones.
const SPLIT_FAST_INTERVAL: Delta = Delta::from_micros(50);
const SPLIT_SLOW_INTERVAL: Delta = Delta::from_millis(1);

/// One in `SPLIT_FAULT_RATIO` faults that meet a work item and cannot release the mmap lock
/// proceeds; the others return early.
const SPLIT_FAULT_RATIO: usize = 64;

/// The work item that splits a page.
struct SplitWork<M: MemoryOps> {
    // Dropped before the item, because dropping the item allows the memory to be torn down.
    pages: Arc<DevicePages<MemoryState<M>>>,
    item: SplitItem,
}

impl<M: MemoryOps> SplitWork<M> {
    /// Tries until the folio is split. Returns whether it was.
    fn split(&self) -> bool {
        let begin = Instant::<Monotonic>::now();
        let mut batch = None;
        let mut tries = 0;
        while self.item.is_wanted() && begin.elapsed() < SPLIT_TIMEOUT {
            batch = batch.or_else(|| Batch::new().ok());
            if let Some(batch) = &mut batch {
                if self.pages.split(self.item.number, MmapLocks::Own, batch) {
                    return true;
                }
            }
            fsleep(if tries < SPLIT_FAST_TRIES {
                SPLIT_FAST_INTERVAL
            } else {
                SPLIT_SLOW_INTERVAL
            });
            tries += 1;
        }
        false
    }
}

impl<M: MemoryOps> RecurringWork for SplitWork<M> {
    fn run(&self) {
        let is_split = self.split();
        self.item.end(is_split);
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
impl<M: MemoryOps> Memory<M> {
    /// Requests that the huge page that begins at device page `number` is split, as a CPU fault
    /// does.
    pub(crate) fn split_later(
        &self,
        number: usize,
    ) -> Result<Arc<crate::kernel::completion::TimedCompletion>> {
        self.pages().data().splits.begin(number, true)
    }

    /// Returns whether the huge page that begins at device page `number` is being split.
    pub(crate) fn is_to_be_split(&self, number: usize) -> bool {
        self.pages().data().splits.is_splitting(number)
    }
}

/// Huge pages of a device memory that are being split.
#[pin_data]
pub(super) struct Splits<M: MemoryOps> {
    table: Arc<SplitTable>,
    /// Reference for new work items. `None` before [`Self::open`] and after [`Self::close`].
    #[pin]
    pages: Mutex<Option<Arc<DevicePages<MemoryState<M>>>>>,
    /// Number of faults that met a work item and could not release the mmap lock.
    visits: Atomic<usize>,
}

impl<M: MemoryOps> Splits<M> {
    pub(super) fn new() -> impl PinInit<Self, Error> {
        let (name, key) = lock_classes::split_pages();
        try_pin_init!(Self {
            table: SplitTable::new()?,
            pages <- Mutex::new(None, name, key),
            visits: Atomic::new(0),
        })
    }

    /// Allows work items to begin. `pages` must be the owner of this object.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn open(&self, pages: &Arc<DevicePages<MemoryState<M>>>) {
        let mut place = self.pages.lock();
        if place.is_none() {
            *place = Some(pages.clone());
        }
    }

    /// Refuses new work items, and waits for those that have begun. Must be called when no page is
    /// left that a CPU could access.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn close(&self) {
        let pages = self.pages.lock().take();
        drop(pages);
        self.table.wait_until_idle();
    }

    /// Looks up the huge page that begins at device page `number`. `can_sleep` is whether the
    /// faulting task can sleep before it returns to user mode.
    ///
    /// # Context
    ///
    /// May sleep. A folio lock may be held.
    pub(super) fn meet(&self, number: usize, can_sleep: bool) -> Met {
        self.table.meet(number, can_sleep)
    }

    /// Queues the split of the huge page that begins at device page `number`. Returns the
    /// completion of the work item.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    /// - `ENODEV` if the memory is being torn down
    ///
    /// # Context
    ///
    /// May sleep for memory. A folio lock may be held.
    pub(super) fn begin(&self, number: usize, can_sleep: bool) -> Result<Arc<TimedCompletion>> {
        let pages = self.pages.lock().clone().ok_or(ENODEV)?;
        let (completion, item) = self.table.begin(number, can_sleep)?;
        if let Some(item) = item {
            Recurring::new(SplitWork { pages, item })?.queue();
        }
        Ok(completion)
    }

    /// Cancels the split of the huge page at device page `number`, because that page was freed and
    /// another huge page now begins there.
    ///
    /// # Context
    ///
    /// May sleep. A folio lock may be held.
    pub(super) fn cancel(&self, number: usize) {
        self.table.cancel(number);
    }

    /// Returns whether a fault that met a work item must return early, so that its reference does
    /// not make the split fail.
    ///
    /// A fault that cannot release the mmap lock (`!can_retry`) must proceed to the notifiers
    /// occasionally. Otherwise a range fault would be repeated until the work item gives up.
    ///
    /// # Context
    ///
    /// Any.
    pub(super) fn returns_at_once(&self, can_retry: bool) -> bool {
        can_retry || self.visits.fetch_add(1, Relaxed) % SPLIT_FAULT_RATIO != 0
    }

    /// Returns whether the huge page that begins at device page `number` is being split.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(super) fn is_splitting(&self, number: usize) -> bool {
        matches!(self.table.meet(number, true), Met::Splitting(_))
    }
}

/// Makes the current task sleep until `completion` is completed, before it returns to user mode.
/// Returns `false` if it will not, because it is a kernel thread, is exiting, or memory is short.
///
/// # Context
///
/// May sleep.
pub(super) fn sleep_before_return(completion: Arc<TimedCompletion>) -> bool {
    task_work::sleep_before_return(completion).is_ok()
}

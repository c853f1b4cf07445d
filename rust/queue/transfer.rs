// SPDX-License-Identifier: GPL-2.0

//! Memory operations of queues: migrate, prefetch, evict, copy.

use super::{
    pool::{
        JobProgress,
        ParallelJob, //
    },
    CancelToken,
    Queue,
    WorkerPool, //
};
use crate::{
    kernel::{
        completion::ktime_get_ns,
        fence::Fence, //
    },
    mirror::{
        Device,
        Mirror, //
    },
    mm::{
        addr::{
            PageRange,
            PMD_SIZE, //
        },
        range_fault::Access, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc, //
    }, //
};

/// An object that has a mirror, and keeps it open while an operation uses it.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::sync::Arc;
/// use rust_hmm::mirror::Device;
/// use rust_hmm::mirror::Mirror;
/// use rust_hmm::mm::addr::PageRange;
/// use rust_hmm::queue::HasMirror;
/// use rust_hmm::queue::Queue;
/// use rust_hmm::queue::TransferReport;
///
/// /// An open file, which stays open as long as an operation of its queue needs the mirror.
/// struct File<D: Device> {
///     mirror: Mirror<D>,
///     queue: Queue,
/// }
///
/// impl<D: Device> HasMirror for File<D> {
///     type Device = D;
///
///     fn mirror(&self) -> &Mirror<D> {
///         &self.mirror
///     }
/// }
///
/// fn prefetch<D: Device>(file: &Arc<File<D>>, range: PageRange) -> Result<usize> {
///     let report = Arc::new(TransferReport::new(), GFP_KERNEL)?;
///     let fence = file.queue.prefetch(KVec::new(), file.clone(), range, &report)?;
///     fence.synchronize(None)?;
///     Ok(report.moved())
/// }
/// ```
pub trait HasMirror: Send + Sync + Sized + 'static {
    /// The device of the mirror.
    type Device: Device;

    /// The mirror.
    ///
    /// # Context
    ///
    /// A kernel thread, or the task that calls the library. Must not sleep.
    fn mirror(&self) -> &Mirror<Self::Device>;

    /// Returns the worker pool that helps with operations, so that copies overlap with the CPU's
    /// work.
    ///
    /// # Context
    ///
    /// A kernel thread. Must not sleep.
    fn worker_pool(&self) -> Option<&WorkerPool> {
        None
    }

    /// Makes the device copy `from` to `to`, which has the same length, and waits for it.
    ///
    /// # Errors
    ///
    /// - `ECANCELED` if `cancel_token` was set.
    /// - `EINVAL` by default: the device cannot copy.
    ///
    /// # Context
    ///
    /// A kernel thread. Must return soon after `cancel_token` is set.
    fn copy(self: &Arc<Self>, to: PageRange, from: PageRange, stop: &CancelToken) -> Result {
        let _ = (to, from, stop);
        Err(EINVAL)
    }
}

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// To the device.
    ToDevice,
    /// To the device, which gets entries for all pages, also for those that stay in place.
    Prefetch,
    /// To system memory.
    ToSystem,
}

/// Result of an operation, and its times. It is final when the fence of the operation has
/// signalled.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::queue::TransferReport;
///
/// let report = TransferReport::new();
/// report.during(|| Ok(()))?;
/// let (began, ended) = report.times();
/// assert!(began <= ended);
/// assert_eq!((report.moved(), report.stayed()), (0, 0));
/// # Ok::<(), Error>(())
/// ```
pub struct TransferReport {
    moved: Atomic<usize>,
    stayed: Atomic<usize>,
    began: Atomic<u64>,
    ended: Atomic<u64>,
}

impl TransferReport {
    /// Creates an empty report.
    ///
    /// # Context
    ///
    /// Any.
    pub const fn new() -> Self {
        Self {
            moved: Atomic::new(0),
            stayed: Atomic::new(0),
            began: Atomic::new(0),
            ended: Atomic::new(0),
        }
    }

    /// Executes `operation`, and records when it began and ended.
    ///
    /// # Errors
    ///
    /// - Those of `operation`.
    ///
    /// # Context
    ///
    /// As for `operation`.
    pub fn during(&self, operation: impl FnOnce() -> Result) -> Result {
        self.began.store(ktime_get_ns(), Relaxed);
        let result = operation();
        self.ended.store(ktime_get_ns(), Relaxed);
        result
    }

    /// Returns the number of pages that moved.
    ///
    /// # Context
    ///
    /// Any.
    pub fn moved(&self) -> usize {
        self.moved.load(Relaxed)
    }

    /// Returns the number of pages that did not move: skipped, no memory, or a failed copy.
    ///
    /// # Context
    ///
    /// Any.
    pub fn stayed(&self) -> usize {
        self.stayed.load(Relaxed)
    }

    /// Returns when the operation began and ended, in ns of the monotonic clock. A time is 0 if
    /// that has not happened.
    ///
    /// # Context
    ///
    /// Any.
    pub fn times(&self) -> (u64, u64) {
        (self.began.load(Relaxed), self.ended.load(Relaxed))
    }
}

impl Default for TransferReport {
    fn default() -> Self {
        Self::new()
    }
}

/// A transfer, divided into blocks.
struct TransferBlocks<H: HasMirror> {
    owner: Arc<H>,
    range: PageRange,
    transfer: Transfer,
    report: Arc<TransferReport>,
    stop: CancelToken,
}

impl<H: HasMirror> TransferBlocks<H> {
    fn first(&self) -> usize {
        self.range.start() / PMD_SIZE
    }
}

impl<H: HasMirror> ParallelJob for TransferBlocks<H> {
    fn count(&self) -> usize {
        (self.range.end() - 1) / PMD_SIZE - self.first() + 1
    }

    fn part(&self, index: usize) -> Result {
        self.stop.check()?;
        let start = (self.first() + index).saturating_mul(PMD_SIZE);
        let block = PageRange::new(
            start.max(self.range.start()),
            start.saturating_add(PMD_SIZE).min(self.range.end()),
        )?;
        let mirror = self.owner.mirror();
        let migration = mirror.migrate(block).cancel_token(self.stop.clone());
        let outcome = match self.transfer {
            Transfer::ToDevice | Transfer::Prefetch => migration.to_device(),
            Transfer::ToSystem => migration.to_system(),
        }?;
        // Relaxed: counters. A task that has waited for the operation sees them by that.
        self.report.moved.add(outcome.moved, Relaxed);
        let stayed = outcome.skipped + outcome.no_memory + outcome.copy_failed;
        self.report.stayed.add(stayed, Relaxed);
        self.stop.check()?;
        if self.transfer == Transfer::Prefetch {
            mirror.fault(block, Access::Read)?;
        }
        Ok(())
    }
}

impl Queue {
    fn transfer<H: HasMirror>(
        &self,
        after: KVec<Fence>,
        owner: Arc<H>,
        range: PageRange,
        transfer: Transfer,
        report: &Arc<TransferReport>,
    ) -> Result<Fence> {
        let report = report.clone();
        self.submit(after, move |stop| {
            let blocks = JobProgress::new(TransferBlocks {
                owner,
                range,
                transfer,
                report,
                stop: stop.clone(),
            })?;
            let parts = blocks.parts();
            let run = || WorkerPool::run(parts.owner.worker_pool(), &blocks);
            parts.report.during(run)
        })
    }

    /// Migrates `range` to the device when all fences of `after` have signalled. The returned fence
    /// signals when the migration has ended. Blocks of [`PMD_SIZE`] are migrated independently, so
    /// that their copies overlap. Pages that stay are not an error.
    ///
    /// # Errors
    ///
    /// - Those of [`Queue::submit`].
    /// - The fence has the errors of [`Migrate::to_device`](crate::migrate::Migrate).
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn migrate<H: HasMirror>(
        &self,
        after: KVec<Fence>,
        owner: Arc<H>,
        range: PageRange,
        report: &Arc<TransferReport>,
    ) -> Result<Fence> {
        self.transfer(after, owner, range, Transfer::ToDevice, report)
    }

    /// Like [`Self::migrate`]. After it, the device can read all of `range` without a fault, until
    /// an invalidation.
    ///
    /// # Errors
    ///
    /// - Those of [`Self::migrate`].
    /// - The fence may also have the errors of [`Mirror::fault`].
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn prefetch<H: HasMirror>(
        &self,
        after: KVec<Fence>,
        owner: Arc<H>,
        range: PageRange,
        report: &Arc<TransferReport>,
    ) -> Result<Fence> {
        self.transfer(after, owner, range, Transfer::Prefetch, report)
    }

    /// Migrates pages of `range` from the device memory to system memory.
    ///
    /// # Errors
    ///
    /// - Those of [`Self::migrate`].
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn evict<H: HasMirror>(
        &self,
        after: KVec<Fence>,
        owner: Arc<H>,
        range: PageRange,
        report: &Arc<TransferReport>,
    ) -> Result<Fence> {
        self.transfer(after, owner, range, Transfer::ToSystem, report)
    }

    /// Makes the device copy `from` to `to`.
    ///
    /// # Errors
    ///
    /// - Those of [`Queue::submit`].
    /// - `EINVAL` if the ranges differ in length, or overlap.
    /// - The fence has the errors of [`HasMirror::copy`].
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn copy<H: HasMirror>(
        &self,
        after: KVec<Fence>,
        owner: Arc<H>,
        to: PageRange,
        from: PageRange,
        report: &Arc<TransferReport>,
    ) -> Result<Fence> {
        if to.pages() != from.pages() || to.intersect(&from).is_some() {
            return Err(EINVAL);
        }
        let report = report.clone();
        self.submit(after, move |stop| {
            report.during(|| owner.copy(to, from, stop))
        })
    }
}

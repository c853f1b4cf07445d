// SPDX-License-Identifier: GPL-2.0

//! What queues do with memory: migrate, prefetch, evict, copy.

use super::{
    crew::{Parts, Shares},
    Crew, Queue, Stop,
};
use crate::{
    mirror::{Device, Mirror},
    mm::{
        addr::{PageRange, PMD_SIZE},
        bell::monotonic_ns,
        fence::Fence,
        range_fault::Access,
    },
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc, //
    },
};

/// Something that has a mirror, and keeps it as long as an operation needs it.
pub trait HasMirror: Send + Sync + Sized + 'static {
    /// The device of the mirror.
    type Device: Device;

    /// The mirror.
    fn mirror(&self) -> &Mirror<Self::Device>;

    /// Who helps with operations, so that copies overlap with what the CPU does.
    fn crew(&self) -> Option<&Crew> {
        None
    }

    /// Has the device copy `from` to `to`, of the same length, and waits for it. Context: a kernel
    /// thread; to be left soon, with `ECANCELED`, when `stop` is set.
    ///
    /// # Errors
    ///
    /// By default `EINVAL`: the device cannot copy.
    fn copy(self: &Arc<Self>, to: PageRange, from: PageRange, stop: &Stop) -> Result {
        let _ = (to, from, stop);
        Err(EINVAL)
    }
}

/// Where pages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// To the device.
    ToDevice,
    /// To the device, which then has entries for them, also for those that stay where they are.
    Prefetch,
    /// To system memory.
    ToSystem,
}

/// What an operation did, and when. It is complete when its fence is signalled.
pub struct Report {
    moved: Atomic<usize>,
    stayed: Atomic<usize>,
    began: Atomic<u64>,
    ended: Atomic<u64>,
}

impl Report {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self {
            moved: Atomic::new(0),
            stayed: Atomic::new(0),
            began: Atomic::new(0),
            ended: Atomic::new(0),
        }
    }

    /// Does `operation`, and takes note of when.
    pub fn during(&self, operation: impl FnOnce() -> Result) -> Result {
        self.began.store(monotonic_ns(), Relaxed);
        let result = operation();
        self.ended.store(monotonic_ns(), Relaxed);
        result
    }

    /// Pages that moved.
    pub fn moved(&self) -> usize {
        self.moved.load(Relaxed)
    }

    /// Pages that had to stay: skipped, no memory, or a failed copy.
    pub fn stayed(&self) -> usize {
        self.stayed.load(Relaxed)
    }

    /// When it began and ended, in ns of the monotonic clock; 0 if it did not.
    pub fn times(&self) -> (u64, u64) {
        (self.began.load(Relaxed), self.ended.load(Relaxed))
    }
}

impl Default for Report {
    fn default() -> Self {
        Self::new()
    }
}

/// A transfer, block by block of 2 MiB.
struct Blocks<H: HasMirror> {
    owner: Arc<H>,
    range: PageRange,
    transfer: Transfer,
    report: Arc<Report>,
    stop: Stop,
}

impl<H: HasMirror> Blocks<H> {
    fn first(&self) -> usize {
        self.range.start() / PMD_SIZE
    }
}

impl<H: HasMirror> Parts for Blocks<H> {
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
        let migration = mirror.migrate(block).stop(self.stop.clone());
        let outcome = match self.transfer {
            Transfer::ToDevice | Transfer::Prefetch => migration.to_device(),
            Transfer::ToSystem => migration.to_system(),
        }?;
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
        report: &Arc<Report>,
    ) -> Result<Fence> {
        let report = report.clone();
        self.submit(after, move |stop| {
            let blocks = Shares::new(Blocks {
                owner,
                range,
                transfer,
                report,
                stop: stop.clone(),
            })?;
            let parts = blocks.parts();
            let run = || Crew::run(parts.owner.crew(), &blocks);
            parts.report.during(run)
        })
    }

    /// Moves `range` to the device after all of `after`; its fence signals when that is done. Blocks of
    /// 2 MiB are moved independently, so that copies overlap. Pages that stay are no error.
    ///
    /// # Errors
    ///
    /// As [`Queue::submit`]; the fence has those of [`Migrate::to_device`](crate::migrate::Migrate).
    pub fn migrate<H: HasMirror>(
        &self,
        after: KVec<Fence>,
        owner: Arc<H>,
        range: PageRange,
        report: &Arc<Report>,
    ) -> Result<Fence> {
        self.transfer(after, owner, range, Transfer::ToDevice, report)
    }

    /// As [`Self::migrate`]; then the device can read all of `range` without a fault, as long as nothing
    /// happens to it.
    ///
    /// # Errors
    ///
    /// As [`Self::migrate`]; the fence also has those of [`Mirror::fault`].
    pub fn prefetch<H: HasMirror>(
        &self,
        after: KVec<Fence>,
        owner: Arc<H>,
        range: PageRange,
        report: &Arc<Report>,
    ) -> Result<Fence> {
        self.transfer(after, owner, range, Transfer::Prefetch, report)
    }

    /// Moves what is in the device's memory of `range` to system memory.
    ///
    /// # Errors
    ///
    /// As [`Self::migrate`].
    pub fn evict<H: HasMirror>(
        &self,
        after: KVec<Fence>,
        owner: Arc<H>,
        range: PageRange,
        report: &Arc<Report>,
    ) -> Result<Fence> {
        self.transfer(after, owner, range, Transfer::ToSystem, report)
    }

    /// Has the device copy `from` to `to`.
    ///
    /// # Errors
    ///
    /// As [`Queue::submit`]; `EINVAL` if the ranges differ in length, or overlap. The fence has those of
    /// the device.
    pub fn copy<H: HasMirror>(
        &self,
        after: KVec<Fence>,
        owner: Arc<H>,
        to: PageRange,
        from: PageRange,
        report: &Arc<Report>,
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

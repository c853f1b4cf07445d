// SPDX-License-Identifier: GPL-2.0

//! Copy jobs of a migration, which a driver may complete asynchronously and in any order.
//!
//! [`CopyBatch`] is the side of the library, [`CopyJob`] that of the driver. They share a counter
//! of outstanding jobs. The batch borrows the locked pages. Its drop waits until the counter is 0,
//! without a time limit and also if the task is killed, because the device may still access the
//! pages. A fatal signal only cancels jobs that have not begun.
//!
//! A driver may complete jobs in any context that may sleep. The last job takes a mutex to wake the
//! waiter. No task waits for anything else with that mutex held.

use super::MemoryOps;
use crate::{
    inject::{
        fails,
        FailPoint, //
    },
    kernel::{
        cancel::CancelToken,
        completion::ktime_get_ns,
        limit::RateLimit,
        lock_classes, //
    },
    mm::{
        addr::PMD_PAGES,
        device_pages::DeviceRange,
        folio::{
            CpuPages,
            CpuPagesMut, //
        },
        location::{
            PageMemory,
            PageMemoryMut, //
        },
        page_set::PageSet,
        vma::fatal_signal_pending, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            ordering::{
                Acquire,
                Full,
                Relaxed, //
            },
            Atomic,
            AtomicFlag, //
        },
        Arc,
        CondVar,
        CondVarTimeoutResult,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta,
        Jiffies, //
    }, //
};

#[cfg(CONFIG_RUST_HMM_CAPI)]
mod raw;

#[cfg(CONFIG_RUST_HMM_CAPI)]
pub(crate) use raw::RawCopyJob;

const FAILED_WORDS: usize = PMD_PAGES / u64::BITS as usize;

/// Interval at which a wait checks for a stop and reports late jobs, in jiffies.
const COPY_CHECK_JIFFIES: Jiffies = 10;

/// Nanoseconds after which a wait for copy jobs is reported.
const COPY_LATE_NS: u64 = 10_000_000_000;

/// Limits the reports of late copy jobs.
static LATE_COPY_REPORTS: RateLimit = RateLimit::new(1);

/// Interval between two checks while a pending signal makes an interruptible wait return at once.
const COPY_POLL_INTERVAL: Delta = Delta::from_micros(200);

/// Source and destination of a copy of 1 page, or of [`PMD_PAGES`].
pub struct CopyDesc<'a> {
    /// Source of the contents. If `None`, the destination is filled with zeros.
    pub source: Option<PageMemory<'a>>,
    /// Destination of the contents.
    pub destination: PageMemoryMut<'a>,
}

impl CopyDesc<'_> {
    /// Returns the number of bytes to copy: [`PAGE_SIZE`], or for a huge page `PMD_SIZE`.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn bytes(&self) -> usize {
        match &self.destination {
            PageMemoryMut::Cpu(pages) => pages.bytes(),
            PageMemoryMut::Device(range) => range.count.saturating_mul(PAGE_SIZE),
        }
    }
}

/// One end of a copy.
#[derive(Clone, Copy)]
pub(crate) enum CopyEndpoint {
    /// Page frames that the CPU can address.
    Cpu(usize),
    /// Device page numbers of private memory.
    Device(usize),
}

/// State that the jobs of one step share.
#[pin_data]
struct CopyState {
    /// Number of jobs that exist or are reserved, and one for the [`CopyBatch`].
    outstanding: Atomic<usize>,
    /// A bit for each job that has succeeded, by the index of its entry.
    filled: [Atomic<u64>; FAILED_WORDS],
    /// The waiting task was killed or stopped: the results of the copies will not be used.
    cancelled: AtomicFlag,
    #[pin]
    lock: Mutex<()>,
    #[pin]
    idle: CondVar,
}

impl CopyState {
    /// Subtracts `count` jobs, and returns whether none is left.
    fn finish(&self, count: usize) -> bool {
        self.outstanding.fetch_sub(count, Full) == count
    }
}

/// A driver that can cancel copies which have not begun.
pub(super) trait Cancel {
    /// Called after jobs were cancelled, so that the driver can complete those that have not begun.
    /// Context: may sleep.
    fn cancel(&self);
}

/// State for the jobs of one step. Reused for the next step.
pub(crate) struct CopyContext {
    state: Arc<CopyState>,
    /// Whether the jobs may be cancelled when the task that waits for them is killed.
    killable: bool,
    /// A flag of another task that cancels the jobs, too.
    stop: Option<CancelToken>,
}

impl CopyContext {
    /// Allocates the state. If `killable`, the jobs are cancelled when the task that waits for them
    /// is killed or stopped.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new(killable: bool) -> Result<Self> {
        let (name, key) = lock_classes::copies();
        let (idle_name, idle_key) = lock_classes::copies_idle();
        let state = Arc::pin_init(
            pin_init!(CopyState {
                outstanding: Atomic::new(0),
                filled: core::array::from_fn(|_| Atomic::new(0)),
                cancelled: AtomicFlag::new(false),
                lock <- Mutex::new((), name, key),
                idle <- CondVar::new(idle_name, idle_key),
            }),
            GFP_KERNEL,
        )?;
        Ok(Self {
            state,
            killable,
            stop: None,
        })
    }

    /// Sets a flag that cancels the jobs, too, if they can be cancelled.
    pub(crate) fn until(&mut self, stop: Option<CancelToken>) {
        self.stop = stop;
    }

    /// Calls `hand_out` to create jobs, and waits for them. Calls `driver` if the jobs are
    /// cancelled. The pages must not change until this returns.
    ///
    /// Returns the indices of the entries that were copied. Entries without a job, and those whose
    /// job was dropped, are not among them. No entry is copied if [`Self::begin`] refuses.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn run(
        &mut self,
        driver: &dyn Cancel,
        hand_out: impl FnOnce(&mut CopyBatch<'_>),
    ) -> PageSet {
        let Some(mut batch) = self.begin(driver) else {
            return PageSet::EMPTY;
        };
        hand_out(&mut batch);
        batch.wait()
    }

    /// Begins a step without jobs. Returns `None` if a previous batch was leaked, because its jobs
    /// still count down and mark entries in the shared state.
    pub(super) fn begin<'a>(&'a mut self, driver: &'a dyn Cancel) -> Option<CopyBatch<'a>> {
        // Relaxed is sufficient: the count is 0 only if the drop of the previous batch has waited
        // for its jobs.
        if self.state.outstanding.load(Relaxed) != 0 {
            return None;
        }
        for word in &self.state.filled {
            word.store(0, Relaxed);
        }
        self.state.cancelled.store(false, Relaxed);
        self.state.outstanding.store(1, Relaxed);
        Some(CopyBatch {
            state: &self.state,
            cancelled: self.killable.then_some(driver),
            stop: self.stop.as_ref(),
            reserved: 0,
            at_once: PageSet::EMPTY,
        })
    }
}

/// Jobs of a step. Dropping it waits for all of them.
pub(crate) struct CopyBatch<'a> {
    state: &'a Arc<CopyState>,
    /// Driver that is called if the jobs are cancelled. `None` if they cannot be cancelled, or
    /// were.
    cancelled: Option<&'a dyn Cancel>,
    stop: Option<&'a CancelToken>,
    /// Number of jobs that are counted as outstanding and not created yet.
    reserved: usize,
    /// Indices of entries that were copied without a job.
    at_once: PageSet,
}

impl CopyBatch<'_> {
    /// Waits for the jobs, and returns the indices of the entries that were copied. Context: may
    /// sleep.
    pub(super) fn wait(mut self) -> PageSet {
        let mut filled = core::mem::replace(&mut self.at_once, PageSet::EMPTY);
        let state = self.state;
        // Waits for all jobs.
        drop(self);
        filled.insert_words(state.filled.iter().map(|word| word.load(Relaxed)));
        filled
    }

    /// Returns whether jobs are outstanding.
    pub(super) fn is_outstanding(&self) -> bool {
        // One of the count is that of `self`.
        self.state.outstanding.load(Relaxed) > 1 + self.reserved
    }

    /// Counts `count` jobs as outstanding in advance. Not all of them need to be created.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.state.outstanding.fetch_add(count, Relaxed);
        self.reserved += count;
    }

    /// Calls `driver` to copy the entry at `index`, at once or by a job.
    ///
    /// # Safety
    ///
    /// As for [`Self::job`].
    #[inline(always)]
    pub(super) unsafe fn hand_out<M: MemoryOps>(
        &mut self,
        driver: &M,
        index: usize,
        pages: usize,
        source: Option<CopyEndpoint>,
        destination: CopyEndpoint,
    ) {
        // SAFETY: By the function's requirements, the pages are alive and the destination is
        // exclusive until `self` is dropped. `copy` ends before.
        let copy = unsafe { copy_of(pages, source, destination) };
        match driver.copy_sync(&copy) {
            Some(Ok(())) if !fails(FailPoint::Copy) => self.at_once.insert(index),
            Some(_) => {}
            None => {
                // SAFETY: The requirements of both functions are the same.
                let job = unsafe { self.job(index, pages, source, destination) };
                driver.copy(job);
            }
        }
    }

    /// Creates a job for the entry at `index`.
    ///
    /// # Safety
    ///
    /// Until `self` is dropped, the pages of source and destination must be alive, and only the job
    /// may write the destination.
    pub(crate) unsafe fn job(
        &mut self,
        index: usize,
        pages: usize,
        source: Option<CopyEndpoint>,
        destination: CopyEndpoint,
    ) -> CopyJob {
        match self.reserved.checked_sub(1) {
            Some(rest) => self.reserved = rest,
            None => {
                self.state.outstanding.fetch_add(1, Relaxed);
            }
        }
        // INVARIANT: The pages are alive and the destination is exclusive until `self` is dropped,
        // by the function's requirements. The drop waits until this job was dropped.
        CopyJob {
            state: self.state.clone(),
            index,
            pages,
            source,
            destination,
            result: Err(EIO),
        }
    }
}

impl Drop for CopyBatch<'_> {
    fn drop(&mut self) {
        if self.state.finish(1 + self.reserved) {
            return;
        }
        // Signals do not end the wait, because the device may still access the pages. A fatal
        // signal only cancels the jobs, so that the driver completes early those that have not
        // begun.
        let start = ktime_get_ns();
        let mut guard = self.state.lock.lock();
        while self.state.outstanding.load(Acquire) != 0 {
            report_late(self.state, start);
            let why = self
                .state
                .idle
                .wait_interruptible_timeout(&mut guard, COPY_CHECK_JIFFIES);
            let signal = matches!(why, CondVarTimeoutResult::Signal { .. });
            let stopped = self.cancelled.is_some() && self.stop.is_some_and(CancelToken::is_set);
            if !signal && !stopped {
                continue;
            }
            drop(guard);
            if let Some(cancelled) = self
                .cancelled
                .take_if(|_| stopped || fatal_signal_pending())
            {
                self.state.cancelled.store(true, Relaxed);
                cancelled.cancel();
            }
            if signal {
                // A signal that stays pending makes each interruptible wait return at once.
                fsleep(COPY_POLL_INTERVAL);
            }
            guard = self.state.lock.lock();
        }
    }
}

/// Logs that jobs are not completed [`COPY_LATE_NS`] after `start`. The kernel's hung task detector
/// does not see the wait, which is interruptible and has a time limit.
#[inline(never)]
fn report_late(state: &CopyState, start: u64) {
    let waited = ktime_get_ns().saturating_sub(start);
    if waited >= COPY_LATE_NS && LATE_COPY_REPORTS.allows() {
        pr_warn!(
            "{} copy jobs not completed for {} s: the driver must complete or drop each CopyJob (in C: rust_hmm_copy_done()); until then the migration waits, also when its task is killed\n",
            state.outstanding.load(Relaxed),
            waited / 1_000_000_000,
        );
    }
}

/// Returns the source and destination of a copy of `count` pages.
///
/// # Safety
///
/// For `'a`, the pages of source and destination must be alive, and only the holder of the returned
/// object may write the destination.
#[inline]
unsafe fn copy_of<'a>(
    count: usize,
    source: Option<CopyEndpoint>,
    destination: CopyEndpoint,
) -> CopyDesc<'a> {
    let source = source.map(|end| match end {
        // SAFETY: The page frames are alive for `'a`, by the function's requirements.
        CopyEndpoint::Cpu(pfn) => PageMemory::Cpu(unsafe { CpuPages::new(pfn, count) }),
        CopyEndpoint::Device(first) => PageMemory::Device(DeviceRange { first, count }),
    });
    let destination = match destination {
        // SAFETY: The page frames are alive and exclusive for `'a`, by the function's requirements.
        CopyEndpoint::Cpu(pfn) => PageMemoryMut::Cpu(unsafe { CpuPagesMut::new(pfn, count) }),
        CopyEndpoint::Device(first) => PageMemoryMut::Device(DeviceRange { first, count }),
    };
    CopyDesc {
        source,
        destination,
    }
}

/// A copy that the driver has to carry out, now or later and in any thread.
///
/// The migration waits without a time limit until all its jobs are completed or dropped. When its
/// task is killed, the driver should complete jobs that have not begun at once
/// ([`Self::is_cancelled`]). Dropping a job fails it with `EIO`. A leaked job blocks its process
/// forever.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::page::PAGE_SIZE;
/// use rust_hmm::memory::CopyJob;
/// use rust_hmm::mirror::PageMemory;
/// use rust_hmm::mirror::PageMemoryMut;
/// use rust_hmm::mm::folio::SharedBytes;
///
/// /// Copies to or from device memory that the CPU can access as `vram`.
/// fn execute(job: CopyJob, vram: &SharedBytes) {
///     let copy = job.copy();
///     let result = match (&copy.source, &copy.destination) {
///         // A hole has no source, and must read as zeros.
///         (None, PageMemoryMut::Device(to)) => vram.clear(to.first * PAGE_SIZE, copy.bytes()),
///         (Some(PageMemory::Cpu(from)), PageMemoryMut::Device(to)) => {
///             vram.load(to.first * PAGE_SIZE, from)
///         }
///         (Some(PageMemory::Device(from)), PageMemoryMut::Cpu(to)) => {
///             vram.store(from.first * PAGE_SIZE, to)
///         }
///         _ => Err(EINVAL),
///     };
///     job.complete(result);
/// }
/// ```
///
/// # Invariants
///
/// The pages of source and destination are alive, and only this job may write the destination.
#[must_use = "dropped, it has failed"]
pub struct CopyJob {
    state: Arc<CopyState>,
    index: usize,
    pages: usize,
    source: Option<CopyEndpoint>,
    destination: CopyEndpoint,
    result: Result,
}

impl CopyJob {
    /// Returns source and destination of the copy.
    ///
    /// # Context
    ///
    /// Any.
    pub fn copy(&self) -> CopyDesc<'_> {
        // SAFETY: By the type invariant, the pages are alive and the destination is exclusive as
        // long as `self` exists, which the result borrows.
        unsafe { copy_of(self.pages, self.source, self.destination) }
    }

    /// Returns the number of bytes to copy: [`PAGE_SIZE`], or for a huge page `PMD_SIZE`.
    ///
    /// # Context
    ///
    /// Any.
    pub fn bytes(&self) -> usize {
        self.pages.saturating_mul(PAGE_SIZE)
    }

    /// Returns whether the result will not be used, because the process was killed or the operation
    /// was stopped. The driver must still complete or drop the job, and should do so at once.
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_cancelled(&self) -> bool {
        self.state.cancelled.load(Relaxed)
    }

    /// Returns number of pages, source and destination, for [`DmaCopy`](super::DmaCopy).
    pub(super) fn ends(&self) -> (usize, Option<CopyEndpoint>, CopyEndpoint) {
        (self.pages, self.source, self.destination)
    }

    /// Completes the job. With `Ok` the driver guarantees that the whole destination was written,
    /// which the library cannot check. After an error, the page keeps its place and contents.
    ///
    /// # Context
    ///
    /// May sleep. Takes only a mutex that is held briefly.
    pub fn complete(mut self, result: Result) {
        self.result = match result {
            Ok(()) if fails(FailPoint::Copy) => Err(EIO),
            result => result,
        };
    }
}

impl Drop for CopyJob {
    fn drop(&mut self) {
        let word = self.state.filled.get(self.index / 64);
        if let Some(word) = word.filter(|_| self.result.is_ok()) {
            // An addition sets the bit, because only one job marks each index, and only once.
            word.add(1 << (self.index % 64), Relaxed);
        }
        if self.state.finish(1) {
            // The lock prevents a lost wakeup: a waiter that has read a count above 0 sleeps before
            // it releases the lock.
            let _guard = self.state.lock.lock();
            self.state.idle.notify_all();
        }
    }
}

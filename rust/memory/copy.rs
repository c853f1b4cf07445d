// SPDX-License-Identifier: GPL-2.0

//! Copy jobs of a migration, which a driver may complete asynchronously and in any order.
//!
//! [`CopyBatch`] is the side of the library, [`CopyJob`] that of the driver. Each job has a counted
//! reference to the state of the batch. The batch borrows the locked pages. Its drop waits until
//! all references were dropped, without a time limit and also if the task is killed, because the
//! device may still access the pages. A fatal signal only cancels jobs that have not begun.
//!
//! A driver may complete and drop jobs in any context, also in its interrupt handler and in the
//! callback of a fence. A job only sets a bit and drops its reference, which wakes the waiter if it
//! is the last one. The task that waits frees the state. See [`crate::kernel::counted`].

use super::MemoryOps;
use crate::{
    inject::{
        fails,
        FailPoint, //
    },
    kernel::{
        cancel::CancelToken,
        completion::ktime_get_ns,
        counted::{
            CountedBox,
            CountedRef,
            References,
            Waiter, //
        },
        limit::RateLimit, //
    },
    mm::{
        addr::{
            PageRange,
            PMD_PAGES, //
        },
        device_pages::DeviceRange,
        folio::{
            CpuPages,
            CpuPagesMut, //
        },
        location::{
            PageMemory,
            PageMemoryMut, //
        },
        page_set::PageSet, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::atomic::{
        ordering::Relaxed,
        Atomic,
        AtomicFlag, //
    },
    time::Jiffies, //
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
struct CopyState {
    /// A bit for each job that has succeeded, by the index of its entry.
    filled: [Atomic<u64>; FAILED_WORDS],
    /// The waiting task was killed or stopped: the results of the copies will not be used.
    cancelled: AtomicFlag,
}

/// A driver that can cancel copies which have not begun.
pub(crate) trait Cancel {
    /// Called after jobs were cancelled, so that the driver can complete those that have not begun.
    /// Context: may sleep.
    fn cancel(&self);
}

/// The pages that the jobs of a step copy, for messages.
#[derive(Clone, Copy)]
pub(crate) struct CopyPlace {
    /// Number of the device.
    pub(crate) device: u32,
    /// ID of the process, or 0 if it has exited.
    pub(crate) process: i32,
    /// Addresses of the pages.
    pub(crate) range: PageRange,
}

/// State for the jobs of one step. Reused for the next step.
pub(crate) struct CopyContext {
    state: CountedBox<CopyState>,
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
        let state = CopyState {
            filled: core::array::from_fn(|_| Atomic::new(0)),
            cancelled: AtomicFlag::new(false),
        };
        Ok(Self {
            state: CountedBox::new(state, GFP_KERNEL)?,
            killable,
            stop: None,
        })
    }

    /// Sets a flag that cancels the jobs, too, if they can be cancelled.
    pub(crate) fn until(&mut self, stop: Option<CancelToken>) {
        self.stop = stop;
    }

    /// Begins a step without jobs. Returns `None` if a previous batch was leaked, because its jobs
    /// still mark entries in the shared state.
    pub(crate) fn begin<'a>(
        &'a mut self,
        driver: &'a dyn Cancel,
        place: CopyPlace,
    ) -> Option<CopyBatch<'a>> {
        let jobs = self.state.begin(CopyWait {
            driver: self.killable.then_some(driver),
            stop: self.stop.as_ref(),
            place,
            start: None,
        })?;
        for word in &jobs.filled {
            word.store(0, Relaxed);
        }
        jobs.cancelled.store(false, Relaxed);
        Some(CopyBatch {
            jobs,
            at_once: PageSet::EMPTY,
        })
    }
}

/// Actions of a task while it waits for jobs. Signals do not end the wait, because the device may
/// still access the pages. A fatal signal only cancels the jobs, so that the driver completes early
/// those that have not begun.
struct CopyWait<'a> {
    /// Driver that is called if the jobs are cancelled. `None` if they cannot be cancelled, or
    /// were.
    driver: Option<&'a dyn Cancel>,
    stop: Option<&'a CancelToken>,
    place: CopyPlace,
    /// Time of the first check, in nanoseconds.
    start: Option<u64>,
}

impl Waiter<CopyState> for CopyWait<'_> {
    const INTERVAL: Jiffies = COPY_CHECK_JIFFIES;

    fn is_killable(&self) -> bool {
        self.driver.is_some()
    }

    fn check(&mut self, state: &CopyState, left: usize, killed: bool) {
        let now = ktime_get_ns();
        let start = *self.start.get_or_insert(now);
        report_late(left, self.place, now.saturating_sub(start));
        if !killed && !self.stop.is_some_and(CancelToken::is_set) {
            return;
        }
        if let Some(driver) = self.driver.take() {
            state.cancelled.store(true, Relaxed);
            driver.cancel();
        }
    }
}

/// Jobs of a step. Dropping it waits for all of them.
pub(crate) struct CopyBatch<'a> {
    jobs: References<'a, CopyState, CopyWait<'a>>,
    /// Indices of entries that were copied without a job.
    at_once: PageSet,
}

impl CopyBatch<'_> {
    /// Waits for the jobs, and returns the indices of the entries that were copied. Context: may
    /// sleep.
    pub(crate) fn wait(self) -> PageSet {
        let mut filled = self.at_once;
        self.jobs.wait(|state| {
            filled.insert_words(state.filled.iter().map(|word| word.load(Relaxed)));
        });
        filled
    }

    /// Returns whether jobs are outstanding.
    pub(super) fn is_outstanding(&self) -> bool {
        self.jobs.count() != 0
    }

    /// Counts `count` jobs as outstanding in advance. Not all of them need to be created.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.jobs.reserve(count);
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
        // INVARIANT: The pages are alive and the destination is exclusive until `self` is dropped,
        // by the function's requirements. The drop waits until this job was dropped.
        CopyJob {
            state: self.jobs.get(),
            index,
            pages,
            source,
            destination,
        }
    }
}

/// Logs that `left` jobs of `place` are not completed after `waited` nanoseconds, if that is at
/// least [`COPY_LATE_NS`]. The kernel's hung task detector does not see the wait, because it has a
/// time limit.
#[inline(never)]
fn report_late(left: usize, place: CopyPlace, waited: u64) {
    if waited >= COPY_LATE_NS && LATE_COPY_REPORTS.allows() {
        let seconds = waited / 1_000_000_000;
        let CopyPlace {
            device,
            process,
            range,
        } = place;
        let start = range.start();
        let end = range.end();
        pr_warn!(
            "device {device}: {left} copy jobs of process {process}, addresses {start:#x} to {end:#x}, not completed for {seconds} s: the driver must complete or drop each CopyJob (in C: rust_hmm_copy_done()); until then the migration waits, also when its task is killed\n"
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

/// A copy that the driver has to carry out, now or later and in any context.
///
/// The migration waits without a time limit until all its jobs are completed or dropped. When its
/// task is killed, the driver should complete jobs that have not begun at once
/// ([`Self::is_cancelled`]). Dropping a job fails it with `EIO`. A leaked job blocks its process
/// forever.
///
/// # Context
///
/// The drop may happen in any context, as [`Self::complete`].
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
    /// Dropping it ends the job.
    state: CountedRef<CopyState>,
    index: usize,
    pages: usize,
    source: Option<CopyEndpoint>,
    destination: CopyEndpoint,
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
    /// Any but NMI: also hard interrupts, with interrupts disabled, and with any lock held that may
    /// be held in that context. Allocates and frees no memory.
    pub fn complete(self, result: Result) {
        if result.is_err() || fails(FailPoint::Copy) {
            return;
        }
        if let Some(word) = self.state.filled.get(self.index / 64) {
            // An addition sets the bit, because only one job marks each index, and only once.
            word.add(1 << (self.index % 64), Relaxed);
        }
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
mod tests;

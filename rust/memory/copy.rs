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
//!
//! - `job` is the side of the driver. `wait` reports late jobs and cancels jobs during a wait.
//! - `raw` has jobs of drivers in C.

use super::MemoryOps;
use crate::{
    inject::{
        fails,
        FailPoint, //
    },
    kernel::{
        cancel::CancelToken,
        counted::{
            CountedBox,
            References, //
        }, //
    },
    mm::{
        addr::PMD_PAGES,
        page_set::PageSet, //
    }, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::Relaxed,
        Atomic,
        AtomicFlag, //
    }, //
};

mod job;
#[cfg(CONFIG_RUST_HMM_CAPI)]
mod raw;
mod wait;

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
use crate::mm::addr::PageRange;
use job::copy_of;
pub use job::{
    CopyDesc,
    CopyJob, //
};
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
use kernel::page::PAGE_SIZE;
#[cfg(CONFIG_RUST_HMM_CAPI)]
pub(crate) use raw::RawCopyJob;
use wait::CopyWait;
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
use wait::{
    report_late,
    COPY_LATE_NS, //
};
pub(crate) use wait::{
    Cancel,
    CopyPlace, //
};

const FAILED_WORDS: usize = PMD_PAGES / u64::BITS as usize;

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

    /// Makes kmemleak ignore the state, which a test leaks on purpose.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(super) fn expect_leak(&self) {
        self.state.expect_leak();
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

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
mod tests;

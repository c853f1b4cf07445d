// SPDX-License-Identifier: GPL-2.0

//! Copies of a migration, which a driver may carry out in its own time and order.

use super::MemoryOps;
use crate::{
    inject::{fails, Point},
    limit::Limit,
    locks,
    mirror::{Place, PlaceMut},
    mm::{
        addr::PMD_PAGES,
        bell::monotonic_ns,
        device_pages::DeviceRange,
        mask::Mask,
        page::{CpuPages, CpuPagesMut},
        space::fatal_signal_pending,
    },
    queue::Stop,
};
use core::mem::ManuallyDrop;
use kernel::{
    ffi,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Full, Relaxed},
            Atomic, AtomicFlag,
        },
        Arc,
        CondVar,
        CondVarTimeoutResult,
        Mutex, //
    },
    time::{delay::fsleep, Delta, Jiffies},
};

const WORDS: usize = PMD_PAGES / u64::BITS as usize;

/// Time after which a wait looks again, in jiffies.
const LOOK_AGAIN: Jiffies = 10;

/// Nanoseconds after which a wait for copy jobs is reported.
const LATE: u64 = 10_000_000_000;

/// Limits the reports of late copy jobs.
static REPORTS: Limit = Limit::new(1);

/// Time between two looks where waiting is not possible.
const PAUSE: Delta = Delta::from_micros(200);

/// What a copy is of: 1 or 512 pages.
pub struct Copy<'a> {
    /// Where the contents come from; `None` asks for zeros.
    pub source: Option<Place<'a>>,
    /// Where they go.
    pub destination: PlaceMut<'a>,
}

impl Copy<'_> {
    /// Bytes to copy: 4 KiB or 2 MiB.
    #[inline]
    pub fn bytes(&self) -> usize {
        match &self.destination {
            PlaceMut::Cpu(pages) => pages.bytes(),
            PlaceMut::Device(range) => range.count.saturating_mul(PAGE_SIZE),
        }
    }
}

/// One end of a copy.
#[derive(Clone, Copy)]
pub(crate) enum End {
    /// Page frames that the CPU can address.
    Cpu(usize),
    /// Device page numbers of private memory.
    Device(usize),
}

/// What the jobs of one step have in common.
#[pin_data]
struct State {
    /// Jobs that exist, and one for who hands them out.
    outstanding: Atomic<usize>,
    /// A bit for each job that was made and has succeeded, by the index of its entry.
    filled: [Atomic<u64>; WORDS],
    /// Nobody needs the copies any more.
    cancelled: AtomicFlag,
    #[pin]
    lock: Mutex<()>,
    #[pin]
    idle: CondVar,
}

impl State {
    /// Takes some away, and says whether these were the last.
    fn finish(&self, count: usize) -> bool {
        self.outstanding.fetch_sub(count, Full) == count
    }
}

/// A driver that can cancel copies which have not begun.
pub(super) trait Cancel {
    /// Cancels copies whose jobs are cancelled. Context: may sleep.
    fn cancel(&self);
}

/// Room for the jobs of one step; reuse it.
pub(crate) struct Copies {
    state: Arc<State>,
    /// Whether the jobs may be cancelled when the task that waits for them is killed.
    killable: bool,
    /// Who else may have them cancelled.
    stop: Option<Stop>,
}

impl Copies {
    /// Copies that are cancelled when the task that waits for them is killed, if `killable`.
    /// Context: may sleep. `ENOMEM`.
    pub(crate) fn new(killable: bool) -> Result<Self> {
        let (name, key) = locks::copies();
        let (idle_name, idle_key) = locks::copies_idle();
        let state = Arc::pin_init(
            pin_init!(State {
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

    /// Has them cancelled also when `stop` is set.
    pub(crate) fn until(&mut self, stop: Option<Stop>) {
        self.stop = stop;
    }

    /// Hands out jobs and waits for them. Meanwhile the pages must stay as they are. Calls `driver`
    /// if the jobs are cancelled. Returns the indices of the entries that were copied; an entry
    /// without a job, or whose job was dropped, was not. None is copied if [`Self::begin`] refuses.
    pub(super) fn run(
        &mut self,
        driver: &dyn Cancel,
        hand_out: impl FnOnce(&mut Batch<'_>),
    ) -> Mask {
        let Some(mut batch) = self.begin(driver) else {
            return Mask::EMPTY;
        };
        hand_out(&mut batch);
        batch.wait()
    }

    /// Begins a step without jobs. `None` if a previous batch was leaked: its jobs count down, and
    /// mark their entries in, the state that all batches share.
    pub(super) fn begin<'a>(&'a mut self, driver: &'a dyn Cancel) -> Option<Batch<'a>> {
        // No ordering: it is 0 only if who had the batch before has waited for its jobs.
        if self.state.outstanding.load(Relaxed) != 0 {
            return None;
        }
        for word in &self.state.filled {
            word.store(0, Relaxed);
        }
        self.state.cancelled.store(false, Relaxed);
        self.state.outstanding.store(1, Relaxed);
        Some(Batch {
            state: &self.state,
            cancelled: self.killable.then_some(driver),
            stop: self.stop.as_ref(),
            reserved: 0,
            at_once: Mask::EMPTY,
        })
    }
}

/// The step's jobs. Dropping it waits for all of them.
pub(crate) struct Batch<'a> {
    state: &'a Arc<State>,
    /// Whose copies are cancelled; `None` if they cannot be.
    cancelled: Option<&'a dyn Cancel>,
    stop: Option<&'a Stop>,
    /// Jobs that are counted as outstanding, and not made.
    reserved: usize,
    /// Indices of entries that were copied without a job.
    at_once: Mask,
}

impl Batch<'_> {
    /// Waits for the jobs. Returns the indices of the entries that were copied. Context: may sleep.
    pub(super) fn wait(mut self) -> Mask {
        let mut filled = core::mem::replace(&mut self.at_once, Mask::EMPTY);
        let state = self.state;
        // Waits.
        drop(self);
        filled.insert_words(state.filled.iter().map(|word| word.load(Relaxed)));
        filled
    }

    /// Whether jobs are outstanding.
    pub(super) fn is_outstanding(&self) -> bool {
        // One is that of `self`.
        self.state.outstanding.load(Relaxed) > 1 + self.reserved
    }

    /// Makes room for `count` jobs, which need not all be made.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.state.outstanding.fetch_add(count, Relaxed);
        self.reserved += count;
    }

    /// Has `driver` copy the entry at `index`, which was reserved: now, or as a job.
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
        source: Option<End>,
        destination: End,
    ) {
        // SAFETY: By the function's requirements, for longer than the driver looks.
        let copy = unsafe { copy_of(pages, source, destination) };
        match driver.copy_at_once(&copy) {
            Some(Ok(())) if !fails(Point::Copy) => self.at_once.insert(index),
            Some(_) => {}
            None => {
                // SAFETY: By the function's requirements.
                let job = unsafe { self.job(index, pages, source, destination) };
                driver.copy(job);
            }
        }
    }

    /// Makes a job for the entry at `index`, which was reserved.
    ///
    /// # Safety
    ///
    /// The frames must be alive, the destination's must be to be written by nobody else, until
    /// `self` was dropped.
    pub(crate) unsafe fn job(
        &mut self,
        index: usize,
        pages: usize,
        source: Option<End>,
        destination: End,
    ) -> CopyJob {
        match self.reserved.checked_sub(1) {
            Some(rest) => self.reserved = rest,
            None => {
                self.state.outstanding.fetch_add(1, Relaxed);
            }
        }
        // INVARIANT: By the function's requirements, and because the drop of `self` waits.
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

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if self.state.finish(1 + self.reserved) {
            return;
        }
        // Whatever signal comes: the pages are in use by whoever copies. But a task that is to die
        // has those copies cancelled that have not begun.
        let start = monotonic_ns();
        let mut guard = self.state.lock.lock();
        while self.state.outstanding.load(Acquire) != 0 {
            report_late(self.state, start);
            let why = self
                .state
                .idle
                .wait_interruptible_timeout(&mut guard, LOOK_AGAIN);
            let signal = matches!(why, CondVarTimeoutResult::Signal { .. });
            let stopped = self.cancelled.is_some() && self.stop.is_some_and(Stop::is_set);
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
                // One that stays would not let us wait.
                fsleep(PAUSE);
            }
            guard = self.state.lock.lock();
        }
    }
}

/// Logs that jobs are not completed [`LATE`] after `start`. The kernel's hung task detector does not see the wait,
/// which is interruptible and has a time limit.
#[inline(never)]
fn report_late(state: &State, start: u64) {
    let waited = monotonic_ns().saturating_sub(start);
    if waited >= LATE && REPORTS.allows() {
        pr_warn!(
            "{} copy jobs not completed for {} s: the driver must complete or drop each CopyJob (in C: rust_hmm_copy_done()); until then the migration waits, also when its task is killed\n",
            state.outstanding.load(Relaxed),
            waited / 1_000_000_000,
        );
    }
}

/// The copy of `count` pages.
///
/// # Safety
///
/// What source and destination name must be alive for `'a`, and the destination be nobody else's to
/// write.
#[inline]
unsafe fn copy_of<'a>(count: usize, source: Option<End>, destination: End) -> Copy<'a> {
    let source = source.map(|end| match end {
        // SAFETY: By the function's requirements.
        End::Cpu(pfn) => Place::Cpu(unsafe { CpuPages::new(pfn, count) }),
        End::Device(first) => Place::Device(DeviceRange { first, count }),
    });
    let destination = match destination {
        // SAFETY: By the function's requirements.
        End::Cpu(pfn) => PlaceMut::Cpu(unsafe { CpuPagesMut::new(pfn, count) }),
        End::Device(first) => PlaceMut::Device(DeviceRange { first, count }),
    };
    Copy {
        source,
        destination,
    }
}

/// A copy to be done: now, or later by another thread.
///
/// The migration waits until all its jobs are completed or dropped, however long that takes; when
/// its task is killed, jobs that have not begun should end at once ([`Self::is_cancelled`]). A job
/// that is dropped has failed with `EIO`; one that is leaked blocks its process for ever.
///
/// # Invariants
///
/// What source and destination name is alive, and the destination is nobody else's to write.
#[must_use = "dropped, it has failed"]
pub struct CopyJob {
    state: Arc<State>,
    index: usize,
    pages: usize,
    source: Option<End>,
    destination: End,
    result: Result,
}

impl CopyJob {
    /// What to copy.
    pub fn copy(&self) -> Copy<'_> {
        // SAFETY: By the type invariant, as long as `self` is.
        unsafe { copy_of(self.pages, self.source, self.destination) }
    }

    /// Bytes to copy: 4 KiB or 2 MiB.
    pub fn bytes(&self) -> usize {
        self.pages.saturating_mul(PAGE_SIZE)
    }

    /// Whether nobody needs the copy any more, for the process was killed. The job must still be
    /// completed or dropped, and best at once.
    pub fn is_cancelled(&self) -> bool {
        self.state.cancelled.load(Relaxed)
    }

    /// Pages, source and destination, for [`DmaCopy`](super::DmaCopy).
    pub(super) fn ends(&self) -> (usize, Option<End>, End) {
        (self.pages, self.source, self.destination)
    }

    /// Takes it apart for a driver in C. To be given to [`RawJob::complete`].
    pub(crate) fn into_raw(self) -> RawJob {
        let this = ManuallyDrop::new(self);
        RawJob {
            pages: this.pages,
            source: this.source,
            destination: this.destination,
            // SAFETY: `this` is not dropped, so that the reference is taken out once.
            state: Arc::into_raw(unsafe { core::ptr::read(&this.state) }).cast(),
            index: this.index,
        }
    }

    /// Ends the job. `Ok` says that all of the destination was written, which the library cannot
    /// check. After an error the page stays where it is, with its contents.
    pub fn complete(mut self, result: Result) {
        self.result = match result {
            Ok(()) if fails(Point::Copy) => Err(EIO),
            result => result,
        };
    }
}

/// A [`CopyJob`] as numbers and a pointer.
pub(crate) struct RawJob {
    pub(crate) pages: usize,
    pub(crate) source: Option<End>,
    pub(crate) destination: End,
    /// A reference of the step's state.
    pub(crate) state: *const ffi::c_void,
    pub(crate) index: usize,
}

impl RawJob {
    /// Ends the job, as [`CopyJob::complete`].
    ///
    /// # Safety
    ///
    /// `state` and `index` must be those of a job that was not completed yet.
    pub(crate) unsafe fn complete(state: *const ffi::c_void, index: usize, result: Result) {
        // INVARIANT: It names no page.
        CopyJob {
            // SAFETY: From `into_raw`, and by the function's requirements for the first time.
            state: unsafe { Arc::from_raw(state.cast()) },
            index,
            pages: 0,
            source: None,
            destination: End::Device(0),
            result: Err(EIO),
        }
        .complete(result);
    }

    /// Whether nobody needs the copy any more, as [`CopyJob::is_cancelled`].
    ///
    /// # Safety
    ///
    /// `state` must be that of a job that was not completed yet.
    pub(crate) unsafe fn is_cancelled(state: *const ffi::c_void) -> bool {
        // SAFETY: From `into_raw`, which has left a reference.
        unsafe { &*state.cast::<State>() }.cancelled.load(Relaxed)
    }
}

impl Drop for CopyJob {
    fn drop(&mut self) {
        let word = self.state.filled.get(self.index / 64);
        if let Some(word) = word.filter(|_| self.result.is_ok()) {
            // Each index is marked once, by one job, so that adding sets the bit.
            word.add(1 << (self.index % 64), Relaxed);
        }
        if self.state.finish(1) {
            // Under the lock, so that who just found the number above 0 sleeps by now.
            let _guard = self.state.lock.lock();
            self.state.idle.notify_all();
        }
    }
}

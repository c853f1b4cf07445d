// SPDX-License-Identifier: GPL-2.0

//! The copy engine: threads that execute copy jobs. Completing a job serves as its fence: a
//! migration waits until all jobs of a step are completed.

use crate::{
    hardware::store::Store,
    settings::{
        Setting,
        Settings, //
    },
    vram, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc,
        CondVar,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    }, //
};
use rust_hmm::{
    kernel::kthread::Thread,
    memory::{
        CopyDesc,
        CopyJob, //
    },
    mm::{
        addr::PMD_PAGES,
        vma::fatal_signal_pending, //
    }, //
};

/// Capacity of the job queue, four blocks of small pages, so that the blocks of two overlapping
/// migrations fit. When it is full, the submitting task executes the job itself.
const QUEUE_DEPTH: usize = 4 * PMD_PAGES;

/// Interval at which a delayed copy checks whether its job was cancelled.
const CANCEL_POLL_INTERVAL: Delta = Delta::from_millis(10);

/// Remaining delay that is slept at once: the inaccuracy of so short a sleep does not matter.
const MIN_SLEEP: Delta = Delta::from_micros(50);

/// A job, and the destination memory if that belongs to another device.
type Task = (CopyJob, Option<Arc<Store>>);

/// A job queue of fixed capacity.
struct JobQueue {
    ring: KVVec<Option<Task>>,
    first: usize,
    len: usize,
    stop: bool,
}

impl JobQueue {
    fn push(&mut self, job: Task) -> Result<(), Task> {
        let at = (self.first + self.len) % self.ring.len().max(1);
        match self.ring.get_mut(at).filter(|_| self.len < QUEUE_DEPTH) {
            Some(place) => {
                *place = Some(job);
                self.len += 1;
                Ok(())
            }
            None => Err(job),
        }
    }

    fn pop(&mut self) -> Option<Task> {
        while self.len != 0 {
            let job = self.ring.get_mut(self.first)?.take();
            self.first = (self.first + 1) % self.ring.len().max(1);
            self.len -= 1;
            // The slot is empty if the job was cancelled while it was queued.
            if job.is_some() {
                return job;
            }
        }
        None
    }

    /// Removes a cancelled job from the queue.
    fn pop_cancelled(&mut self) -> Option<Task> {
        self.ring
            .iter_mut()
            .find_map(|place| place.take_if(|(job, _)| job.is_cancelled()))
    }
}

/// Sleeps until `time` has passed since `since`, or until `job` is cancelled.
fn wait(job: &CopyJob, since: Instant<Monotonic>, time: Delta) {
    // Without copy threads the migrating task executes the job, and must respond to SIGKILL.
    while !job.is_cancelled() && !fatal_signal_pending() {
        let left = time - since.elapsed();
        if left <= Delta::ZERO {
            break;
        }
        // `fsleep()` may sleep 25 % longer. Sleep for 80 % of the remaining time, then for the
        // rest.
        let part = Delta::from_nanos(left.as_nanos() - left.as_nanos() / 5);
        fsleep(match part {
            part if part > CANCEL_POLL_INTERVAL => CANCEL_POLL_INTERVAL,
            part if part > MIN_SLEEP => part,
            _ => left,
        });
    }
}

/// State shared by the copy threads.
#[pin_data]
struct CopyEngineShared {
    store: Arc<Store>,
    settings: Arc<Settings>,
    #[pin]
    queue: Mutex<JobQueue>,
    #[pin]
    wake: CondVar,
    bytes: Atomic<u64>,
    failures: Atomic<u64>,
}

impl CopyEngineShared {
    fn carry_out(&self, (job, to): Task) {
        let since = Instant::<Monotonic>::now();
        let result = if job.is_cancelled() {
            self.failures.add(1, Relaxed);
            Err(EINTR)
        } else {
            self.copy(&job.copy(), to.as_deref().unwrap_or(&self.store))
        };
        if let Some(delay) = self.settings.delay(Setting::CopyDelay) {
            // The delay is the total duration of a copy, so the time spent copying is deducted.
            wait(&job, since, delay);
        }
        job.complete(result);
    }

    fn copy(&self, copy: &CopyDesc<'_>, to: &Store) -> Result {
        let result = if self.settings.fail_copy() {
            Err(EIO)
        } else {
            vram::copy(&self.store, copy, to)
        };
        match result {
            Ok(()) => self.bytes.add(copy.bytes() as u64, Relaxed),
            Err(_) => self.failures.add(1, Relaxed),
        }
        result
    }

    fn work(&self) {
        let mut queue = self.queue.lock();
        while !queue.stop {
            let Some(job) = queue.pop() else {
                // A kernel thread gets no signals.
                let _signal = self.wake.wait_interruptible(&mut queue);
                continue;
            };
            drop(queue);
            self.carry_out(job);
            queue = self.queue.lock();
        }
    }
}

/// The copy engine of a device.
pub(crate) struct CopyEngine {
    shared: Arc<CopyEngineShared>,
    threads: KVec<Thread>,
}

impl CopyEngine {
    pub(crate) fn new(store: Arc<Store>, settings: Arc<Settings>, threads: usize) -> Result<Self> {
        let mut ring = KVVec::with_capacity(QUEUE_DEPTH, GFP_KERNEL)?;
        for _ in 0..QUEUE_DEPTH {
            ring.push(None, GFP_KERNEL)?;
        }
        let queue = JobQueue {
            ring,
            first: 0,
            len: 0,
            stop: false,
        };
        let shared = Arc::pin_init(
            pin_init!(CopyEngineShared {
                store,
                settings,
                queue <- kernel::new_mutex!(queue, "dmirror::copy_queue"),
                wake <- kernel::new_condvar!("dmirror::copy_wake"),
                bytes: Atomic::new(0),
                failures: Atomic::new(0),
            }),
            GFP_KERNEL,
        )?;
        let mut engine = Self {
            shared,
            threads: KVec::new(),
        };
        for _ in 0..threads {
            let shared = engine.shared.clone();
            // Reserve before the thread starts. If the push failed, dropping the thread would wait
            // for it without having requested it to stop.
            engine.threads.reserve(1, GFP_KERNEL)?;
            let thread = Thread::spawn(c"dmirror_copy", move || shared.work())?;
            engine.threads.push(thread, GFP_KERNEL)?;
        }
        Ok(engine)
    }

    /// Copies synchronously, without a job, if no copy delay is set and there is at most one
    /// thread: switching to a single thread would only add latency.
    pub(crate) fn copy_sync(&self, copy: &CopyDesc<'_>) -> Option<Result> {
        let takes_time = self.shared.settings.get(Setting::CopyDelay) != 0;
        let shared = &self.shared;
        (self.threads.len() <= 1 && !takes_time).then(|| shared.copy(copy, &shared.store))
    }

    /// Queues a job. `to` is the destination memory if it belongs to another device.
    pub(crate) fn submit(&self, job: CopyJob, to: Option<Arc<Store>>) {
        let job = (job, to);
        if self.threads.is_empty() {
            return self.shared.carry_out(job);
        }
        let full = self.shared.queue.lock().push(job).err();
        if let Some(job) = full {
            self.shared.carry_out(job);
        }
    }

    /// Wakes the threads after all jobs of a step were queued.
    pub(crate) fn wake_threads(&self) {
        // Taking the lock orders this after the check of a thread that found the queue empty, so
        // that its wakeup is not lost.
        if !self.threads.is_empty() && self.shared.queue.lock().len != 0 {
            self.shared.wake.notify_all();
        }
    }

    /// Completes the cancelled jobs in the queue with `EINTR`.
    pub(crate) fn drop_cancelled(&self) {
        let mut queue = self.shared.queue.lock();
        while let Some((job, _)) = queue.pop_cancelled() {
            job.complete(Err(EINTR));
        }
    }

    /// Returns the number of bytes copied and of failed copies.
    pub(crate) fn counters(&self) -> (u64, u64) {
        let shared = &self.shared;
        (shared.bytes.load(Relaxed), shared.failures.load(Relaxed))
    }
}

impl Drop for CopyEngine {
    fn drop(&mut self) {
        self.shared.queue.lock().stop = true;
        self.shared.wake.notify_all();
        // Dropping a job completes it with an error.
        self.threads.clear();
        while let Some(job) = self.shared.queue.lock().pop() {
            drop(job);
        }
    }
}

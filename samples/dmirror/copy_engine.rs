// SPDX-License-Identifier: GPL-2.0

//! The copy engine: threads that carry out copy jobs. The end of a job is its fence: the migration
//! goes on when all of a step are done.

use crate::{
    hardware::store::Store,
    settings::{Setting, Settings},
    vram,
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc,
        CondVar,
        Mutex, //
    },
    time::{delay::fsleep, Delta, Instant, Monotonic},
};
use rust_hmm::{
    memory::{Copy, CopyJob},
    mm::space::fatal_signal_pending,
    thread::Thread,
};

/// Jobs that wait at most; more are done by who brings them.
const DEPTH: usize = 2048;

/// Longest sleep before a look whether a job is still needed.
const NAP: Delta = Delta::from_millis(10);

/// A sleep this short may take longer than it should.
const EXACT: Delta = Delta::from_micros(50);

/// A job, and the memory that it goes to if that is another device's.
type Task = (CopyJob, Option<Arc<Store>>);

/// A queue of fixed size.
struct Queue {
    ring: KVVec<Option<Task>>,
    first: usize,
    len: usize,
    stop: bool,
}

impl Queue {
    fn push(&mut self, job: Task) -> Result<(), Task> {
        let at = (self.first + self.len) % self.ring.len().max(1);
        match self.ring.get_mut(at).filter(|_| self.len < DEPTH) {
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
            // Else it was cancelled in the queue.
            if job.is_some() {
                return job;
            }
        }
        None
    }

    /// Takes a cancelled job out.
    fn pop_cancelled(&mut self) -> Option<Task> {
        self.ring
            .iter_mut()
            .find_map(|place| place.take_if(|(job, _)| job.is_cancelled()))
    }
}

/// Waits until `time` after `since`, or until nobody needs `job` any more.
fn wait(job: &CopyJob, since: Instant<Monotonic>, time: Delta) {
    // Without threads it is the task itself that copies.
    while !job.is_cancelled() && !fatal_signal_pending() {
        let left = time - since.elapsed();
        if left <= Delta::ZERO {
            break;
        }
        // A sleep may take a quarter more: the rest is slept in what is left of it.
        let part = Delta::from_nanos(left.as_nanos() - left.as_nanos() / 5);
        fsleep(match part {
            part if part > NAP => NAP,
            part if part > EXACT => part,
            _ => left,
        });
    }
}

/// What the threads share.
#[pin_data]
struct Shared {
    store: Arc<Store>,
    settings: Arc<Settings>,
    #[pin]
    queue: Mutex<Queue>,
    #[pin]
    wake: CondVar,
    bytes: Atomic<u64>,
    failures: Atomic<u64>,
}

impl Shared {
    fn carry_out(&self, (job, to): Task) {
        let since = Instant::<Monotonic>::now();
        let result = if job.is_cancelled() {
            self.failures.add(1, Relaxed);
            Err(EINTR)
        } else {
            self.copy(&job.copy(), to.as_deref().unwrap_or(&self.store))
        };
        if let Some(delay) = self.settings.delay(Setting::CopyDelay) {
            // What it took counts: a copy takes as long as it is set to.
            wait(&job, since, delay);
        }
        job.complete(result);
    }

    fn copy(&self, copy: &Copy<'_>, to: &Store) -> Result {
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
    shared: Arc<Shared>,
    threads: KVec<Thread>,
}

impl CopyEngine {
    pub(crate) fn new(store: Arc<Store>, settings: Arc<Settings>, threads: usize) -> Result<Self> {
        let mut ring = KVVec::with_capacity(DEPTH, GFP_KERNEL)?;
        for _ in 0..DEPTH {
            ring.push(None, GFP_KERNEL)?;
        }
        let queue = Queue {
            ring,
            first: 0,
            len: 0,
            stop: false,
        };
        let shared = Arc::pin_init(
            pin_init!(Shared {
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
            // Before the thread starts: dropped without a place, it would be waited for, and not be
            // told to end.
            engine.threads.reserve(1, GFP_KERNEL)?;
            let thread = Thread::spawn(c"dmirror_copy", move || shared.work())?;
            engine.threads.push(thread, GFP_KERNEL)?;
        }
        Ok(engine)
    }

    /// Copies, if that takes no time and there are not several threads for it: a single one is not worth
    /// waiting for.
    pub(crate) fn copy_at_once(&self, copy: &Copy<'_>) -> Option<Result> {
        let takes_time = self.shared.settings.get(Setting::CopyDelay) != 0;
        let shared = &self.shared;
        (self.threads.len() <= 1 && !takes_time).then(|| shared.copy(copy, &shared.store))
    }

    /// Takes a job; with `to` it goes to that memory.
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

    /// Starts the jobs taken.
    pub(crate) fn kick(&self) {
        // Who finds the queue empty sleeps by the time that the lock is free.
        if !self.threads.is_empty() && self.shared.queue.lock().len != 0 {
            self.shared.wake.notify_all();
        }
    }

    /// Ends the jobs in the queue that were cancelled.
    pub(crate) fn drop_cancelled(&self) {
        loop {
            // Not under the lock: the end of a job takes another one.
            let job = self.shared.queue.lock().pop_cancelled();
            match job {
                Some((job, _)) => job.complete(Err(EINTR)),
                None => break,
            }
        }
    }

    /// Bytes copied, and copies that failed.
    pub(crate) fn counters(&self) -> (u64, u64) {
        let shared = &self.shared;
        (shared.bytes.load(Relaxed), shared.failures.load(Relaxed))
    }
}

impl Drop for CopyEngine {
    fn drop(&mut self) {
        self.shared.queue.lock().stop = true;
        self.shared.wake.notify_all();
        // Those that are dropped have failed.
        self.threads.clear();
        while let Some(job) = self.shared.queue.lock().pop() {
            drop(job);
        }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Worker pools for operations that consist of parts, so that the copies of one part
//! overlap with the CPU's work for another one.
//!
//! The task that runs an operation also executes parts of it. Therefore it makes progress even if
//! all workers are busy. When the operation ends, no worker holds a reference to it.

use crate::kernel::{
    deferred::{
        Deferred,
        DropWaits, //
    },
    kthread::Thread,
    lock_classes, //
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
    }, //
};

/// Maximum number of queued requests for help.
const MAX_HELP_REQUESTS: usize = 64;

/// An operation that consists of parts.
pub(super) trait ParallelJob: Send + Sync + 'static {
    /// Returns the number of parts.
    fn count(&self) -> usize;

    /// Executes the part `index`. Each part is executed once, unless a previous one failed.
    fn part(&self, index: usize) -> Result;
}

/// Progress of an operation.
#[pin_data]
pub(super) struct JobProgress<P: ParallelJob> {
    parts: P,
    next: Atomic<usize>,
    #[pin]
    result: Mutex<Result>,
}

impl<P: ParallelJob> JobProgress<P> {
    /// Starts with no part executed.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    pub(super) fn new(parts: P) -> Result<Arc<Self>> {
        let (name, key) = lock_classes::shares();
        Arc::pin_init(
            pin_init!(Self {
                parts,
                next: Atomic::new(0),
                result <- Mutex::new(Ok(()), name, key),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the operation.
    pub(super) fn parts(&self) -> &P {
        &self.parts
    }
}

trait JobHelp: Send + Sync {
    /// Executes parts until none is left.
    fn take_part(&self);
}

impl<P: ParallelJob> JobHelp for JobProgress<P> {
    fn take_part(&self) {
        loop {
            let index = self.next.fetch_add(1, Relaxed);
            if index >= self.parts.count() || self.result.lock().is_err() {
                return;
            }
            let result = self.parts.part(index);
            if result.is_err() {
                let mut first = self.result.lock();
                *first = first.and(result);
            }
        }
    }
}

/// A request for help with an operation.
struct HelpRequest {
    number: u64,
    work: Arc<dyn JobHelp>,
}

struct PoolState {
    /// At most [`MAX_HELP_REQUESTS`] requests.
    waiting: KVec<HelpRequest>,
    /// Numbers of the requests that are being handled, at most one per thread.
    running: KVec<u64>,
    last: u64,
    stop: bool,
}

#[pin_data]
struct PoolShared {
    #[pin]
    state: Mutex<PoolState>,
    #[pin]
    called: CondVar,
    #[pin]
    left: CondVar,
}

impl PoolShared {
    fn work(&self) {
        let mut state = self.state.lock();
        while !state.stop {
            let Ok(call) = state.waiting.remove(0) else {
                // A kernel thread receives no signals.
                let _signal = self.called.wait_interruptible(&mut state);
                continue;
            };
            // Cannot fail, because the capacity is one request per thread.
            let _full = state.running.push_within_capacity(call.number);
            drop(state);
            let HelpRequest { number, work } = call;
            work.take_part();
            drop(work);
            state = self.state.lock();
            if let Some(at) = state.running.iter().position(|other| *other == number) {
                let _gone = state.running.remove(at);
            }
            self.left.notify_all();
        }
    }
}

/// A worker pool. Dropping it waits for its threads.
///
/// # Context
///
/// Dropping it may sleep. In a callback, in atomic context, and in a thread of the pool, the drop
/// returns immediately, and a work item waits for the threads.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::queue::WorkerPool;
///
/// // Two threads that help with the operations of all queues. Returned by
/// // `HasMirror::worker_pool()`.
/// let pool = WorkerPool::new(2)?;
/// # Ok::<(), Error>(())
/// ```
pub struct WorkerPool(Deferred<PoolThreads>);

/// Threads of a pool and their shared state.
struct PoolThreads {
    shared: Arc<PoolShared>,
    threads: KVec<Thread>,
}

impl DropWaits for PoolThreads {
    fn waits_for_current(&self) -> bool {
        self.threads.iter().any(Thread::is_current)
    }
}

impl WorkerPool {
    /// Starts a pool of `count` threads.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    /// - `EINTR` if a fatal signal is pending.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new(count: usize) -> Result<Self> {
        let (name, key) = lock_classes::worker_pool();
        let (wake_name, wake_key) = lock_classes::worker_pool_wake();
        let state = PoolState {
            waiting: KVec::with_capacity(MAX_HELP_REQUESTS, GFP_KERNEL)?,
            running: KVec::with_capacity(count, GFP_KERNEL)?,
            last: 0,
            stop: false,
        };
        let shared = Arc::pin_init(
            pin_init!(PoolShared {
                state <- Mutex::new(state, name, key),
                called <- CondVar::new(wake_name, wake_key),
                left <- CondVar::new(wake_name, wake_key),
            }),
            GFP_KERNEL,
        )?;
        let start = || {
            let mut members = PoolThreads {
                shared,
                threads: KVec::with_capacity(count, GFP_KERNEL)?,
            };
            for _ in 0..count {
                let shared = members.shared.clone();
                let thread = Thread::spawn(c"hmm_crew", move || shared.work())?;
                members.threads.push(thread, GFP_KERNEL)?;
            }
            Ok(members)
        };
        Deferred::new(start, GFP_KERNEL).map(Self)
    }

    /// Executes all parts of `work`, with the help of idle workers. After an error, no further part
    /// is begun. Returns the first error.
    pub(super) fn run<P: ParallelJob>(pool: Option<&Self>, work: &Arc<JobProgress<P>>) -> Result {
        match pool {
            Some(pool) => pool.share(work.clone(), work.parts.count().saturating_sub(1)),
            None => work.take_part(),
        }
        *work.result.lock()
    }

    fn share(&self, work: Arc<dyn JobHelp>, most: usize) {
        let members = &*self.0;
        let shared = &*members.shared;
        let mut state = shared.state.lock();
        state.last += 1;
        let number = state.last;
        for _ in 0..most.min(members.threads.len()) {
            let call = HelpRequest {
                number,
                work: work.clone(),
            };
            if state.waiting.len() >= MAX_HELP_REQUESTS
                || state.waiting.push_within_capacity(call).is_err()
            {
                break;
            }
        }
        drop(state);
        shared.called.notify_all();
        work.take_part();
        let mut state = shared.state.lock();
        state.waiting.retain(|call| call.number != number);
        while state.running.contains(&number) {
            // The thread of a queue receives no signals. This wait is bounded by the parts that are
            // being executed.
            let _signal = shared.left.wait_interruptible(&mut state);
        }
    }
}

impl Drop for PoolThreads {
    fn drop(&mut self) {
        self.shared.state.lock().stop = true;
        self.shared.called.notify_all();
        self.threads.clear();
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_worker_pool)]
mod tests {
    use super::*;
    use kernel::time::{
        delay::fsleep,
        Delta, //
    };

    struct Count {
        parts: usize,
        fails: usize,
        done: Atomic<usize>,
        at_once: Atomic<usize>,
        most: Atomic<usize>,
    }

    impl ParallelJob for Count {
        fn count(&self) -> usize {
            self.parts
        }

        fn part(&self, index: usize) -> Result {
            let now = self.at_once.fetch_add(1, Relaxed) + 1;
            if now > self.most.load(Relaxed) {
                self.most.store(now, Relaxed);
            }
            fsleep(Delta::from_millis(5));
            self.at_once.fetch_sub(1, Relaxed);
            if index == self.fails {
                return Err(EIO);
            }
            self.done.add(1, Relaxed);
            Ok(())
        }
    }

    fn work(parts: usize, fails: usize) -> Result<Arc<JobProgress<Count>>> {
        JobProgress::new(Count {
            parts,
            fails,
            done: Atomic::new(0),
            at_once: Atomic::new(0),
            most: Atomic::new(0),
        })
    }

    #[test]
    fn parts_run_once_and_in_parallel() -> Result {
        let pool = WorkerPool::new(3)?;
        let alone = work(5, usize::MAX)?;
        assert_eq!(WorkerPool::run(None, &alone), Ok(()));
        assert_eq!(alone.parts.done.load(Relaxed), 5);
        assert_eq!(alone.parts.most.load(Relaxed), 1);
        let shared = work(40, usize::MAX)?;
        assert_eq!(WorkerPool::run(Some(&pool), &shared), Ok(()));
        assert_eq!(shared.parts.done.load(Relaxed), 40);
        let most = shared.parts.most.load(Relaxed);
        assert!((2..=4).contains(&most));
        Ok(())
    }

    #[test]
    fn failure_ends_the_job_and_frees_it() -> Result {
        let pool = WorkerPool::new(2)?;
        let shared = work(100, 3)?;
        assert_eq!(WorkerPool::run(Some(&pool), &shared), Err(EIO));
        // Parts that were begun before the failure.
        assert!(shared.parts.done.load(Relaxed) < 20);
        assert!(Arc::into_unique_or_drop(shared).is_some());
        Ok(())
    }
}

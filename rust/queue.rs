// SPDX-License-Identifier: GPL-2.0

//! Queues: asynchronous operations that run in order and depend on fences.
//!
//! Each queue has a thread. Operations take the mmap lock, allocate memory, and may depend on
//! fences that user space signals. Therefore they signal a [`Fence`], which cannot be exported as a
//! DMA fence or a sync file.
//!
//! Errors propagate along dependencies only. An operation that depends on a failed fence does not
//! run, and fails with the same error. A failed [`wait`](Queue::wait) fails all operations that
//! follow it in the queue, up to the next [`record`](Queue::record). The fence of a `record` fails
//! with the first error since the previous `record`; errors are cleared after that.

use crate::kernel::{
    cancel::CancelToken,
    completion::{
        cond_resched,
        TimedCompletion, //
    },
    deferred::{
        Deferred,
        DropWaits, //
    },
    fence::{
        DriverFence,
        Fence, //
    },
    identity::FenceType,
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
        Mutex, //
    },
    time::Jiffies, //
};

mod fifo;
mod pool;
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
mod tests;
mod transfer;

use fifo::Fifo;
pub use pool::WorkerPool;
pub use transfer::{
    HasMirror,
    Transfer,
    TransferReport, //
};

/// Number of polls of a fence of another type of device before the queue sleeps.
const FOREIGN_FENCE_POLLS: usize = 8;

/// Longest sleep without a wake-up, in jiffies. Only a safety net: each event wakes the thread.
const QUEUE_RECHECK_JIFFIES: Jiffies = 1 << 16;

/// An operation of a queue.
pub trait Operation: Send {
    /// Runs the operation. Called once.
    ///
    /// # Errors
    ///
    /// - Any error, which the fence of the operation then has.
    ///
    /// # Context
    ///
    /// A kernel thread; may sleep. A long operation should check `stop` periodically.
    fn run(&mut self, stop: &CancelToken) -> Result;
}

/// An operation that is a closure.
struct Closure<F>(Option<F>);

impl<F: FnOnce(&CancelToken) -> Result + Send> Operation for Closure<F> {
    fn run(&mut self, stop: &CancelToken) -> Result {
        self.0.take().ok_or(EINVAL)?(stop)
    }
}

/// An entry of a queue.
enum QueueItem {
    /// The entries that follow start after the fence.
    Wait(Fence),
    /// Signals when all previous entries are done.
    Record(DriverFence),
    Run {
        after: KVec<Fence>,
        operation: KBox<dyn Operation>,
        end: DriverFence,
    },
}

/// Statistics of a queue's waits for fences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitStats {
    /// Waits for fences of the same type of device, without polling: the signal wakes the queue.
    pub on_device: u64,
    /// Waits for fences of other types of devices.
    pub on_host: u64,
    /// Polls of these.
    pub looks: u64,
    /// Sleeps, after polls found these fences unsignalled.
    pub sleeps: u64,
}

#[derive(Clone, Copy)]
#[repr(usize)]
enum WaitCount {
    OnDevice,
    OnHost,
    Looks,
    Sleeps,
}

/// State shared between the queue's thread and its users.
#[pin_data]
struct QueueShared {
    kind: FenceType,
    stop: CancelToken,
    counts: [Atomic<u64>; WaitCount::Sleeps as usize + 1],
    #[pin]
    items: Mutex<Fifo<QueueItem>>,
    #[pin]
    completion: TimedCompletion,
}

impl QueueShared {
    fn count(&self, what: WaitCount) {
        if let Some(count) = self.counts.get(what as usize) {
            count.add(1, Relaxed);
        }
    }

    /// Waits for `fence`. Returns its result, or `ECANCELED` if the queue is dropped.
    fn wait_for(&self, fence: &Fence) -> Result {
        if let Some(ended) = fence.check().result() {
            return ended;
        }
        if fence.is_of(self.kind) {
            self.count(WaitCount::OnDevice);
        } else {
            self.count(WaitCount::OnHost);
            for _ in 0..FOREIGN_FENCE_POLLS {
                self.count(WaitCount::Looks);
                if let Some(ended) = fence.check().result() {
                    return ended;
                }
                self.stop.check()?;
                cond_resched();
            }
            self.count(WaitCount::Sleeps);
        }
        loop {
            // A kernel thread has no signals, so that the wait is not interrupted.
            let _signal = fence.sleep(&self.completion, QUEUE_RECHECK_JIFFIES, false);
            if let Some(ended) = fence.check().result() {
                return ended;
            }
            self.stop.check()?;
        }
    }

    /// The main loop of the thread.
    fn work(&self) {
        // Result of the waits since the last record. All operations depend on it.
        let mut sticky = Ok(());
        // First error since the last record.
        let mut first = Ok(());
        while !self.stop.is_set() {
            let item = self.items.lock().pop();
            match item {
                None => self.completion.wait_timeout(QUEUE_RECHECK_JIFFIES),
                Some(QueueItem::Wait(fence)) => {
                    sticky = sticky.and(self.wait_for(&fence));
                    first = first.and(sticky);
                }
                Some(QueueItem::Record(end)) => {
                    end.signal(core::mem::replace(&mut first, Ok(())));
                    sticky = Ok(());
                }
                Some(QueueItem::Run {
                    after,
                    mut operation,
                    end,
                }) => {
                    let mut result = sticky;
                    for fence in &after {
                        // Wait for all of them, so that the result is that of the first failed one
                        // in the list.
                        result = result.and(self.wait_for(fence));
                    }
                    if result.is_ok() {
                        result = self.stop.check().and_then(|()| operation.run(&self.stop));
                    }
                    // Drop the operation and its references before its fence signals, because
                    // waiters may depend on that.
                    drop((operation, after));
                    first = first.and(result);
                    end.signal(result);
                }
            }
        }
    }
}

/// A queue. Dropping it sets the [`CancelToken`] of the running operation, waits for this
/// operation, and cancels the others.
///
/// # Context
///
/// The drop may sleep. In a callback, in atomic context and in an operation of the queue it returns
/// immediately, and a worker waits and cancels.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::kernel::identity::FenceType;
/// use rust_hmm::queue::Queue;
///
/// let queue = Queue::new(FenceType::NONE, 16)?;
/// let first = queue.submit(KVec::new(), |_| Ok(()))?;
/// queue.wait(first)?;
/// let last = queue.submit(KVec::new(), |stop| stop.check())?;
/// assert_eq!(last.synchronize(None), Ok(()));
/// # Ok::<(), Error>(())
/// ```
pub struct Queue(Deferred<QueueThread>);

/// The state and the thread of a queue.
struct QueueThread {
    shared: Arc<QueueShared>,
    thread: Option<Thread>,
}

impl DropWaits for QueueThread {
    /// The current task is the queue's thread, in an operation or in the drop of one.
    fn waits_for_current(&self) -> bool {
        self.thread.as_ref().is_some_and(Thread::is_current)
    }
}

impl Queue {
    /// Creates a queue of at most `depth` entries, whose fences belong to devices of type `kind`.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    /// - `EINTR`: the task was killed
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new(kind: FenceType, depth: usize) -> Result<Self> {
        let (name, key) = lock_classes::queue();
        let ring = Fifo::new(depth)?;
        let stop = CancelToken::new()?;
        let shared = Arc::pin_init(
            pin_init!(QueueShared {
                kind,
                stop,
                counts: [const { Atomic::new(0) }; WaitCount::Sleeps as usize + 1],
                items <- Mutex::new(ring, name, key),
                completion <- TimedCompletion::new(),
            }),
            GFP_KERNEL,
        )?;
        let start = || {
            let worker = shared.clone();
            let thread = Thread::spawn(c"hmm_queue", move || worker.work())?;
            Ok(QueueThread {
                shared,
                thread: Some(thread),
            })
        };
        Deferred::new(start, GFP_KERNEL).map(Self)
    }

    /// Adds an item to the queue. Drops it and returns `EBUSY` if the queue is full.
    fn push(&self, item: QueueItem) -> Result {
        let shared = &*self.0.shared;
        let mut items = shared.items.lock();
        match items.vacant_slot() {
            Some(slot) => slot.put(item),
            None => {
                // Dropped without the lock, because this signals the fence of the item.
                drop(items);
                drop(item);
                return Err(EBUSY);
            }
        }
        drop(items);
        shared.completion.complete();
        Ok(())
    }

    /// Queues `operation`, which runs after all fences of `after` and all previous entries. The
    /// returned fence signals when the operation has ended.
    ///
    /// # Errors
    ///
    /// After an error the operation is dropped.
    ///
    /// - `EBUSY`: the queue is full
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn submit(
        &self,
        after: KVec<Fence>,
        operation: impl FnOnce(&CancelToken) -> Result + Send + 'static,
    ) -> Result<Fence> {
        let operation: KBox<dyn Operation> = KBox::new(Closure(Some(operation)), GFP_KERNEL)?;
        let end = DriverFence::new(self.0.shared.kind)?;
        let fence = end.fence();
        self.push(QueueItem::Run {
            after,
            operation,
            end,
        })?;
        Ok(fence)
    }

    /// Returns a fence that signals when all previous entries are done. It fails with the first
    /// error since the previous record.
    ///
    /// # Errors
    ///
    /// - `EBUSY`: the queue is full
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn record(&self) -> Result<Fence> {
        let end = DriverFence::new(self.0.shared.kind)?;
        let fence = end.fence();
        self.push(QueueItem::Record(end))?;
        Ok(fence)
    }

    /// Makes all later operations depend on `fence`. Does not wait for the fence itself.
    ///
    /// # Errors
    ///
    /// - `EBUSY`: the queue is full
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn wait(&self, fence: Fence) -> Result {
        self.push(QueueItem::Wait(fence))
    }

    /// Returns the statistics of the queue's waits so far.
    ///
    /// # Context
    ///
    /// Any.
    pub fn waits(&self) -> WaitStats {
        let get = |what: WaitCount| {
            let count = self.0.shared.counts.get(what as usize);
            count.map_or(0, |count| count.load(Relaxed))
        };
        WaitStats {
            on_device: get(WaitCount::OnDevice),
            on_host: get(WaitCount::OnHost),
            looks: get(WaitCount::Looks),
            sleeps: get(WaitCount::Sleeps),
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Set here as well, so that the thread begins no operation until a worker drops the
        // `QueueThread`.
        self.0.shared.stop.set();
    }
}

impl Drop for QueueThread {
    fn drop(&mut self) {
        self.shared.stop.set();
        self.shared.completion.complete();
        self.thread = None;
        // Cancel the entries in their order. Drop them without the lock, because they own objects
        // of the driver.
        loop {
            let item = self.shared.items.lock().pop();
            if item.is_none() {
                break;
            }
        }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Queues: operations that run one after the other, in their own time, and depend on fences.
//!
//! A queue has a thread of its own. Its operations take the mmap lock and allocate, and depend on fences that user space
//! may signal. So they have a [`Fence`], of which no DMA fence and no sync file can be made.
//!
//! What failed is told to whom it concerns, and to nobody else: an operation that depends on a fence
//! fails with the error of that fence, and does not run. A failed [`wait`](Queue::wait) does so to all
//! operations that follow. The next [`record`](Queue::record) reports the first error since the last
//! one, and with it the matter is closed.

use crate::{
    deferred::{
        Deferred,
        DropWaits, //
    },
    locks,
    mm::{
        bell::{let_others_run, Bell},
        fence::{cancelled, Fence, Pending},
        notifier::Cookie,
    },
    thread::Thread,
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic, AtomicFlag},
        Arc,
        Mutex, //
    },
    time::Jiffies,
};

mod crew;
mod memory;
mod ring;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;

pub use crew::Crew;
pub use memory::{HasMirror, Report, Transfer};
use ring::Ring;

/// Looks at a fence that another type of device signals, before the queue sleeps until it does.
const LOOKS: usize = 8;

/// Longest sleep before a look around, in jiffies. Nothing needs it.
const LOOK_AGAIN: Jiffies = 1 << 16;

/// Asks an operation to end, since its queue goes away. A clone is the same.
#[derive(Clone)]
pub struct Stop(Arc<AtomicFlag>);

impl Stop {
    /// One that asks for nothing yet. `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(Arc::new(AtomicFlag::new(false), GFP_KERNEL)?))
    }

    pub(crate) fn set(&self) {
        self.0.store(true, Relaxed);
    }

    /// Whether the operation should end, with `ECANCELED`.
    pub fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// `ECANCELED` if it should end.
    pub fn check(&self) -> Result {
        match self.is_set() {
            true => Err(cancelled()),
            false => Ok(()),
        }
    }
}

/// What a queue runs.
pub trait Operation: Send {
    /// Does it. Context: a kernel thread; may sleep, and should look at `stop` from time to time.
    ///
    /// It is called once.
    fn run(&mut self, stop: &Stop) -> Result;
}

/// An operation that is a closure.
struct Closure<F>(Option<F>);

impl<F: FnOnce(&Stop) -> Result + Send> Operation for Closure<F> {
    fn run(&mut self, stop: &Stop) -> Result {
        self.0.take().ok_or(EINVAL)?(stop)
    }
}

/// What stands in a queue.
enum Item {
    /// What follows starts after the fence.
    Wait(Fence),
    /// All that was before is done.
    Record(Pending),
    Run {
        after: KVec<Fence>,
        operation: KBox<dyn Operation>,
        end: Pending,
    },
}

/// What became of a queue's waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Waits for fences of the same type of device, which nobody looked at: the signal let the queue go on.
    pub on_device: u64,
    /// Waits for other fences.
    pub on_host: u64,
    /// Looks at those.
    pub looks: u64,
    /// Sleeps, after looks that were in vain.
    pub sleeps: u64,
}

#[derive(Clone, Copy)]
#[repr(usize)]
enum Count {
    OnDevice,
    OnHost,
    Looks,
    Sleeps,
}

/// What the thread shares with who fills the queue.
#[pin_data]
struct Shared {
    kind: Cookie,
    stop: Stop,
    counts: [Atomic<u64>; Count::Sleeps as usize + 1],
    #[pin]
    items: Mutex<Ring<Item>>,
    #[pin]
    bell: Bell,
}

impl Shared {
    fn count(&self, what: Count) {
        if let Some(count) = self.counts.get(what as usize) {
            count.add(1, Relaxed);
        }
    }

    /// Waits for `fence`. Returns how it ended, or `ECANCELED` if the queue goes away.
    fn wait_for(&self, fence: &Fence) -> Result {
        if let Some(ended) = fence.check().ended() {
            return ended;
        }
        if fence.is_of(self.kind) {
            self.count(Count::OnDevice);
        } else {
            self.count(Count::OnHost);
            for _ in 0..LOOKS {
                self.count(Count::Looks);
                if let Some(ended) = fence.check().ended() {
                    return ended;
                }
                self.stop.check()?;
                let_others_run();
            }
            self.count(Count::Sleeps);
        }
        loop {
            // A kernel thread gets no signals.
            let _signal = fence.sleep(&self.bell, LOOK_AGAIN, false);
            if let Some(ended) = fence.check().ended() {
                return ended;
            }
            self.stop.check()?;
        }
    }

    /// The thread.
    fn work(&self) {
        // Of a wait: what follows depends on it.
        let mut sticky = Ok(());
        // Since the last record.
        let mut first = Ok(());
        while !self.stop.is_set() {
            let item = self.items.lock().pop();
            match item {
                None => self.bell.wait(LOOK_AGAIN),
                Some(Item::Wait(fence)) => {
                    sticky = sticky.and(self.wait_for(&fence));
                    first = first.and(sticky);
                }
                Some(Item::Record(end)) => {
                    end.signal(core::mem::replace(&mut first, Ok(())));
                    sticky = Ok(());
                }
                Some(Item::Run {
                    after,
                    mut operation,
                    end,
                }) => {
                    let mut result = sticky;
                    for fence in &after {
                        // All of them: the first to fail is the first in the list.
                        result = result.and(self.wait_for(fence));
                    }
                    if result.is_ok() {
                        result = self.stop.check().and_then(|()| operation.run(&self.stop));
                    }
                    // What it holds must be gone before somebody acts on its end.
                    drop((operation, after));
                    first = first.and(result);
                    end.signal(result);
                }
            }
        }
    }
}

/// A queue. Dropping it asks the running operation to end, waits for it, and cancels the rest.
///
/// # Context
///
/// The drop may sleep. In a callback, in atomic context and in an operation of the queue it returns
/// at once, and a worker does all of this.
pub struct Queue(Deferred<Engine>);

/// The parts of a queue.
struct Engine {
    shared: Arc<Shared>,
    thread: Option<Thread>,
}

impl DropWaits for Engine {
    /// In an operation, or in the drop of what an operation holds.
    fn waits_for_current(&self) -> bool {
        self.thread.as_ref().is_some_and(Thread::is_current)
    }
}

impl Queue {
    /// A queue with room for `depth` items, at devices of type `kind`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINTR` if the task was killed. Context: may sleep.
    pub fn new(kind: Cookie, depth: usize) -> Result<Self> {
        let (name, key) = locks::queue();
        let ring = Ring::new(depth)?;
        let stop = Stop::new()?;
        let shared = Arc::pin_init(
            pin_init!(Shared {
                kind,
                stop,
                counts: [const { Atomic::new(0) }; Count::Sleeps as usize + 1],
                items <- Mutex::new(ring, name, key),
                bell <- Bell::new(),
            }),
            GFP_KERNEL,
        )?;
        let start = || {
            let worker = shared.clone();
            let thread = Thread::spawn(c"hmm_queue", move || worker.work())?;
            Ok(Engine {
                shared,
                thread: Some(thread),
            })
        };
        Deferred::new(start, GFP_KERNEL).map(Self)
    }

    /// Puts an item into the queue, or drops it.
    fn push(&self, item: Item) -> Result {
        let shared = &*self.0.shared;
        let mut items = shared.items.lock();
        match items.room() {
            Some(room) => room.put(item),
            None => {
                // Dropped without the lock: this signals its fence.
                drop(items);
                drop(item);
                return Err(EBUSY);
            }
        }
        drop(items);
        shared.bell.ring();
        Ok(())
    }

    /// Has `operation` done after all of `after`, and all that was queued before. Its fence signals when
    /// it is done.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the queue is full; `ENOMEM`. Then the operation is dropped. Context: may sleep.
    pub fn submit(
        &self,
        after: KVec<Fence>,
        operation: impl FnOnce(&Stop) -> Result + Send + 'static,
    ) -> Result<Fence> {
        let operation: KBox<dyn Operation> = KBox::new(Closure(Some(operation)), GFP_KERNEL)?;
        let end = Pending::new(self.0.shared.kind)?;
        let fence = end.fence();
        self.push(Item::Run {
            after,
            operation,
            end,
        })?;
        Ok(fence)
    }

    /// A fence that signals when all that was queued before is done; it fails with the first error of
    /// that since the last record.
    ///
    /// # Errors
    ///
    /// As [`Self::submit`].
    pub fn record(&self) -> Result<Fence> {
        let end = Pending::new(self.0.shared.kind)?;
        let fence = end.fence();
        self.push(Item::Record(end))?;
        Ok(fence)
    }

    /// Lets what is queued later start only after `fence`, and waits for nothing.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the queue is full.
    pub fn wait(&self, fence: Fence) -> Result {
        self.push(Item::Wait(fence))
    }

    /// What became of its waits so far.
    pub fn waits(&self) -> Waits {
        let get = |what: Count| {
            let count = self.0.shared.counts.get(what as usize);
            count.map_or(0, |count| count.load(Relaxed))
        };
        Waits {
            on_device: get(Count::OnDevice),
            on_host: get(Count::OnHost),
            looks: get(Count::Looks),
            sleeps: get(Count::Sleeps),
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Here already: the thread is to begin no operation until a worker ends it.
        self.0.shared.stop.set();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.stop.set();
        self.shared.bell.ring();
        self.thread = None;
        // In their order. Not under the lock: what an operation holds is dropped with it.
        loop {
            let item = self.shared.items.lock().pop();
            if item.is_none() {
                break;
            }
        }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! The fault buffer of a device: engines put missing pages into it, threads have them brought in,
//! batch by batch, the oldest first, and let the engines go on.

use crate::{
    client::Client,
    hardware::{engine::Engine, fault::Wait},
};
use kernel::{
    page::{PAGE_SHIFT, PAGE_SIZE},
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc,
        CondVar,
        Mutex, //
    },
};
use rust_hmm::{
    mm::{addr::PageRange, range_fault::Access},
    thread::Thread,
};

/// Faults that wait at most. An engine that finds no room tries again.
const DEPTH: usize = 256;

/// Pages that a thread has brought in at once.
const BATCH: usize = 32;

/// Commands that wait for one fault at most.
const WAITERS: usize = 8;

struct Fault {
    client: Arc<Client>,
    page: usize,
    write: bool,
    waiters: KVec<Arc<Wait<Client>>>,
}

impl Fault {
    fn key(&self) -> (u64, bool, usize) {
        (self.client.tag(), self.write, self.page)
    }

    /// Ends it: the mirror is let go before the command may end.
    fn done(self, result: Result) {
        let Self {
            client, waiters, ..
        } = self;
        drop(client);
        for wait in waiters {
            wait.reply(result);
        }
    }
}

struct Queue {
    /// The oldest first.
    faults: KVec<Fault>,
    /// Mirrors whose faults are being served, once for each thread.
    served: KVec<u64>,
    stop: bool,
}

impl Queue {
    /// Takes the oldest fault that may be served, and those of the pages around it. `batch` is
    /// empty. A mirror does not get the last free thread: its migrations can hold its faults for
    /// long, and others must not wait for that.
    fn take(&mut self, batch: &mut KVec<Fault>, threads: usize) -> Option<Batch> {
        let most = threads.saturating_sub(1).max(1);
        let busy = |tag| self.served.iter().filter(|other| **other == tag).count() >= most;
        let at = self
            .faults
            .iter()
            .position(|fault| !busy(fault.client.tag()))?;
        let fault = self.faults.remove(at).ok()?;
        let (tag, write, page) = fault.key();
        let mut taken = Batch {
            tag,
            first: page,
            count: 0,
        };
        let mut next = Some(fault);
        while let Some(fault) = next {
            taken.first = taken.first.min(fault.page);
            if let Err(error) = batch.push_within_capacity(fault) {
                // Not reached: there is room for a whole batch.
                error.0.done(Err(ENOMEM));
                break;
            }
            taken.count += 1;
            next = (taken.count < BATCH)
                .then(|| {
                    self.faults
                        .iter()
                        .position(|fault| taken.borders(fault, write))
                })
                .flatten()
                .and_then(|at| self.faults.remove(at).ok());
        }
        // There is room for all threads.
        let _full = self.served.push_within_capacity(tag);
        Some(taken)
    }

    /// A thread is done with a mirror.
    fn release(&mut self, tag: u64) {
        if let Some(at) = self.served.iter().position(|other| *other == tag) {
            let _tag = self.served.remove(at);
        }
    }
}

/// Consecutive pages of a mirror, brought in with one call.
#[derive(Clone, Copy)]
struct Batch {
    tag: u64,
    first: usize,
    count: usize,
}

impl Batch {
    /// Whether `fault` is for a page right before or behind.
    fn borders(&self, fault: &Fault, write: bool) -> bool {
        let (tag, writes, page) = fault.key();
        let near = page == self.first + self.count || page + 1 == self.first;
        (tag, writes) == (self.tag, write) && near
    }
}

#[pin_data]
struct Shared {
    #[pin]
    queue: Mutex<Queue>,
    #[pin]
    wake: CondVar,
    /// Number of threads.
    threads: usize,
    coalesced: Atomic<u64>,
    batches: Atomic<u64>,
}

/// The fault buffer.
pub(crate) struct FaultBuffer {
    shared: Arc<Shared>,
    threads: KVec<Thread>,
}

impl Shared {
    /// A thread. `faults` has room for a batch.
    fn work(&self, mut faults: KVec<Fault>) {
        let mut queue = self.queue.lock();
        while !queue.stop {
            let Some(batch) = queue.take(&mut faults, self.threads) else {
                // A kernel thread gets no signals.
                let _signal = self.wake.wait_interruptible(&mut queue);
                continue;
            };
            if !queue.faults.is_empty() {
                // What this thread has left may be for another one.
                self.wake.notify_one();
            }
            drop(queue);
            self.batches.add(1, Relaxed);
            serve(batch, &mut faults);
            queue = self.queue.lock();
            queue.release(batch.tag);
        }
    }
}

/// Serves a batch.
fn serve(batch: Batch, faults: &mut KVec<Fault>) {
    let result = match faults.first() {
        Some(fault) => bring_in(fault, batch.first, batch.count),
        None => return,
    };
    while let Some(fault) = faults.pop() {
        let result = match result {
            // Only who touched the bad page shall fail.
            Err(error) if batch.count > 1 && error != EBUSY => bring_in(&fault, fault.page, 1),
            result => result,
        };
        fault.done(result);
    }
}

/// `EFAULT`: also if there are no such addresses.
fn bring_in(fault: &Fault, page: usize, count: usize) -> Result {
    let range = PageRange::from_pages(page << PAGE_SHIFT, count).map_err(|_| EFAULT)?;
    let access = if fault.write {
        Access::Write
    } else {
        Access::Read
    };
    fault.client.decider().serve(&fault.client, range, access)
}

impl FaultBuffer {
    /// A buffer, for `engines` engines.
    pub(crate) fn new(engines: usize) -> Result<Self> {
        let threads = engines + 1;
        let queue = Queue {
            faults: KVec::with_capacity(DEPTH, GFP_KERNEL)?,
            served: KVec::with_capacity(threads, GFP_KERNEL)?,
            stop: false,
        };
        let shared = Arc::pin_init(
            pin_init!(Shared {
                queue <- kernel::new_mutex!(queue, "dmirror::fault_queue"),
                wake <- kernel::new_condvar!("dmirror::fault_wake"),
                threads,
                coalesced: Atomic::new(0),
                batches: Atomic::new(0),
            }),
            GFP_KERNEL,
        )?;
        let mut buffer = Self {
            shared,
            threads: KVec::new(),
        };
        for _ in 0..threads {
            // What a thread needs is there before it starts: without it no command would end.
            let faults = KVec::with_capacity(BATCH, GFP_KERNEL)?;
            let shared = buffer.shared.clone();
            buffer.threads.reserve(1, GFP_KERNEL)?;
            let thread = Thread::spawn(c"dmirror_fault", move || shared.work(faults))?;
            buffer.threads.push(thread, GFP_KERNEL)?;
        }
        Ok(buffer)
    }

    /// Reports that the page at `addr` is missing. `None` if there is no room now.
    pub(crate) fn report(
        &self,
        client: &Arc<Client>,
        engine: &Arc<Engine<Client>>,
        addr: usize,
        write: bool,
    ) -> Option<Arc<Wait<Client>>> {
        let wait = Wait::new(engine.clone()).ok()?;
        let mut waiters = KVec::with_capacity(WAITERS, GFP_KERNEL).ok()?;
        let page = addr / PAGE_SIZE;
        let mut queue = self.shared.queue.lock();
        let same = queue.faults.iter_mut().find(|fault| {
            fault.key() == (client.tag(), write, page) && fault.waiters.len() < WAITERS
        });
        if let Some(fault) = same {
            fault.waiters.push_within_capacity(wait.clone()).ok()?;
            self.shared.coalesced.add(1, Relaxed);
            return Some(wait);
        }
        if queue.faults.len() >= DEPTH {
            return None;
        }
        waiters.push_within_capacity(wait.clone()).ok()?;
        let fault = Fault {
            client: client.clone(),
            page,
            write,
            waiters,
        };
        queue.faults.push_within_capacity(fault).ok()?;
        drop(queue);
        self.shared.wake.notify_one();
        Some(wait)
    }

    /// Faults that were there already, and batches.
    pub(crate) fn counters(&self) -> (u64, u64) {
        let shared = &self.shared;
        (shared.coalesced.load(Relaxed), shared.batches.load(Relaxed))
    }
}

impl Drop for FaultBuffer {
    fn drop(&mut self) {
        self.shared.queue.lock().stop = true;
        self.shared.wake.notify_all();
        self.threads.clear();
    }
}

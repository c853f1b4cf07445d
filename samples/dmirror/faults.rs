// SPDX-License-Identifier: GPL-2.0

//! The fault buffer of a device: engines put missing pages into it, threads have them brought in,
//! batch by batch, and let the engines go on.

use crate::{client::Client, engine::Engine};
use kernel::{
    page::{PAGE_SHIFT, PAGE_SIZE},
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Relaxed, Release},
            Atomic, //
        },
        Arc, CondVar, Mutex, SetOnce,
    },
};
use rust_hmm::{
    mm::{addr::PageRange, range_fault::Access},
    thread::Thread,
};

/// Faults that wait at most. An engine that finds no room tries again.
const DEPTH: usize = 256;

/// Faults that a thread takes at once.
const BATCH: usize = 32;

/// Commands that wait for one fault at most.
const WAITERS: usize = 8;

/// What a command waits for.
pub(crate) struct Wait {
    result: SetOnce<Result>,
    engine: Arc<Engine>,
}

impl Wait {
    fn new(engine: Arc<Engine>) -> Result<Arc<Self>> {
        let result = SetOnce::new();
        Ok(Arc::new(Self { result, engine }, GFP_KERNEL)?)
    }

    /// How the fault was served, if it was.
    pub(crate) fn result(&self) -> Option<Result> {
        self.result.copy()
    }
}

struct Fault {
    client: Arc<Client>,
    page: usize,
    write: bool,
    waiters: KVec<Arc<Wait>>,
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
            wait.result.populate(result);
            wait.engine.wake();
        }
    }
}

struct Queue {
    faults: KVec<Fault>,
    stop: bool,
}

#[pin_data]
struct Shared {
    #[pin]
    queue: Mutex<Queue>,
    #[pin]
    wake: CondVar,
    coalesced: Atomic<u64>,
    batches: Atomic<u64>,
    waiting: Atomic<usize>,
}

/// The fault buffer.
pub(crate) struct FaultBuffer {
    shared: Arc<Shared>,
    threads: KVec<Thread>,
}

/// What a thread brings in with one call.
struct Group {
    first: usize,
    count: usize,
}

impl Shared {
    fn work(&self) {
        let Ok(mut batch) = KVec::with_capacity(BATCH, GFP_KERNEL) else {
            pr_err!("no memory for a thread that serves faults\n");
            return;
        };
        loop {
            let mut queue = self.queue.lock();
            while queue.faults.is_empty() && !queue.stop {
                // A kernel thread gets no signals.
                let _signal = self.wake.wait_interruptible(&mut queue);
            }
            if queue.stop {
                return;
            }
            while let Some(fault) = queue.faults.pop() {
                // There is room, as long as there are less than so many.
                if batch.push_within_capacity(fault).is_err() || batch.len() == BATCH {
                    break;
                }
            }
            drop(queue);
            self.batches.add(1, Relaxed);
            self.serve(&mut batch);
        }
    }

    /// Serves a batch: consecutive pages of a mirror together.
    fn serve(&self, batch: &mut KVec<Fault>) {
        // From the last to the first, as they are taken from the end.
        batch.sort_unstable_by_key(|fault| core::cmp::Reverse(fault.key()));
        while let Some(group) = Self::group(batch) {
            let Some(last) = batch.last() else {
                break;
            };
            let result = bring_in(last, group.first, group.count);
            for _ in 0..group.count {
                let Some(fault) = batch.pop() else {
                    break;
                };
                self.waiting.fetch_sub(1, Release);
                // Only who touched the bad page shall fail.
                let result = match result {
                    Err(_) if group.count > 1 => bring_in(&fault, fault.page, 1),
                    result => result,
                };
                fault.done(result);
            }
        }
    }

    /// Consecutive pages at the end of the batch.
    fn group(batch: &[Fault]) -> Option<Group> {
        let first = batch.last()?;
        let (tag, write, page) = first.key();
        let count = batch
            .iter()
            .rev()
            .enumerate()
            .take_while(|(index, fault)| fault.key() == (tag, write, page + index))
            .count();
        Some(Group { first: page, count })
    }
}

fn bring_in(fault: &Fault, page: usize, count: usize) -> Result {
    let range = PageRange::from_pages(page << PAGE_SHIFT, count)?;
    let access = if fault.write {
        Access::Write
    } else {
        Access::Read
    };
    fault.client.mirror().fault(range, access)
}

impl FaultBuffer {
    pub(crate) fn new(threads: usize) -> Result<Self> {
        let queue = Queue {
            faults: KVec::with_capacity(DEPTH, GFP_KERNEL)?,
            stop: false,
        };
        let shared = Arc::pin_init(
            pin_init!(Shared {
                queue <- kernel::new_mutex!(queue, "dmirror::fault_queue"),
                wake <- kernel::new_condvar!("dmirror::fault_wake"),
                coalesced: Atomic::new(0),
                batches: Atomic::new(0),
                waiting: Atomic::new(0),
            }),
            GFP_KERNEL,
        )?;
        let mut buffer = Self {
            shared,
            threads: KVec::new(),
        };
        for _ in 0..threads {
            let shared = buffer.shared.clone();
            let thread = Thread::spawn(c"dmirror_fault", move || shared.work())?;
            buffer.threads.push(thread, GFP_KERNEL)?;
        }
        Ok(buffer)
    }

    /// Reports that the page at `addr` is missing. `None` if there is no room now.
    pub(crate) fn report(
        &self,
        client: &Arc<Client>,
        engine: &Arc<Engine>,
        addr: usize,
        write: bool,
    ) -> Option<Arc<Wait>> {
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
        if self.shared.waiting.load(Acquire) >= DEPTH {
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
        self.shared.waiting.fetch_add(1, Relaxed);
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

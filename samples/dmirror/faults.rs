// SPDX-License-Identifier: GPL-2.0

//! Serves the fault buffer: threads take batches of faults from it, oldest first, resolve them with
//! the file's policy, and reply to the engines.

use crate::{
    client::Client,
    hardware::{
        engine::Engine,
        fault::{
            Buffer,
            Fault,
            FaultTicket,
            Packet, //
        }, //
    }, //
};
use kernel::{
    page::PAGE_SHIFT,
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
use rust_hmm::{
    kernel::kthread::Thread,
    mm::{
        addr::PageRange,
        range_fault::Access, //
    }, //
};

/// Maximum number of pages in a batch.
const BATCH_MAX_PAGES: usize = 32;

/// Open files, found by the tags of their address spaces. A file is removed when it is closed,
/// after its commands have ended.
#[pin_data]
pub(crate) struct Clients {
    #[pin]
    list: Mutex<KVec<Arc<Client>>>,
}

impl Clients {
    fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                list <- kernel::new_mutex!(KVec::new(), "dmirror::clients"),
            }),
            GFP_KERNEL,
        )
    }

    fn find(&self, tag: u64) -> Option<Arc<Client>> {
        let list = self.list.lock();
        list.iter().find(|client| client.tag() == tag).cloned()
    }

    /// Adds an open file. `ENOMEM`.
    pub(crate) fn add(&self, client: &Arc<Client>) -> Result {
        Ok(self.list.lock().push(client.clone(), GFP_KERNEL)?)
    }

    /// Removes the file with tag `tag`.
    pub(crate) fn remove(&self, tag: u64) {
        let gone = {
            let mut list = self.list.lock();
            let at = list.iter().position(|client| client.tag() == tag);
            at.and_then(|at| list.remove(at).ok())
        };
        // Dropped without the lock: this may drop the last reference to the file, and with it the
        // mirror.
        drop(gone);
    }
}

struct Serving {
    /// Tags of the mirrors whose faults are being served, one element for each thread.
    tags: KVec<u64>,
    stop: bool,
}

impl Serving {
    /// Removes one element for `tag` when a thread has served a batch.
    fn release(&mut self, tag: u64) {
        if let Some(at) = self.tags.iter().position(|other| *other == tag) {
            let _tag = self.tags.remove(at);
        }
    }
}

/// Consecutive pages of a mirror that are faulted in with one call.
#[derive(Clone, Copy)]
struct Batch {
    tag: u64,
    write: bool,
    first: usize,
    count: usize,
}

impl Batch {
    /// Whether the page of `packet` directly precedes or follows the batch, with the same access
    /// type.
    fn borders(&self, packet: &Packet) -> bool {
        let near = packet.page == self.first + self.count || packet.page + 1 == self.first;
        (packet.tag, packet.write) == (self.tag, self.write) && near
    }
}

#[pin_data]
struct FaultServiceShared {
    buffer: Arc<Buffer<Client>>,
    clients: Arc<Clients>,
    #[pin]
    serving: Mutex<Serving>,
    #[pin]
    wake: CondVar,
    /// Number of threads.
    threads: usize,
    batches: Atomic<u64>,
}

/// The threads that serve the fault buffer.
pub(crate) struct FaultThreads {
    shared: Arc<FaultServiceShared>,
    threads: KVec<Thread>,
}

impl FaultServiceShared {
    /// Takes the oldest fault that may be served, and the faults of adjacent pages, into the empty
    /// `batch`.
    ///
    /// One mirror may occupy all threads but one: its migrations can block its faults for long, and
    /// faults of other mirrors must not wait for them.
    fn take(&self, serving: &mut Serving, batch: &mut KVec<Fault<Client>>) -> Option<Batch> {
        let most = self.threads.saturating_sub(1).max(1);
        let busy = |tag| serving.tags.iter().filter(|other| **other == tag).count() >= most;
        let fault = self.buffer.take(|packet| !busy(packet.tag))?;
        let Packet { tag, page, write } = fault.packet;
        let mut taken = Batch {
            tag,
            write,
            first: page,
            count: 0,
        };
        let mut next = Some(fault);
        while let Some(fault) = next {
            taken.first = taken.first.min(fault.packet.page);
            if let Err(error) = batch.push_within_capacity(fault) {
                // Not reached: the capacity is a whole batch.
                error.0.reply(Err(ENOMEM));
                break;
            }
            taken.count += 1;
            next = if taken.count < BATCH_MAX_PAGES {
                self.buffer.take(|packet| taken.borders(packet))
            } else {
                None
            };
        }
        // Does not fail: the capacity is the number of threads.
        let _full = serving.tags.push_within_capacity(tag);
        Some(taken)
    }

    /// Body of a thread. `faults` has the capacity for a batch.
    fn work(&self, mut faults: KVec<Fault<Client>>) {
        let mut serving = self.serving.lock();
        while !serving.stop {
            let Some(batch) = self.take(&mut serving, &mut faults) else {
                // A kernel thread gets no signals.
                let _signal = self.wake.wait_interruptible(&mut serving);
                continue;
            };
            drop(serving);
            if !self.buffer.is_empty() {
                // Wake another thread for the faults that this one left in the buffer.
                self.wake.notify_one();
            }
            self.batches.add(1, Relaxed);
            self.serve(batch, &mut faults);
            serving = self.serving.lock();
            serving.release(batch.tag);
        }
    }

    /// Resolves a batch and replies to its faults.
    fn serve(&self, batch: Batch, faults: &mut KVec<Fault<Client>>) {
        let result = self.bring_in(&batch);
        while let Some(fault) = faults.pop() {
            let result = match result {
                // Retry page by page, so that only commands that accessed the failing page get the
                // error.
                Err(error) if batch.count > 1 && error != EBUSY => self.bring_in(&Batch {
                    first: fault.packet.page,
                    count: 1,
                    ..batch
                }),
                result => result,
            };
            fault.reply(result);
        }
    }

    /// Faults the pages of `batch` in. Returns `EFAULT` also if the addresses are out of range.
    fn bring_in(&self, batch: &Batch) -> Result {
        let range =
            PageRange::from_pages(batch.first << PAGE_SHIFT, batch.count).map_err(|_| EFAULT)?;
        let access = if batch.write {
            Access::Write
        } else {
            Access::Read
        };
        // The reference must be dropped before the reply, because the file's last command may end
        // right after it.
        let client = self.clients.find(batch.tag).ok_or(ENODEV)?;
        client.fault_policy().serve(&client, range, access)
    }
}

impl FaultThreads {
    /// Starts the threads for a device with `engines` engines.
    pub(crate) fn new(engines: usize) -> Result<Self> {
        let threads = engines + 1;
        let serving = Serving {
            tags: KVec::with_capacity(threads, GFP_KERNEL)?,
            stop: false,
        };
        let buffer = Buffer::new()?;
        let clients = Clients::new()?;
        let shared = Arc::pin_init(
            pin_init!(FaultServiceShared {
                buffer,
                clients,
                serving <- kernel::new_mutex!(serving, "dmirror::fault_serving"),
                wake <- kernel::new_condvar!("dmirror::fault_wake"),
                threads,
                batches: Atomic::new(0),
            }),
            GFP_KERNEL,
        )?;
        let mut all = Self {
            shared,
            threads: KVec::new(),
        };
        for _ in 0..threads {
            // Allocate before the thread starts: without a fault thread no command would complete.
            let faults = KVec::with_capacity(BATCH_MAX_PAGES, GFP_KERNEL)?;
            let shared = all.shared.clone();
            all.threads.reserve(1, GFP_KERNEL)?;
            let thread = Thread::spawn(c"dmirror_fault", move || shared.work(faults))?;
            all.threads.push(thread, GFP_KERNEL)?;
        }
        Ok(all)
    }

    /// Returns the open files whose faults are served.
    pub(crate) fn clients(&self) -> &Clients {
        &self.shared.clients
    }

    /// Queues a packet of `engine` and wakes a thread. Returns `None` if the buffer is full.
    pub(crate) fn report(
        &self,
        engine: &Arc<Engine<Client>>,
        packet: Packet,
    ) -> Option<Arc<FaultTicket<Client>>> {
        let wait = self.shared.buffer.put(engine, packet)?;
        // Taking the lock orders this after the check of a thread that found the buffer empty, so
        // that its wakeup is not lost. Release it first, because the thread takes it at once.
        drop(self.shared.serving.lock());
        self.shared.wake.notify_one();
        Some(wait)
    }

    /// Returns the numbers of coalesced faults and of batches.
    pub(crate) fn counters(&self) -> (u64, u64) {
        let shared = &self.shared;
        (shared.buffer.coalesced(), shared.batches.load(Relaxed))
    }
}

impl Drop for FaultThreads {
    fn drop(&mut self) {
        self.shared.serving.lock().stop = true;
        self.shared.wake.notify_all();
        self.threads.clear();
    }
}

// SPDX-License-Identifier: GPL-2.0

//! The copy engine: a thread that executes copy jobs.

use crate::MEMORY_PAGES;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        Arc,
        CondVar,
        Mutex, //
    }, //
};
use rust_hmm::{
    kernel::kthread::Thread,
    memory::{
        CopyDesc,
        CopyJob,
        MemoryOps, //
    },
    mirror::{
        PageMemory,
        PageMemoryMut, //
    },
    mm::folio::SharedBytes, //
};

/// Capacity of the job queue.
const QUEUE_DEPTH: usize = 512;

struct Queue {
    jobs: KVec<CopyJob>,
    stop: bool,
}

/// State shared by the thread and the tasks that submit jobs.
#[pin_data]
struct Shared {
    /// HARDWARE: the memory on the card.
    vram: SharedBytes,
    #[pin]
    queue: Mutex<Queue>,
    #[pin]
    wake: CondVar,
}

impl Shared {
    /// HARDWARE: one transfer.
    fn transfer(&self, copy: &CopyDesc<'_>) -> Result {
        match (&copy.source, &copy.destination) {
            // A hole: the page must read as zeros.
            (None, PageMemoryMut::Device(to)) => {
                self.vram.clear(to.first * PAGE_SIZE, to.count * PAGE_SIZE)
            }
            (Some(PageMemory::Cpu(from)), PageMemoryMut::Device(to)) => {
                self.vram.load(to.first * PAGE_SIZE, from)
            }
            (Some(PageMemory::Device(from)), PageMemoryMut::Cpu(to)) => {
                self.vram.store(from.first * PAGE_SIZE, to)
            }
            _ => Err(EINVAL),
        }
    }

    fn carry_out(&self, job: CopyJob) {
        let result = if job.is_cancelled() {
            Err(EINTR)
        } else {
            self.transfer(&job.copy())
        };
        job.complete(result);
    }

    fn work(&self) {
        let mut queue = self.queue.lock();
        while !queue.stop {
            // Any order will do.
            let Some(job) = queue.jobs.pop() else {
                // Kernel threads do not receive signals.
                let _signal = self.wake.wait_interruptible(&mut queue);
                continue;
            };
            // `copy` does not wait for a transfer.
            drop(queue);
            self.carry_out(job);
            queue = self.queue.lock();
        }
    }
}

/// Device memory with a copy engine.
pub(crate) struct Copier {
    shared: Arc<Shared>,
    _thread: Thread,
}

impl Copier {
    pub(crate) fn new() -> Result<Self> {
        let queue = Queue {
            // In advance: copy() must not allocate with reclaim.
            jobs: KVec::with_capacity(QUEUE_DEPTH, GFP_KERNEL)?,
            stop: false,
        };
        let vram = SharedBytes::new(MEMORY_PAGES * PAGE_SIZE)?;
        let shared = Arc::pin_init(
            pin_init!(Shared {
                vram,
                queue <- kernel::new_mutex!(queue, "engines::queue"),
                wake <- kernel::new_condvar!("engines::wake"),
            }),
            GFP_KERNEL,
        )?;
        let worker = shared.clone();
        let thread = Thread::spawn(c"engines_copy", move || worker.work())?;
        Ok(Self {
            shared,
            _thread: thread,
        })
    }

    /// The memory on the card.
    pub(crate) fn vram(&self) -> &SharedBytes {
        &self.shared.vram
    }
}

impl MemoryOps for Copier {
    // Queues the job. The migration waits until the job is completed. A job that is dropped fails.
    fn copy(&self, job: CopyJob) {
        let mut queue = self.shared.queue.lock();
        if queue.jobs.len() < QUEUE_DEPTH {
            // Not full, so that nothing is allocated.
            let _failed = queue.jobs.push(job, GFP_NOWAIT);
            return;
        }
        drop(queue);
        self.shared.carry_out(job);
    }

    // HARDWARE: ring the doorbell. All jobs of a step have been queued.
    fn ring_doorbell(&self) {
        self.shared.wake.notify_one();
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.shared.queue.lock().stop = true;
        self.shared.wake.notify_one();
        // The field `_thread` is dropped next, which waits for the thread to exit.
    }
}

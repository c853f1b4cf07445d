// SPDX-License-Identifier: GPL-2.0

//! Worker thread of a device memory, which frees idle chunks.
//!
//! A chunk pins 64 bytes of `struct page` for each page: 4 MiB with pages of 4 KiB, 1 MiB with
//! pages of 16 KiB. It should be freed when the system is short of memory. Removing a chunk takes
//! the memory hotplug lock and therefore cannot run in reclaim. So the shrinker only wakes the
//! worker.

use super::MemoryState;
use crate::{
    kernel::{
        kthread::Thread,
        lock_classes,
        shrinker::{
            Shrink,
            Shrinker, //
        }, //
    },
    memory::MemoryOps,
    mm::device_pages::{
        DevicePages,
        CHUNK_OVERHEAD, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            ordering::{
                Full,
                Relaxed, //
            },
            Atomic,
            AtomicFlag, //
        },
        Arc,
        CondVar,
        Mutex, //
    }, //
};

/// Number of shrinker objects that a chunk counts as, in pages of system memory.
const OBJECTS: usize = CHUNK_OVERHEAD / PAGE_SIZE;

/// Time in jiffies after which the worker checks again. A wake-up can precede the worker's sleep,
/// because the shrinker does not hold the lock.
const WORKER_RECHECK_JIFFIES: kernel::time::Jiffies = 1000;

/// Work queued for the worker thread.
#[pin_data]
pub(super) struct DeferredWork {
    /// Number of idle chunks to be removed.
    chunks: Atomic<usize>,
    /// Held by the worker while it checks for work.
    #[pin]
    lock: Mutex<()>,
    #[pin]
    wake: CondVar,
}

impl DeferredWork {
    pub(super) fn new() -> impl PinInit<Self, Error> {
        let (name, key) = lock_classes::deferred_work();
        let (wake_name, wake_key) = lock_classes::deferred_work_wake();
        try_pin_init!(Self {
            chunks: Atomic::new(0),
            lock <- Mutex::new((), name, key),
            wake <- CondVar::new(wake_name, wake_key),
        })
    }

    fn work<M: MemoryOps>(&self, pages: &DevicePages<MemoryState<M>>, stop: &AtomicFlag) {
        let mut guard = self.lock.lock();
        while !stop.load(Relaxed) {
            // The number is all that is handed over: `remove_chunks` takes a mutex and checks which
            // chunks are idle. A relaxed operation would be sufficient.
            let chunks = self.chunks.xchg(0, Full);
            if chunks == 0 {
                let _why = self
                    .wake
                    .wait_interruptible_timeout(&mut guard, WORKER_RECHECK_JIFFIES);
                continue;
            }
            drop(guard);
            pages.remove_chunks(chunks);
            guard = self.lock.lock();
        }
    }
}

/// Shrinker that counts the idle chunks of one device memory.
struct ChunkShrinker<M: MemoryOps>(Arc<DevicePages<MemoryState<M>>>);

impl<M: MemoryOps> Shrink for ChunkShrinker<M> {
    fn count(&self) -> usize {
        self.0.idle_chunks().1 * OBJECTS
    }

    fn scan(&self, objects: usize) -> usize {
        let (_, idle) = self.0.idle_chunks();
        let chunks = objects.div_ceil(OBJECTS).min(idle);
        if chunks != 0 {
            let deferred_work = &self.0.data().deferred_work;
            // As in `work`, a relaxed operation would be sufficient: no barrier prevents a lost
            // wake-up.
            deferred_work.chunks.fetch_add(chunks, Full);
            // Do not take the lock: a holder may allocate, and this is reclaim. If the wake-up is
            // lost, the worker checks again after `WORKER_RECHECK_JIFFIES`.
            deferred_work.wake.notify_one();
        }
        chunks * OBJECTS
    }
}

/// The worker thread and its shrinker. Dropping it stops both.
pub(super) struct MemoryWorker<M: MemoryOps> {
    // Unregistered first in `drop`, so that nothing wakes the thread after it has ended.
    shrinker: Option<Shrinker<ChunkShrinker<M>>>,
    pages: Arc<DevicePages<MemoryState<M>>>,
    stop: Arc<AtomicFlag>,
    thread: Option<Thread>,
}

impl<M: MemoryOps> MemoryWorker<M> {
    pub(super) fn new(pages: Arc<DevicePages<MemoryState<M>>>) -> Result<Self> {
        let stop = Arc::new(AtomicFlag::new(false), GFP_KERNEL)?;
        let mut worker = Self {
            shrinker: None,
            pages: pages.clone(),
            stop: stop.clone(),
            thread: None,
        };
        let shrinker = Arc::new(ChunkShrinker(pages.clone()), GFP_KERNEL)?;
        worker.thread = Some(Thread::spawn(c"hmm_free_chunks", move || {
            pages.data().deferred_work.work(&pages, &stop)
        })?);
        worker.shrinker = Some(Shrinker::new(c"rust_hmm", shrinker)?);
        Ok(worker)
    }

    /// Returns whether the current task is the worker thread.
    ///
    /// # Context
    ///
    /// Any.
    pub(super) fn is_current(&self) -> bool {
        self.thread.as_ref().is_some_and(Thread::is_current)
    }
}

impl<M: MemoryOps> Drop for MemoryWorker<M> {
    fn drop(&mut self) {
        let deferred_work = &self.pages.data().deferred_work;
        self.shrinker = None;
        let guard = deferred_work.lock.lock();
        self.stop.store(true, Relaxed);
        deferred_work.wake.notify_all();
        drop(guard);
        self.thread = None;
    }
}

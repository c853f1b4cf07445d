// SPDX-License-Identifier: GPL-2.0

//! Idle pieces of device memory are removed when the kernel needs memory: each holds 4 MiB of page
//! structures. Reclaim cannot remove them, because that takes memory hot-plug locks. So the shrinker
//! only wakes a thread.

use super::Ops;
use crate::{
    locks,
    memory::MemoryOps,
    mm::{
        device_pages::{DevicePages, PIECE_OVERHEAD},
        shrinker::{Shrink, Shrinker},
    },
    thread::Thread,
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            ordering::{Full, Relaxed},
            Atomic,
            AtomicFlag, //
        },
        Arc, CondVar, Mutex,
    },
};

/// Objects that a piece counts for: pages of system memory.
const OBJECTS: usize = PIECE_OVERHEAD / PAGE_SIZE;

/// Time after which the thread looks again, in jiffies: a wake-up may come before it sleeps.
const LOOK_AGAIN: kernel::time::Jiffies = 1000;

/// Pieces that are to be removed, and the wakeup of the thread that does it.
#[pin_data]
pub(super) struct Requests {
    pieces: Atomic<usize>,
    /// Held by the thread from when it has found no request until it sleeps.
    #[pin]
    lock: Mutex<()>,
    #[pin]
    wake: CondVar,
}

impl Requests {
    pub(super) fn new() -> impl PinInit<Self, Error> {
        let (name, key) = locks::shrink();
        let (wake_name, wake_key) = locks::shrink_wake();
        try_pin_init!(Self {
            pieces: Atomic::new(0),
            lock <- Mutex::new((), name, key),
            wake <- CondVar::new(wake_name, wake_key),
        })
    }

    fn work<M: MemoryOps>(&self, pages: &DevicePages<Ops<M>>, stop: &AtomicFlag) {
        let mut guard = self.lock.lock();
        while !stop.load(Relaxed) {
            let pieces = self.pieces.xchg(0, Full);
            if pieces == 0 {
                let _why = self.wake.wait_interruptible_timeout(&mut guard, LOOK_AGAIN);
                continue;
            }
            drop(guard);
            pages.shrink(pieces);
            guard = self.lock.lock();
        }
    }
}

/// The idle pieces, for the shrinker.
struct Idle<M: MemoryOps>(Arc<DevicePages<Ops<M>>>);

impl<M: MemoryOps> Shrink for Idle<M> {
    fn count(&self) -> usize {
        self.0.pieces_idle().1 * OBJECTS
    }

    fn scan(&self, objects: usize) -> usize {
        let (_, idle) = self.0.pieces_idle();
        let wanted = objects.div_ceil(OBJECTS).min(idle);
        if wanted != 0 {
            let requests = &self.0.data().shrink;
            requests.pieces.fetch_add(wanted, Full);
            // Reclaim takes no mutex here. A wakeup that comes just before the thread sleeps is lost;
            // the thread looks again after LOOK_AGAIN.
            requests.wake.notify_one();
        }
        wanted * OBJECTS
    }
}

/// The shrinker and its thread. Dropping it ends both.
pub(super) struct Worker<M: MemoryOps> {
    // Dropped first: it wakes the thread.
    shrinker: Option<Shrinker<Idle<M>>>,
    pages: Arc<DevicePages<Ops<M>>>,
    stop: Arc<AtomicFlag>,
    thread: Option<Thread>,
}

impl<M: MemoryOps> Worker<M> {
    pub(super) fn new(pages: Arc<DevicePages<Ops<M>>>) -> Result<Self> {
        let stop = Arc::new(AtomicFlag::new(false), GFP_KERNEL)?;
        let mut worker = Self {
            shrinker: None,
            pages: pages.clone(),
            stop: stop.clone(),
            thread: None,
        };
        let known = Arc::new(Idle(pages.clone()), GFP_KERNEL)?;
        worker.thread = Some(Thread::spawn(c"hmm_shrink", move || {
            pages.data().shrink.work(&pages, &stop)
        })?);
        worker.shrinker = Some(Shrinker::new(c"rust_hmm", known)?);
        Ok(worker)
    }

    /// Whether the current task is the thread. Context: any.
    pub(super) fn is_current(&self) -> bool {
        self.thread.as_ref().is_some_and(Thread::is_current)
    }
}

impl<M: MemoryOps> Drop for Worker<M> {
    fn drop(&mut self) {
        let requests = &self.pages.data().shrink;
        self.shrinker = None;
        let guard = requests.lock.lock();
        self.stop.store(true, Relaxed);
        requests.wake.notify_all();
        drop(guard);
        self.thread = None;
    }
}

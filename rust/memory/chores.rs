// SPDX-License-Identifier: GPL-2.0

//! The thread of a device's memory. It sleeps unless idle pieces are to be removed.
//!
//! Pieces of device memory that are idle are removed when the kernel needs memory: each holds 4 MiB
//! of page structures. Reclaim cannot remove them, because that takes memory hot-plug locks. So the
//! shrinker only wakes the thread.

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

/// What is to be done.
#[pin_data]
pub(super) struct Chores {
    /// Pieces that are to go.
    pieces: Atomic<usize>,
    /// Held while the thread looks for work.
    #[pin]
    lock: Mutex<()>,
    #[pin]
    wake: CondVar,
}

impl Chores {
    pub(super) fn new() -> impl PinInit<Self, Error> {
        let (name, key) = locks::chores();
        let (wake_name, wake_key) = locks::chores_wake();
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

/// What the shrinker knows.
struct Idle<M: MemoryOps>(Arc<DevicePages<Ops<M>>>);

impl<M: MemoryOps> Shrink for Idle<M> {
    fn count(&self) -> usize {
        self.0.pieces_idle().1 * OBJECTS
    }

    fn scan(&self, objects: usize) -> usize {
        let (_, idle) = self.0.pieces_idle();
        let wanted = objects.div_ceil(OBJECTS).min(idle);
        if wanted != 0 {
            let chores = &self.0.data().chores;
            chores.pieces.fetch_add(wanted, Full);
            // Without the lock: who holds it may wait for memory. The thread looks again after a while.
            chores.wake.notify_one();
        }
        wanted * OBJECTS
    }
}

/// Sees to it that the chores are done. Dropping it ends that.
pub(super) struct Worker<M: MemoryOps> {
    // First: nobody wakes the thread any more.
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
        worker.thread = Some(Thread::spawn(c"hmm_chores", move || {
            pages.data().chores.work(&pages, &stop)
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
        let chores = &self.pages.data().chores;
        self.shrinker = None;
        let guard = chores.lock.lock();
        self.stop.store(true, Relaxed);
        chores.wake.notify_all();
        drop(guard);
        self.thread = None;
    }
}

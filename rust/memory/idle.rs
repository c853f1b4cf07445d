// SPDX-License-Identifier: GPL-2.0

//! Pieces of device memory that are idle go when the kernel needs memory: each holds 4 MiB of page
//! structures.
//!
//! They cannot go within reclaim, for that takes memory hot-plug locks. So the shrinker only wakes a thread,
//! one for each device, which is asleep otherwise.

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
            ordering::Full,
            Atomic, //
        },
        Arc, CondVar, Mutex,
    },
};

/// Objects that a piece counts for: pages of system memory.
const OBJECTS: usize = PIECE_OVERHEAD / PAGE_SIZE;

/// What shrinker and thread share.
#[pin_data]
struct Shared<M: MemoryOps> {
    pages: Arc<DevicePages<Ops<M>>>,
    /// Pieces that are to go.
    wanted: Atomic<usize>,
    #[pin]
    stop: Mutex<bool>,
    #[pin]
    wake: CondVar,
}

impl<M: MemoryOps> Shrink for Shared<M> {
    fn count(&self) -> usize {
        self.pages.pieces_idle().1 * OBJECTS
    }

    fn scan(&self, objects: usize) -> usize {
        let (_, idle) = self.pages.pieces_idle();
        let wanted = objects.div_ceil(OBJECTS).min(idle);
        if wanted != 0 {
            self.wanted.fetch_add(wanted, Full);
            // Without the lock: who holds it may wait for memory. The thread looks again after a while.
            self.wake.notify_one();
        }
        wanted * OBJECTS
    }
}

/// Time after which the thread looks again, in jiffies: a wake-up may come before it sleeps.
const LOOK_AGAIN: kernel::time::Jiffies = 1000;

impl<M: MemoryOps> Shared<M> {
    fn work(&self) {
        let mut stop = self.stop.lock();
        while !*stop {
            let wanted = self.wanted.xchg(0, Full);
            if wanted != 0 {
                drop(stop);
                self.pages.shrink(wanted);
                stop = self.stop.lock();
                continue;
            }
            let _why = self.wake.wait_interruptible_timeout(&mut stop, LOOK_AGAIN);
        }
    }
}

/// Sees to it that idle pieces go. Dropping it ends that.
pub(super) struct Idle<M: MemoryOps> {
    // First: nobody wakes the thread any more.
    shrinker: Option<Shrinker<Shared<M>>>,
    shared: Arc<Shared<M>>,
    thread: Option<Thread>,
}

impl<M: MemoryOps> Idle<M> {
    pub(super) fn new(pages: Arc<DevicePages<Ops<M>>>) -> Result<Self> {
        let (name, key) = locks::idle();
        let (wake_name, wake_key) = locks::idle_wake();
        let shared = Arc::pin_init(
            pin_init!(Shared {
                pages,
                wanted: Atomic::new(0),
                stop <- Mutex::new(false, name, key),
                wake <- CondVar::new(wake_name, wake_key),
            }),
            GFP_KERNEL,
        )?;
        let mut idle = Self {
            shrinker: None,
            shared: shared.clone(),
            thread: None,
        };
        idle.thread = Some(Thread::spawn(c"hmm_idle", move || shared.work())?);
        idle.shrinker = Some(Shrinker::new(c"rust_hmm", idle.shared.clone())?);
        Ok(idle)
    }
}

impl<M: MemoryOps> Drop for Idle<M> {
    fn drop(&mut self) {
        self.shrinker = None;
        *self.shared.stop.lock() = true;
        self.shared.wake.notify_all();
        self.thread = None;
    }
}

// SPDX-License-Identifier: GPL-2.0

//! What the memory of a device has a thread for. It is asleep otherwise.
//!
//! Pieces of device memory that are idle go when the kernel needs memory: each holds 4 MiB of page structures. They
//! cannot go within reclaim, for that takes memory hot-plug locks; so the shrinker only wakes the thread.
//!
//! A huge page that a CPU touches, and that cannot come back as such, is split. The core splits only what nobody
//! holds, but the fault does; so it wakes the thread, and the CPU tries again. Until the page is split, such faults only
//! look in: the folio is theirs for an instant, and whoever has its lock next keeps them from taking references.

use super::Ops;
use crate::{
    locks,
    memory::MemoryOps,
    mm::{
        device_pages::{DevicePages, MmapLocks, PIECE_OVERHEAD},
        migrate::Batch,
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
    time::{delay::fsleep, Delta},
};

/// Objects that a piece counts for: pages of system memory.
const OBJECTS: usize = PIECE_OVERHEAD / PAGE_SIZE;

/// Huge pages that wait to be split. More have to be touched again.
const WAITING: usize = 64;

/// Time after which the thread looks again, in jiffies: a wake-up may come before it sleeps.
const LOOK_AGAIN: kernel::time::Jiffies = 1000;

/// Tries to split a huge page, and time between them.
const TRIES: usize = 200;
const PAUSE: Delta = Delta::from_micros(50);

/// Of faults that cannot let go of the mmap lock, one of so many does more than look in.
const VISITS: usize = 64;

/// What is to be done.
#[pin_data]
pub(super) struct Chores {
    /// Pieces that are to go.
    pieces: Atomic<usize>,
    /// Device page numbers of huge pages that are to be split.
    #[pin]
    split: Mutex<KVec<usize>>,
    /// Faults that had to wait for that, and could not let go of the mmap lock.
    visits: Atomic<usize>,
    #[pin]
    wake: CondVar,
}

impl Chores {
    pub(super) fn new() -> impl PinInit<Self, Error> {
        let (name, key) = locks::chores();
        let (wake_name, wake_key) = locks::chores_wake();
        try_pin_init!(Self {
            pieces: Atomic::new(0),
            split <- Mutex::new(KVec::with_capacity(WAITING, GFP_KERNEL)?, name, key),
            visits: Atomic::new(0),
            wake <- CondVar::new(wake_name, wake_key),
        })
    }

    /// The huge page that begins at device page `number` is to be split, soon. Context: may sleep; a folio lock may be
    /// held.
    pub(super) fn split(&self, number: usize) {
        if self.split_later(number) {
            self.wake.notify_one();
        }
    }

    /// As [`Self::split`], but the thread is not woken. Whether it has something new to do.
    pub(super) fn split_later(&self, number: usize) -> bool {
        let mut list = self.split.lock();
        !list.contains(&number) && list.push_within_capacity(number).is_ok()
    }

    /// Whether the huge page that begins at device page `number` is about to be split. Context: as [`Self::split`].
    pub(super) fn is_waiting(&self, number: usize) -> bool {
        self.split.lock().contains(&number)
    }

    /// A new huge page begins at device page `number`: who wanted to have one split that was there before waits no more.
    /// Context: as [`Self::split`].
    pub(super) fn forget(&self, number: usize) {
        self.split.lock().retain(|waiting| *waiting != number);
    }

    /// Whether a fault on the huge page that begins at device page `number` is only to look in, for the page is about to
    /// be split. One that cannot let go of the mmap lock (`!can_retry`) has to call notifiers from time to time: a range
    /// fault would go round for ever. Context: as [`Self::split`].
    pub(super) fn only_look_in(&self, number: usize, can_retry: bool) -> bool {
        self.is_waiting(number) && (can_retry || self.visits.fetch_add(1, Relaxed) % VISITS != 0)
    }

    fn work<M: MemoryOps>(&self, pages: &DevicePages<Ops<M>>, stop: &AtomicFlag) {
        let mut list = self.split.lock();
        while !stop.load(Relaxed) {
            let pieces = self.pieces.xchg(0, Full);
            let huge = list.first().copied();
            if pieces == 0 && huge.is_none() {
                let _why = self.wake.wait_interruptible_timeout(&mut list, LOOK_AGAIN);
                continue;
            }
            drop(list);
            if pieces != 0 {
                pages.shrink(pieces);
            }
            if let (Some(number), Ok(mut batch)) = (huge, Batch::new()) {
                // Who waits for it holds it again and again, for a moment.
                for _ in 0..TRIES {
                    // The page may have come back meanwhile, and another one have its place.
                    if !self.is_waiting(number) || pages.split(number, MmapLocks::Own, &mut batch) {
                        break;
                    }
                    fsleep(PAUSE);
                }
            }
            list = self.split.lock();
            // What somebody held will be touched again.
            list.retain(|number| Some(*number) != huge);
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
        let list = chores.split.lock();
        self.stop.store(true, Relaxed);
        chores.wake.notify_all();
        drop(list);
        self.thread = None;
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Steps that bring pages into a device's memory, and the end of that when the device is unplugged.

use crate::locks;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Full, Relaxed},
            Atomic,
            AtomicFlag, //
        },
        CondVar,
        Mutex, //
    },
};

/// Counts the steps of one memory that may bring pages.
#[pin_data]
pub(super) struct Arrivals {
    running: Atomic<usize>,
    /// The device is gone.
    closed: AtomicFlag,
    #[pin]
    lock: Mutex<()>,
    #[pin]
    idle: CondVar,
}

impl Arrivals {
    pub(super) fn new() -> impl PinInit<Self> {
        let (name, key) = locks::arrivals();
        let (idle_name, idle_key) = locks::arrivals_idle();
        pin_init!(Self {
            running: Atomic::new(0),
            closed: AtomicFlag::new(false),
            lock <- Mutex::new((), name, key),
            idle <- CondVar::new(idle_name, idle_key),
        })
    }

    /// Whether nothing may arrive any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// Begins a step. `ENODEV` if nothing may arrive any more.
    pub(super) fn begin(&self) -> Result<Arrival<'_>> {
        // Counted first: either this sees the flag, or who has set it sees the count.
        self.running.fetch_add(1, Full);
        let arrival = Arrival(self);
        if self.is_closed() {
            return Err(ENODEV);
        }
        Ok(arrival)
    }

    /// Lets no step begin any more. `false` if that was so already.
    pub(super) fn close(&self) -> bool {
        !self.closed.xchg(true, Full)
    }

    /// Waits for the steps that had begun before [`Self::close`]. Context: may sleep; no lock may be held.
    pub(super) fn wait(&self) {
        let mut guard = self.lock.lock();
        while self.running.load(Acquire) != 0 {
            self.idle.wait(&mut guard);
        }
    }
}

/// A step that may bring pages: device memory is allocated only with one of these. It lasts until the pages are mapped, or
/// freed. Taken with the mmap lock held, so that unplug, which waits for it, does not wait for that lock.
#[must_use = "nothing may be allocated without it"]
pub(crate) struct Arrival<'m>(&'m Arrivals);

impl Arrival<'_> {
    /// Whether the device was unplugged meanwhile: what was not moved yet is better left where it is.
    pub(crate) fn is_late(&self) -> bool {
        self.0.is_closed()
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        let arrivals = self.0;
        if arrivals.running.fetch_sub(1, Full) == 1 && arrivals.is_closed() {
            // Under the lock, so that a waiter that has just found the number above 0 sleeps by now.
            let _guard = arrivals.lock.lock();
            arrivals.idle.notify_all();
        }
    }
}

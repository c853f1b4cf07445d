// SPDX-License-Identifier: GPL-2.0

//! Steps that take pages out of a device's memory: unplug waits for them, because their copies need
//! the device.

use crate::locks;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Full},
            Atomic, //
        },
        CondVar,
        Mutex, //
    },
};

/// Counts the steps of one memory that may hold isolated pages of it.
///
/// Steps that begin after a wait has begun are counted apart, so that they cannot make it last for
/// ever.
#[pin_data]
pub(super) struct Departures {
    /// Number of waits. The steps that begin are counted in `even` or `odd` by it.
    waits: Atomic<usize>,
    even: Atomic<usize>,
    odd: Atomic<usize>,
    #[pin]
    lock: Mutex<()>,
    #[pin]
    idle: CondVar,
}

impl Departures {
    pub(super) fn new() -> impl PinInit<Self> {
        let (name, key) = locks::departures();
        let (idle_name, idle_key) = locks::departures_idle();
        pin_init!(Self {
            waits: Atomic::new(0),
            even: Atomic::new(0),
            odd: Atomic::new(0),
            lock <- Mutex::new((), name, key),
            idle <- CondVar::new(idle_name, idle_key),
        })
    }

    /// The counter of steps that begin after `waits` waits.
    fn running(&self, waits: usize) -> &Atomic<usize> {
        if waits % 2 == 0 {
            &self.even
        } else {
            &self.odd
        }
    }

    /// Begins a step.
    pub(super) fn begin(&self) -> Departure<'_> {
        loop {
            let waits = self.waits.load(Acquire);
            // Counted first: either this sees the new number of waits, or the wait sees the count.
            self.running(waits).fetch_add(1, Full);
            let departure = Departure {
                departures: self,
                waits,
            };
            // Another try needs another wait, and unplug makes few.
            if self.waits.load(Acquire) == waits {
                return departure;
            }
        }
    }

    /// Waits for the steps that have begun. Returns whether there were any. One task may wait at a
    /// time. Context: may sleep; no lock may be held.
    pub(super) fn wait(&self) -> bool {
        let running = self.running(self.waits.fetch_add(1, Full));
        if running.load(Acquire) == 0 {
            return false;
        }
        let mut guard = self.lock.lock();
        while running.load(Acquire) != 0 {
            self.idle.wait(&mut guard);
        }
        true
    }
}

/// A step that may hold isolated pages of a device's memory, until their copies have ended and they
/// are mapped again.
#[must_use = "unplug does not wait for the copies without it"]
pub(crate) struct Departure<'m> {
    departures: &'m Departures,
    waits: usize,
}

impl Drop for Departure<'_> {
    fn drop(&mut self) {
        let departures = self.departures;
        let before = departures.running(self.waits).fetch_sub(1, Full);
        if before == 1 && departures.waits.load(Acquire) != self.waits {
            // Under the lock, so that a waiter that has just found the number above 0 sleeps by
            // now.
            let _guard = departures.lock.lock();
            departures.idle.notify_all();
        }
    }
}

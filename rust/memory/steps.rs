// SPDX-License-Identifier: GPL-2.0

//! Counter of steps in flight, so that unplug can wait for those that have begun.

use crate::kernel::lock_classes::LockClass;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::{
                Acquire,
                Full, //
            },
            Atomic, //
        },
        CondVar,
        Mutex, //
    }, //
};

/// Counter of the steps of one kind that are in flight.
///
/// Steps that begin after a wait has begun have a counter of their own, so that they cannot make
/// the wait endless.
#[pin_data]
pub(super) struct Steps {
    /// Number of waits. Its parity selects `even` or `odd` for the steps that begin.
    waits: Atomic<usize>,
    even: Atomic<usize>,
    odd: Atomic<usize>,
    #[pin]
    lock: Mutex<()>,
    #[pin]
    idle: CondVar,
}

impl Steps {
    /// Creates a counter. `lock` and `idle` are the names and lock classes of its lock and its wait
    /// queue.
    pub(super) fn new(lock: LockClass, idle: LockClass) -> impl PinInit<Self> {
        let ((name, key), (idle_name, idle_key)) = (lock, idle);
        pin_init!(Self {
            waits: Atomic::new(0),
            even: Atomic::new(0),
            odd: Atomic::new(0),
            lock <- Mutex::new((), name, key),
            idle <- CondVar::new(idle_name, idle_key),
        })
    }

    /// Returns the counter of steps that begin after `waits` waits.
    fn running(&self, waits: usize) -> &Atomic<usize> {
        if waits % 2 == 0 {
            &self.even
        } else {
            &self.odd
        }
    }

    /// Begins a step.
    pub(super) fn begin(&self) -> StepGuard<'_> {
        loop {
            // Selects a counter only. The second load decides, after a full barrier.
            let waits = self.waits.load(Acquire);
            // Count the step before the check: either this sees the new number of waits, or the
            // wait sees the count.
            self.running(waits).fetch_add(1, Full);
            let step = StepGuard { steps: self, waits };
            // Retry. Each retry requires another wait, and unplug has only a few.
            // Uses no data of the waiter, so that the barrier above is sufficient.
            if self.waits.load(Acquire) == waits {
                return step;
            }
        }
    }

    /// Waits for the steps that have begun. Returns whether there were any. Only one task may wait
    /// at a time.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    pub(super) fn wait(&self) -> bool {
        // Full barrier between this and the load of the counter: see `begin` and the drop of a
        // step.
        let running = self.running(self.waits.fetch_add(1, Full));
        // Pairs with the decrement in the drop of the last step, also below: the caller sees what
        // the steps have done.
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

/// A step in flight, until it is dropped.
#[must_use = "unplug does not wait for the step without it"]
pub(crate) struct StepGuard<'m> {
    steps: &'m Steps,
    waits: usize,
}

impl Drop for StepGuard<'_> {
    fn drop(&mut self) {
        let steps = self.steps;
        // Release: see `wait`. Full barrier: this decrements the counter before it loads `waits`,
        // and `wait` increments `waits` before it loads the counter. So the last step finds the
        // wait and wakes it, or the wait finds no step.
        let before = steps.running(self.waits).fetch_sub(1, Full);
        if before == 1 && steps.waits.load(Acquire) != self.waits {
            // Take the lock, so that a waiter that has just read a nonzero count is asleep before
            // the wake-up.
            let _guard = steps.lock.lock();
            steps.idle.notify_all();
        }
    }
}

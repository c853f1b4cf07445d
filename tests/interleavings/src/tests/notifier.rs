// SPDX-License-Identifier: GPL-2.0

//! The count of events of an interval notifier, beside a device fault that reads the CPU page
//! table.

use super::event_count::{
    CountedEvents,
    EventCount, //
};
use crate::{
    harness::{
        full,
        Test, //
    },
    kernel::lock_classes, //
};
use kernel::{
    model::spawn,
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc,
        SpinLock, //
    }, //
};

pub(crate) const TESTS: &[Test] = &[
    full("event_fault_installs_no_stale_page", commit),
    full("event_of_another_task_is_waited_for", waited),
];

struct Shared {
    events: EventCount,
    /// The CPU PTE: 1 until the event changes it.
    pte: Atomic<u64>,
    /// The device PTE, with the table lock.
    entry: SpinLock<u64>,
    /// The sequence of the notifier.
    seq: Atomic<u64>,
}

impl Shared {
    fn new() -> Arc<Self> {
        let (name, key) = lock_classes::event_wait();
        let events = EventCount::new();
        events.end(CountedEvents::INSERTED);
        let shared = Self {
            events,
            pte: Atomic::new(1),
            entry: SpinLock::new(0, name, key),
            seq: Atomic::new(0),
        };
        Arc::new(shared, GFP_KERNEL).unwrap()
    }
}

/// A fault either reads the CPU PTE that an event has left, or installs nothing after it.
fn commit() {
    let shared = Shared::new();
    let other = shared.clone();
    let event = spawn(move || {
        other.events.begin(7);
        *other.entry.lock() = 0;
        other.pte.store(0, Relaxed);
        // The event has ended. Its task starts a read section.
        other.events.end(other.events.counted());
    });
    let counted = shared.events.counted();
    if counted.have_ended() {
        let pte = shared.pte.load(Relaxed);
        let mut entry = shared.entry.lock();
        if shared.events.number() == counted.number() {
            *entry = pte;
        }
    }
    event.join();
    assert_eq!(*shared.entry.lock(), 0);
}

/// A worker that waits for an event finds the sequence that the callback has set.
fn waited() {
    let shared = Shared::new();
    let other = shared.clone();
    let event = spawn(move || {
        other.seq.store(1, Relaxed);
        other.events.begin(7);
    });
    let counted = shared.events.counted();
    if counted.number() != 0 {
        assert!(!counted.have_ended());
        assert_eq!(shared.seq.load(Relaxed), 1);
    }
    event.join();
}

// SPDX-License-Identifier: GPL-2.0

//! Walkers of a software device: their accesses beside a drain, and the tasks that own them.

use crate::{
    harness::{
        full,
        Test, //
    },
    kernel::word::{
        load_u64,
        store_u64, //
    }, //
};
use kernel::{
    model::{
        spawn,
        Memory, //
    },
    prelude::*,
    sync::{
        atomic::Atomic,
        Arc, //
    }, //
};
use super::walkers::Walkers;

pub(crate) const TESTS: &[Test] = &[
    full("drain_waits_for_accesses_by_a_removed_entry", removed),
    full("drain_flushes_the_tlb_of_each_walker", flushed),
    full("drain_ends_all_writes_before_the_copy", copied),
    full("walker_is_refused_to_its_owner_only", owner),
    full("walker_is_refused_in_its_flush", in_flush),
    full("walkers_entered_crosswise_do_not_deadlock", crosswise),
];

/// Device PTEs.
const NONE: u64 = 0;
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;

/// A device with one page. Each walker has a TLB of one entry.
struct Device {
    walkers: Arc<Walkers<u64>>,
    entry: Atomic<u64>,
    /// The page frame that the entry maps.
    frame: Memory,
}

impl Device {
    fn new(walkers: usize, entry: u64) -> Arc<Self> {
        let device = Self {
            walkers: Walkers::new(walkers, |_| Ok(NONE)).unwrap(),
            entry: Atomic::new(entry),
            frame: Memory::new(7),
        };
        Arc::new(device, GFP_KERNEL).unwrap()
    }

    /// Calls `access` with the translation of walker `index`, which is cached.
    fn access<R>(&self, index: usize, access: impl FnOnce(u64) -> R) -> R {
        let access = |tlb: &mut u64| {
            if *tlb == NONE {
                *tlb = load_u64(&self.entry);
            }
            access(*tlb)
        };
        self.walkers.with(index, access).unwrap()
    }

    fn read(&self, index: usize) -> Option<u64> {
        self.access(index, |entry| (entry != NONE).then(|| self.frame.read()))
    }

    /// Replaces the entry, and flushes.
    fn change(&self, entry: u64) {
        store_u64(&self.entry, entry);
        self.walkers.drain(|tlb| *tlb = NONE);
    }
}

/// Removes the entry, and reuses the page frame.
fn remove(device: &Device) {
    device.change(NONE);
    device.frame.write(0);
}

/// An engine reads a page, which is freed after the flush.
fn removed() {
    let device = Device::new(1, READABLE);
    let theirs = device.clone();
    let engine = spawn(move || assert!(matches!(theirs.read(0), None | Some(7))));
    remove(&device);
    engine.join();
    assert_eq!(device.read(0), None);
}

/// As before, by the second of two engines, which has the translation in its TLB.
fn flushed() {
    let device = Device::new(2, READABLE);
    assert_eq!([0, 1].map(|index| device.read(index)), [Some(7); 2]);
    let theirs = device.clone();
    let engine = spawn(move || assert!(matches!(theirs.read(1), None | Some(7))));
    remove(&device);
    engine.join();
    assert_eq!([0, 1].map(|index| device.read(index)), [None; 2]);
}

/// An engine writes to a page, which is copied after its entry was write-protected.
fn copied() {
    let device = Device::new(1, WRITABLE);
    let theirs = device.clone();
    let engine = spawn(move || {
        theirs.access(0, |entry| {
            if entry == WRITABLE {
                theirs.frame.write(8);
            }
            entry == WRITABLE
        })
    });
    device.change(READABLE);
    let copy = device.frame.read();
    assert_eq!(copy, if engine.join() { 8 } else { 7 });
}

/// Walkers that count how often they were entered.
fn counting(count: usize) -> Arc<Walkers<u64>> {
    Walkers::new(count, |_| Ok(0)).unwrap()
}

fn count_of(walkers: &Walkers<u64>, index: usize) -> Option<u64> {
    walkers.with(index, |count| *count)
}

/// Enters walker 0 and, from within, enters it again.
fn enter_twice(walkers: &Walkers<u64>) {
    let inner = walkers.with(0, |count| {
        *count += 1;
        walkers.with(0, |count| *count += 1)
    });
    assert_eq!(inner, Some(None));
}

/// Two tasks enter a walker. Each is refused while it holds the walker, and waits for the other.
fn owner() {
    let walkers = counting(1);
    let theirs = walkers.clone();
    let thread = spawn(move || enter_twice(&theirs));
    enter_twice(&walkers);
    thread.join();
    assert_eq!(count_of(&walkers, 0), Some(2));
}

/// A flush enters the walker that it flushes, while another task enters it.
fn in_flush() {
    let walkers = counting(1);
    let theirs = walkers.clone();
    let thread = spawn(move || enter_twice(&theirs));
    walkers.drain(|count| {
        *count += 1;
        assert_eq!(count_of(&walkers, 0), None);
    });
    thread.join();
    assert_eq!(count_of(&walkers, 0), Some(2));
}

/// Enters walker `first` and, from within, the other one. Returns whether that was not refused.
fn enter_both(walkers: &Walkers<u64>, first: usize) -> u64 {
    let entered = walkers.with(first, |count| {
        *count += 1;
        walkers.with(1 - first, |count| *count += 1).is_some()
    });
    u64::from(entered.unwrap())
}

/// Two tasks enter two walkers in opposite order.
fn crosswise() {
    let walkers = counting(2);
    let theirs = walkers.clone();
    let thread = spawn(move || enter_both(&theirs, 1));
    let entered = enter_both(&walkers, 0) + thread.join();
    let counts = count_of(&walkers, 0).zip(count_of(&walkers, 1));
    assert_eq!(counts.map(|(first, second)| first + second), Some(2 + entered));
}

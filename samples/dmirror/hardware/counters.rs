// SPDX-License-Identifier: GPL-2.0

//! Performance counters of engines and files.

use kernel::sync::atomic::{
    ordering::Relaxed,
    Atomic, //
};

/// The counters, in the order of `struct dmirror_engine` after its first two words.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum Count {
    Commands,
    Accesses,
    TlbHits,
    TlbMisses,
    FaultsRead,
    FaultsWrite,
    StallsRead,
    StallsWrite,
    StallNsRead,
    StallNsWrite,
    StallNsMax,
    BytesRead,
    BytesWritten,
    StaleHits,
    BusyNs,
    IdleNs,
    WaitNs,
    SetAside,
}

/// Number of counters.
pub(crate) const COUNTER_COUNT: usize = Count::SetAside as usize + 1;

/// A set of counters.
pub(crate) struct Counters([Atomic<u64>; COUNTER_COUNT]);

impl Counters {
    pub(crate) const fn new() -> Self {
        Self([const { Atomic::new(0) }; COUNTER_COUNT])
    }

    pub(crate) fn add(&self, count: Count, by: u64) {
        if let Some(value) = self.0.get(count as usize) {
            value.add(by, Relaxed);
        }
    }

    pub(crate) fn get(&self, count: Count) -> u64 {
        self.0
            .get(count as usize)
            .map_or(0, |value| value.load(Relaxed))
    }

    /// Counts an access that waited.
    pub(crate) fn stall(&self, write: bool, ns: u64) {
        if write {
            self.add(Count::StallsWrite, 1);
            self.add(Count::StallNsWrite, ns);
        } else {
            self.add(Count::StallsRead, 1);
            self.add(Count::StallNsRead, ns);
        }
        let Some(max) = self.0.get(Count::StallNsMax as usize) else {
            return;
        };
        let mut now = max.load(Relaxed);
        // A failed exchange means that a concurrent task has raised the maximum.
        while now < ns {
            match max.cmpxchg(now, ns, Relaxed) {
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
    }
}

/// The counters that an access updates: of its engine and of its file.
#[derive(Clone, Copy)]
pub(crate) struct Counted<'c> {
    pub(crate) engine: &'c Counters,
    pub(crate) file: &'c Counters,
}

impl Counted<'_> {
    pub(crate) fn add(&self, count: Count, by: u64) {
        self.engine.add(count, by);
        self.file.add(count, by);
    }
}

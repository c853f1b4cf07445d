// SPDX-License-Identifier: GPL-2.0

//! Event counters.

use kernel::sync::atomic::{ordering::Relaxed, Atomic};

/// What is counted. Pages are of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Entries that device faults installed or changed.
    MappedPages,
    /// Invalidation callbacks.
    Invalidations,
    /// Entries that were removed or write-protected.
    InvalidatedPages,
    /// Pages that moved to the device.
    ToDevice,
    /// Pages that moved to system memory at the driver's request.
    ToSystem,
    /// Pages that a migration had to leave where they were.
    Skipped,
    /// Tries of a fault that collided with an invalidation.
    Retries,
    /// CPU faults on device memory that were served.
    CpuFaults,
    /// Pages that they brought back.
    CpuFaultPages,
    /// Pages that were evicted.
    Evicted,
    /// Pages that moved under a valid device entry, which was switched without a fault.
    Switched,
    /// Pages that were evicted because others needed their room.
    EvictedForRoom,
    /// Device faults, served or not.
    Faults,
    /// Nanoseconds that their tries took, and waits for migrations: so long the device waited.
    FaultNs,
    /// Migrations, of any size.
    Migrations,
    /// Pauses of migrations for pages that somebody holds, or migrates.
    Pauses,
}

const COUNT: usize = Counter::Pauses as usize + 1;

/// One set of counters.
pub struct Stats([Atomic<u64>; COUNT]);

impl Stats {
    pub(crate) const fn new() -> Self {
        Self([const { Atomic::new(0) }; COUNT])
    }

    #[inline]
    pub(crate) fn add(&self, counter: Counter, by: u64) {
        if let Some(value) = self.0.get(counter as usize) {
            value.add(by, Relaxed);
        }
    }

    /// The value of `counter`.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0
            .get(counter as usize)
            .map_or(0, |value| value.load(Relaxed))
    }
}

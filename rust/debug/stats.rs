// SPDX-License-Identifier: GPL-2.0

//! Event counters.

use kernel::sync::atomic::{
    ordering::Relaxed,
    Atomic, //
};

/// Type of an event that is counted. Numbers of pages count pages of `PAGE_SIZE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Device PTEs that device faults installed or changed.
    MappedPages,
    /// Invalidation callbacks.
    Invalidations,
    /// Device PTEs that invalidations removed or write-protected.
    InvalidatedPages,
    /// Pages that were migrated to the device.
    ToDevice,
    /// Pages that were migrated to system memory at the driver's request.
    ToSystem,
    /// Pages that a migration could not move.
    Skipped,
    /// Attempts of a device fault that were repeated because of an invalidation.
    Retries,
    /// CPU faults on device memory that were handled.
    CpuFaults,
    /// Pages that CPU faults migrated to system memory.
    CpuFaultPages,
    /// Pages that were evicted.
    Evicted,
    /// Migrated pages whose valid device PTE was replaced without being removed before.
    Switched,
    /// Pages that were evicted to make room for other pages.
    EvictedForRoom,
    /// Device faults, including those that failed.
    Faults,
    /// Nanoseconds that the device waited for faults: all attempts, and waits for in-flight
    /// migrations.
    FaultNs,
    /// Migrations of any size.
    Migrations,
    /// Pauses of migrations, because another task has a reference to a page or migrates it.
    Pauses,
}

const COUNTER_COUNT: usize = Counter::Pauses as usize + 1;

/// Counters of a mirror or of device memory, one for each [`Counter`].
///
/// # Examples
///
/// ```
/// use rust_hmm::debug::stats::Counter;
/// use rust_hmm::mirror::Device;
/// use rust_hmm::mirror::Mirror;
///
/// /// Returns the average time of a device fault in nanoseconds.
/// fn fault_ns<D: Device>(mirror: &Mirror<D>) -> Option<u64> {
///     let stats = mirror.stats();
///     stats.get(Counter::FaultNs).checked_div(stats.get(Counter::Faults))
/// }
/// ```
pub struct Stats([Atomic<u64>; COUNTER_COUNT]);

impl Stats {
    pub(crate) const fn new() -> Self {
        Self([const { Atomic::new(0) }; COUNTER_COUNT])
    }

    #[inline]
    pub(crate) fn add(&self, counter: Counter, by: u64) {
        if let Some(value) = self.0.get(counter as usize) {
            value.add(by, Relaxed);
        }
    }

    /// Returns the value of `counter`.
    ///
    /// # Context
    ///
    /// Any.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0
            .get(counter as usize)
            .map_or(0, |value| value.load(Relaxed))
    }
}

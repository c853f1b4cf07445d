// SPDX-License-Identifier: GPL-2.0

//! Latency accounting: number and total time of the phases of device faults, migrations and CPU
//! faults, over all devices. Shown in `rust_hmm/phases` in debugfs.
//!
//! The clock is read once between two phases of a step, which handles up to a block. This is cheap
//! enough to be always enabled.

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
use kernel::prelude::*;
use kernel::{
    debugfs::Writer,
    fmt,
    sync::atomic::{
        ordering::Relaxed,
        Atomic, //
    },
    time::{
        Instant,
        Monotonic, //
    }, //
};

/// A phase of a fault or of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Phase {
    /// Device fault: walking the CPU page table. Migration: announcing the step.
    Collect,
    /// Isolating pages: `migrate_vma_setup()`, including the notifier callbacks that it calls.
    Unmap,
    /// Allocating the destination pages.
    Allocate,
    /// Waiting for all copies of a step.
    Copy,
    /// Moving the mappings (`migrate_vma_pages()`) and replacing device PTEs.
    Switch,
    /// Waiting for TLB flushes of the device.
    Flush,
    /// Removing migration entries and freeing the source pages: `migrate_vma_finalize()`.
    Finalize,
    /// Waiting for the mmap lock, for invalidations, or for other migrations of the same pages.
    Wait,
}

const PHASE_NAMES: [&str; 8] = [
    "collect", "unmap", "allocate", "copy", "switch", "flush", "finalize", "wait",
];

/// Counters of one phase.
struct PhaseCounters {
    count: Atomic<u64>,
    ns: Atomic<u64>,
}

static PHASE_COUNTERS: [PhaseCounters; PHASE_NAMES.len()] = [const {
    PhaseCounters {
        count: Atomic::new(0),
        ns: Atomic::new(0),
    }
}; PHASE_NAMES.len()];

/// Adds to the counters of `phase`. Not inlined, so that all modules use the same counters.
#[inline(never)]
fn add(phase: Phase, ns: u64) {
    if let Some(account) = PHASE_COUNTERS.get(phase as usize) {
        account.count.add(1, Relaxed);
        account.ns.add(ns, Relaxed);
    }
}

/// A stopwatch: the time at which the previous phase has ended.
#[derive(Clone, Copy)]
pub(crate) struct Stopwatch(Instant<Monotonic>);

impl Stopwatch {
    /// Starts the stopwatch, at the start of the first phase.
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Adds the time since the previous phase to `phase`, and restarts the stopwatch.
    pub(crate) fn end(&mut self, phase: Phase) {
        let now = Instant::now();
        add(phase, u64::try_from((now - self.0).as_nanos()).unwrap_or(0));
        self.0 = now;
    }

    /// Returns the nanoseconds of the phases that have ended since `earlier`, a copy of this
    /// stopwatch.
    pub(crate) fn since(&self, earlier: Self) -> u64 {
        u64::try_from((self.0 - earlier.0).as_nanos()).unwrap_or(0)
    }
}

/// Text of the file: a line for each phase with its name, its count and its nanoseconds.
pub(crate) struct PhaseReport;

impl Writer for PhaseReport {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, account) in PHASE_NAMES.iter().zip(&PHASE_COUNTERS) {
            let count = account.count.load(Relaxed);
            let ns = account.ns.load(Relaxed);
            writeln!(f, "{name} {count} {ns}")?;
        }
        Ok(())
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_phases)]
mod tests {
    use super::*;

    #[test]
    fn time_is_charged_to_the_ending_phase() {
        // Nothing else uses the library during KUnit suites, so that only this test adds to `Wait`.
        let read = || {
            let [.., wait] = &PHASE_COUNTERS;
            (wait.count.load(Relaxed), wait.ns.load(Relaxed))
        };
        let before = read();
        let mut stopwatch = Stopwatch::start();
        kernel::time::delay::fsleep(kernel::time::Delta::from_micros(100));
        stopwatch.end(Phase::Wait);
        let after = read();
        assert_eq!(after.0, before.0 + 1);
        assert!(after.1 >= before.1 + 100_000);
        assert_eq!(PHASE_NAMES.get(Phase::Wait as usize), Some(&"wait"));
    }
}

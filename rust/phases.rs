// SPDX-License-Identifier: GPL-2.0

//! Where the time of faults, migrations and CPU faults goes: how often each phase ran, and for how
//! long in sum, over all devices; the file `rust_hmm/phases` in debugfs.
//!
//! The clock is read once between two phases of a step of up to 2 MiB, so that the account is always on.

use kernel::{
    debugfs::Writer,
    fmt,
    prelude::*,
    sync::atomic::{ordering::Relaxed, Atomic},
    time::{Instant, Monotonic}, //
};

/// A part of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Phase {
    /// Asking the CPU's page table, of a device fault; announcing the step, of a migration.
    Collect,
    /// Isolating pages: `migrate_vma_setup`, with all notifier calls that it makes.
    Unmap,
    /// Taking memory at the destination.
    Allocate,
    /// Waiting for all copies of a step.
    Copy,
    /// Moving the contents' owners (`migrate_vma_pages`) and changing the device's entries.
    Switch,
    /// Waiting for the device's TLBs.
    Flush,
    /// Giving pages to the CPU again, and freeing sources: `migrate_vma_finalize`.
    Finalize,
    /// Waiting for others: for the mmap lock, for invalidations, for migrations of the same pages.
    Wait,
}

const NAMES: [&str; 8] = [
    "collect", "unmap", "allocate", "copy", "switch", "flush", "finalize", "wait",
];

/// What is known of one phase.
struct Account {
    count: Atomic<u64>,
    ns: Atomic<u64>,
}

static ACCOUNTS: [Account; NAMES.len()] = [const {
    Account {
        count: Atomic::new(0),
        ns: Atomic::new(0),
    }
}; NAMES.len()];

/// Not inlined: there is one account in all modules.
#[inline(never)]
fn add(phase: Phase, ns: u64) {
    if let Some(account) = ACCOUNTS.get(phase as usize) {
        account.count.add(1, Relaxed);
        account.ns.add(ns, Relaxed);
    }
}

/// The time since the last phase has ended.
#[derive(Clone, Copy)]
pub(crate) struct Lap(Instant<Monotonic>);

impl Lap {
    /// Begins with a first phase.
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// What was done since then belonged to `phase`.
    pub(crate) fn end(&mut self, phase: Phase) {
        let now = Instant::now();
        add(phase, u64::try_from((now - self.0).as_nanos()).unwrap_or(0));
        self.0 = now;
    }

    /// Nanoseconds of the phases that have ended since it was `earlier`.
    pub(crate) fn since(&self, earlier: Self) -> u64 {
        u64::try_from((self.0 - earlier.0).as_nanos()).unwrap_or(0)
    }
}

/// The text of the file: a line for each phase, with its name, how often it ran and its nanoseconds.
pub(crate) struct Report;

impl Writer for Report {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, account) in NAMES.iter().zip(&ACCOUNTS) {
            let (count, ns) = (account.count.load(Relaxed), account.ns.load(Relaxed));
            writeln!(f, "{name} {count} {ns}")?;
        }
        Ok(())
    }
}

#[kunit_tests(rust_hmm_phases)]
mod tests {
    use super::*;

    #[test]
    fn time_belongs_to_the_phase_that_ends() {
        // Nothing else runs while suites do, and nobody waits.
        let read = || {
            let [.., wait] = &ACCOUNTS;
            (wait.count.load(Relaxed), wait.ns.load(Relaxed))
        };
        let before = read();
        let mut lap = Lap::start();
        kernel::time::delay::fsleep(kernel::time::Delta::from_micros(100));
        lap.end(Phase::Wait);
        let after = read();
        assert_eq!(after.0, before.0 + 1);
        assert!(after.1 >= before.1 + 100_000);
        assert_eq!(NAMES.get(Phase::Wait as usize), Some(&"wait"));
    }
}

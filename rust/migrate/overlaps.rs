// SPDX-License-Identifier: GPL-2.0

//! Statistics of overlapping steps, in the file `rust_hmm/overlaps` in debugfs: how often steps
//! overlapped, and why they did not.

use kernel::{
    debugfs::Writer,
    fmt,
    sync::atomic::{
        ordering::Relaxed,
        Atomic, //
    }, //
};

/// Result of the attempt to isolate a block while the previous one is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Overlap {
    /// The block was isolated.
    Isolated,
    /// The copies of the previous block had completed.
    Copied,
    /// Another task waited for the mmap lock.
    Contended,
    /// A fatal signal was pending, or the migration was cancelled.
    Stopped,
    /// The block is in another VMA, has pages that cannot move, or its isolation could wait for a
    /// folio lock.
    Pages,
    /// The device memory had no room.
    Room,
    /// An invalidation had changed the sequence of the block.
    Changed,
    /// An error, or no huge page at the destination.
    Failed,
}

const OVERLAP_NAMES: [&str; 8] = [
    "isolated",
    "copied",
    "contended",
    "stopped",
    "pages",
    "room",
    "changed",
    "failed",
];

static OVERLAP_COUNTS: [Atomic<u64>; OVERLAP_NAMES.len()] =
    [const { Atomic::new(0) }; OVERLAP_NAMES.len()];

/// Increments the counter of `end`. Not inlined, so that all modules share the counters.
#[inline(never)]
pub(super) fn count(end: Overlap) {
    if let Some(count) = OVERLAP_COUNTS.get(end as usize) {
        count.add(1, Relaxed);
    }
}

/// Returns the number of attempts with this result, of all devices, since the module was loaded.
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
pub(crate) fn counted(end: Overlap) -> u64 {
    OVERLAP_COUNTS
        .get(end as usize)
        .map_or(0, |count| count.load(Relaxed))
}

/// The text of the file: a line for each [`Overlap`], with its name and how often it occurred.
pub(crate) struct OverlapReport;

impl Writer for OverlapReport {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in OVERLAP_NAMES.iter().zip(&OVERLAP_COUNTS) {
            writeln!(f, "{name} {}", count.load(Relaxed))?;
        }
        Ok(())
    }
}

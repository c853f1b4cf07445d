// SPDX-License-Identifier: GPL-2.0

//! How often steps overlapped, and why they did not: the file `rust_hmm/overlaps` in debugfs.

use kernel::{
    debugfs::Writer,
    fmt,
    sync::atomic::{ordering::Relaxed, Atomic}, //
};

/// How it ended when a block could be isolated while the previous one was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Overlap {
    /// The block was isolated.
    Isolated,
    /// The copies of the previous block had completed.
    Copied,
    /// Another task waited for the mmap lock.
    Contended,
    /// The task was killed, or the migration was to stop.
    Stopped,
    /// Another mapping began, some pages could not move, or isolation could have waited for a folio
    /// lock.
    Pages,
    /// The device memory had no room.
    Room,
    /// An invalidation had changed the sequence of the block.
    Changed,
    /// An error, or no huge page at the destination.
    Failed,
}

const NAMES: [&str; 8] = [
    "isolated",
    "copied",
    "contended",
    "stopped",
    "pages",
    "room",
    "changed",
    "failed",
];

static COUNTS: [Atomic<u64>; NAMES.len()] = [const { Atomic::new(0) }; NAMES.len()];

/// Adds 1. Not inlined: there is one account in all modules.
#[inline(never)]
pub(super) fn count(end: Overlap) {
    if let Some(count) = COUNTS.get(end as usize) {
        count.add(1, Relaxed);
    }
}

/// Blocks that ended so, of all devices since the module was loaded.
#[cfg(CONFIG_KUNIT = "y")]
pub(crate) fn counted(end: Overlap) -> u64 {
    COUNTS
        .get(end as usize)
        .map_or(0, |count| count.load(Relaxed))
}

/// The text of the file: a line for each [`Overlap`], with its name and how often it occurred.
pub(crate) struct Report;

impl Writer for Report {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in NAMES.iter().zip(&COUNTS) {
            writeln!(f, "{name} {}", count.load(Relaxed))?;
        }
        Ok(())
    }
}

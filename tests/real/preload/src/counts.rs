// SPDX-License-Identifier: GPL-2.0
//! Counters of a run, shared by all its processes.
//!
//! The counters are in a file that each process maps, so that they include processes that were
//! killed or ended with `_exit()`. `tests/real/guest` reads the file as 64-bit numbers.

use core::sync::atomic::{
    AtomicU64,
    Ordering::Relaxed, //
};

/// Operations on a range.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Op {
    /// Migration to the device, or `MADV_PAGEOUT`.
    Out,
    /// Migration back to system memory, or `MADV_POPULATE_READ`.
    Back,
    /// The device reads, or `MADV_POPULATE_READ`.
    Read,
    /// The device takes a snapshot of the CPU page table, or the page map is read.
    Snapshot,
}

/// Number of operations.
const OPS: usize = 4;
/// Number of error numbers with a counter; larger ones count as 0.
const ERRNOS: usize = 134;

/// Layout of the file. `tests/real/guest` uses the same offsets.
#[repr(C)]
pub struct Counts {
    /// Processes in which the thread was started.
    pub threads: AtomicU64,
    /// Threads that ended because all threads of the program had ended.
    pub abandoned: AtomicU64,
    /// Calls of each operation.
    pub calls: [AtomicU64; OPS],
    /// Pages that each operation migrated or read.
    pub pages: [AtomicU64; OPS],
    /// Pages of executable mappings migrated by [`Op::Out`].
    pub code: AtomicU64,
    /// Pages that were not migrated.
    pub skipped: AtomicU64,
    /// Pages for which there was no memory at the destination.
    pub no_memory: AtomicU64,
    /// Pages whose copy failed.
    pub copy_failed: AtomicU64,
    /// Failed calls of an operation by error number.
    pub errors: [AtomicU64; ERRNOS],
    /// Failed system calls of the thread's set-up by error number.
    pub setup: [AtomicU64; ERRNOS],
}

/// Size of the file in bytes.
pub const BYTES: usize = 4096;
const _: () = assert!(size_of::<Counts>() <= BYTES);

/// Adds `n` to a counter.
pub fn add(counter: &AtomicU64, n: u64) {
    if n != 0 {
        counter.fetch_add(n, Relaxed);
    }
}

/// Counts an error.
pub fn add_error(counters: &[AtomicU64; ERRNOS], error: i32) {
    let index = usize::try_from(error).unwrap_or(0);
    if let Some(counter) = counters.get(index).or(counters.first()) {
        add(counter, 1);
    }
}

// SPDX-License-Identifier: GPL-2.0
//! Memory shared by all processes of the fuzzer: counters, times, and the current call of each
//! thread.

use crate::calls::{
    Op,
    OPS, //
};
use crate::sys;
use std::sync::atomic::{
    AtomicBool,
    AtomicU32,
    AtomicU64,
    Ordering::Relaxed, //
};

/// Number of distinct error numbers; 0 is success.
pub const ERRNOS: usize = 134;
/// Maximum number of threads that make calls, in all processes.
pub const SLOTS: usize = 32;
/// Number of words of an argument that are kept for a report.
pub const WORDS: usize = 10;

/// Statistics of one kind of call.
#[repr(C)]
pub struct OpStats {
    /// Count by error number.
    pub results: [AtomicU64; ERRNOS],
    /// Longest wall time, in ticks.
    pub wall: AtomicU64,
    /// Total wall time, in ticks.
    pub total: AtomicU64,
    /// Longest measured CPU time, in ns.
    pub cpu: AtomicU64,
}

/// Current call of a thread.
#[repr(C, align(64))]
pub struct Slot {
    /// Thread id; 0: no thread.
    pub tid: AtomicU32,
    /// Kind of call plus 1; 0: no call.
    pub op: AtomicU32,
    /// Start of the call, in ticks.
    pub since: AtomicU64,
    /// The request, the argument's address, the descriptor, and the first words of the argument.
    pub words: [AtomicU64; WORDS],
}

/// The shared memory, initially zero.
#[repr(C)]
pub struct Shared {
    /// Statistics by kind of call.
    pub ops: [OpStats; OPS],
    /// Current calls by thread.
    pub slots: [Slot; SLOTS],
    /// Number of calls made.
    pub calls: AtomicU64,
    /// Set to end all processes.
    pub stop: AtomicBool,
    /// Words of the victim's memory that a device returned to another process.
    pub leaks: AtomicU64,
    /// Words of the victim's memory that have changed.
    pub damages: AtomicU64,
    /// Number of processes that were killed deliberately.
    pub kills: AtomicU64,
    /// Number of times that all memory of the victim was read by its device and its CPU.
    pub checks: AtomicU64,
    /// Pages of the victim that were migrated to a device.
    pub moved: AtomicU64,
}

impl Shared {
    /// Maps the shared memory, which is never unmapped.
    pub fn new() -> Result<&'static Shared, hmm::Errno> {
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        let addr = sys::mmap(0, size_of::<Shared>(), prot, flags, -1, 0);
        if addr < 0 {
            return Err(hmm::Errno(-addr as i32));
        }
        // SAFETY: new memory of that size, page-aligned, never unmapped; zeros are valid atomics.
        Ok(unsafe { &*(addr as usize as *const Shared) })
    }

    /// Records the result of a call.
    pub fn record(&self, op: Op, result: isize, wall: u64, cpu: Option<u64>) {
        let stats = &self.ops[op as usize];
        let errno = usize::try_from(-result).unwrap_or(0).min(ERRNOS - 1);
        stats.results[errno].fetch_add(1, Relaxed);
        stats.total.fetch_add(wall, Relaxed);
        if wall > stats.wall.load(Relaxed) {
            stats.wall.fetch_max(wall, Relaxed);
        }
        if let Some(cpu) = cpu {
            stats.cpu.fetch_max(cpu, Relaxed);
        }
    }
}

// SPDX-License-Identifier: GPL-2.0
//! What all processes of the fuzzer share: counts, times, and what each thread is about.

use crate::calls::{Op, OPS};
use crate::sys;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Error numbers that are told apart; 0 is success.
pub const ERRNOS: usize = 134;
/// Threads that make calls, over all processes.
pub const SLOTS: usize = 32;
/// Words of an argument that are kept for a report.
pub const WORDS: usize = 10;

/// Counts of one kind of call.
#[repr(C)]
pub struct OpStats {
    /// By error number.
    pub results: [AtomicU64; ERRNOS],
    /// Longest wall time, in ticks.
    pub wall: AtomicU64,
    /// Wall time in sum, in ticks.
    pub total: AtomicU64,
    /// Longest processor time, in ns, of those that were measured.
    pub cpu: AtomicU64,
}

/// What a thread is about.
#[repr(C, align(64))]
pub struct Slot {
    /// Its thread id; 0: none.
    pub tid: AtomicU32,
    /// Kind of call plus 1; 0: none.
    pub op: AtomicU32,
    /// When the call began, in ticks.
    pub since: AtomicU64,
    /// The request, and the argument's address and first words.
    pub words: [AtomicU64; WORDS],
}

/// Shared memory, zero at first.
#[repr(C)]
pub struct Shared {
    /// By kind.
    pub ops: [OpStats; OPS],
    /// By thread.
    pub slots: [Slot; SLOTS],
    /// Calls that were made.
    pub calls: AtomicU64,
    /// All shall end.
    pub stop: AtomicBool,
    /// Words of somebody else's memory that a device gave out.
    pub leaks: AtomicU64,
    /// Words of the victim that have changed.
    pub damages: AtomicU64,
    /// Processes that were killed in the middle, on purpose.
    pub kills: AtomicU64,
    /// Rounds in which the victim's memory was read, all of it, by its device and its CPU.
    pub checks: AtomicU64,
    /// Pages of the victim that moved to a device.
    pub moved: AtomicU64,
}

impl Shared {
    /// Makes it; it stays for ever.
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

    /// Takes note of the end of a call.
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

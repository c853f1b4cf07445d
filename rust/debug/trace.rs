// SPDX-License-Identifier: GPL-2.0

//! Tracepoints of `rust/helpers/trace.h`, for `perf`, `bpftrace` and `trace-cmd`.
//!
//! Each tracepoint reports a whole operation. A disabled tracepoint costs one function call.
//!
//! C header: [`include/linux/tracepoint.h`](srctree/include/linux/tracepoint.h)

use crate::{
    bindings,
    debug::events::{
        Event,
        EvictReason,
        MigrateReason,
        RetryReason, //
    },
    mm::addr::PageRange, //
};
use kernel::{
    mm::MmWithUser,
    prelude::*,
    sync::atomic::{
        ordering::Relaxed,
        Atomic, //
    }, //
};

/// Numbers of mirrors and devices, in the order of their creation.
static MIRROR_NUMBERS: Atomic<u32> = Atomic::new(0);
static DEVICE_NUMBERS: Atomic<u32> = Atomic::new(0);

/// Returns a new number for a device's memory.
#[inline(never)]
pub(crate) fn new_device() -> u32 {
    DEVICE_NUMBERS.fetch_add(1, Relaxed)
}

/// Returns a new number for a mirror.
#[inline(never)]
fn new_mirror() -> u32 {
    MIRROR_NUMBERS.fetch_add(1, Relaxed)
}

/// Trace context of a mirror: its number, and the process whose memory it mirrors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceContext {
    pid: i32,
    mirror: u32,
}

fn errno(result: Result) -> i32 {
    result.map_or_else(Error::to_errno, |()| 0)
}

impl TraceContext {
    /// Returns the process ID.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns the number of the mirror.
    pub(crate) fn mirror(&self) -> u32 {
        self.mirror
    }

    /// Creates the trace context of a new mirror of `mm`.
    pub(crate) fn new(mm: &MmWithUser) -> Self {
        Self {
            // SAFETY: `mm` is a reference to a valid `mm_struct`.
            pid: unsafe { bindings::rust_hmm_mm_pid(mm.as_raw()) },
            mirror: new_mirror(),
        }
    }

    /// Emits the tracepoint of `event`. Evictions are traced per device, by [`evict`]. The begin of
    /// a device fault has no tracepoint.
    #[inline(always)]
    pub(crate) fn trace(&self, event: &Event) {
        match *event {
            Event::FaultEnd {
                range,
                write,
                result,
            } => self.device_fault(range, write, result),
            Event::MigrateBegin {
                range,
                to_device,
                trigger,
            } => self.migrate_begin(range, to_device, trigger),
            Event::MigrateEnd {
                to_device,
                trigger,
                moved,
                switched,
                stayed,
                result,
            } => self.migrate_end(to_device, trigger, [moved, switched, stayed], result),
            Event::Invalidate {
                range,
                reason,
                changed,
            } => self.invalidate(range, reason.number(), changed),
            Event::Retry { range, why } => self.retry(range, why),
            Event::Thrash { range, ms } => self.thrash(range, ms),
            Event::FaultBegin { .. } | Event::CpuFault { .. } | Event::Evict { .. } => {}
        }
    }

    /// Emits the tracepoint of a device fault that was handled or has failed.
    fn device_fault(&self, range: PageRange, write: bool, result: Result) {
        let start = range.start();
        let pages = range.pages();
        // SAFETY: Takes numbers only, and may be called in any context.
        unsafe {
            bindings::rust_hmm_trace_device_fault(
                self.pid,
                self.mirror,
                start,
                pages,
                write,
                errno(result),
            )
        };
    }

    /// Emits the tracepoint of a device fault that is retried.
    fn retry(&self, range: PageRange, why: RetryReason) {
        let start = range.start();
        let pages = range.pages();
        // SAFETY: Takes numbers only, and may be called in any context. CAST: The numbers are those
        // of the C side.
        unsafe { bindings::rust_hmm_trace_retry(self.pid, self.mirror, start, pages, why as i32) };
    }

    /// Emits the tracepoint of a device fault on memory that thrashes. The fault is delayed by `ms`
    /// ms; for `None` the memory is mapped in place.
    fn thrash(&self, range: PageRange, ms: Option<u64>) {
        let start = range.start();
        let pages = range.pages();
        let stays = ms.is_none();
        let ms = ms.map_or(0, |ms| usize::try_from(ms).unwrap_or(usize::MAX));
        // SAFETY: Takes numbers only, and may be called in any context.
        unsafe { bindings::rust_hmm_trace_thrash(self.pid, self.mirror, start, pages, stays, ms) };
    }

    /// Emits the tracepoint of an invalidation.
    fn invalidate(&self, range: PageRange, event: u32, changed: usize) {
        let start = range.start();
        let pages = range.pages();
        // SAFETY: Takes numbers only, and may be called in any context. CAST: A small number.
        unsafe {
            bindings::rust_hmm_trace_invalidate(
                self.pid,
                self.mirror,
                start,
                pages,
                event as i32,
                changed,
            )
        };
    }

    /// Emits the tracepoint of the begin of a migration.
    fn migrate_begin(&self, range: PageRange, to_device: bool, trigger: MigrateReason) {
        let start = range.start();
        let pages = range.pages();
        // SAFETY: Takes numbers only, and may be called in any context. CAST: The numbers are those
        // of the C side.
        unsafe {
            bindings::rust_hmm_trace_migrate_begin(
                self.pid,
                self.mirror,
                start,
                pages,
                to_device,
                trigger as i32,
            )
        };
    }

    /// Emits the tracepoint of the end of a migration: the number of pages that moved, the number
    /// of these whose device PTE was replaced, and the number of pages that did not move.
    fn migrate_end(
        &self,
        to_device: bool,
        trigger: MigrateReason,
        [moved, switched, stayed]: [usize; 3],
        result: Result,
    ) {
        // SAFETY: Takes numbers only, and may be called in any context. CAST: The numbers are those
        // of the C side.
        unsafe {
            bindings::rust_hmm_trace_migrate_end(
                self.pid,
                self.mirror,
                to_device,
                trigger as i32,
                moved,
                switched,
                stayed,
                errno(result),
            )
        };
    }
}

/// Emits the tracepoint of a CPU fault on memory of `device`, with the number of pages that were
/// migrated to system memory, or the error.
pub(crate) fn cpu_fault(device: u32, address: usize, moved: Result<usize>) {
    let result = errno(moved.map(|_| ()));
    // SAFETY: Takes numbers only, and may be called in any context.
    unsafe { bindings::rust_hmm_trace_cpu_fault(device, address, moved.unwrap_or(0), result) };
}

/// Emits the tracepoint of an eviction: `moved` pages of `device` were migrated to system memory,
/// and `left` pages are still in use.
pub(crate) fn evict(device: u32, need: EvictReason, moved: usize, left: usize) {
    // SAFETY: Takes numbers only, and may be called in any context. CAST: The numbers are those of
    // the C side.
    unsafe { bindings::rust_hmm_trace_evict(device, need as i32, moved, left) };
}

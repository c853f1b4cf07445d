// SPDX-License-Identifier: GPL-2.0

//! Tracepoints of `rust/trace.h`: what happened to whose memory, for `perf`, `bpftrace` and
//! `trace-cmd`.
//!
//! They are about whole operations, so that one that is off costs a call. C header:
//! [`include/linux/tracepoint.h`](srctree/include/linux/tracepoint.h)

use super::addr::PageRange;
use crate::{
    bindings,
    events::{Again, Event, Need, Trigger},
};
use kernel::{
    mm::MmWithUser,
    prelude::*,
    sync::atomic::{ordering::Relaxed, Atomic}, //
};

/// Numbers of mirrors and devices, in the order of their creation.
static MIRRORS: Atomic<u32> = Atomic::new(0);
static DEVICES: Atomic<u32> = Atomic::new(0);

/// A new number for a device's memory.
#[inline(never)]
pub(crate) fn new_device() -> u32 {
    DEVICES.fetch_add(1, Relaxed)
}

/// A new number for a mirror.
#[inline(never)]
fn new_mirror() -> u32 {
    MIRRORS.fetch_add(1, Relaxed)
}

/// Who an event is about: a mirror, and the process whose memory it shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who {
    pid: i32,
    mirror: u32,
}

fn errno(result: Result) -> i32 {
    result.map_or_else(Error::to_errno, |()| 0)
}

impl Who {
    /// The process whose memory it is.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// The mirror's number.
    pub(crate) fn mirror(&self) -> u32 {
        self.mirror
    }

    /// A new mirror of `mm`.
    pub(crate) fn new(mm: &MmWithUser) -> Self {
        Self {
            // SAFETY: `mm` is valid.
            pid: unsafe { bindings::rust_hmm_mm_pid(mm.as_raw()) },
            mirror: new_mirror(),
        }
    }

    /// Emits the tracepoint of `event`. Evictions are traced by [`evict`], for the whole device;
    /// the begin of a device fault is not traced.
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

    /// A device fault was served.
    fn device_fault(&self, range: PageRange, write: bool, result: Result) {
        let (start, pages) = (range.start(), range.pages());
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

    /// A device fault has to try again.
    fn retry(&self, range: PageRange, why: Again) {
        let (start, pages) = (range.start(), range.pages());
        // SAFETY: Takes numbers only, and may be called in any context. CAST: The numbers are those
        // of the C side.
        unsafe { bindings::rust_hmm_trace_retry(self.pid, self.mirror, start, pages, why as i32) };
    }

    /// The device wants memory that bounces: it waits for `ms` ms, or for `None` the memory stays
    /// where it is.
    fn thrash(&self, range: PageRange, ms: Option<u64>) {
        let (start, pages, stays) = (range.start(), range.pages(), ms.is_none());
        let ms = ms.map_or(0, |ms| usize::try_from(ms).unwrap_or(usize::MAX));
        // SAFETY: Takes numbers only, and may be called in any context.
        unsafe { bindings::rust_hmm_trace_thrash(self.pid, self.mirror, start, pages, stays, ms) };
    }

    /// An invalidation was served.
    fn invalidate(&self, range: PageRange, event: u32, changed: usize) {
        let (start, pages) = (range.start(), range.pages());
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

    /// A migration begins.
    fn migrate_begin(&self, range: PageRange, to_device: bool, trigger: Trigger) {
        let (start, pages) = (range.start(), range.pages());
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

    /// A migration has ended: pages that moved, of these pages whose entry was switched, and pages
    /// that stayed.
    fn migrate_end(
        &self,
        to_device: bool,
        trigger: Trigger,
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

/// The CPU has touched memory of `device`, and `moved` pages came back; or `Err`.
pub(crate) fn cpu_fault(device: u32, address: usize, moved: Result<usize>) {
    let result = errno(moved.map(|_| ()));
    // SAFETY: Takes numbers only, and may be called in any context.
    unsafe { bindings::rust_hmm_trace_cpu_fault(device, address, moved.unwrap_or(0), result) };
}

/// `moved` pages of `device` were moved to the system; `left` are still in use.
pub(crate) fn evict(device: u32, need: Need, moved: usize, left: usize) {
    // SAFETY: Takes numbers only, and may be called in any context. CAST: The numbers are those of
    // the C side.
    unsafe { bindings::rust_hmm_trace_evict(device, need as i32, moved, left) };
}

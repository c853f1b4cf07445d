// SPDX-License-Identifier: GPL-2.0

//! The callbacks of the driver: they count their calls, and call functions that they must not call.

use super::{
    no_attributes,
    outcome,
    place,
    residency,
    to,
    Driver, //
};
use crate::{
    bindings::{
        self,
        rust_hmm_attributes_clear,
        rust_hmm_attributes_get,
        rust_hmm_copy_cancelled,
        rust_hmm_copy_done,
        rust_hmm_copy_job,
        rust_hmm_discard,
        rust_hmm_fault,
        rust_hmm_memory_destroy,
        rust_hmm_memory_evict,
        rust_hmm_memory_ops,
        rust_hmm_migrate,
        rust_hmm_mirror_destroy,
        rust_hmm_mirror_ops,
        rust_hmm_place,
        rust_hmm_queue_destroy,
        rust_hmm_serve,
        rust_hmm_snapshot,
        rust_hmm_stop,
        rust_hmm_stopped,
        rust_hmm_table_lock,
        rust_hmm_target_RUST_HMM_TO_THE_DEVICE,
        RUST_HMM_FLUSH_SLEEPS, //
    },
    mm::folio::{
        CpuPages,
        CpuPagesMut, //
    }, //
};
use core::ptr::null_mut;
use kernel::{
    ffi,
    page::PAGE_SIZE,
    prelude::*,
    sync::atomic::ordering::{
        Full,
        Relaxed,
        Release, //
    }, //
};

impl Driver {
    /// Calls blocking functions.
    pub(super) fn call_blocking_functions(&self) {
        if self.reenter.load(Relaxed) == 0 {
            return;
        }
        let mirror = self.mirror();
        let end = PAGE_SIZE;
        let how = to(rust_hmm_target_RUST_HMM_TO_THE_DEVICE);
        let mut attributes = no_attributes();
        // SAFETY: The objects are not destroyed before `detach`. A refused call has no effect.
        unsafe {
            self.note(rust_hmm_fault(mirror, 0, end, 0));
            self.note(rust_hmm_serve(mirror, 0, end, 0, 0, null_mut()));
            self.note(rust_hmm_discard(mirror, 0, end));
            self.note(rust_hmm_table_lock(mirror));
            self.note(rust_hmm_snapshot(mirror, 0, end, &mut residency()));
            self.note(rust_hmm_migrate(mirror, 0, end, &how, null_mut()));
            self.note(rust_hmm_attributes_clear(mirror, 0, end));
            self.note(rust_hmm_attributes_get(mirror, 0, end, &mut attributes));
            self.note(rust_hmm_mirror_destroy(mirror));
            self.note(rust_hmm_memory_destroy(self.memory()));
            self.note(rust_hmm_memory_evict(self.memory()) as ffi::c_int);
            self.note(rust_hmm_queue_destroy(self.queue()));
        }
    }
}

/// Number of calls in `call_blocking_functions`.
pub(super) const CALLS: usize = 12;

/// # Safety
///
/// `data` must be a pointer from [`Driver::data`].
unsafe fn driver<'a>(data: *mut ffi::c_void) -> &'a Driver {
    // SAFETY: By the function's requirements, this is a `Driver`. It outlives its memory, mirror
    // and queue.
    unsafe { &*data.cast::<Driver>() }
}

/// # Safety
///
/// Must be called by the library, with the pointer from [`Driver::data`] and arguments as the
/// header describes.
unsafe extern "C" fn flush_start(
    data: *mut ffi::c_void,
    _start: ffi::c_ulong,
    _end: ffi::c_ulong,
) -> ffi::c_ulong {
    // SAFETY: The library passes the pointer from `Driver::data`.
    let driver = unsafe { driver(data) };
    driver.call_blocking_functions();
    driver.flushes.fetch_add(1, Relaxed)
}

/// # Safety
///
/// Must be called by the library, with the pointer from [`Driver::data`] and arguments as the
/// header describes.
unsafe extern "C" fn flush_wait(data: *mut ffi::c_void, flush: ffi::c_ulong) {
    // SAFETY: The library passes the pointer from `Driver::data`.
    let driver = unsafe { driver(data) };
    driver.call_blocking_functions();
    // The flush must be the one that was started last: here, only one is in progress at a time.
    if flush == driver.waits.load(Relaxed) {
        driver.waits.fetch_add(1, Relaxed);
    }
}

fn transfer(driver: &Driver, job: &rust_hmm_copy_job) -> Result {
    let from = &job.source;
    let to = &job.destination;
    let at = |place: &rust_hmm_place| place.first * PAGE_SIZE;
    match (from.kind, to.kind) {
        (bindings::rust_hmm_where_RUST_HMM_NOWHERE, bindings::rust_hmm_where_RUST_HMM_DEVICE) => {
            driver.vram.clear(at(to), to.pages * PAGE_SIZE)
        }
        (bindings::rust_hmm_where_RUST_HMM_CPU, bindings::rust_hmm_where_RUST_HMM_DEVICE) => {
            // SAFETY: The job keeps the source pages valid until it is completed.
            let from = unsafe { CpuPages::new(from.first, from.pages) };
            driver.vram.load(at(to), &from)
        }
        (bindings::rust_hmm_where_RUST_HMM_DEVICE, bindings::rust_hmm_where_RUST_HMM_CPU) => {
            // SAFETY: The job keeps the destination pages valid until it is completed, and nothing
            // else writes them.
            let to = unsafe { CpuPagesMut::new(to.first, to.pages) };
            driver.vram.store(at(from), &to)
        }
        _ => Err(EINVAL),
    }
}

/// # Safety
///
/// Must be called by the library, with the pointer from [`Driver::data`] and arguments as the
/// header describes.
unsafe extern "C" fn copy(data: *mut ffi::c_void, job: *mut rust_hmm_copy_job) {
    // SAFETY: The library passes the pointer from `Driver::data`, and a valid job.
    let (driver, job) = unsafe { (driver(data), &mut *job) };
    driver.call_blocking_functions();
    driver.copies.fetch_add(1, Relaxed);
    if driver.keep.xchg(0, Relaxed) != 0 {
        driver.kept_index.store(job.index as usize, Relaxed);
        return driver.kept.store(job.state as usize, Release);
    }
    let fails = driver.fail_copies.load(Relaxed) != 0;
    if fails {
        driver.fail_copies.fetch_sub(1, Relaxed);
    }
    let error = if fails {
        EIO.to_errno()
    } else {
        super::super::number(transfer(driver, job))
    };
    // SAFETY: This driver owns the job and completes it once. The other calls are refused.
    unsafe {
        assert_eq!(rust_hmm_copy_done(job, error), 0);
        assert_eq!(rust_hmm_copy_done(job, 0), EINVAL.to_errno());
        assert!(!rust_hmm_copy_cancelled(job));
    }
}

/// # Safety
///
/// Must be called by the library, with the pointer from [`Driver::data`] and arguments as the
/// header describes.
unsafe extern "C" fn ring_doorbell(data: *mut ffi::c_void) {
    // SAFETY: The library passes the pointer from `Driver::data`.
    let driver = unsafe { driver(data) };
    driver.call_blocking_functions();
    driver.doorbells.fetch_add(1, Relaxed);
}

/// # Safety
///
/// Must be called by the library, with the pointer from [`Driver::data`] and arguments as the
/// header describes.
unsafe extern "C" fn freed(data: *mut ffi::c_void, _first: ffi::c_ulong, pages: ffi::c_ulong) {
    // SAFETY: The library passes the pointer from `Driver::data`.
    unsafe { driver(data) }.freed.fetch_add(pages, Relaxed);
}

/// Completes the outstanding copy.
///
/// # Safety
///
/// Must be called by the library, with the pointer from [`Driver::data`] and arguments as the
/// header describes.
unsafe extern "C" fn cancelled(data: *mut ffi::c_void) {
    // SAFETY: The library passes the pointer from `Driver::data`.
    let driver = unsafe { driver(data) };
    driver.call_blocking_functions();
    driver.cancels.fetch_add(1, Relaxed);
    let state = driver.kept.xchg(0, Full) as *mut ffi::c_void;
    let mut job = rust_hmm_copy_job {
        source: place(),
        destination: place(),
        state: state.cast(),
        index: driver.kept_index.load(Relaxed) as _,
    };
    // SAFETY: If there is a job, this driver owns it and completes it once. Otherwise the call is
    // refused.
    unsafe {
        assert_eq!(rust_hmm_copy_cancelled(&job), !state.is_null());
        rust_hmm_copy_done(&mut job, ECANCELED_);
    }
}

pub(super) const MEMORY_OPS: rust_hmm_memory_ops = rust_hmm_memory_ops {
    size: size_of::<rust_hmm_memory_ops>(),
    copy: Some(copy),
    ring_doorbell: Some(ring_doorbell),
    cancelled: Some(cancelled),
    freed: Some(freed),
};

pub(super) const MIRROR_OPS: rust_hmm_mirror_ops = rust_hmm_mirror_ops {
    size: size_of::<rust_hmm_mirror_ops>(),
    flags: RUST_HMM_FLUSH_SLEEPS,
    reserved: 0,
    flush_start: Some(flush_start),
    flush_wait: Some(flush_wait),
};

/// # Safety
///
/// Must be called by the library, with the pointer from [`Driver::data`] and arguments as the
/// header describes.
pub(super) unsafe extern "C" fn run(
    data: *mut ffi::c_void,
    stop: *const rust_hmm_stop,
) -> ffi::c_int {
    // SAFETY: The library passes the pointer from `Driver::data`, and the `stop` of this operation.
    let (driver, stopped) = unsafe { (driver(data), rust_hmm_stopped(stop)) };
    driver.runs.fetch_add(1, Relaxed);
    // SAFETY: The queue is valid, and the call is refused within its operation.
    let errno = unsafe { rust_hmm_queue_destroy(driver.queue()) };
    driver.note(errno);
    if stopped {
        ECANCELED_
    } else {
        0
    }
}

/// Returns a value that is not an errno.
///
/// # Safety
///
/// No requirements.
pub(super) unsafe extern "C" fn mumbles(
    _data: *mut ffi::c_void,
    _stop: *const rust_hmm_stop,
) -> ffi::c_int {
    7
}

/// Migrates two pages to the device, as a part of an operation of the queue.
///
/// # Safety
///
/// Must be called by the library, with the pointer from [`Driver::data`] and arguments as the
/// header describes.
pub(super) unsafe extern "C" fn migrates(
    data: *mut ffi::c_void,
    stop: *const rust_hmm_stop,
) -> ffi::c_int {
    // SAFETY: The library passes the pointer from `Driver::data`.
    let driver = unsafe { driver(data) };
    let start = driver.start.load(Relaxed);
    let mut how = to(rust_hmm_target_RUST_HMM_TO_THE_DEVICE);
    how.stop = stop;
    let mut outcome = outcome();
    let end = start + 2 * PAGE_SIZE;
    // SAFETY: The mirror outlives the queue, and `stop` belongs to this operation.
    let errno = unsafe { rust_hmm_migrate(driver.mirror(), start, end, &how, &mut outcome) };
    driver.moved.store(outcome.moved, Relaxed);
    errno
}

pub(super) const ECANCELED_: ffi::c_int = -(bindings::ECANCELED as ffi::c_int);

/// # Safety
///
/// Must be called by the library, with the pointer from [`Driver::data`] and arguments as the
/// header describes.
pub(super) unsafe extern "C" fn release(data: *mut ffi::c_void) {
    // SAFETY: The library passes the pointer from `Driver::data`.
    unsafe { driver(data) }.releases.fetch_add(1, Relaxed);
}

// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of the C interface, called like a driver in C. `samples/c_mirror` tests the regular
//! use. These tests cover misuse, and the ownership of objects.

use super::PageRange;
use crate::{
    bindings::{
        self,
        mm_struct,
        rust_hmm_attributes,
        rust_hmm_attributes_clear,
        rust_hmm_attributes_get,
        rust_hmm_attributes_set,
        rust_hmm_copy_cancelled,
        rust_hmm_copy_done,
        rust_hmm_copy_job,
        rust_hmm_counter_RUST_HMM_CPU_FAULTS,
        rust_hmm_counter_RUST_HMM_TO_DEVICE,
        rust_hmm_discard,
        rust_hmm_fault,
        rust_hmm_fence_create,
        rust_hmm_fence_eventfd,
        rust_hmm_fence_from_dma,
        rust_hmm_fence_put,
        rust_hmm_fence_signal_once,
        rust_hmm_fence_wait_for,
        rust_hmm_location_RUST_HMM_IS_DEVICE as RUST_HMM_IS_DEVICE,
        rust_hmm_location_RUST_HMM_IS_NONE as RUST_HMM_IS_NONE,
        rust_hmm_location_RUST_HMM_IS_ZERO as RUST_HMM_IS_ZERO,
        rust_hmm_memory,
        rust_hmm_memory_counter,
        rust_hmm_memory_create,
        rust_hmm_memory_destroy,
        rust_hmm_memory_evict,
        rust_hmm_memory_ops,
        rust_hmm_memory_unplug,
        rust_hmm_memory_usage,
        rust_hmm_migrate,
        rust_hmm_migration,
        rust_hmm_mirror,
        rust_hmm_mirror_alive,
        rust_hmm_mirror_counter,
        rust_hmm_mirror_create,
        rust_hmm_mirror_destroy,
        rust_hmm_mirror_ops,
        rust_hmm_outcome,
        rust_hmm_place,
        rust_hmm_queue,
        rust_hmm_queue_create,
        rust_hmm_queue_destroy,
        rust_hmm_queue_record,
        rust_hmm_queue_submit,
        rust_hmm_queue_wait,
        rust_hmm_residency,
        rust_hmm_serve,
        rust_hmm_served,
        rust_hmm_snapshot,
        rust_hmm_stop,
        rust_hmm_stopped,
        rust_hmm_table_lock,
        rust_hmm_table_lookup,
        rust_hmm_table_unlock,
        rust_hmm_target_RUST_HMM_TO_THE_DEVICE,
        rust_hmm_usage,
        rust_hmm_where_RUST_HMM_CPU,
        rust_hmm_where_RUST_HMM_DEVICE,
        RUST_HMM_FLUSH_SLEEPS,
        RUST_HMM_HAS_ACCESSED_BY,
        RUST_HMM_HAS_GRANULARITY,
        RUST_HMM_HAS_NEVER_MIGRATE,
        RUST_HMM_HAS_PREFERRED,
        RUST_HMM_HAS_READ_MOSTLY,
        RUST_HMM_PREFER_ANY,
        RUST_HMM_PREFER_DEVICE,
        RUST_HMM_PREFER_OTHER,
        RUST_HMM_PREFER_SYSTEM,
        RUST_HMM_WRITE, //
    },
    inject::{
        ArmedPoint,
        FailPoint, //
    },
    kernel::{
        kthread::Thread,
        reentry, //
    },
    mm::{
        addr::PMD_PAGES,
        folio::{
            CpuPages,
            CpuPagesMut,
            SharedBytes, //
        }, //
    }, //
};
use core::ptr::{
    null,
    null_mut, //
};
use kernel::{
    ffi,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            ordering::{
                Acquire,
                Full,
                Relaxed,
                Release, //
            },
            Atomic, //
        },
        Arc, //
    },
    time::{
        delay::fsleep,
        Delta, //
    },
    uaccess::UserSlice, //
};

mod attributes;
mod queue;
mod suite;

/// A driver: data of its callbacks, and counters of their calls.
struct Driver {
    vram: SharedBytes,
    memory: Atomic<usize>,
    mirror: Atomic<usize>,
    queue: Atomic<usize>,
    /// Whether callbacks call functions that they must not call.
    reenter: Atomic<usize>,
    /// Number of these calls that returned `EDEADLK`, and of those that did not.
    refused: Atomic<usize>,
    granted: Atomic<usize>,
    fail_copies: Atomic<usize>,
    /// Whether the next copy stays outstanding.
    keep: Atomic<usize>,
    /// State and index of the outstanding job.
    kept: Atomic<usize>,
    kept_index: Atomic<usize>,
    /// Start of the range that an operation of the queue migrates.
    start: Atomic<usize>,
    /// Number of pages that the operation moved.
    moved: Atomic<usize>,
    cancels: Atomic<usize>,
    flushes: Atomic<usize>,
    waits: Atomic<usize>,
    copies: Atomic<usize>,
    doorbells: Atomic<usize>,
    freed: Atomic<usize>,
    runs: Atomic<usize>,
    releases: Atomic<usize>,
}

const PAGES: usize = PMD_PAGES;

impl Driver {
    fn new() -> Result<Arc<Self>> {
        let none = || Atomic::new(0);
        Ok(Arc::new(
            Self {
                vram: SharedBytes::new(PAGES * PAGE_SIZE)?,
                memory: none(),
                mirror: none(),
                queue: none(),
                reenter: none(),
                refused: none(),
                granted: none(),
                fail_copies: none(),
                keep: none(),
                kept: none(),
                kept_index: none(),
                start: none(),
                moved: none(),
                cancels: none(),
                flushes: none(),
                waits: none(),
                copies: none(),
                doorbells: none(),
                freed: none(),
                runs: none(),
                releases: none(),
            },
            GFP_KERNEL,
        )?)
    }

    fn data(&self) -> *mut ffi::c_void {
        core::ptr::from_ref(self).cast_mut().cast()
    }

    fn memory(&self) -> *mut rust_hmm_memory {
        self.memory.load(Relaxed) as *mut _
    }

    fn mirror(&self) -> *mut rust_hmm_mirror {
        self.mirror.load(Relaxed) as *mut _
    }

    fn queue(&self) -> *mut rust_hmm_queue {
        self.queue.load(Relaxed) as *mut _
    }

    fn note(&self, errno: ffi::c_int) {
        if errno == reentry::deadlock().to_errno() {
            self.refused.fetch_add(1, Relaxed)
        } else {
            self.granted.fetch_add(1, Relaxed)
        };
    }

    /// Calls blocking functions.
    fn call_blocking_functions(&self) {
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
const CALLS: usize = 12;

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
        super::number(transfer(driver, job))
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

const MEMORY_OPS: rust_hmm_memory_ops = rust_hmm_memory_ops {
    size: size_of::<rust_hmm_memory_ops>(),
    copy: Some(copy),
    ring_doorbell: Some(ring_doorbell),
    cancelled: Some(cancelled),
    freed: Some(freed),
};

const MIRROR_OPS: rust_hmm_mirror_ops = rust_hmm_mirror_ops {
    size: size_of::<rust_hmm_mirror_ops>(),
    flags: RUST_HMM_FLUSH_SLEEPS,
    reserved: 0,
    flush_start: Some(flush_start),
    flush_wait: Some(flush_wait),
};

fn to(target: u32) -> rust_hmm_migration {
    rust_hmm_migration {
        target,
        flags: 0,
        pages: null_mut(),
        npages: 0,
        stop: null(),
    }
}

fn no_attributes() -> rust_hmm_attributes {
    rust_hmm_attributes {
        valid: 0,
        preferred: 0,
        accessed_by: 0,
        read_mostly: 0,
        never_migrate: 0,
        granularity: 0,
        reserved: [0; 3],
    }
}

fn residency() -> rust_hmm_residency {
    rust_hmm_residency {
        location: 0xff,
        writable: 0,
        order: 0,
        reserved: 0,
    }
}

fn outcome() -> rust_hmm_outcome {
    rust_hmm_outcome {
        moved: 0,
        switched: 0,
        entries: 0,
        skipped: 0,
        no_memory: 0,
        copy_failed: 0,
    }
}

fn place() -> rust_hmm_place {
    rust_hmm_place {
        kind: 0,
        reserved: 0,
        first: 0,
        pages: 0,
    }
}

fn mm() -> *mut mm_struct {
    let current = current!();
    current.mm().map_or(null_mut(), |mm| mm.as_raw())
}

/// Maps `pages` new pages, and creates a driver with memory, mirror and queue.
fn attached(pages: usize) -> Result<(PageRange, Arc<Driver>)> {
    // SAFETY: The function has no preconditions. The test has an address space.
    let addr = unsafe { bindings::rust_hmm_kunit_mmap(pages * PAGE_SIZE) };
    let range = PageRange::from_pages(addr, pages).map_err(|_| ENOMEM)?;
    Ok((range, attach()?))
}

/// Creates a driver with memory, mirror and queue.
fn attach() -> Result<Arc<Driver>> {
    let driver = Driver::new()?;
    // SAFETY: The driver outlives the objects.
    unsafe {
        let memory = rust_hmm_memory_create(&MEMORY_OPS, driver.data(), PAGES);
        let mirror = rust_hmm_mirror_create(mm(), &MIRROR_OPS, driver.data(), memory);
        let queue = rust_hmm_queue_create(driver.data(), 2);
        driver.memory.store(memory as usize, Relaxed);
        driver.mirror.store(mirror as usize, Relaxed);
        driver.queue.store(queue as usize, Relaxed);
    }
    Ok(driver)
}

/// Destroys the objects of a driver, in the proper order.
fn detach(driver: &Driver) {
    // SAFETY: No other code uses the objects.
    unsafe {
        assert_eq!(rust_hmm_queue_destroy(driver.queue()), 0);
        assert_eq!(rust_hmm_mirror_destroy(driver.mirror()), 0);
        assert_eq!(rust_hmm_memory_destroy(driver.memory()), 0);
    }
}

fn unmap(range: PageRange) -> Result {
    // SAFETY: The test has mapped the range, and nothing else uses it.
    kernel::error::to_result(unsafe {
        bindings::rust_hmm_kunit_munmap(range.start(), range.pages() * PAGE_SIZE)
    })
}

fn store(addr: usize, value: u64) -> Result {
    UserSlice::new(UserPtr::from_addr(addr), 8)
        .writer()
        .write(&value)
}

fn load(addr: usize) -> Result<u64> {
    UserSlice::new(UserPtr::from_addr(addr), 8).reader().read()
}

/// # Safety
///
/// Must be called by the library, with the pointer from [`Driver::data`] and arguments as the
/// header describes.
unsafe extern "C" fn run(data: *mut ffi::c_void, stop: *const rust_hmm_stop) -> ffi::c_int {
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
unsafe extern "C" fn mumbles(_data: *mut ffi::c_void, _stop: *const rust_hmm_stop) -> ffi::c_int {
    7
}

/// Migrates two pages to the device, as a part of an operation of the queue.
///
/// # Safety
///
/// Must be called by the library, with the pointer from [`Driver::data`] and arguments as the
/// header describes.
unsafe extern "C" fn migrates(data: *mut ffi::c_void, stop: *const rust_hmm_stop) -> ffi::c_int {
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

const ECANCELED_: ffi::c_int = -(bindings::ECANCELED as ffi::c_int);

/// # Safety
///
/// Must be called by the library, with the pointer from [`Driver::data`] and arguments as the
/// header describes.
unsafe extern "C" fn release(data: *mut ffi::c_void) {
    // SAFETY: The library passes the pointer from `Driver::data`.
    unsafe { driver(data) }.releases.fetch_add(1, Relaxed);
}

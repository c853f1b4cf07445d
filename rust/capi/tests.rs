// SPDX-License-Identifier: GPL-2.0

//! The functions for drivers in C, called as C does, in KUnit. `samples/c_mirror` shows that they do in C what they
//! should; here is what a driver must not do, and who owns what.

use super::PageRange;
use crate::{
    bindings::{
        self, mm_struct, rust_hmm_attributes, rust_hmm_attributes_clear, rust_hmm_attributes_get,
        rust_hmm_attributes_set, rust_hmm_copy_cancelled, rust_hmm_copy_done, rust_hmm_copy_job,
        rust_hmm_counter_RUST_HMM_CPU_FAULTS, rust_hmm_counter_RUST_HMM_TO_DEVICE,
        rust_hmm_discard, rust_hmm_fault, rust_hmm_fence_create, rust_hmm_fence_eventfd,
        rust_hmm_fence_from_dma, rust_hmm_fence_put, rust_hmm_fence_signal_once,
        rust_hmm_fence_wait_for, rust_hmm_location_RUST_HMM_IS_DEVICE as RUST_HMM_IS_DEVICE,
        rust_hmm_location_RUST_HMM_IS_NONE as RUST_HMM_IS_NONE,
        rust_hmm_location_RUST_HMM_IS_ZERO as RUST_HMM_IS_ZERO, rust_hmm_memory,
        rust_hmm_memory_counter, rust_hmm_memory_create, rust_hmm_memory_destroy,
        rust_hmm_memory_evict, rust_hmm_memory_ops, rust_hmm_memory_unplug, rust_hmm_memory_usage,
        rust_hmm_migrate, rust_hmm_migration, rust_hmm_mirror, rust_hmm_mirror_alive,
        rust_hmm_mirror_counter, rust_hmm_mirror_create, rust_hmm_mirror_destroy,
        rust_hmm_mirror_ops, rust_hmm_outcome, rust_hmm_place, rust_hmm_queue,
        rust_hmm_queue_create, rust_hmm_queue_destroy, rust_hmm_queue_record,
        rust_hmm_queue_submit, rust_hmm_queue_wait, rust_hmm_residency, rust_hmm_serve,
        rust_hmm_served, rust_hmm_snapshot, rust_hmm_stop, rust_hmm_stopped, rust_hmm_table_lock,
        rust_hmm_table_lookup, rust_hmm_table_unlock, rust_hmm_target_RUST_HMM_TO_THE_DEVICE,
        rust_hmm_usage, rust_hmm_where_RUST_HMM_CPU, rust_hmm_where_RUST_HMM_DEVICE,
        RUST_HMM_FLUSH_SLEEPS, RUST_HMM_HAS_ACCESSED_BY, RUST_HMM_HAS_GRANULARITY,
        RUST_HMM_HAS_NEVER_MIGRATE, RUST_HMM_HAS_PREFERRED, RUST_HMM_HAS_READ_MOSTLY,
        RUST_HMM_PREFER_ANY, RUST_HMM_PREFER_DEVICE, RUST_HMM_PREFER_OTHER, RUST_HMM_PREFER_SYSTEM,
        RUST_HMM_WRITE,
    },
    inject::{Armed, Point},
    mm::{
        addr::PMD_PAGES,
        page::{CpuPages, CpuPagesMut, SharedBytes},
    },
    thread::Thread,
    within,
};
use core::ptr::{null, null_mut};
use kernel::{
    ffi,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Full, Relaxed, Release},
            Atomic, //
        },
        Arc, //
    },
    time::{delay::fsleep, Delta},
    uaccess::UserSlice, //
};

mod attributes;
mod queue;
mod suite;

/// A driver: what its callbacks get, and what they saw.
struct Driver {
    vram: SharedBytes,
    memory: Atomic<usize>,
    mirror: Atomic<usize>,
    queue: Atomic<usize>,
    /// Whether callbacks call what they must not, and how often that was refused, and not.
    reenter: Atomic<usize>,
    refused: Atomic<usize>,
    granted: Atomic<usize>,
    fail_copies: Atomic<usize>,
    /// Whether the next copy is kept instead of done; then what it is known by.
    keep: Atomic<usize>,
    kept: Atomic<usize>,
    kept_index: Atomic<usize>,
    /// Where an operation of the queue migrates, and what that said.
    start: Atomic<usize>,
    moved: Atomic<usize>,
    cancels: Atomic<usize>,
    flushes: Atomic<usize>,
    waits: Atomic<usize>,
    copies: Atomic<usize>,
    kicks: Atomic<usize>,
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
                kicks: none(),
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
        match errno == within::deadlock().to_errno() {
            true => self.refused.fetch_add(1, Relaxed),
            false => self.granted.fetch_add(1, Relaxed),
        };
    }

    /// Calls what waits.
    fn misbehave(&self) {
        if self.reenter.load(Relaxed) == 0 {
            return;
        }
        let (mirror, end) = (self.mirror(), PAGE_SIZE);
        let how = to(rust_hmm_target_RUST_HMM_TO_THE_DEVICE);
        let mut said = said();
        // SAFETY: All are alive, and what is refused does nothing.
        unsafe {
            self.note(rust_hmm_fault(mirror, 0, end, 0));
            self.note(rust_hmm_serve(mirror, 0, end, 0, 0, null_mut()));
            self.note(rust_hmm_discard(mirror, 0, end));
            self.note(rust_hmm_table_lock(mirror));
            self.note(rust_hmm_snapshot(mirror, 0, end, &mut residency()));
            self.note(rust_hmm_migrate(mirror, 0, end, &how, null_mut()));
            self.note(rust_hmm_attributes_clear(mirror, 0, end));
            self.note(rust_hmm_attributes_get(mirror, 0, end, &mut said));
            self.note(rust_hmm_mirror_destroy(mirror));
            self.note(rust_hmm_memory_destroy(self.memory()));
            self.note(rust_hmm_memory_evict(self.memory()) as ffi::c_int);
            self.note(rust_hmm_queue_destroy(self.queue()));
        }
    }
}

/// Calls above.
const CALLS: usize = 12;

/// # Safety
///
/// `data` must be what [`Driver::data`] gave.
unsafe fn driver<'a>(data: *mut ffi::c_void) -> &'a Driver {
    // SAFETY: By the function's requirements; it outlives what it has made.
    unsafe { &*data.cast::<Driver>() }
}

/// # Safety
///
/// Called by the library with what [`Driver::data`] gave, and what else the header says.
unsafe extern "C" fn flush_start(
    data: *mut ffi::c_void,
    _start: ffi::c_ulong,
    _end: ffi::c_ulong,
) -> ffi::c_ulong {
    // SAFETY: Called with it.
    let driver = unsafe { driver(data) };
    driver.misbehave();
    driver.flushes.fetch_add(1, Relaxed)
}

/// # Safety
///
/// Called by the library with what [`Driver::data`] gave, and what else the header says.
unsafe extern "C" fn flush_wait(data: *mut ffi::c_void, flush: ffi::c_ulong) {
    // SAFETY: Called with it.
    let driver = unsafe { driver(data) };
    driver.misbehave();
    // It is the one that was started: there is one at a time here.
    if flush == driver.waits.load(Relaxed) {
        driver.waits.fetch_add(1, Relaxed);
    }
}

fn transfer(driver: &Driver, job: &rust_hmm_copy_job) -> Result {
    let (from, to) = (&job.source, &job.destination);
    let at = |place: &rust_hmm_place| place.first * PAGE_SIZE;
    match (from.kind, to.kind) {
        (bindings::rust_hmm_where_RUST_HMM_NOWHERE, bindings::rust_hmm_where_RUST_HMM_DEVICE) => {
            driver.vram.clear(at(to), to.pages * PAGE_SIZE)
        }
        (bindings::rust_hmm_where_RUST_HMM_CPU, bindings::rust_hmm_where_RUST_HMM_DEVICE) => {
            // SAFETY: The job names them until it is done.
            let from = unsafe { CpuPages::new(from.first, from.pages) };
            driver.vram.load(at(to), &from)
        }
        (bindings::rust_hmm_where_RUST_HMM_DEVICE, bindings::rust_hmm_where_RUST_HMM_CPU) => {
            // SAFETY: As above; nobody else writes the destination.
            let to = unsafe { CpuPagesMut::new(to.first, to.pages) };
            driver.vram.store(at(from), &to)
        }
        _ => Err(EINVAL),
    }
}

/// # Safety
///
/// Called by the library with what [`Driver::data`] gave, and what else the header says.
unsafe extern "C" fn copy(data: *mut ffi::c_void, job: *mut rust_hmm_copy_job) {
    // SAFETY: Called with both.
    let (driver, job) = unsafe { (driver(data), &mut *job) };
    driver.misbehave();
    driver.copies.fetch_add(1, Relaxed);
    if driver.keep.xchg(0, Relaxed) != 0 {
        driver.kept_index.store(job.index as usize, Relaxed);
        return driver.kept.store(job.state as usize, Release);
    }
    let fails = driver.fail_copies.load(Relaxed) != 0;
    if fails {
        driver.fail_copies.fetch_sub(1, Relaxed);
    }
    let error = match fails {
        true => EIO.to_errno(),
        false => super::number(transfer(driver, job)),
    };
    // SAFETY: Ours to end, once; then it is refused.
    unsafe {
        assert_eq!(rust_hmm_copy_done(job, error), 0);
        assert_eq!(rust_hmm_copy_done(job, 0), EINVAL.to_errno());
        assert!(!rust_hmm_copy_cancelled(job));
    }
}

/// # Safety
///
/// Called by the library with what [`Driver::data`] gave, and what else the header says.
unsafe extern "C" fn kick(data: *mut ffi::c_void) {
    // SAFETY: Called with it.
    let driver = unsafe { driver(data) };
    driver.misbehave();
    driver.kicks.fetch_add(1, Relaxed);
}

/// # Safety
///
/// Called by the library with what [`Driver::data`] gave, and what else the header says.
unsafe extern "C" fn freed(data: *mut ffi::c_void, _first: ffi::c_ulong, pages: ffi::c_ulong) {
    // SAFETY: Called with it.
    unsafe { driver(data) }.freed.fetch_add(pages, Relaxed);
}

/// Ends the copy that was kept.
///
/// # Safety
///
/// Called by the library with what [`Driver::data`] gave, and what else the header says.
unsafe extern "C" fn cancelled(data: *mut ffi::c_void) {
    // SAFETY: Called with it.
    let driver = unsafe { driver(data) };
    driver.misbehave();
    driver.cancels.fetch_add(1, Relaxed);
    let state = driver.kept.xchg(0, Full) as *mut ffi::c_void;
    let mut job = rust_hmm_copy_job {
        source: place(),
        destination: place(),
        state: state.cast(),
        index: driver.kept_index.load(Relaxed) as _,
    };
    // SAFETY: Ours to end, once, if there is one; else it is refused.
    unsafe {
        assert_eq!(rust_hmm_copy_cancelled(&job), !state.is_null());
        rust_hmm_copy_done(&mut job, ECANCELED_);
    }
}

const MEMORY_OPS: rust_hmm_memory_ops = rust_hmm_memory_ops {
    size: size_of::<rust_hmm_memory_ops>(),
    copy: Some(copy),
    kick: Some(kick),
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

fn said() -> rust_hmm_attributes {
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

/// Fresh memory of so many pages, and a driver with memory, mirror and queue.
fn attached(pages: usize) -> Result<(PageRange, Arc<Driver>)> {
    // SAFETY: No preconditions; in a test.
    let addr = unsafe { bindings::rust_hmm_kunit_mmap(pages * PAGE_SIZE) };
    let range = PageRange::from_pages(addr, pages).map_err(|_| ENOMEM)?;
    Ok((range, attach()?))
}

/// A driver with memory, mirror and queue.
fn attach() -> Result<Arc<Driver>> {
    let driver = Driver::new()?;
    // SAFETY: The driver outlives them.
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

/// Ends all, in order.
fn detach(driver: &Driver) {
    // SAFETY: Nothing uses them any more.
    unsafe {
        assert_eq!(rust_hmm_queue_destroy(driver.queue()), 0);
        assert_eq!(rust_hmm_mirror_destroy(driver.mirror()), 0);
        assert_eq!(rust_hmm_memory_destroy(driver.memory()), 0);
    }
}

fn unmap(range: PageRange) -> Result {
    // SAFETY: The range is a mapping of the test's own.
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
/// Called by the library with what [`Driver::data`] gave, and what else the header says.
unsafe extern "C" fn run(data: *mut ffi::c_void, stop: *const rust_hmm_stop) -> ffi::c_int {
    // SAFETY: Called with both.
    let (driver, stopped) = unsafe { (driver(data), rust_hmm_stopped(stop)) };
    driver.runs.fetch_add(1, Relaxed);
    // SAFETY: It is refused from here.
    let errno = unsafe { rust_hmm_queue_destroy(driver.queue()) };
    driver.note(errno);
    match stopped {
        true => ECANCELED_,
        false => 0,
    }
}

/// Ends with what is no error number.
///
/// # Safety
///
/// None.
unsafe extern "C" fn mumbles(_data: *mut ffi::c_void, _stop: *const rust_hmm_stop) -> ffi::c_int {
    7
}

/// Migrates two pages to the device, as a part of the operation.
///
/// # Safety
///
/// Called by the library with what [`Driver::data`] gave, and what else the header says.
unsafe extern "C" fn migrates(data: *mut ffi::c_void, stop: *const rust_hmm_stop) -> ffi::c_int {
    // SAFETY: Called with it.
    let driver = unsafe { driver(data) };
    let start = driver.start.load(Relaxed);
    let mut how = to(rust_hmm_target_RUST_HMM_TO_THE_DEVICE);
    how.stop = stop;
    let mut outcome = outcome();
    let end = start + 2 * PAGE_SIZE;
    // SAFETY: The mirror is alive as long as its queue is, and the operation is ours.
    let errno = unsafe { rust_hmm_migrate(driver.mirror(), start, end, &how, &mut outcome) };
    driver.moved.store(outcome.moved, Relaxed);
    errno
}

const ECANCELED_: ffi::c_int = -(bindings::ECANCELED as ffi::c_int);

/// # Safety
///
/// Called by the library with what [`Driver::data`] gave, and what else the header says.
unsafe extern "C" fn release(data: *mut ffi::c_void) {
    // SAFETY: Called with it.
    unsafe { driver(data) }.releases.fetch_add(1, Relaxed);
}

// SPDX-License-Identifier: GPL-2.0

//! The functions for drivers in C, called as C does, in KUnit. `samples/c_mirror` shows that they do in C what they
//! should; here is what a driver must not do, and who owns what.

use super::PageRange;
use crate::{
    bindings::{
        self, mm_struct, rust_hmm_attributes, rust_hmm_attributes_clear, rust_hmm_attributes_get,
        rust_hmm_attributes_set, rust_hmm_copy_cancelled, rust_hmm_copy_done, rust_hmm_copy_job,
        rust_hmm_counter_RUST_HMM_CPU_FAULTS, rust_hmm_counter_RUST_HMM_TO_DEVICE,
        rust_hmm_discard, rust_hmm_fault, rust_hmm_fence_create, rust_hmm_fence_signal_once,
        rust_hmm_fence_to_file, rust_hmm_fence_wait_for, rust_hmm_memory, rust_hmm_memory_counter,
        rust_hmm_memory_create, rust_hmm_memory_destroy, rust_hmm_memory_evict,
        rust_hmm_memory_ops, rust_hmm_memory_unplug, rust_hmm_memory_usage, rust_hmm_migrate,
        rust_hmm_migration, rust_hmm_mirror, rust_hmm_mirror_alive, rust_hmm_mirror_counter,
        rust_hmm_mirror_create, rust_hmm_mirror_destroy, rust_hmm_mirror_ops, rust_hmm_outcome,
        rust_hmm_place, rust_hmm_queue, rust_hmm_queue_create, rust_hmm_queue_destroy,
        rust_hmm_queue_record, rust_hmm_queue_submit, rust_hmm_queue_wait, rust_hmm_residency,
        rust_hmm_serve, rust_hmm_snapshot, rust_hmm_stop, rust_hmm_stopped, rust_hmm_table_lock,
        rust_hmm_table_lookup, rust_hmm_table_unlock, rust_hmm_target_RUST_HMM_TO_THE_DEVICE,
        rust_hmm_usage, rust_hmm_where_RUST_HMM_CPU, rust_hmm_where_RUST_HMM_DEVICE,
        RUST_HMM_FLUSH_SLEEPS, RUST_HMM_HAS_ACCESSED_BY, RUST_HMM_WRITE,
    },
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
        atomic::{ordering::Relaxed, Atomic},
        Arc, //
    },
    time::{delay::fsleep, Delta},
    uaccess::UserSlice, //
};

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

const MEMORY_OPS: rust_hmm_memory_ops = rust_hmm_memory_ops {
    size: size_of::<rust_hmm_memory_ops>(),
    copy: Some(copy),
    kick: Some(kick),
    cancelled: None,
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
        replicated: 0,
        reserved: [0; 2],
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
    Ok((range, driver))
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

const ECANCELED_: ffi::c_int = -(bindings::ECANCELED as ffi::c_int);

/// # Safety
///
/// Called by the library with what [`Driver::data`] gave, and what else the header says.
unsafe extern "C" fn release(data: *mut ffi::c_void) {
    // SAFETY: Called with it.
    unsafe { driver(data) }.releases.fetch_add(1, Relaxed);
}

#[kunit_tests(rust_hmm_capi)]
mod suite {
    use super::*;

    #[test]
    fn memory_moves_and_callbacks_are_paired() -> Result {
        let (range, driver) = attached(6)?;
        for index in 0..4 {
            store(range.address(index), 50 + index as u64)?;
        }
        let (mirror, start, end) = (driver.mirror(), range.start(), range.end());
        let mut place = place();
        let mut outcomes = [0xffu8; 8];
        let mut how = to(rust_hmm_target_RUST_HMM_TO_THE_DEVICE);
        (how.pages, how.npages) = (outcomes.as_mut_ptr(), outcomes.len());
        let mut outcome = rust_hmm_outcome {
            moved: 0,
            switched: 0,
            entries: 0,
            skipped: 0,
            no_memory: 0,
            copy_failed: 0,
        };
        driver.fail_copies.store(1, Relaxed);
        // SAFETY: All are alive.
        unsafe {
            assert_eq!(rust_hmm_fault(mirror, start, range.address(4), 0), 0);
            assert_eq!(rust_hmm_table_lock(mirror), 0);
            assert_eq!(rust_hmm_table_lookup(mirror, start, 0, &mut place), 0);
            assert_eq!(rust_hmm_table_unlock(mirror), 0);
            assert_eq!((place.kind, place.pages), (rust_hmm_where_RUST_HMM_CPU, 1));
            assert_eq!(rust_hmm_migrate(mirror, start, end, &how, &mut outcome), 0);
        }
        // The first copy failed, four had an entry, two were holes.
        assert_eq!((outcome.moved, outcome.copy_failed), (5, 1));
        assert_eq!(outcomes, [3, 5, 5, 5, 4, 4, 0, 0]);
        assert_eq!(driver.copies.load(Relaxed), 6);
        assert_ne!(driver.kicks.load(Relaxed), 0);
        let mut states = [residency(), residency(), residency(), residency()];
        let mut usage = rust_hmm_usage {
            used: 0,
            total: 0,
            limit: 0,
        };
        // SAFETY: All are alive.
        unsafe {
            assert_eq!(rust_hmm_table_lock(mirror), 0);
            let second = range.address(1);
            assert_eq!(rust_hmm_table_lookup(mirror, second, 1, &mut place), 0);
            let beyond = rust_hmm_table_lookup(mirror, end, 0, &mut place);
            assert_eq!(rust_hmm_table_unlock(mirror), 0);
            assert_eq!(beyond, ENOENT.to_errno());
            let fourth = range.address(4);
            assert_eq!(
                rust_hmm_snapshot(mirror, start, fourth, states.as_mut_ptr()),
                0
            );
            rust_hmm_memory_usage(driver.memory(), &mut usage);
        }
        assert_eq!(place.kind, rust_hmm_where_RUST_HMM_DEVICE);
        assert!(place.first < PAGES);
        assert_eq!(states.map(|state| state.location), [1, 3, 3, 3]);
        assert_eq!((usage.used, usage.limit), (5, PAGES));
        // A CPU touch brings them back.
        assert_eq!(load(range.address(1))?, 51);
        assert_eq!(load(range.address(4))?, 0);
        // SAFETY: All are alive; the mirror still uses the memory.
        unsafe {
            let faults = rust_hmm_counter_RUST_HMM_CPU_FAULTS;
            assert_ne!(rust_hmm_memory_counter(driver.memory(), faults), 0);
            let moved = rust_hmm_counter_RUST_HMM_TO_DEVICE;
            assert_eq!(rust_hmm_mirror_counter(mirror, moved), 5);
            assert_eq!(rust_hmm_mirror_counter(mirror, 99), 0);
            rust_hmm_migrate(mirror, start, end, &how, null_mut());
            assert_eq!(rust_hmm_memory_destroy(driver.memory()), EBUSY.to_errno());
            assert!(rust_hmm_mirror_alive(mirror));
        }
        detach(&driver);
        let flushes = driver.flushes.load(Relaxed);
        assert_ne!(flushes, 0);
        assert_eq!(driver.waits.load(Relaxed), flushes);
        assert_ne!(driver.freed.load(Relaxed), 0);
        // All have come back.
        for index in 0..4 {
            assert_eq!(load(range.address(index))?, 50 + index as u64);
        }
        Ok(())
    }

    #[test]
    fn calls_within_callbacks_are_refused() -> Result {
        let (range, driver) = attached(2)?;
        store(range.start(), 1)?;
        let (mirror, start, end) = (driver.mirror(), range.start(), range.end());
        let how = to(rust_hmm_target_RUST_HMM_TO_THE_DEVICE);
        driver.reenter.store(1, Relaxed);
        // SAFETY: All are alive.
        unsafe {
            assert_eq!(rust_hmm_fault(mirror, start, end, RUST_HMM_WRITE), 0);
            assert_eq!(rust_hmm_migrate(mirror, start, end, &how, null_mut()), 0);
            assert_eq!(rust_hmm_discard(mirror, start, end), 0);
        }
        driver.reenter.store(0, Relaxed);
        assert_eq!(driver.granted.load(Relaxed), 0);
        // A flush, its end, a copy and a kick at least.
        assert!(driver.refused.load(Relaxed) >= 4 * CALLS);
        assert_ne!(driver.copies.load(Relaxed), 0);
        detach(&driver);
        assert_eq!(load(range.start())?, 1);
        Ok(())
    }

    #[test]
    fn the_table_lock_belongs_to_its_task() -> Result {
        let (range, driver) = attached(1)?;
        let (mirror, start, end) = (driver.mirror(), range.start(), range.end());
        let (busy, not_ours) = (within::deadlock().to_errno(), EPERM.to_errno());
        let mut place = place();
        // It is made before, since memory is not allocated with the lock held.
        let (seen, theirs) = (driver.clone(), mirror as usize);
        let thread = Thread::spawn(c"hmm-test", move || {
            while seen.kicks.load(Relaxed) == 0 {
                fsleep(Delta::from_millis(1));
            }
            // SAFETY: It is alive until this thread has ended.
            let errno = unsafe { rust_hmm_table_unlock(theirs as *mut _) };
            seen.runs.store(1 + errno.unsigned_abs() as usize, Relaxed);
        })?;
        // SAFETY: All are alive; what is refused does nothing.
        unsafe {
            assert_eq!(
                rust_hmm_table_lookup(mirror, start, 0, &mut place),
                not_ours
            );
            assert_eq!(rust_hmm_table_unlock(mirror), not_ours);
            assert_eq!(rust_hmm_table_lock(mirror), 0);
            assert_eq!(rust_hmm_table_lock(mirror), busy);
            assert_eq!(rust_hmm_fault(mirror, start, end, 0), busy);
            assert_eq!(rust_hmm_mirror_destroy(mirror), busy);
            let flags = rust_hmm_table_lookup(mirror, start, 2, &mut place);
            assert_eq!(flags, EINVAL.to_errno());
        }
        driver.kicks.store(1, Relaxed);
        while driver.runs.load(Relaxed) == 0 {
            fsleep(Delta::from_millis(1));
        }
        let theirs = driver.runs.load(Relaxed) - 1;
        assert_eq!(theirs, not_ours.unsigned_abs() as usize);
        // SAFETY: We hold it.
        unsafe {
            assert_eq!(rust_hmm_table_unlock(mirror), 0);
            assert_eq!(rust_hmm_table_unlock(mirror), not_ours);
        }
        drop(thread);
        detach(&driver);
        Ok(())
    }

    #[test]
    fn other_headers_and_numbers_are_refused() -> Result {
        let (range, driver) = attached(1)?;
        let invalid = EINVAL.to_errno();
        let is = |pointer: *mut ffi::c_void, errno: ffi::c_int| {
            assert_eq!(pointer as isize, errno as isize);
        };
        let (data, end) = (driver.data(), range.end());
        let (mirror, start) = (driver.mirror(), range.start());
        // SAFETY: What is refused does nothing.
        unsafe {
            let memory = |ops: rust_hmm_memory_ops, pages| {
                is(rust_hmm_memory_create(&ops, data, pages).cast(), invalid);
            };
            let bad = |change: fn(&mut rust_hmm_mirror_ops)| {
                let mut ops = MIRROR_OPS;
                change(&mut ops);
                is(
                    rust_hmm_mirror_create(mm(), &ops, data, null_mut()).cast(),
                    invalid,
                );
            };
            memory(MEMORY_OPS, 0);
            memory(MEMORY_OPS, 511);
            memory(MEMORY_OPS, 1 << 40);
            let mut ops = MEMORY_OPS;
            ops.size = 32;
            memory(ops, PAGES);
            let mut ops = MEMORY_OPS;
            ops.copy = None;
            memory(ops, PAGES);
            bad(|ops| ops.size = 24);
            bad(|ops| ops.flags = 2);
            bad(|ops| ops.reserved = 1);
            is(
                rust_hmm_mirror_create(null_mut(), &MIRROR_OPS, data, null_mut()).cast(),
                invalid,
            );
            is(rust_hmm_queue_create(data, 0).cast(), invalid);
            is(rust_hmm_queue_create(data, (1 << 16) + 1).cast(), invalid);
            assert_eq!(rust_hmm_fault(mirror, end, start, 0), invalid);
            assert_eq!(rust_hmm_fault(mirror, start + 1, end, 0), invalid);
            assert_eq!(
                rust_hmm_serve(mirror, start, end, 0, 3, null_mut()),
                invalid
            );
            assert_eq!(
                rust_hmm_migrate(mirror, start, end, &to(2), null_mut()),
                invalid
            );
            let mut set = said();
            set.valid = RUST_HMM_HAS_ACCESSED_BY;
            set.accessed_by = 2;
            assert_eq!(rust_hmm_attributes_set(mirror, start, end, &set), invalid);
            // What was never made can be destroyed.
            assert_eq!(rust_hmm_mirror_destroy(null_mut()), 0);
            assert_eq!(rust_hmm_memory_destroy(ENOMEM.to_ptr()), 0);
            assert_eq!(rust_hmm_queue_destroy(EINTR.to_ptr()), 0);
        }
        detach(&driver);
        Ok(())
    }

    #[test]
    fn what_is_unplugged_is_gone() -> Result {
        let (range, driver) = attached(2)?;
        store(range.start(), 9)?;
        let (mirror, start, end) = (driver.mirror(), range.start(), range.end());
        let how = to(rust_hmm_target_RUST_HMM_TO_THE_DEVICE);
        let gone = ENODEV.to_errno();
        // SAFETY: All are alive.
        unsafe {
            assert_eq!(rust_hmm_migrate(mirror, start, end, &how, null_mut()), 0);
            assert_eq!(rust_hmm_memory_unplug(driver.memory()), 0);
            assert_eq!(rust_hmm_memory_unplug(driver.memory()), gone as ffi::c_long);
            assert_eq!(rust_hmm_fault(mirror, start, end, 0), gone);
            assert_eq!(rust_hmm_migrate(mirror, start, end, &how, null_mut()), gone);
        }
        assert_eq!(load(start)?, 9);
        detach(&driver);
        Ok(())
    }

    #[test]
    fn a_queue_releases_what_it_was_given_once() -> Result {
        let (_range, driver) = attached(1)?;
        let (queue, data) = (driver.queue(), driver.data());
        let count = |what: &Atomic<usize>| what.load(Relaxed);
        // SAFETY: All are alive; references are given back.
        unsafe {
            let gate = rust_hmm_fence_create(null());
            let none = [null_mut()];
            let done =
                rust_hmm_queue_submit(queue, none.as_ptr(), 1, Some(run), Some(release), data);
            assert_eq!(rust_hmm_fence_wait_for(done, -1), 0);
            bindings::rust_hmm_fence_put(done);
            assert_eq!((count(&driver.runs), count(&driver.releases)), (1, 1));
            // Within an operation of its own a queue is not destroyed.
            assert_eq!((count(&driver.refused), count(&driver.granted)), (1, 0));
            // Nothing to run: released all the same.
            let bad = rust_hmm_queue_submit(queue, null(), 0, None, Some(release), data);
            assert_eq!(bad as isize, EINVAL.to_errno() as isize);
            assert_eq!(count(&driver.releases), 2);
            // One waits, two stand behind it, and the next finds no room.
            let after = [gate];
            let submit =
                || rust_hmm_queue_submit(queue, after.as_ptr(), 1, Some(run), Some(release), data);
            let held = submit();
            let mut others = [submit(), submit(), submit()];
            let full = EBUSY.to_errno() as isize;
            // The thread may have taken the first one out by now, or not.
            while others[2] as isize != full {
                bindings::rust_hmm_fence_put(others[2]);
                others[2] = submit();
            }
            let before = count(&driver.releases);
            assert!(before >= 3);
            // What it depends on fails.
            assert_eq!(rust_hmm_fence_signal_once(gate, EIO.to_errno()), 0);
            assert_eq!(rust_hmm_fence_wait_for(held, 10_000), EIO.to_errno());
            for fence in others {
                if fence as isize != full {
                    assert_eq!(rust_hmm_fence_wait_for(fence, 10_000), EIO.to_errno());
                    bindings::rust_hmm_fence_put(fence);
                }
            }
            assert_eq!(count(&driver.runs), 1);
            assert!(count(&driver.releases) > before);
            let record = rust_hmm_queue_record(queue);
            assert_eq!(rust_hmm_fence_wait_for(record, 10_000), EIO.to_errno());
            // Cancelled with the queue.
            let gate_again = rust_hmm_fence_create(data);
            assert_eq!(rust_hmm_queue_wait(queue, gate_again), 0);
            let never = submit();
            let before = count(&driver.releases);
            assert_eq!(rust_hmm_queue_destroy(queue), 0);
            driver.queue.store(0, Relaxed);
            assert_eq!(rust_hmm_fence_wait_for(never, 10_000), ECANCELED_);
            assert_eq!(count(&driver.releases), before + 1);
            assert_eq!(count(&driver.runs), 1);
            for fence in [gate, gate_again, held, record, never] {
                rust_hmm_fence_signal_once(fence, 0);
                bindings::rust_hmm_fence_put(fence);
            }
        }
        detach(&driver);
        Ok(())
    }

    #[test]
    fn a_fence_is_signalled_once() -> Result {
        let invalid = EINVAL.to_errno();
        // SAFETY: The references are ours.
        unsafe {
            let fence = rust_hmm_fence_create(null());
            assert_eq!(rust_hmm_fence_wait_for(fence, 10), ETIMEDOUT.to_errno());
            assert_eq!(rust_hmm_fence_signal_once(fence, 1), invalid);
            assert_eq!(rust_hmm_fence_signal_once(fence, -5000), invalid);
            assert_eq!(rust_hmm_fence_signal_once(fence, ENOMEM.to_errno()), 0);
            assert_eq!(rust_hmm_fence_signal_once(fence, 0), invalid);
            assert_eq!(rust_hmm_fence_wait_for(fence, -1), ENOMEM.to_errno());
            bindings::rust_hmm_fence_put(fence);
            assert_eq!(rust_hmm_fence_wait_for(null_mut(), -1), 0);
            let mut file: *mut bindings::file = null_mut();
            let fence = rust_hmm_fence_create(null());
            assert_eq!(rust_hmm_fence_to_file(fence, 0, &mut file), invalid);
            assert_eq!(rust_hmm_fence_to_file(fence, 100_001, &mut file), invalid);
            assert!(file.is_null());
            assert_eq!(rust_hmm_fence_signal_once(fence, 0), 0);
            bindings::rust_hmm_fence_put(fence);
        }
        Ok(())
    }
}

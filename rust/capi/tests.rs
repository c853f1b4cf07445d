// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of the C interface, called like a driver in C. `samples/c_mirror` tests the regular
//! use. These tests cover misuse, and the ownership of objects.

use super::PageRange;
use crate::{
    bindings::{
        self,
        mm_struct,
        rust_hmm_attributes,
        rust_hmm_attributes_get,
        rust_hmm_attributes_set,
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
        rust_hmm_table_lock,
        rust_hmm_table_lookup,
        rust_hmm_table_unlock,
        rust_hmm_target_RUST_HMM_TO_THE_DEVICE,
        rust_hmm_usage,
        rust_hmm_where_RUST_HMM_CPU,
        rust_hmm_where_RUST_HMM_DEVICE,
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
        folio::SharedBytes, //
    }, //
};
use callbacks::{
    migrates,
    mumbles,
    release,
    run,
    CALLS,
    ECANCELED_,
    MEMORY_OPS,
    MIRROR_OPS, //
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
                Relaxed, //
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
mod callbacks;
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
}

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

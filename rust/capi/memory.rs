// SPDX-License-Identifier: GPL-2.0

//! C interface: device memory.
//!
//! The driver and each mirror have a reference to a memory. The driver can destroy it only when no
//! mirror has one; `rust_hmm_memory_destroy()` returns `EBUSY` otherwise. Therefore the last
//! reference is that of the driver, and its callbacks are not called after that function has
//! returned 0.
//!
//! The number of mirrors is in an object of its own, because it is decremented after the reference
//! was dropped.

use super::{
    declared,
    from_driver,
    number,
    pointer,
    to_destroy,
    DriverData,
    Memory,
    MemoryOps, //
};
use crate::{
    bindings,
    debug::stats::{
        Counter,
        Stats, //
    },
    inject::{
        fails,
        FailPoint, //
    },
    kernel::reentry,
    memory::{
        CopyEndpoint,
        CopyJob,
        RawCopyJob, //
    },
    mm::device_pages::{
        DeviceRange,
        MemoryKind, //
    }, //
};
use kernel::{
    ffi,
    prelude::*,
    sync::{
        atomic::{
            ordering::{
                Acquire,
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
    }, //
};

/// Duration of an injected delay.
const INJECTED_DELAY: Delta = Delta::from_millis(100);

declared! {
    rust_hmm_memory_create,
    rust_hmm_memory_destroy,
    rust_hmm_memory_evict,
    rust_hmm_memory_unplug,
    rust_hmm_memory_usage,
    rust_hmm_memory_counter,
    rust_hmm_copy_done,
    rust_hmm_copy_cancelled,
}

/// Operations and data of a driver for its device memory.
pub(super) struct CVram {
    ops: bindings::rust_hmm_memory_ops,
    data: DriverData,
}

/// Converts one end of a copy to the C structure.
fn place(end: CopyEndpoint, pages: usize) -> bindings::rust_hmm_place {
    let (kind, first) = match end {
        CopyEndpoint::Cpu(pfn) => (bindings::rust_hmm_where_RUST_HMM_CPU, pfn),
        CopyEndpoint::Device(number) => (bindings::rust_hmm_where_RUST_HMM_DEVICE, number),
    };
    bindings::rust_hmm_place {
        kind,
        reserved: 0,
        first,
        pages,
    }
}

impl MemoryOps for CVram {
    fn copy(&self, job: CopyJob) {
        let Some(copy) = self.ops.copy else {
            // Unreachable: `create()` refuses operations without `copy`.
            return job.complete(Err(EINVAL));
        };
        let raw = job.into_raw();
        let nowhere = bindings::rust_hmm_place {
            kind: bindings::rust_hmm_where_RUST_HMM_NOWHERE,
            reserved: 0,
            first: 0,
            pages: raw.pages,
        };
        let mut job = bindings::rust_hmm_copy_job {
            source: raw.source.map_or(nowhere, |end| place(end, raw.pages)),
            destination: place(raw.destination, raw.pages),
            state: raw.state,
            index: raw.index,
        };
        // SAFETY: `copy` and its data are valid until the driver destroys the memory. The driver
        // becomes the owner of the job.
        unsafe { copy(self.data.0, &mut job) };
    }

    fn ring_doorbell(&self) {
        if let Some(ring_doorbell) = self.ops.ring_doorbell {
            // SAFETY: `ring_doorbell` and its data are valid until the driver destroys the memory.
            unsafe { ring_doorbell(self.data.0) };
        }
    }

    fn cancelled(&self) {
        if let Some(cancelled) = self.ops.cancelled {
            // SAFETY: `cancelled` and its data are valid until the driver destroys the memory.
            unsafe { cancelled(self.data.0) };
        }
    }

    fn freed(&self, range: DeviceRange) {
        if let Some(freed) = self.ops.freed {
            // SAFETY: `freed` and its data are valid until the driver destroys the memory.
            unsafe { freed(self.data.0, range.first, range.count) };
        }
    }
}

/// A `struct rust_hmm_memory`. The driver and each mirror hold a reference to it.
#[pin_data]
pub(super) struct CMemory {
    mirrors: Arc<MirrorCount>,
    #[pin]
    memory: Memory<CVram>,
}

/// Number of mirrors that use a memory.
struct MirrorCount(Atomic<usize>);

/// A mirror's contribution to the number. Dropping it decrements the number.
struct MirrorCountGuard(Arc<MirrorCount>);

impl MirrorCountGuard {
    fn new(mirrors: &Arc<MirrorCount>) -> Self {
        mirrors.0.fetch_add(1, Relaxed);
        Self(mirrors.clone())
    }
}

impl Drop for MirrorCountGuard {
    fn drop(&mut self) {
        if fails(FailPoint::Window) {
            fsleep(INJECTED_DELAY);
        }
        // Pairs with the load in `rust_hmm_memory_destroy()`.
        self.0 .0.fetch_sub(1, Release);
    }
}

/// A mirror's reference to a device memory.
pub(super) struct MemoryRef {
    memory: Arc<CMemory>,
    // Dropped after `memory`. When the number is 0, the driver may free the resources of the
    // memory, and only the driver has a reference to it. Therefore `rust_hmm_memory_destroy()`
    // frees the memory before it returns.
    _counted: MirrorCountGuard,
}

impl MemoryRef {
    /// # Safety
    ///
    /// `raw` must be a memory that was not destroyed.
    pub(super) unsafe fn from_raw(raw: *mut bindings::rust_hmm_memory) -> Self {
        // SAFETY: By the function's requirements, the driver still has its reference.
        let theirs = core::mem::ManuallyDrop::new(unsafe { Arc::from_raw(raw.cast::<CMemory>()) });
        Self {
            _counted: MirrorCountGuard::new(&theirs.mirrors),
            memory: Arc::clone(&theirs),
        }
    }

    pub(super) fn memory(&self) -> &Memory<CVram> {
        &self.memory.memory
    }
}

/// # Safety
///
/// `raw` must be a memory that is not destroyed during `'a`.
unsafe fn this<'a>(raw: *mut bindings::rust_hmm_memory) -> &'a CMemory {
    // SAFETY: By the function's requirements, the memory is valid. `create()` returned the pointer,
    // from `Arc::into_raw`.
    unsafe { &*raw.cast::<CMemory>() }
}

fn create(
    ops: bindings::rust_hmm_memory_ops,
    data: DriverData,
    pages: usize,
) -> Result<*mut bindings::rust_hmm_memory> {
    if ops.size != size_of::<bindings::rust_hmm_memory_ops>() || ops.copy.is_none() {
        return Err(EINVAL);
    }
    if pages == 0 {
        return Err(EINVAL);
    }
    let memory = Arc::pin_init(
        try_pin_init!(CMemory {
            mirrors: Arc::new(MirrorCount(Atomic::new(0)), GFP_KERNEL)?,
            memory <- Memory::new(CVram { ops, data }, MemoryKind::Private, pages),
        }? Error),
        GFP_KERNEL,
    )?;
    Ok(Arc::into_raw(memory).cast_mut().cast())
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_memory_create(
    ops: *const bindings::rust_hmm_memory_ops,
    data: *mut ffi::c_void,
    pages: ffi::c_ulong,
) -> *mut bindings::rust_hmm_memory {
    // SAFETY: By the function's requirements, `ops` points to a valid table.
    pointer(create(unsafe { ops.read() }, DriverData(data), pages))
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_memory_destroy(memory: *mut bindings::rust_hmm_memory) -> ffi::c_int {
    let Some(memory) = to_destroy(memory) else {
        return 0;
    };
    number(reentry::may_wait().and_then(|()| {
        // SAFETY: By the function's requirements, `memory` is valid until this returns 0.
        if unsafe { this(memory) }.mirrors.0.load(Acquire) != 0 {
            return Err(EBUSY);
        }
        // SAFETY: The driver passes back its reference. It is the last one, because no mirror has
        // any.
        drop(unsafe { Arc::from_raw(memory.cast::<CMemory>()) });
        Ok(())
    }))
}

/// Converts a number of pages, or an error, to the C result.
fn pages(result: Result<usize>) -> ffi::c_long {
    // CAST: A number of device pages, or an errno.
    match result {
        Ok(pages) => pages as ffi::c_long,
        Err(error) => error.to_errno() as ffi::c_long,
    }
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_memory_evict(memory: *mut bindings::rust_hmm_memory) -> ffi::c_long {
    // SAFETY: By the function's requirements, `memory` was not destroyed.
    pages(unsafe { this(memory) }.memory.evict_all_killable())
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_memory_unplug(memory: *mut bindings::rust_hmm_memory) -> ffi::c_long {
    // SAFETY: By the function's requirements, `memory` was not destroyed.
    let result = unsafe { this(memory) }.memory.unplug();
    pages(result.map(|(_, lost)| lost))
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_memory_usage(
    memory: *mut bindings::rust_hmm_memory,
    usage: *mut bindings::rust_hmm_usage,
) {
    // SAFETY: By the function's requirements, `memory` was not destroyed.
    let memory = &unsafe { this(memory) }.memory;
    let (used, total) = memory.usage();
    let limit = memory.limit();
    // SAFETY: By the function's requirements, `usage` can be written.
    unsafe { usage.write(bindings::rust_hmm_usage { used, total, limit }) };
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_memory_counter(
    memory: *mut bindings::rust_hmm_memory,
    counter: u32,
) -> u64 {
    // SAFETY: By the function's requirements, `memory` was not destroyed.
    count(unsafe { this(memory) }.memory.stats(), counter)
}

/// Returns the value of a counter by its number in C.
pub(super) fn count(stats: &Stats, counter: u32) -> u64 {
    let counter = match counter {
        bindings::rust_hmm_counter_RUST_HMM_MAPPED_PAGES => Counter::MappedPages,
        bindings::rust_hmm_counter_RUST_HMM_INVALIDATIONS => Counter::Invalidations,
        bindings::rust_hmm_counter_RUST_HMM_INVALIDATED_PAGES => Counter::InvalidatedPages,
        bindings::rust_hmm_counter_RUST_HMM_TO_DEVICE => Counter::ToDevice,
        bindings::rust_hmm_counter_RUST_HMM_TO_SYSTEM => Counter::ToSystem,
        bindings::rust_hmm_counter_RUST_HMM_SKIPPED => Counter::Skipped,
        bindings::rust_hmm_counter_RUST_HMM_RETRIES => Counter::Retries,
        bindings::rust_hmm_counter_RUST_HMM_SWITCHED => Counter::Switched,
        bindings::rust_hmm_counter_RUST_HMM_CPU_FAULTS => Counter::CpuFaults,
        bindings::rust_hmm_counter_RUST_HMM_CPU_FAULT_PAGES => Counter::CpuFaultPages,
        bindings::rust_hmm_counter_RUST_HMM_EVICTED => Counter::Evicted,
        _ => return 0,
    };
    stats.get(counter)
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_copy_done(
    job: *mut bindings::rust_hmm_copy_job,
    error: ffi::c_int,
) -> ffi::c_int {
    // SAFETY: By the function's requirements, `job` points to a valid job, and the driver is its
    // only user.
    let job = unsafe { &mut *job };
    let state = core::mem::replace(&mut job.state, core::ptr::null_mut());
    if state.is_null() {
        return EINVAL.to_errno();
    }
    // SAFETY: `CVram::copy` set `state`. The job is completed only once, because `state` was just
    // cleared, and the driver must complete only one copy of the structure.
    unsafe { RawCopyJob::complete(state, job.index, from_driver(error)) };
    0
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_copy_cancelled(job: *const bindings::rust_hmm_copy_job) -> bool {
    // SAFETY: By the function's requirements, `job` points to a valid job.
    let state = unsafe { (*job).state };
    // SAFETY: `CVram::copy` set `state`. By the function's requirements, the job was not completed.
    !state.is_null() && unsafe { RawCopyJob::is_cancelled(state) }
}

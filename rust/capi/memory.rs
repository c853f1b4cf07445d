// SPDX-License-Identifier: GPL-2.0

//! The memory of a device whose driver is in C.

use super::{declared, from_driver, number, pointer, to_destroy, Data, Memory, MemoryOps};
use crate::{
    bindings,
    inject::{fails, Point},
    memory::{CopyJob, End, RawJob},
    mm::{
        addr::PMD_PAGES,
        device_pages::{DeviceRange, Kind},
    },
    stats::{Counter, Stats},
    within,
};
use kernel::{
    ffi,
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Relaxed, Release},
            Atomic, //
        },
        Arc, //
    },
    time::{delay::fsleep, Delta}, //
};

/// Time for which an injected delay widens a window.
const DELAY: Delta = Delta::from_millis(100);

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

/// The driver's side.
pub(super) struct CVram {
    ops: bindings::rust_hmm_memory_ops,
    data: Data,
}

/// Pages as the driver sees them.
fn place(end: End, pages: usize) -> bindings::rust_hmm_place {
    let (kind, first) = match end {
        End::Cpu(pfn) => (bindings::rust_hmm_where_RUST_HMM_CPU, pfn),
        End::Device(number) => (bindings::rust_hmm_where_RUST_HMM_DEVICE, number),
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
            // Refused when the memory was made.
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
            state: raw.state.cast_mut(),
            index: raw.index,
        };
        // SAFETY: The driver gave both; the job is its own from here on.
        unsafe { copy(self.data.0, &mut job) };
    }

    fn kick(&self) {
        if let Some(kick) = self.ops.kick {
            // SAFETY: The driver gave both.
            unsafe { kick(self.data.0) };
        }
    }

    fn cancelled(&self) {
        if let Some(cancelled) = self.ops.cancelled {
            // SAFETY: The driver gave both.
            unsafe { cancelled(self.data.0) };
        }
    }

    fn freed(&self, range: DeviceRange) {
        if let Some(freed) = self.ops.freed {
            // SAFETY: The driver gave both.
            unsafe { freed(self.data.0, range.first, range.count) };
        }
    }
}

/// A `struct rust_hmm_memory`: the driver has one reference, and each mirror has one.
#[pin_data]
pub(super) struct CMemory {
    mirrors: Arc<Mirrors>,
    #[pin]
    memory: Memory<CVram>,
}

/// The number of mirrors that use a memory.
struct Mirrors(Atomic<usize>);

/// A mirror that is counted as long as this exists.
struct Counted(Arc<Mirrors>);

impl Counted {
    fn new(mirrors: &Arc<Mirrors>) -> Self {
        mirrors.0.fetch_add(1, Relaxed);
        Self(mirrors.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if fails(Point::Window) {
            fsleep(DELAY);
        }
        // Pairs with the load in `rust_hmm_memory_destroy()`.
        self.0 .0.fetch_sub(1, Release);
    }
}

/// The memory, as a mirror has it.
pub(super) struct Lent {
    memory: Arc<CMemory>,
    // After `memory`: the count is the driver's permission to free what the memory uses. With the count at 0 only the
    // driver has a reference, so that the memory is gone when `rust_hmm_memory_destroy()` returns.
    _counted: Counted,
}

impl Lent {
    /// # Safety
    ///
    /// `raw` must be a memory that was not destroyed.
    pub(super) unsafe fn from_raw(raw: *mut bindings::rust_hmm_memory) -> Self {
        // SAFETY: By the function's requirements the driver's reference is there.
        let theirs = core::mem::ManuallyDrop::new(unsafe { Arc::from_raw(raw.cast::<CMemory>()) });
        Self {
            _counted: Counted::new(&theirs.mirrors),
            memory: Arc::clone(&theirs),
        }
    }

    pub(super) fn memory(&self) -> &Memory<CVram> {
        &self.memory.memory
    }
}

/// # Safety
///
/// `raw` must be a memory that is not destroyed for `'a`.
unsafe fn this<'a>(raw: *mut bindings::rust_hmm_memory) -> &'a CMemory {
    // SAFETY: By the function's requirements; made by `Arc::into_raw`.
    unsafe { &*raw.cast::<CMemory>() }
}

fn create(
    ops: bindings::rust_hmm_memory_ops,
    data: Data,
    pages: usize,
) -> Result<*mut bindings::rust_hmm_memory> {
    if ops.size != size_of::<bindings::rust_hmm_memory_ops>() || ops.copy.is_none() {
        return Err(EINVAL);
    }
    if pages == 0 || pages % PMD_PAGES != 0 {
        return Err(EINVAL);
    }
    let memory = Arc::pin_init(
        try_pin_init!(CMemory {
            mirrors: Arc::new(Mirrors(Atomic::new(0)), GFP_KERNEL)?,
            memory <- Memory::new(CVram { ops, data }, Kind::Private, pages),
        }? Error),
        GFP_KERNEL,
    )?;
    Ok(Arc::into_raw(memory).cast_mut().cast())
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_memory_create(
    ops: *const bindings::rust_hmm_memory_ops,
    data: *mut ffi::c_void,
    pages: ffi::c_ulong,
) -> *mut bindings::rust_hmm_memory {
    // SAFETY: The driver's table.
    pointer(create(unsafe { ops.read() }, Data(data), pages))
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_memory_destroy(memory: *mut bindings::rust_hmm_memory) -> ffi::c_int {
    let Some(memory) = to_destroy(memory) else {
        return 0;
    };
    number(within::may_wait().and_then(|()| {
        // SAFETY: The driver's, until we return 0.
        if unsafe { this(memory) }.mirrors.0.load(Acquire) != 0 {
            return Err(EBUSY);
        }
        // SAFETY: The driver gives its reference back. It is the last, since no mirror has any.
        drop(unsafe { Arc::from_raw(memory.cast::<CMemory>()) });
        Ok(())
    }))
}

/// A number of pages, as C wants it.
fn pages(result: Result<usize>) -> ffi::c_long {
    // CAST: Of a device, or small.
    match result {
        Ok(pages) => pages as ffi::c_long,
        Err(error) => error.to_errno() as ffi::c_long,
    }
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_memory_evict(memory: *mut bindings::rust_hmm_memory) -> ffi::c_long {
    // SAFETY: The driver's.
    pages(unsafe { this(memory) }.memory.evict_all_killable())
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_memory_unplug(memory: *mut bindings::rust_hmm_memory) -> ffi::c_long {
    // SAFETY: The driver's.
    let result = unsafe { this(memory) }.memory.unplug();
    pages(result.map(|(_, lost)| lost))
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_memory_usage(
    memory: *mut bindings::rust_hmm_memory,
    usage: *mut bindings::rust_hmm_usage,
) {
    // SAFETY: The driver's.
    let memory = &unsafe { this(memory) }.memory;
    let (used, total) = memory.usage();
    let limit = memory.limit();
    // SAFETY: The driver's, to be written.
    unsafe { usage.write(bindings::rust_hmm_usage { used, total, limit }) };
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_memory_counter(
    memory: *mut bindings::rust_hmm_memory,
    counter: u32,
) -> u64 {
    // SAFETY: The driver's.
    count(unsafe { this(memory) }.memory.stats(), counter)
}

/// The value of a counter by its number in C.
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
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_copy_done(
    job: *mut bindings::rust_hmm_copy_job,
    error: ffi::c_int,
) -> ffi::c_int {
    // SAFETY: The driver's.
    let job = unsafe { &mut *job };
    let state = core::mem::replace(&mut job.state, core::ptr::null_mut());
    if state.is_null() {
        return EINVAL.to_errno();
    }
    // SAFETY: From `copy` above. Once: the driver has only one copy of the structure completed, and that one's
    // state was just taken.
    unsafe { RawJob::complete(state, job.index, from_driver(error)) };
    0
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_copy_cancelled(job: *const bindings::rust_hmm_copy_job) -> bool {
    // SAFETY: The driver's.
    let state = unsafe { (*job).state };
    // SAFETY: From `copy` above, and not completed, which the driver sees to.
    !state.is_null() && unsafe { RawJob::is_cancelled(state) }
}

// SPDX-License-Identifier: GPL-2.0

//! Queues for drivers in C.

use super::{declared, from_driver, kind, number, pointer, to_destroy, Data};
use crate::{
    bindings,
    mm::fence::Fence,
    queue::{Queue, Stop},
    within::{self, current_task},
};
use core::ptr::NonNull;
use kernel::{
    ffi,
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc, //
    },
};

declared! {
    rust_hmm_queue_create,
    rust_hmm_queue_destroy,
    rust_hmm_queue_submit,
    rust_hmm_queue_record,
    rust_hmm_queue_wait,
    rust_hmm_stopped,
}

/// Most items of a queue.
const DEEPEST: u32 = 1 << 16;

type Run =
    Option<unsafe extern "C" fn(*mut ffi::c_void, *const bindings::rust_hmm_stop) -> ffi::c_int>;
type Release = Option<unsafe extern "C" fn(*mut ffi::c_void)>;

/// What a `struct rust_hmm_queue` is.
struct CQueue {
    queue: Queue,
    /// The task that is within one of its operations; 0: none.
    worker: Arc<Atomic<usize>>,
}

/// What a driver wants done.
struct Work {
    run: Run,
    release: Release,
    data: Data,
}

impl Work {
    fn run(&self, stop: &Stop) -> Result {
        let run = self.run.ok_or(EINVAL)?;
        // SAFETY: The driver gave both, and looks at `stop` as long as it runs.
        from_driver(unsafe { run(self.data.0, core::ptr::from_ref(stop).cast()) })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: The driver gave both; once, since this is dropped once.
            unsafe { release(self.data.0) };
        }
    }
}

/// # Safety
///
/// `raw` must be that of an operation that runs, which it does for `'a`.
pub(super) unsafe fn stop_of<'a>(raw: *const bindings::rust_hmm_stop) -> &'a Stop {
    // SAFETY: By the function's requirements; made in `Work::run`.
    unsafe { &*raw.cast::<Stop>() }
}

/// # Safety
///
/// `raw` must be a queue that is not destroyed for `'a`.
unsafe fn this<'a>(raw: *mut bindings::rust_hmm_queue) -> &'a CQueue {
    // SAFETY: By the function's requirements; made by `KBox::into_raw`.
    unsafe { &*raw.cast::<CQueue>() }
}

fn create(what: *const ffi::c_void, depth: u32) -> Result<*mut bindings::rust_hmm_queue> {
    if depth == 0 || depth > DEEPEST {
        return Err(EINVAL);
    }
    // CAST: At most 65536.
    let queue = Queue::new(kind(what), depth as usize)?;
    let worker = Arc::new(Atomic::new(0), GFP_KERNEL)?;
    Ok(KBox::into_raw(KBox::new(CQueue { queue, worker }, GFP_KERNEL)?).cast())
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_queue_create(
    kind: *const ffi::c_void,
    depth: ffi::c_uint,
) -> *mut bindings::rust_hmm_queue {
    pointer(create(kind, depth))
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_queue_destroy(queue: *mut bindings::rust_hmm_queue) -> ffi::c_int {
    let Some(queue) = to_destroy(queue) else {
        return 0;
    };
    number(within::may_wait().and_then(|()| {
        // SAFETY: The driver's, until we return 0.
        if unsafe { this(queue) }.worker.load(Relaxed) == current_task() {
            return Err(within::deadlock());
        }
        // SAFETY: The driver gives it back, and nothing else uses it.
        drop(unsafe { KBox::from_raw(queue.cast::<CQueue>()) });
        Ok(())
    }))
}

/// References of the fences of an array.
///
/// # Safety
///
/// There must be `count` pointers to fences that are alive, or NULL.
unsafe fn fences(
    after: *const *mut bindings::rust_hmm_fence,
    count: ffi::c_uint,
) -> Result<KVec<Fence>> {
    // CAST: 32 bits.
    let mut all = KVec::with_capacity(count as usize, GFP_KERNEL)?;
    for index in 0..count as usize {
        // SAFETY: By the function's requirements.
        let raw = unsafe { *after.add(index) };
        if let Some(raw) = NonNull::new(raw) {
            // SAFETY: By the function's requirements.
            all.push(unsafe { Fence::get(raw) }, GFP_KERNEL)?;
        }
    }
    Ok(all)
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_queue_submit(
    queue: *mut bindings::rust_hmm_queue,
    after: *const *mut bindings::rust_hmm_fence,
    count: ffi::c_uint,
    run: Run,
    release: Release,
    data: *mut ffi::c_void,
) -> *mut bindings::rust_hmm_fence {
    // From here on it is released, whatever comes.
    let work = Work {
        run,
        release,
        data: Data(data),
    };
    // SAFETY: The driver's.
    let this = unsafe { this(queue) };
    let submit = move || {
        if work.run.is_none() {
            return Err(EINVAL);
        }
        // SAFETY: The driver's.
        let after = unsafe { fences(after, count) }?;
        let worker = this.worker.clone();
        let fence = this.queue.submit(after, move |stop| {
            worker.store(current_task(), Relaxed);
            let result = work.run(stop);
            // Before the task is said to be elsewhere.
            drop(work);
            worker.store(0, Relaxed);
            result
        })?;
        Ok(fence.into_raw())
    };
    pointer(submit())
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_queue_record(
    queue: *mut bindings::rust_hmm_queue,
) -> *mut bindings::rust_hmm_fence {
    // SAFETY: The driver's.
    pointer(unsafe { this(queue) }.queue.record().map(Fence::into_raw))
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_queue_wait(
    queue: *mut bindings::rust_hmm_queue,
    fence: *mut bindings::rust_hmm_fence,
) -> ffi::c_int {
    let Some(fence) = NonNull::new(fence) else {
        return EINVAL.to_errno();
    };
    // SAFETY: The driver's, both.
    number(unsafe { this(queue).queue.wait(Fence::get(fence)) })
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_stopped(stop: *const bindings::rust_hmm_stop) -> bool {
    // SAFETY: The driver's, within the operation.
    unsafe { stop_of(stop) }.is_set()
}

// SPDX-License-Identifier: GPL-2.0

//! C interface: queues.
//!
//! The thread of a queue runs the operations of the driver. `worker` records the task that is
//! executing one, so that an operation that destroys its own queue gets `EDEADLK` and does not wait
//! for itself.
//!
//! `release` of an operation is called exactly once, also if the operation could not be submitted.

use super::{
    declared,
    from_driver,
    kind,
    migrate::stop_of,
    number,
    pointer,
    to_destroy,
    DriverData, //
};
use crate::{
    bindings,
    kernel::{
        cancel::CancelToken,
        fence::Fence,
        reentry::{
            self,
            current_task, //
        }, //
    },
    queue::Queue, //
};
use core::ptr::NonNull;
use kernel::{
    ffi,
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc, //
    }, //
};

declared! {
    rust_hmm_queue_create,
    rust_hmm_queue_destroy,
    rust_hmm_queue_submit,
    rust_hmm_queue_record,
    rust_hmm_queue_wait,
    rust_hmm_stopped,
}

/// Maximum number of items of a queue.
const QUEUE_MAX_DEPTH: u32 = 1 << 16;

type RunFn =
    Option<unsafe extern "C" fn(*mut ffi::c_void, *const bindings::rust_hmm_stop) -> ffi::c_int>;
type ReleaseFn = Option<unsafe extern "C" fn(*mut ffi::c_void)>;

/// A `struct rust_hmm_queue`.
struct CQueue {
    queue: Queue,
    /// The task that is executing an operation of this queue, or 0.
    worker: Arc<Atomic<usize>>,
}

/// An operation of a driver.
struct CallbackOperation {
    run: RunFn,
    release: ReleaseFn,
    data: DriverData,
}

impl CallbackOperation {
    fn run(&self, stop: &CancelToken) -> Result {
        let run = self.run.ok_or(EINVAL)?;
        // SAFETY: `run` and its data are valid until `release` is called. `stop` is valid while
        // `run` is executing, and the driver uses it only then.
        from_driver(unsafe { run(self.data.0, core::ptr::from_ref(stop).cast()) })
    }
}

impl Drop for CallbackOperation {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: `release` and its data are valid until this call. It is the only one, because
            // this is dropped once.
            unsafe { release(self.data.0) };
        }
    }
}

/// # Safety
///
/// `raw` must be a queue that is not destroyed during `'a`.
unsafe fn this<'a>(raw: *mut bindings::rust_hmm_queue) -> &'a CQueue {
    // SAFETY: By the function's requirements, the queue is valid. `create()` returned the pointer,
    // from `KBox::into_raw`.
    unsafe { &*raw.cast::<CQueue>() }
}

fn create(what: *const ffi::c_void, depth: u32) -> Result<*mut bindings::rust_hmm_queue> {
    if depth == 0 || depth > QUEUE_MAX_DEPTH {
        return Err(EINVAL);
    }
    // CAST: `depth` is at most 65536.
    let queue = Queue::new(kind(what), depth as usize)?;
    let worker = Arc::new(Atomic::new(0), GFP_KERNEL)?;
    Ok(KBox::into_raw(KBox::new(CQueue { queue, worker }, GFP_KERNEL)?).cast())
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_queue_create(
    kind: *const ffi::c_void,
    depth: ffi::c_uint,
) -> *mut bindings::rust_hmm_queue {
    pointer(create(kind, depth))
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_queue_destroy(queue: *mut bindings::rust_hmm_queue) -> ffi::c_int {
    let Some(queue) = to_destroy(queue) else {
        return 0;
    };
    number(reentry::may_wait().and_then(|()| {
        // SAFETY: By the function's requirements, `queue` is valid until this returns 0.
        if unsafe { this(queue) }.worker.load(Relaxed) == current_task() {
            return Err(reentry::deadlock());
        }
        // SAFETY: The driver passes back its pointer, and does not use the queue concurrently.
        drop(unsafe { KBox::from_raw(queue.cast::<CQueue>()) });
        Ok(())
    }))
}

/// Returns references to the fences of an array.
///
/// # Safety
///
/// `after` must have `count` elements, each of which is NULL or a valid fence.
unsafe fn fences(
    after: *const *mut bindings::rust_hmm_fence,
    count: ffi::c_uint,
) -> Result<KVec<Fence>> {
    // CAST: `count` has 32 bits.
    let mut all = KVec::with_capacity(count as usize, GFP_KERNEL)?;
    for index in 0..count as usize {
        // SAFETY: By the function's requirements, the array has this element.
        let raw = unsafe { *after.add(index) };
        if let Some(raw) = NonNull::new(raw) {
            // SAFETY: By the function's requirements, the fence is valid.
            all.push(unsafe { Fence::get(raw) }, GFP_KERNEL)?;
        }
    }
    Ok(all)
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_queue_submit(
    queue: *mut bindings::rust_hmm_queue,
    after: *const *mut bindings::rust_hmm_fence,
    count: ffi::c_uint,
    run: RunFn,
    release: ReleaseFn,
    data: *mut ffi::c_void,
) -> *mut bindings::rust_hmm_fence {
    // From here on, `release` is called even if this function fails.
    let work = CallbackOperation {
        run,
        release,
        data: DriverData(data),
    };
    // SAFETY: By the function's requirements, `queue` was not destroyed.
    let this = unsafe { this(queue) };
    let submit = move || {
        if work.run.is_none() {
            return Err(EINVAL);
        }
        // SAFETY: By the function's requirements, `after` has `count` elements, each NULL or a
        // valid fence.
        let after = unsafe { fences(after, count) }?;
        let worker = this.worker.clone();
        let fence = this.queue.submit(after, move |stop| {
            worker.store(current_task(), Relaxed);
            let result = work.run(stop);
            // Call `release` while `worker` still identifies this task.
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
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_queue_record(
    queue: *mut bindings::rust_hmm_queue,
) -> *mut bindings::rust_hmm_fence {
    // SAFETY: By the function's requirements, `queue` was not destroyed.
    pointer(unsafe { this(queue) }.queue.record().map(Fence::into_raw))
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_queue_wait(
    queue: *mut bindings::rust_hmm_queue,
    fence: *mut bindings::rust_hmm_fence,
) -> ffi::c_int {
    let Some(fence) = NonNull::new(fence) else {
        return EINVAL.to_errno();
    };
    // SAFETY: By the function's requirements, `queue` was not destroyed, and `fence` is valid.
    number(unsafe { this(queue).queue.wait(Fence::get(fence)) })
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_stopped(stop: *const bindings::rust_hmm_stop) -> bool {
    // SAFETY: By the function's requirements, this is called within the operation.
    unsafe { stop_of(stop) }.is_set()
}

// SPDX-License-Identifier: GPL-2.0

//! A kernel thread that runs a closure: the engine of a software device.
//!
//! C header: [`include/linux/kthread.h`](srctree/include/linux/kthread.h)

use crate::{
    bindings,
    deferred::{
        Deferred,
        DropWaits, //
    },
    within, //
};
use core::{marker::PhantomData, ptr};
use kernel::{error::from_err_ptr, ffi, prelude::*};

/// A thread. Dropping it waits until the closure has returned.
///
/// Tell the closure to return before dropping the thread, by a flag and a
/// [`CondVar`](kernel::sync::CondVar) of your own: the drop alone does not end it.
///
/// # Context
///
/// The drop may sleep. In a callback, in atomic context and in the closure itself it returns at
/// once, and a worker waits for the closure.
pub struct Thread(Deferred<Running>);

/// A thread that was started.
///
/// # Invariants
///
/// `task` is a kernel thread of which we own a reference, started for `closure`, which is a leaked
/// box that only the thread uses, unless it was stopped before it began.
struct Running {
    task: *mut bindings::task_struct,
    closure: *mut ffi::c_void,
    /// Frees the closure of a thread that never ran.
    free: unsafe fn(*mut ffi::c_void),
    _owns: PhantomData<KBox<()>>,
}

// SAFETY: A thread may be stopped from anywhere, and nothing but that can be done with it.
unsafe impl Send for Running {}
// SAFETY: A shared reference gives the address of the task only.
unsafe impl Sync for Running {}

impl DropWaits for Running {
    fn waits_for_current(&self) -> bool {
        self.task.addr() == within::current_task()
    }
}

impl Thread {
    /// Starts a thread that runs `closure` once. `name` is cut to 15 bytes.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINTR` if the task was killed meanwhile. Context: may sleep.
    pub fn spawn<F: FnOnce() + Send + 'static>(name: &CStr, closure: F) -> Result<Self> {
        Deferred::new(|| Running::start(name, closure), GFP_KERNEL).map(Self)
    }

    /// Whether the current task is this thread. Context: any.
    pub(crate) fn is_current(&self) -> bool {
        self.0.waits_for_current()
    }
}

impl Running {
    fn start<F: FnOnce() + Send + 'static>(name: &CStr, closure: F) -> Result<Self> {
        let closure = KBox::into_raw(KBox::new(closure, GFP_KERNEL)?).cast();
        // SAFETY: `run::<F>` takes what `closure` points to; the name is copied.
        let task = from_err_ptr(unsafe {
            bindings::rust_hmm_kthread_run(Some(run::<F>), closure, name.as_char_ptr())
        });
        match task {
            // INVARIANT: The helper took a reference for us.
            Ok(task) => Ok(Self {
                task,
                closure,
                free: free::<F>,
                _owns: PhantomData,
            }),
            Err(error) => {
                // SAFETY: No thread was started, so the box is still ours.
                unsafe { free::<F>(closure) };
                Err(error)
            }
        }
    }
}

/// # Safety
///
/// `closure` must be a leaked box of `F` that nobody else uses.
unsafe fn free<F>(closure: *mut ffi::c_void) {
    // SAFETY: By the function's requirements.
    drop(unsafe { KBox::from_raw(closure.cast::<F>()) });
}

/// # Safety
///
/// As [`free`].
unsafe extern "C" fn run<F: FnOnce()>(closure: *mut ffi::c_void) -> ffi::c_int {
    // SAFETY: By the function's requirements.
    let closure = unsafe { KBox::from_raw(closure.cast::<F>()) };
    KBox::into_inner(closure)();
    0
}

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: We own a reference by the type invariant, which goes with the call.
        let status = unsafe { bindings::rust_hmm_kthread_stop_put(self.task) };
        self.task = ptr::null_mut();
        if status != 0 {
            // SAFETY: Our function returns 0; any other status says that it was never called.
            unsafe { (self.free)(self.closure) };
        }
    }
}

#[kunit_tests(rust_hmm_thread)]
mod tests {
    use super::*;
    use kernel::sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc,
    };

    /// Counts how often it is dropped.
    struct Count(Arc<Atomic<u32>>);

    impl Drop for Count {
        fn drop(&mut self) {
            self.0.add(1, Relaxed);
        }
    }

    #[test]
    fn the_closure_runs_or_is_freed() -> Result {
        let dropped = Arc::new(Atomic::new(0u32), GFP_KERNEL)?;
        for round in 0..20 {
            let count = Count(dropped.clone());
            // Dropped at once: some never run.
            drop(Thread::spawn(c"hmm-test", move || drop(count))?);
            assert_eq!(dropped.load(Relaxed), round + 1);
        }
        Ok(())
    }
}

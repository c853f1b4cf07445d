// SPDX-License-Identifier: GPL-2.0

//! Kernel threads that run a closure, for example as the engine of a software device.
//!
//! C header: [`include/linux/kthread.h`](srctree/include/linux/kthread.h)

use crate::{
    bindings,
    kernel::{
        deferred::{
            Deferred,
            DropWaits, //
        },
        reentry, //
    }, //
};
use core::{
    marker::PhantomData,
    ptr, //
};
use kernel::{
    error::from_err_ptr,
    ffi,
    prelude::*, //
};

/// A kernel thread. Dropping it waits until the closure has returned.
///
/// The drop does not stop the closure. The owner must make it return before, for example by a flag
/// and a [`CondVar`](kernel::sync::CondVar).
///
/// # Context
///
/// The drop may sleep. In a callback, in atomic context and in the closure itself it returns
/// immediately, and a worker waits for the closure.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::sync::Arc;
/// use rust_hmm::kernel::completion::TimedCompletion;
/// use rust_hmm::kernel::kthread::Thread;
///
/// let done = Arc::pin_init(TimedCompletion::new(), GFP_KERNEL)?;
/// let of_the_thread = done.clone();
/// let thread = Thread::spawn(c"example", move || of_the_thread.complete())?;
/// // Waits until the closure has returned.
/// drop(thread);
/// # Ok::<(), Error>(())
/// ```
pub struct Thread(Deferred<Running>);

/// A started thread.
///
/// # Invariants
///
/// `task` is a kernel thread of which we own a reference, started for `closure`, which is a leaked
/// box that only the thread uses, unless it was stopped before it began.
struct Running {
    task: *mut bindings::task_struct,
    closure: *mut ffi::c_void,
    /// Frees the closure of a thread that was stopped before it ran.
    free: unsafe fn(*mut ffi::c_void),
    _owns: PhantomData<KBox<()>>,
}

// SAFETY: `kthread_stop_put()` may be called by any task, and the closure is `Send`.
unsafe impl Send for Running {}
// SAFETY: A shared reference gives the address of the task only.
unsafe impl Sync for Running {}

impl DropWaits for Running {
    fn waits_for_current(&self) -> bool {
        self.task.addr() == reentry::current_task()
    }
}

impl Thread {
    /// Starts a thread that runs `closure` once. `name` is truncated to 15 bytes.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    /// - `EINTR`: the task was killed
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn spawn<F: FnOnce() + Send + 'static>(name: &CStr, closure: F) -> Result<Self> {
        Deferred::new(|| Running::start(name, closure), GFP_KERNEL).map(Self)
    }

    /// Returns whether the current task is this thread. Context: any.
    pub(crate) fn is_current(&self) -> bool {
        self.0.waits_for_current()
    }
}

impl Running {
    fn start<F: FnOnce() + Send + 'static>(name: &CStr, closure: F) -> Result<Self> {
        let closure = KBox::into_raw(KBox::new(closure, GFP_KERNEL)?).cast();
        // SAFETY: `closure` is a leaked box of `F`, as `run::<F>` requires. The name is copied.
        let task = from_err_ptr(unsafe {
            bindings::rust_hmm_kthread_run(Some(run::<F>), closure, name.as_char_ptr())
        });
        match task {
            // INVARIANT: The helper has taken a reference to the thread for us. Only the thread
            // uses `closure`.
            Ok(task) => Ok(Self {
                task,
                closure,
                free: free::<F>,
                _owns: PhantomData,
            }),
            Err(error) => {
                // SAFETY: No thread was started, so that the leaked box is still ours.
                unsafe { free::<F>(closure) };
                Err(error)
            }
        }
    }
}

/// Frees a closure that was not run.
///
/// # Safety
///
/// `closure` must be a leaked box of `F` that no other code uses.
unsafe fn free<F>(closure: *mut ffi::c_void) {
    // SAFETY: `closure` is a leaked box and ours, by the function's requirements.
    drop(unsafe { KBox::from_raw(closure.cast::<F>()) });
}

/// The function of the kernel thread: runs the closure.
///
/// # Safety
///
/// `closure` must be a leaked box of `F` that no other code uses.
unsafe extern "C" fn run<F: FnOnce()>(closure: *mut ffi::c_void) -> ffi::c_int {
    // SAFETY: `closure` is a leaked box and ours, by the function's requirements.
    let closure = unsafe { KBox::from_raw(closure.cast::<F>()) };
    KBox::into_inner(closure)();
    0
}

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: By the type invariant we own a reference, which the call consumes.
        let status = unsafe { bindings::rust_hmm_kthread_stop_put(self.task) };
        self.task = ptr::null_mut();
        if status != 0 {
            // SAFETY: `run` returns 0. Any other status means that it was never called, so that the
            // leaked box is ours.
            unsafe { (self.free)(self.closure) };
        }
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_thread)]
mod tests {
    use super::*;
    use kernel::sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc, //
    };

    /// Counts its drops.
    struct Count(Arc<Atomic<u32>>);

    impl Drop for Count {
        fn drop(&mut self) {
            self.0.add(1, Relaxed);
        }
    }

    #[test]
    fn closure_runs_or_is_freed() -> Result {
        let dropped = Arc::new(Atomic::new(0u32), GFP_KERNEL)?;
        for round in 0..20 {
            let count = Count(dropped.clone());
            // Dropped immediately, so that some closures never run.
            drop(Thread::spawn(c"hmm-test", move || drop(count))?);
            assert_eq!(dropped.load(Relaxed), round + 1);
        }
        Ok(())
    }
}

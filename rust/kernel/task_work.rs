// SPDX-License-Identifier: GPL-2.0

//! Lets a task sleep before it returns to user mode, where it holds no lock.
//!
//! A page fault handler cannot wait until other tasks have finished with the page, because the core
//! holds the folio lock and a reference of the folio until the handler returns. A task that faulted
//! in user mode runs its task work after that, and then repeats the instruction.
//!
//! C header: [`include/linux/task_work.h`](srctree/include/linux/task_work.h)

use super::completion::TimedCompletion;
use crate::bindings;
use kernel::{
    error::to_result,
    ffi,
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

/// Task work that waits for `completion`.
#[repr(C)]
struct TaskWait {
    // First member: the address of the work is that of the object.
    work: Opaque<bindings::rust_hmm_task_work>,
    completion: Arc<TimedCompletion>,
}

/// Makes the current task wait until `completion` is [completed for
/// all](TimedCompletion::complete_all), before it returns to user mode. Any signal ends the wait:
/// the task handles it, and then repeats the instruction. An exiting task does not wait.
///
/// # Errors
///
/// * `ENOMEM`: memory allocation failed.
/// * `ESRCH`: the task is a kernel thread, or is exiting.
///
/// # Context
///
/// May sleep. The caller may hold any lock that allows sleeping: the task waits for `completion`
/// after it has released all locks.
#[inline(never)]
pub(crate) fn sleep_before_return(completion: Arc<TimedCompletion>) -> Result {
    let sleep = TaskWait {
        work: Opaque::zeroed(),
        completion,
    };
    let sleep = KBox::into_raw(KBox::new(sleep, GFP_KERNEL)?);
    // SAFETY: `sleep` is a leaked box, which only `run` uses once the call has succeeded. The work
    // is its first member.
    let added = to_result(unsafe {
        let work = Opaque::cast_into(&raw const (*sleep).work);
        (*work).run = Some(run);
        bindings::rust_hmm_task_work_add(work)
    });
    if added.is_err() {
        // SAFETY: The work was not added, so that the box is still ours.
        drop(unsafe { KBox::from_raw(sleep) });
    }
    added
}

/// # Safety
///
/// `object` must be a leaked box of [`TaskWait`] that no other code uses.
unsafe extern "C" fn run(object: *mut ffi::c_void) {
    // SAFETY: `object` is a leaked box of `TaskWait` that no other code uses, by the function's
    // requirements.
    let sleep = unsafe { KBox::from_raw(object.cast::<TaskWait>()) };
    // SAFETY: The helper has no preconditions.
    if !unsafe { bindings::rust_hmm_task_is_exiting() } {
        sleep.completion.wait_interruptible();
    }
}

/// Token of the library: task works may be added as long as it exists.
pub(crate) struct TaskWorks(());

impl TaskWorks {
    /// Created once, by the library's `init`.
    pub(crate) fn new() -> Self {
        Self(())
    }
}

impl Drop for TaskWorks {
    /// Waits until no task runs code of this module as task work.
    fn drop(&mut self) {
        // SAFETY: The module is being unloaded, and no driver is left. Therefore no fault adds a
        // task work.
        unsafe { bindings::rust_hmm_task_work_exit() };
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_task_work)]
mod tests {
    use super::*;
    use crate::kernel::kthread::Thread;
    use kernel::sync::atomic::{
        ordering::{
            Acquire,
            Release, //
        },
        Atomic, //
    };

    #[test]
    fn kernel_threads_are_refused() -> Result {
        // A kernel thread never returns to user mode, so that its task work would never run.
        let completion = Arc::pin_init(TimedCompletion::new(), GFP_KERNEL)?;
        let theirs = completion.clone();
        let answer = Arc::new(Atomic::new(0i32), GFP_KERNEL)?;
        let result = answer.clone();
        let thread = Thread::spawn(c"hmm-test", move || {
            let refused = sleep_before_return(theirs.clone()) == Err(ESRCH);
            result.store(if refused { 1 } else { 2 }, Release);
            theirs.complete_all();
        })?;
        completion.wait_interruptible();
        drop(thread);
        assert_eq!(answer.load(Acquire), 1);
        Ok(())
    }
}

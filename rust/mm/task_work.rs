// SPDX-License-Identifier: GPL-2.0

//! Sleep of a task before it returns to user mode, where it holds no lock.
//!
//! A page fault cannot sleep for what other tasks do with the page: the core holds the folio's lock
//! and a reference of it until the handler has returned. After that, a task that has faulted in
//! user mode does its task work, and repeats the instruction.
//!
//! C header: [`include/linux/task_work.h`](srctree/include/linux/task_work.h)

use super::bell::Bell;
use crate::bindings;
use kernel::{
    error::to_result,
    ffi,
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

/// A task's work: to sleep until `bell` rings.
#[repr(C)]
struct Sleep {
    // First: the address of the work is that of the object.
    work: Opaque<bindings::rust_hmm_task_work>,
    bell: Arc<Bell>,
}

/// Has the current task sleep until `bell` was [rung for good](Bell::ring_for_good), before it
/// returns to user mode. Any signal ends the sleep: the task then handles it, and repeats the
/// instruction. A task that exits does not sleep.
///
/// # Errors
///
/// - `ENOMEM`
/// - `ESRCH` if the task is a kernel thread or exits
///
/// # Context
///
/// May sleep. Any lock may be held: the task sleeps for `bell` after it has released all.
#[inline(never)]
pub(crate) fn sleep_before_return(bell: Arc<Bell>) -> Result {
    let sleep = Sleep {
        work: Opaque::zeroed(),
        bell,
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
        // SAFETY: Nothing was added, so that the box is still ours.
        drop(unsafe { KBox::from_raw(sleep) });
    }
    added
}

/// # Safety
///
/// `object` must be a leaked box of [`Sleep`] that no other code uses.
unsafe extern "C" fn run(object: *mut ffi::c_void) {
    // SAFETY: By the function's requirements.
    let sleep = unsafe { KBox::from_raw(object.cast::<Sleep>()) };
    // SAFETY: No preconditions.
    if !unsafe { bindings::rust_hmm_task_is_exiting() } {
        sleep.bell.wait_interruptible();
    }
}

/// The library may have tasks sleep, as long as this exists.
pub(crate) struct TaskWorks(());

impl TaskWorks {
    /// To be made by the library's `init`.
    pub(crate) fn new() -> Self {
        Self(())
    }
}

impl Drop for TaskWorks {
    /// Waits until no task executes code of this module as its work.
    fn drop(&mut self) {
        // SAFETY: The library ends: no driver is left on whose memory a task could fault.
        unsafe { bindings::rust_hmm_task_work_exit() };
    }
}

#[kunit_tests(rust_hmm_task_work)]
mod tests {
    use super::*;
    use crate::thread::Thread;
    use kernel::sync::atomic::{
        ordering::{Acquire, Release},
        Atomic, //
    };

    #[test]
    fn a_kernel_thread_is_refused() -> Result {
        // It never returns to user mode: what waits for its work would wait for ever.
        let bell = Arc::pin_init(Bell::new(), GFP_KERNEL)?;
        let (theirs, answer) = (bell.clone(), Arc::new(Atomic::new(0i32), GFP_KERNEL)?);
        let told = answer.clone();
        let thread = Thread::spawn(c"hmm-test", move || {
            let refused = sleep_before_return(theirs.clone()) == Err(ESRCH);
            told.store(if refused { 1 } else { 2 }, Release);
            theirs.ring_for_good();
        })?;
        bell.wait_interruptible();
        drop(thread);
        assert_eq!(answer.load(Acquire), 1);
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Copy jobs of drivers in C, which own a job as numbers and a pointer.

use super::{
    CopyEndpoint,
    CopyJob,
    CopyState, //
};
use core::mem::ManuallyDrop;
use kernel::{
    ffi,
    prelude::*,
    sync::{
        atomic::ordering::Relaxed,
        Arc, //
    }, //
};

impl CopyJob {
    /// Converts the job to numbers and a pointer for a driver in C, which ends it by
    /// [`RawCopyJob::complete`].
    pub(crate) fn into_raw(self) -> RawCopyJob {
        let this = ManuallyDrop::new(self);
        RawCopyJob {
            pages: this.pages,
            source: this.source,
            destination: this.destination,
            // SAFETY: The reference is moved out only once, because `this` is never dropped.
            state: Arc::into_raw(unsafe { core::ptr::read(&this.state) }).cast(),
            index: this.index,
        }
    }
}

/// A [`CopyJob`] as numbers and a pointer.
pub(crate) struct RawCopyJob {
    pub(crate) pages: usize,
    pub(crate) source: Option<CopyEndpoint>,
    pub(crate) destination: CopyEndpoint,
    /// A reference to the state of the step, from `Arc::into_raw()`.
    pub(crate) state: *const ffi::c_void,
    pub(crate) index: usize,
}

impl RawCopyJob {
    /// Completes the job as [`CopyJob::complete`].
    ///
    /// # Safety
    ///
    /// `state` and `index` must be those of a job that was not completed yet.
    pub(crate) unsafe fn complete(state: *const ffi::c_void, index: usize, result: Result) {
        // INVARIANT: The job has no pages.
        CopyJob {
            // SAFETY: `state` is a reference that `into_raw` returned. By the function's
            // requirements the job was not completed, so that the reference was not taken before.
            state: unsafe { Arc::from_raw(state.cast()) },
            index,
            pages: 0,
            source: None,
            destination: CopyEndpoint::Device(0),
            result: Err(EIO),
        }
        .complete(result);
    }

    /// Returns whether the result will not be used, as [`CopyJob::is_cancelled`].
    ///
    /// # Safety
    ///
    /// `state` must be that of a job that was not completed yet.
    pub(crate) unsafe fn is_cancelled(state: *const ffi::c_void) -> bool {
        // SAFETY: `state` is a reference that `into_raw` returned. It is valid because the job was
        // not completed, by the function's requirements.
        unsafe { &*state.cast::<CopyState>() }
            .cancelled
            .load(Relaxed)
    }
}

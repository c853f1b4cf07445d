// SPDX-License-Identifier: GPL-2.0

//! Copy jobs of drivers in C, which own a job as numbers and a pointer.

use super::{
    CopyEndpoint,
    CopyJob,
    CopyState, //
};
use crate::kernel::counted::CountedRef;
use kernel::{
    ffi,
    prelude::*,
    sync::atomic::ordering::Relaxed, //
};

impl CopyJob {
    /// Converts the job to numbers and a pointer for a driver in C, which ends it by
    /// [`RawCopyJob::complete`].
    pub(crate) fn into_raw(self) -> RawCopyJob {
        let Self {
            state,
            index,
            pages,
            source,
            destination,
        } = self;
        RawCopyJob {
            pages,
            source,
            destination,
            state: state.into_raw(),
            index,
        }
    }
}

/// A [`CopyJob`] as numbers and a pointer.
pub(crate) struct RawCopyJob {
    pub(crate) pages: usize,
    pub(crate) source: Option<CopyEndpoint>,
    pub(crate) destination: CopyEndpoint,
    /// A reference to the state of the step, from [`CountedRef::into_raw`].
    pub(crate) state: *mut ffi::c_void,
    pub(crate) index: usize,
}

impl RawCopyJob {
    /// Completes the job as [`CopyJob::complete`].
    ///
    /// # Safety
    ///
    /// `state` and `index` must be those of a job that was not completed yet.
    pub(crate) unsafe fn complete(state: *mut ffi::c_void, index: usize, result: Result) {
        // INVARIANT: The job has no pages.
        CopyJob {
            // SAFETY: `state` is a reference that `into_raw` returned. By the function's
            // requirements the job was not completed, so that the reference was not taken before.
            state: unsafe { CountedRef::from_raw(state) },
            index,
            pages: 0,
            source: None,
            destination: CopyEndpoint::Device(0),
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
        unsafe { CountedRef::<CopyState>::object_of(state) }
            .cancelled
            .load(Relaxed)
    }
}

// SPDX-License-Identifier: GPL-2.0

//! C interface: fences. `struct rust_hmm_fence` is the object behind a [`Fence`].
//!
//! `rust/helpers/fence.c` has the functions that do not need the library: `rust_hmm_fence_get()`,
//! `rust_hmm_fence_put()`, `rust_hmm_fence_eventfd()`, `rust_hmm_fence_watch()` and
//! `rust_hmm_fence_unwatch()`.

use super::{
    declared,
    kind,
    number,
    pointer, //
};
use crate::{
    bindings,
    kernel::{
        dma_fence::DmaFence,
        fence::{
            DriverFence,
            Fence, //
        },
        sync_file::SyncFile, //
    }, //
};
use core::{
    mem::ManuallyDrop,
    ptr::NonNull, //
};
use kernel::{
    ffi,
    prelude::*,
    time::Delta, //
};

declared! {
    rust_hmm_fence_create,
    rust_hmm_fence_signal_once,
    rust_hmm_fence_wait_for,
    rust_hmm_fence_from_dma,
    rust_hmm_fence_from_file,
}

/// Borrows a driver's fence, without taking its reference.
///
/// # Safety
///
/// `raw` must be NULL, or a fence that is valid while the result is used.
unsafe fn borrow(raw: *mut bindings::rust_hmm_fence) -> Result<ManuallyDrop<Fence>> {
    let raw = NonNull::new(raw).ok_or(EINVAL)?;
    // SAFETY: By the function's requirements, the fence is valid. The driver's reference is not
    // dropped, because of `ManuallyDrop`.
    Ok(ManuallyDrop::new(unsafe { Fence::from_raw(raw) }))
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_fence_create(
    what: *const ffi::c_void,
) -> *mut bindings::rust_hmm_fence {
    pointer(DriverFence::of_driver(kind(what)).map(DriverFence::into_raw))
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_fence_signal_once(
    fence: *mut bindings::rust_hmm_fence,
    error: ffi::c_int,
) -> ffi::c_int {
    let signal = || {
        // CAST: `MAX_ERRNO` is a small constant.
        if fence.is_null() || error > 0 || error < -(bindings::MAX_ERRNO as ffi::c_int) {
            return Err(EINVAL);
        }
        // SAFETY: By the function's requirements, the driver has a reference to `fence`.
        if !unsafe { bindings::rust_hmm_fence_by_driver(fence) } {
            return Err(EPERM);
        }
        // SAFETY: By the function's requirements, the driver has a reference to `fence`.
        if unsafe { bindings::rust_hmm_fence_signal(fence, error) } {
            Ok(())
        } else {
            Err(EINVAL)
        }
    };
    number(signal())
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_fence_wait_for(
    fence: *mut bindings::rust_hmm_fence,
    ms: ffi::c_long,
) -> ffi::c_int {
    if fence.is_null() {
        return 0;
    }
    let limit = (ms >= 0).then(|| Delta::from_millis(ms as i64));
    // SAFETY: By the function's requirements, the driver has a reference to `fence`.
    number(unsafe { borrow(fence) }.and_then(|fence| fence.synchronize(limit)))
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_fence_from_dma(
    dma: *mut bindings::dma_fence,
) -> *mut bindings::rust_hmm_fence {
    let made = NonNull::new(dma).ok_or(EINVAL).and_then(|dma| {
        // SAFETY: By the function's requirements, the driver has a reference to `dma`.
        Fence::of(&unsafe { DmaFence::get(dma) })
    });
    pointer(made.map(Fence::into_raw))
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_fence_from_file(fd: ffi::c_int) -> *mut bindings::rust_hmm_fence {
    let made = SyncFile::fence(fd).and_then(|dma| Fence::of(&dma));
    pointer(made.map(Fence::into_raw))
}

// SPDX-License-Identifier: GPL-2.0

//! Fences for drivers in C. There they are the kernel's `struct dma_fence`.

use super::{declared, kind, number, pointer};
use crate::{
    bindings,
    mm::{
        fence::{Fence, FenceRoom, Timeline},
        sync_file::SyncFile,
    },
};
use core::{mem::ManuallyDrop, ptr::NonNull};
use kernel::{ffi, prelude::*, time::Delta};

declared! {
    rust_hmm_fence_create,
    rust_hmm_fence_signal_once,
    rust_hmm_fence_wait_for,
    rust_hmm_fence_to_file,
    rust_hmm_fence_from_file,
}

/// A driver's fence, whose reference stays the driver's.
///
/// # Safety
///
/// `raw` must be a fence that is alive as long as the result is used.
unsafe fn borrow(raw: *mut bindings::dma_fence) -> Result<ManuallyDrop<Fence>> {
    let raw = NonNull::new(raw).ok_or(EINVAL)?;
    // SAFETY: By the function's requirements; never dropped.
    Ok(ManuallyDrop::new(unsafe { Fence::from_raw(raw) }))
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_fence_create(what: *const ffi::c_void) -> *mut bindings::dma_fence {
    // On a timeline of its own: who signals it may do so in any order.
    pointer(FenceRoom::new().map(|room| room.make(&Timeline::new(), kind(what)).into_raw()))
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_fence_signal_once(
    fence: *mut bindings::dma_fence,
    error: ffi::c_int,
) -> ffi::c_int {
    // SAFETY: The driver's.
    unsafe { bindings::rust_hmm_fence_signal_ours(fence, error) }
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_fence_wait_for(
    fence: *mut bindings::dma_fence,
    ms: ffi::c_long,
) -> ffi::c_int {
    if fence.is_null() {
        return 0;
    }
    let limit = (ms >= 0).then(|| Delta::from_millis(ms as i64));
    // SAFETY: The driver's.
    number(unsafe { borrow(fence) }.and_then(|fence| fence.synchronize(limit)))
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_fence_to_file(
    fence: *mut bindings::dma_fence,
    ms: ffi::c_uint,
    file: *mut *mut bindings::file,
) -> ffi::c_int {
    // SAFETY: The driver's.
    let made = unsafe { borrow(fence) }
        .and_then(|fence| SyncFile::new(&fence, Delta::from_millis(ms.into())));
    match made {
        Ok(made) => {
            let (fd, raw) = made.into_raw();
            // SAFETY: The driver's, to be written.
            unsafe { file.write(raw) };
            fd
        }
        Err(error) => error.to_errno(),
    }
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_fence_from_file(fd: ffi::c_int) -> *mut bindings::dma_fence {
    pointer(SyncFile::fence(fd).map(Fence::into_raw))
}

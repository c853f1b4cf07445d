// SPDX-License-Identifier: GPL-2.0

//! C interface: the table lock of a mirror, and lookups under it.
//!
//! A driver in C cannot hold a [`TableGuard`]. `rust_hmm_table_lock()` stores it in the mirror with
//! the task that called it. Lookups and the unlock compare the current task with that one, so that
//! a call by another task returns `EPERM`.

use super::{
    this,
    CMirror, //
};
#[cfg(doc)]
use crate::mirror::TableGuard;
use crate::{
    bindings,
    capi::{
        declared,
        is_write,
        number, //
    },
    kernel::reentry::current_task,
    mirror::{
        PageMemory,
        PageMemoryMut, //
    },
    mm::folio::CpuPages, //
};
use kernel::{
    ffi,
    prelude::*,
    sync::atomic::ordering::Relaxed, //
};

declared! {
    rust_hmm_table_lock,
    rust_hmm_table_unlock,
    rust_hmm_table_lookup,
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_table_lock(mirror: *mut bindings::rust_hmm_mirror) -> ffi::c_int {
    // SAFETY: By the function's requirements, `mirror` was not destroyed. It stays valid until the
    // lock is released, because a task that holds the lock cannot destroy it.
    let this: &'static CMirror = unsafe { this(mirror) };
    number(this.mirror.lock_table().map(|guard| {
        // SAFETY: This task holds the table lock.
        unsafe { *this.guard.get() = Some(guard) };
        // INVARIANT: `guard` was set, and this task holds the table lock.
        this.holder.store(current_task(), Relaxed);
    }))
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_table_unlock(mirror: *mut bindings::rust_hmm_mirror) -> ffi::c_int {
    // SAFETY: By the function's requirements, `mirror` was not destroyed.
    let this = unsafe { this(mirror) };
    let Some(guard) = this.held() else {
        return EPERM.to_errno();
    };
    this.holder.store(0, Relaxed);
    // SAFETY: This task holds the table lock until `guard` is dropped below.
    let guard = unsafe { (*guard).take() };
    drop(guard);
    0
}

/// Returns a C structure that describes one page.
fn page(kind: ffi::c_uint, first: usize) -> bindings::rust_hmm_place {
    bindings::rust_hmm_place {
        kind,
        reserved: 0,
        first,
        pages: 1,
    }
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_table_lookup(
    mirror: *mut bindings::rust_hmm_mirror,
    addr: ffi::c_ulong,
    flags: u32,
    place: *mut bindings::rust_hmm_place,
) -> ffi::c_int {
    // SAFETY: By the function's requirements, `mirror` was not destroyed.
    let this = unsafe { this(mirror) };
    let lookup = || {
        let guard = this.held().ok_or(EPERM)?;
        // SAFETY: This task holds the table lock while `guard` is borrowed.
        let table = unsafe { (*guard).as_ref() }.ok_or(EPERM)?;
        let cpu =
            |pages: &CpuPages<'_>| page(bindings::rust_hmm_where_RUST_HMM_CPU, pages.first_pfn());
        let device = |first| page(bindings::rust_hmm_where_RUST_HMM_DEVICE, first);
        Ok(if is_write(flags)? {
            match table.writable(addr).ok_or(ENOENT)? {
                PageMemoryMut::Cpu(pages) => cpu(&pages),
                PageMemoryMut::Device(range) => device(range.first),
            }
        } else {
            match table.readable(addr).ok_or(ENOENT)? {
                PageMemory::Cpu(pages) => cpu(&pages),
                PageMemory::Device(range) => device(range.first),
            }
        })
    };
    number(lookup().map(|found| {
        // SAFETY: By the function's requirements, `place` can be written.
        unsafe { place.write(found) };
    }))
}

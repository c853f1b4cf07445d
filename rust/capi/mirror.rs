// SPDX-License-Identifier: GPL-2.0

//! C interface: mirrors, and device faults.
//!
//! `table` has the table lock and lookups, `snapshot` the snapshots.

use super::{
    declared,
    is_write,
    memory::{
        count,
        CVram,
        MemoryRef, //
    },
    number,
    pointer,
    to_destroy,
    DriverData,
    Memory,
    PageRange, //
};
use crate::{
    bindings,
    kernel::{
        lock_classes,
        reentry::{
            self,
            current_task, //
        }, //
    },
    mirror::{
        Device,
        Mirror,
        TableGuard, //
    },
    mm::range_fault::Access,
    pgtable::Radix4,
    policy::{
        Density,
        NoMigration,
        Parameters,
        Policy,
        SinglePage, //
    }, //
};
use core::cell::UnsafeCell;
use kernel::{
    ffi,
    mm::MmWithUser,
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        SetOnce, //
    }, //
};

mod snapshot;
mod table;

declared! {
    rust_hmm_mirror_create,
    rust_hmm_mirror_destroy,
    rust_hmm_mirror_alive,
    rust_hmm_mirror_counter,
    rust_hmm_fault,
    rust_hmm_serve,
    rust_hmm_discard,
}

/// Operations and data of a driver for the device of a mirror.
pub(super) struct CDevice {
    ops: bindings::rust_hmm_mirror_ops,
    data: DriverData,
    memory: Option<MemoryRef>,
}

impl Device for CDevice {
    type Memory = CVram;
    type Format = Radix4;
    type Walker = ();
    type Flush = ffi::c_ulong;

    fn memory(&self) -> Option<&Memory<CVram>> {
        self.memory.as_ref().map(MemoryRef::memory)
    }

    fn flush_sleeps(&self) -> bool {
        self.ops.flags & bindings::RUST_HMM_FLUSH_SLEEPS != 0
    }

    fn flush_start(&self, range: PageRange) -> ffi::c_ulong {
        // SAFETY: `start` and its data are valid until the driver destroys the mirror.
        self.ops.flush_start.map_or(0, |start| unsafe {
            start(self.data.0, range.start(), range.end())
        })
    }

    fn flush_wait(&self, flush: ffi::c_ulong) {
        if let Some(wait) = self.ops.flush_wait {
            // SAFETY: `wait` and its data are valid until the driver destroys the mirror.
            unsafe { wait(self.data.0, flush) };
        }
    }
}

/// A `struct rust_hmm_mirror`.
///
/// # Invariants
///
/// `guard` is only accessed by the task that holds the table lock, and is `Some` while `holder` is
/// that task.
pub(super) struct CMirror {
    // Dropped before `mirror`, which it borrows.
    guard: UnsafeCell<Option<TableGuard<'static, CDevice>>>,
    holder: Atomic<usize>,
    density: SetOnce<Pin<KBox<Density>>>,
    mirror: Mirror<CDevice>,
}

impl CMirror {
    pub(super) fn mirror(&self) -> &Mirror<CDevice> {
        &self.mirror
    }

    /// Returns the table guard, if the current task holds the table lock.
    fn held(&self) -> Option<*mut Option<TableGuard<'static, CDevice>>> {
        (self.holder.load(Relaxed) == current_task()).then(|| self.guard.get())
    }

    /// Returns a policy by its number in C.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there is no such policy.
    /// - `EBUSY` if a concurrent task is creating the policy.
    /// - `ENOMEM`
    fn policy(&self, policy: u32) -> Result<&dyn Policy> {
        Ok(match policy {
            bindings::rust_hmm_policy_RUST_HMM_ATTRIBUTES => &NoMigration,
            bindings::rust_hmm_policy_RUST_HMM_TOUCHED => &SinglePage,
            bindings::rust_hmm_policy_RUST_HMM_DENSITY => {
                if self.density.as_ref().is_none() {
                    // A concurrent task may have stored its policy first. Then this one is dropped
                    // immediately.
                    self.density.populate(Density::new(Parameters::DEFAULT)?);
                }
                &**self.density.as_ref().ok_or(EBUSY)?
            }
            _ => return Err(EINVAL),
        })
    }
}

/// # Safety
///
/// `raw` must be a mirror that is not destroyed during `'a`.
pub(super) unsafe fn this<'a>(raw: *mut bindings::rust_hmm_mirror) -> &'a CMirror {
    // SAFETY: By the function's requirements, the mirror is valid. `create()` returned the pointer,
    // from `KBox::into_raw`.
    unsafe { &*raw.cast::<CMirror>() }
}

/// # Safety
///
/// `mm` must be NULL or have a user. `memory` must be NULL or not be destroyed during the call.
unsafe fn create(
    mm: *mut bindings::mm_struct,
    ops: bindings::rust_hmm_mirror_ops,
    data: DriverData,
    memory: *mut bindings::rust_hmm_memory,
) -> Result<*mut bindings::rust_hmm_mirror> {
    let valid = bindings::RUST_HMM_FLUSH_SLEEPS;
    if mm.is_null()
        || ops.size != size_of::<bindings::rust_hmm_mirror_ops>()
        || ops.flags & !valid != 0
        || ops.reserved != 0
    {
        return Err(EINVAL);
    }
    // SAFETY: By the function's requirements, `mm`, which is not NULL, has a user, and `memory` was
    // not destroyed.
    let (mm, memory) = unsafe {
        let memory = (!memory.is_null()).then(|| MemoryRef::from_raw(memory));
        (MmWithUser::from_raw(mm), memory)
    };
    let (name, key) = lock_classes::c_mirror();
    let mirror = Mirror::new(mm, CDevice { ops, data, memory }, name, key)?;
    let mirror = KBox::new(
        CMirror {
            guard: UnsafeCell::new(None),
            holder: Atomic::new(0),
            density: SetOnce::new(),
            mirror,
        },
        GFP_KERNEL_ACCOUNT,
    )?;
    Ok(KBox::into_raw(mirror).cast())
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_mirror_create(
    mm: *mut bindings::mm_struct,
    ops: *const bindings::rust_hmm_mirror_ops,
    data: *mut ffi::c_void,
    memory: *mut bindings::rust_hmm_memory,
) -> *mut bindings::rust_hmm_mirror {
    // SAFETY: By the function's requirements, `ops` points to a valid table, `mm` is NULL or has a
    // user, and `memory` is NULL or was not destroyed.
    pointer(unsafe { create(mm, ops.read(), DriverData(data), memory) })
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_mirror_destroy(mirror: *mut bindings::rust_hmm_mirror) -> ffi::c_int {
    let Some(mirror) = to_destroy(mirror) else {
        return 0;
    };
    number(reentry::may_wait().map(|()| {
        // SAFETY: The driver passes back its pointer, and does not use the mirror concurrently. So
        // no other task holds the table lock, and if the current one did, `may_wait()` would have
        // failed.
        drop(unsafe { KBox::from_raw(mirror.cast::<CMirror>()) });
    }))
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_mirror_alive(mirror: *mut bindings::rust_hmm_mirror) -> bool {
    // SAFETY: By the function's requirements, `mirror` was not destroyed.
    unsafe { this(mirror) }.mirror.is_alive()
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_mirror_counter(
    mirror: *mut bindings::rust_hmm_mirror,
    counter: u32,
) -> u64 {
    // SAFETY: By the function's requirements, `mirror` was not destroyed.
    count(unsafe { this(mirror) }.mirror.stats(), counter)
}

fn access(flags: u32) -> Result<Access> {
    Ok(if is_write(flags)? {
        Access::Write
    } else {
        Access::Read
    })
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_fault(
    mirror: *mut bindings::rust_hmm_mirror,
    start: ffi::c_ulong,
    end: ffi::c_ulong,
    flags: u32,
) -> ffi::c_int {
    // SAFETY: By the function's requirements, `mirror` was not destroyed.
    let mirror = &unsafe { this(mirror) }.mirror;
    let fault = || mirror.fault(PageRange::new(start, end)?, access(flags)?);
    number(fault())
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_serve(
    mirror: *mut bindings::rust_hmm_mirror,
    start: ffi::c_ulong,
    end: ffi::c_ulong,
    flags: u32,
    policy: u32,
    served: *mut bindings::rust_hmm_served,
) -> ffi::c_int {
    // SAFETY: By the function's requirements, `mirror` was not destroyed.
    let this = unsafe { this(mirror) };
    let serve = || {
        let policy = this.policy(policy)?;
        this.mirror
            .fault_with_policy(PageRange::new(start, end)?, access(flags)?, policy)
    };
    let result = serve();
    if !served.is_null() {
        let what = result.unwrap_or_default();
        let what = bindings::rust_hmm_served {
            moved: what.moved,
            in_place: what.in_place.into(),
        };
        // SAFETY: By the function's requirements, `served` can be written.
        unsafe { served.write(what) };
    }
    number(result.map(|_| ()))
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_discard(
    mirror: *mut bindings::rust_hmm_mirror,
    start: ffi::c_ulong,
    end: ffi::c_ulong,
) -> ffi::c_int {
    // SAFETY: By the function's requirements, `mirror` was not destroyed.
    let mirror = &unsafe { this(mirror) }.mirror;
    number(PageRange::new(start, end).and_then(|range| mirror.discard(range)))
}

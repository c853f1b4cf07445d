// SPDX-License-Identifier: GPL-2.0

//! C interface: mirrors.
//!
//! A driver in C cannot hold a [`TableGuard`]. `rust_hmm_table_lock()` stores it in the mirror with
//! the task that called it. Lookups and the unlock compare the current task with that one, so that
//! a call by another task returns `EPERM`.

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
        PageLocation,
        PageMemory,
        PageMemoryMut,
        Snapshot,
        TableGuard, //
    },
    mm::{
        folio::CpuPages,
        range_fault::Access, //
    },
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

declared! {
    rust_hmm_mirror_create,
    rust_hmm_mirror_destroy,
    rust_hmm_mirror_alive,
    rust_hmm_mirror_counter,
    rust_hmm_fault,
    rust_hmm_serve,
    rust_hmm_discard,
    rust_hmm_table_lock,
    rust_hmm_table_unlock,
    rust_hmm_table_lookup,
    rust_hmm_snapshot,
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

/// Converts the state of a page to the C structure.
fn residency(state: Snapshot) -> bindings::rust_hmm_residency {
    let nothing = |location| bindings::rust_hmm_residency {
        location,
        writable: 0,
        order: 0,
        reserved: 0,
    };
    // CAST: The values are small constants, and an order.
    match state {
        Snapshot::Error => nothing(bindings::rust_hmm_location_RUST_HMM_IS_ERROR as u8),
        Snapshot::None => nothing(bindings::rust_hmm_location_RUST_HMM_IS_NONE as u8),
        Snapshot::Page {
            writable,
            order,
            location,
        } => bindings::rust_hmm_residency {
            location: match location {
                PageLocation::System => bindings::rust_hmm_location_RUST_HMM_IS_SYSTEM,
                PageLocation::Zero => bindings::rust_hmm_location_RUST_HMM_IS_ZERO,
                PageLocation::Device => bindings::rust_hmm_location_RUST_HMM_IS_DEVICE,
                PageLocation::Remote => bindings::rust_hmm_location_RUST_HMM_IS_REMOTE,
            } as u8,
            writable: writable.into(),
            order: order as u8,
            reserved: 0,
        },
    }
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_snapshot(
    mirror: *mut bindings::rust_hmm_mirror,
    start: ffi::c_ulong,
    end: ffi::c_ulong,
    pages: *mut bindings::rust_hmm_residency,
) -> ffi::c_int {
    // SAFETY: By the function's requirements, `mirror` was not destroyed.
    let mirror = &unsafe { this(mirror) }.mirror;
    let snapshot = || {
        let range = PageRange::new(start, end)?;
        // SAFETY: By the function's requirements, `pages` has an element for each page, and nothing
        // else accesses them. Zero is a valid value.
        let all = unsafe {
            pages.write_bytes(0, range.pages());
            core::slice::from_raw_parts_mut(pages, range.pages())
        };
        let mut rest = all.iter_mut();
        mirror.snapshot(range, |state| {
            if let Some(page) = rest.next() {
                *page = residency(state);
            }
        })
    };
    number(snapshot())
}

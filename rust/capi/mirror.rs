// SPDX-License-Identifier: GPL-2.0

//! Mirrors of a device whose driver is in C.

use super::{
    declared, is_write,
    memory::{count, CVram, Lent},
    number, pointer, to_destroy, Data, Memory, PageRange,
};
use crate::{
    bindings, locks,
    mirror::{Device, Location, Mirror, Place, PlaceMut, Snapshot, TableGuard},
    mm::{page::CpuPages, range_fault::Access},
    pgtable::Radix4,
    policy::{Density, InPlace, OnePage, Parameters, Policy},
    within::{self, current_task},
};
use core::cell::UnsafeCell;
use kernel::{
    ffi,
    mm::MmWithUser,
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        SetOnce, //
    },
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

/// The driver's side.
pub(super) struct CDevice {
    ops: bindings::rust_hmm_mirror_ops,
    data: Data,
    memory: Option<Lent>,
}

impl Device for CDevice {
    type Memory = CVram;
    type Format = Radix4;
    type Walker = ();
    type Flush = ffi::c_ulong;

    fn memory(&self) -> Option<&Memory<CVram>> {
        self.memory.as_ref().map(Lent::memory)
    }

    fn flush_sleeps(&self) -> bool {
        self.ops.flags & bindings::RUST_HMM_FLUSH_SLEEPS != 0
    }

    fn flush_start(&self, range: PageRange) -> ffi::c_ulong {
        // SAFETY: The driver gave both.
        self.ops.flush_start.map_or(0, |start| unsafe {
            start(self.data.0, range.start(), range.end())
        })
    }

    fn flush_wait(&self, flush: ffi::c_ulong) {
        if let Some(wait) = self.ops.flush_wait {
            // SAFETY: The driver gave both.
            unsafe { wait(self.data.0, flush) };
        }
    }
}

/// What a `struct rust_hmm_mirror` is.
///
/// # Invariants
///
/// `guard` is only touched by the task that holds the table lock; it is there while `holder` names that task.
pub(super) struct CMirror {
    // Before `mirror`, which it borrows.
    guard: UnsafeCell<Option<TableGuard<'static, CDevice>>>,
    holder: Atomic<usize>,
    density: SetOnce<Pin<KBox<Density>>>,
    mirror: Mirror<CDevice>,
}

impl CMirror {
    pub(super) fn mirror(&self) -> &Mirror<CDevice> {
        &self.mirror
    }

    /// The table lock, if the current task holds it.
    fn held(&self) -> Option<*mut Option<TableGuard<'static, CDevice>>> {
        (self.holder.load(Relaxed) == current_task()).then(|| self.guard.get())
    }

    /// A policy by its number in C.
    fn policy(&self, policy: u32) -> Result<&dyn Policy> {
        Ok(match policy {
            bindings::rust_hmm_policy_RUST_HMM_ATTRIBUTES => &InPlace,
            bindings::rust_hmm_policy_RUST_HMM_TOUCHED => &OnePage,
            bindings::rust_hmm_policy_RUST_HMM_DENSITY => {
                if self.density.as_ref().is_none() {
                    // Another task may be faster; then this one's goes at once.
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
/// `raw` must be a mirror that is not destroyed for `'a`.
pub(super) unsafe fn this<'a>(raw: *mut bindings::rust_hmm_mirror) -> &'a CMirror {
    // SAFETY: By the function's requirements; made by `KBox::into_raw`.
    unsafe { &*raw.cast::<CMirror>() }
}

/// # Safety
///
/// `mm` must be NULL or have a user, and `memory` be NULL or not destroyed.
unsafe fn create(
    mm: *mut bindings::mm_struct,
    ops: bindings::rust_hmm_mirror_ops,
    data: Data,
    memory: *mut bindings::rust_hmm_memory,
) -> Result<*mut bindings::rust_hmm_mirror> {
    let known = bindings::RUST_HMM_FLUSH_SLEEPS;
    if mm.is_null()
        || ops.size != size_of::<bindings::rust_hmm_mirror_ops>()
        || ops.flags & !known != 0
        || ops.reserved != 0
    {
        return Err(EINVAL);
    }
    // SAFETY: By the function's requirements.
    let (mm, memory) = unsafe {
        let memory = (!memory.is_null()).then(|| Lent::from_raw(memory));
        (MmWithUser::from_raw(mm), memory)
    };
    let (name, key) = locks::c_mirror();
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
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_mirror_create(
    mm: *mut bindings::mm_struct,
    ops: *const bindings::rust_hmm_mirror_ops,
    data: *mut ffi::c_void,
    memory: *mut bindings::rust_hmm_memory,
) -> *mut bindings::rust_hmm_mirror {
    // SAFETY: The driver's table, address space and memory.
    pointer(unsafe { create(mm, ops.read(), Data(data), memory) })
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_mirror_destroy(mirror: *mut bindings::rust_hmm_mirror) -> ffi::c_int {
    let Some(mirror) = to_destroy(mirror) else {
        return 0;
    };
    number(within::may_wait().map(|()| {
        // SAFETY: The driver gives it back, and nothing else uses it: so nobody holds its table lock, but the
        // current task, which would have been refused.
        drop(unsafe { KBox::from_raw(mirror.cast::<CMirror>()) });
    }))
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_mirror_alive(mirror: *mut bindings::rust_hmm_mirror) -> bool {
    // SAFETY: The driver's.
    unsafe { this(mirror) }.mirror.is_alive()
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_mirror_counter(
    mirror: *mut bindings::rust_hmm_mirror,
    counter: u32,
) -> u64 {
    // SAFETY: The driver's.
    count(unsafe { this(mirror) }.mirror.stats(), counter)
}

fn access(flags: u32) -> Result<Access> {
    Ok(match is_write(flags)? {
        true => Access::Write,
        false => Access::Read,
    })
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_fault(
    mirror: *mut bindings::rust_hmm_mirror,
    start: ffi::c_ulong,
    end: ffi::c_ulong,
    flags: u32,
) -> ffi::c_int {
    // SAFETY: The driver's.
    let mirror = &unsafe { this(mirror) }.mirror;
    let fault = || mirror.fault(PageRange::new(start, end)?, access(flags)?);
    number(fault())
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_serve(
    mirror: *mut bindings::rust_hmm_mirror,
    start: ffi::c_ulong,
    end: ffi::c_ulong,
    flags: u32,
    policy: u32,
    served: *mut bindings::rust_hmm_served,
) -> ffi::c_int {
    // SAFETY: The driver's.
    let this = unsafe { this(mirror) };
    let serve = || {
        let policy = this.policy(policy)?;
        this.mirror
            .serve(PageRange::new(start, end)?, access(flags)?, policy)
    };
    let result = serve();
    if !served.is_null() {
        let what = result.unwrap_or_default();
        let what = bindings::rust_hmm_served {
            moved: what.moved,
            in_place: what.in_place.into(),
        };
        // SAFETY: The driver's, to be written.
        unsafe { served.write(what) };
    }
    number(result.map(|_| ()))
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_discard(
    mirror: *mut bindings::rust_hmm_mirror,
    start: ffi::c_ulong,
    end: ffi::c_ulong,
) -> ffi::c_int {
    // SAFETY: The driver's.
    let mirror = &unsafe { this(mirror) }.mirror;
    number(PageRange::new(start, end).and_then(|range| mirror.discard(range)))
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_table_lock(mirror: *mut bindings::rust_hmm_mirror) -> ffi::c_int {
    // SAFETY: The driver's. It stays until the lock is released, for who holds that cannot destroy it.
    let this: &'static CMirror = unsafe { this(mirror) };
    number(this.mirror.lock_table().map(|guard| {
        // SAFETY: We hold the table lock.
        unsafe { *this.guard.get() = Some(guard) };
        // INVARIANT: It is there.
        this.holder.store(current_task(), Relaxed);
    }))
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_table_unlock(mirror: *mut bindings::rust_hmm_mirror) -> ffi::c_int {
    // SAFETY: The driver's.
    let this = unsafe { this(mirror) };
    let Some(guard) = this.held() else {
        return EPERM.to_errno();
    };
    this.holder.store(0, Relaxed);
    // SAFETY: We hold the table lock, until what is taken out is dropped.
    let guard = unsafe { (*guard).take() };
    drop(guard);
    0
}

/// One page, as the driver sees it.
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
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_table_lookup(
    mirror: *mut bindings::rust_hmm_mirror,
    addr: ffi::c_ulong,
    flags: u32,
    place: *mut bindings::rust_hmm_place,
) -> ffi::c_int {
    // SAFETY: The driver's.
    let this = unsafe { this(mirror) };
    let lookup = || {
        let guard = this.held().ok_or(EPERM)?;
        // SAFETY: We hold the table lock as long as this is borrowed.
        let table = unsafe { (*guard).as_ref() }.ok_or(EPERM)?;
        let cpu =
            |pages: &CpuPages<'_>| page(bindings::rust_hmm_where_RUST_HMM_CPU, pages.first_pfn());
        let device = |first| page(bindings::rust_hmm_where_RUST_HMM_DEVICE, first);
        Ok(match is_write(flags)? {
            true => match table.writable(addr).ok_or(ENOENT)? {
                PlaceMut::Cpu(pages) => cpu(&pages),
                PlaceMut::Device(range) => device(range.first),
            },
            false => match table.readable(addr).ok_or(ENOENT)? {
                Place::Cpu(pages) => cpu(&pages),
                Place::Device(range) => device(range.first),
            },
        })
    };
    number(lookup().map(|found| {
        // SAFETY: The driver's, to be written.
        unsafe { place.write(found) };
    }))
}

/// A page, as the driver sees it.
fn residency(state: Snapshot) -> bindings::rust_hmm_residency {
    let nothing = |location| bindings::rust_hmm_residency {
        location,
        writable: 0,
        order: 0,
        reserved: 0,
    };
    // CAST: Small constants, and an order.
    match state {
        Snapshot::Error => nothing(bindings::rust_hmm_location_RUST_HMM_IS_ERROR as u8),
        Snapshot::None => nothing(bindings::rust_hmm_location_RUST_HMM_IS_NONE as u8),
        Snapshot::Page {
            writable,
            order,
            location,
        } => bindings::rust_hmm_residency {
            location: match location {
                Location::System => bindings::rust_hmm_location_RUST_HMM_IS_SYSTEM,
                Location::Zero => bindings::rust_hmm_location_RUST_HMM_IS_ZERO,
                Location::Device => bindings::rust_hmm_location_RUST_HMM_IS_DEVICE,
                Location::Remote => bindings::rust_hmm_location_RUST_HMM_IS_REMOTE,
            } as u8,
            writable: writable.into(),
            order: order as u8,
            reserved: 0,
        },
    }
}

/// # Safety
///
/// As the header has it.
#[no_mangle]
unsafe extern "C" fn rust_hmm_snapshot(
    mirror: *mut bindings::rust_hmm_mirror,
    start: ffi::c_ulong,
    end: ffi::c_ulong,
    pages: *mut bindings::rust_hmm_residency,
) -> ffi::c_int {
    // SAFETY: The driver's.
    let mirror = &unsafe { this(mirror) }.mirror;
    let snapshot = || {
        let range = PageRange::new(start, end)?;
        // SAFETY: The driver's, so many and nobody else's; zeros are valid.
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

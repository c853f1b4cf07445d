// SPDX-License-Identifier: GPL-2.0

//! C interface: migration.
//!
//! The flags and the target are checked here. The array for the outcomes is cleared before it
//! becomes a slice of [`PageOutcome`], because the driver may have left any value in it.

use super::{
    declared,
    mirror::this,
    number,
    PageRange, //
};
use crate::{
    bindings,
    kernel::cancel::CancelToken,
    migrate::{
        Outcome,
        PageOutcome, //
    }, //
};
use kernel::{
    ffi,
    prelude::*, //
};

declared! { rust_hmm_migrate }

/// Asserts that an outcome has the same value in C.
macro_rules! same {
    ($($here:ident = $there:ident;)*) => {
        $(const _: () = assert!(PageOutcome::$here as u32 == bindings::$there);)*
    };
}

same! {
    None = rust_hmm_page_outcome_RUST_HMM_PAGE_NONE;
    Skipped = rust_hmm_page_outcome_RUST_HMM_PAGE_SKIPPED;
    NoMemory = rust_hmm_page_outcome_RUST_HMM_PAGE_NO_MEMORY;
    CopyFailed = rust_hmm_page_outcome_RUST_HMM_PAGE_COPY_FAILED;
    Moved = rust_hmm_page_outcome_RUST_HMM_PAGE_MOVED;
    Switched = rust_hmm_page_outcome_RUST_HMM_PAGE_SWITCHED;
    Lost = rust_hmm_page_outcome_RUST_HMM_PAGE_LOST;
}

const _: () = assert!(size_of::<PageOutcome>() == 1);

/// # Safety
///
/// `raw` must belong to an operation that is executing during `'a`.
pub(super) unsafe fn stop_of<'a>(raw: *const bindings::rust_hmm_stop) -> &'a CancelToken {
    // SAFETY: By the function's requirements, the operation is executing. `CallbackOperation::run`
    // passed the pointer, from a `CancelToken`.
    unsafe { &*raw.cast::<CancelToken>() }
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for [`rust_hmm_migrate`].
unsafe fn migrate(
    mirror: *mut bindings::rust_hmm_mirror,
    range: PageRange,
    how: &bindings::rust_hmm_migration,
) -> Result<Outcome> {
    let valid = bindings::RUST_HMM_ORDINARY | bindings::RUST_HMM_NO_EVICTION;
    if how.flags & !valid != 0 {
        return Err(EINVAL);
    }
    // SAFETY: By the function's requirements, `mirror` was not destroyed.
    let mirror = unsafe { this(mirror) }.mirror();
    let mut migration = mirror
        .migrate(range)
        .faultless(how.flags & bindings::RUST_HMM_ORDINARY == 0)
        .evict(how.flags & bindings::RUST_HMM_NO_EVICTION == 0);
    if !how.pages.is_null() {
        // SAFETY: By the function's requirements, `pages` has `npages` elements, and nothing else
        // accesses them. A byte of 0 is a valid `PageOutcome`.
        migration = migration.outcomes(unsafe {
            how.pages.write_bytes(0, how.npages);
            core::slice::from_raw_parts_mut(how.pages.cast::<PageOutcome>(), how.npages)
        });
    }
    if !how.stop.is_null() {
        // SAFETY: By the function's requirements, `cancel_token` belongs to the operation that
        // calls this.
        migration = migration.cancel_token(unsafe { stop_of(how.stop) }.clone());
    }
    match how.target {
        bindings::rust_hmm_target_RUST_HMM_TO_THE_DEVICE => migration.to_device(),
        bindings::rust_hmm_target_RUST_HMM_TO_THE_SYSTEM => migration.to_system(),
        _ => Err(EINVAL),
    }
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_migrate(
    mirror: *mut bindings::rust_hmm_mirror,
    start: ffi::c_ulong,
    end: ffi::c_ulong,
    migration: *const bindings::rust_hmm_migration,
    outcome: *mut bindings::rust_hmm_outcome,
) -> ffi::c_int {
    let start_migration = |range| {
        // SAFETY: By the function's requirements, `mirror`, `migration` and the pointers in it are
        // valid.
        unsafe { migrate(mirror, range, &*migration) }
    };
    let result = PageRange::new(start, end).and_then(start_migration);
    if !outcome.is_null() {
        let Outcome {
            moved,
            switched,
            entries,
            skipped,
            no_memory,
            copy_failed,
        } = result.unwrap_or_default();
        let what = bindings::rust_hmm_outcome {
            moved,
            switched,
            entries,
            skipped,
            no_memory,
            copy_failed,
        };
        // SAFETY: By the function's requirements, `outcome` can be written.
        unsafe { outcome.write(what) };
    }
    number(result.map(|_| ()))
}

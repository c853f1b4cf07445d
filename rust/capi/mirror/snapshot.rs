// SPDX-License-Identifier: GPL-2.0

//! C interface: snapshots of the pages that a mirror maps.

use super::this;
use crate::{
    bindings,
    capi::{
        declared,
        number,
        PageRange, //
    },
    mirror::{
        PageLocation,
        Snapshot, //
    }, //
};
use kernel::ffi;

declared! {
    rust_hmm_snapshot,
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

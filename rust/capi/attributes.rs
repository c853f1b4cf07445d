// SPDX-License-Identifier: GPL-2.0

//! C interface: attributes of ranges. Structures of the driver are checked completely before any
//! range is changed.

use super::{
    declared,
    mirror::this,
    number,
    PageRange, //
};
use crate::{
    attributes::{
        AttributeUpdate,
        Attributes,
        CommonAttributes,
        PreferredLocation, //
    },
    bindings, //
};
use kernel::{
    ffi,
    prelude::*, //
};

declared! {
    rust_hmm_attributes_set,
    rust_hmm_attributes_clear,
    rust_hmm_attributes_get,
}

/// Attributes that drivers can set.
const SETTABLE: u32 = bindings::RUST_HMM_HAS_PREFERRED
    | bindings::RUST_HMM_HAS_ACCESSED_BY
    | bindings::RUST_HMM_HAS_READ_MOSTLY
    | bindings::RUST_HMM_HAS_NEVER_MIGRATE
    | bindings::RUST_HMM_HAS_GRANULARITY;

/// Converts the C structure to a [`AttributeUpdate`].
///
/// # Errors
///
/// - `EINVAL` if a value is invalid.
fn change(raw: &bindings::rust_hmm_attributes) -> Result<AttributeUpdate> {
    if raw.valid & !SETTABLE != 0 || raw.reserved != [0; 3] {
        return Err(EINVAL);
    }
    let has = |which| raw.valid & which != 0;
    let flag = |which, value| match (has(which), value) {
        (false, _) => Ok(None),
        (true, 0) => Ok(Some(false)),
        (true, 1) => Ok(Some(true)),
        (true, _) => Err(EINVAL),
    };
    let preferred = match u32::from(raw.preferred) {
        _ if !has(bindings::RUST_HMM_HAS_PREFERRED) => None,
        bindings::RUST_HMM_PREFER_ANY => Some(PreferredLocation::Any),
        bindings::RUST_HMM_PREFER_DEVICE => Some(PreferredLocation::Device),
        bindings::RUST_HMM_PREFER_SYSTEM => Some(PreferredLocation::System),
        _ => return Err(EINVAL),
    };
    let granularity = match raw.granularity {
        _ if !has(bindings::RUST_HMM_HAS_GRANULARITY) => None,
        -1 => Some(None),
        order => Some(Some(u32::try_from(order).map_err(|_| EINVAL)?)),
    };
    Ok(AttributeUpdate {
        preferred,
        accessed_by: flag(bindings::RUST_HMM_HAS_ACCESSED_BY, raw.accessed_by)?,
        read_mostly: flag(bindings::RUST_HMM_HAS_READ_MOSTLY, raw.read_mostly)?,
        never_migrate: flag(bindings::RUST_HMM_HAS_NEVER_MIGRATE, raw.never_migrate)?,
        granularity,
    })
}

/// Returns the change that resets all attributes to their defaults.
fn nothing() -> AttributeUpdate {
    let CommonAttributes {
        preferred,
        accessed_by,
        read_mostly,
        never_migrate,
        granularity,
    } = CommonAttributes::of(Attributes::DEFAULT);
    AttributeUpdate {
        preferred,
        accessed_by,
        read_mostly,
        never_migrate,
        granularity,
    }
}

/// Converts the attributes of a range to the C structure.
fn common(common: &CommonAttributes) -> bindings::rust_hmm_attributes {
    let mut valid = 0;
    let mut flag = |which, value: Option<bool>| {
        if value.is_some() {
            valid |= which;
        }
        value.unwrap_or(false).into()
    };
    let accessed_by = flag(bindings::RUST_HMM_HAS_ACCESSED_BY, common.accessed_by);
    let read_mostly = flag(bindings::RUST_HMM_HAS_READ_MOSTLY, common.read_mostly);
    let never_migrate = flag(bindings::RUST_HMM_HAS_NEVER_MIGRATE, common.never_migrate);
    // CAST: The values are small constants, and an order.
    let preferred = common.preferred.map_or(0, |location| {
        valid |= bindings::RUST_HMM_HAS_PREFERRED;
        match location {
            PreferredLocation::Any => bindings::RUST_HMM_PREFER_ANY as u8,
            PreferredLocation::Device => bindings::RUST_HMM_PREFER_DEVICE as u8,
            PreferredLocation::System => bindings::RUST_HMM_PREFER_SYSTEM as u8,
            PreferredLocation::Other => bindings::RUST_HMM_PREFER_OTHER as u8,
        }
    });
    let granularity = common.granularity.map_or(0, |order| {
        valid |= bindings::RUST_HMM_HAS_GRANULARITY;
        order.map_or(-1, |order| order as i8)
    });
    bindings::rust_hmm_attributes {
        valid,
        preferred,
        accessed_by,
        read_mostly,
        never_migrate,
        granularity,
        reserved: [0; 3],
    }
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_attributes_set(
    mirror: *mut bindings::rust_hmm_mirror,
    start: ffi::c_ulong,
    end: ffi::c_ulong,
    attributes: *const bindings::rust_hmm_attributes,
) -> ffi::c_int {
    // SAFETY: By the function's requirements, `mirror` was not destroyed, and `attributes` is
    // valid.
    let (mirror, attributes) = unsafe { (this(mirror).mirror(), &*attributes) };
    let set = || mirror.set_attributes(PageRange::new(start, end)?, &change(attributes)?);
    number(set())
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_attributes_clear(
    mirror: *mut bindings::rust_hmm_mirror,
    start: ffi::c_ulong,
    end: ffi::c_ulong,
) -> ffi::c_int {
    // SAFETY: By the function's requirements, `mirror` was not destroyed.
    let mirror = unsafe { this(mirror) }.mirror();
    number(PageRange::new(start, end).and_then(|range| mirror.set_attributes(range, &nothing())))
}

/// # Safety
///
/// The caller must meet the requirements that `include/rust_hmm.h` states for this function.
#[no_mangle]
unsafe extern "C" fn rust_hmm_attributes_get(
    mirror: *mut bindings::rust_hmm_mirror,
    start: ffi::c_ulong,
    end: ffi::c_ulong,
    attributes: *mut bindings::rust_hmm_attributes,
) -> ffi::c_int {
    // SAFETY: By the function's requirements, `mirror` was not destroyed.
    let mirror = unsafe { this(mirror) }.mirror();
    let found = PageRange::new(start, end).and_then(|range| mirror.attributes(range));
    number(found.map(|found| {
        // SAFETY: By the function's requirements, `attributes` can be written.
        unsafe { attributes.write(common(&found)) };
    }))
}

// SPDX-License-Identifier: GPL-2.0

//! Stand-in for `kernel::prelude`.

pub use crate::{
    alloc::{
        flags::*,
        KBox,
        KVVec,
        KVec,
        VVec, //
    },
    current,
    error::{
        code::*,
        Error,
        Result, //
    },
    init::{
        PinInit,
        PinnedDrop, //
    },
    misc::{
        CStr,
        CStrExt, //
    },
    pin_init,
    pr_err,
    pr_info,
    pr_warn,
    try_pin_init, //
};
pub use core::{
    format_args as fmt,
    pin::Pin, //
};
pub use macros::{
    kunit_tests,
    pin_data,
    pinned_drop, //
};

// SPDX-License-Identifier: GPL-2.0

//! Stand-in for the kernel crate on top of loom, with the items that the sources compiled by
//! `tests/interleavings` use. Names, signatures and documented orderings are those of the kernel
//! crate. Functions that need the kernel are missing, or fail.

#![feature(coerce_unsized, unsize, core_intrinsics, const_eval_select)]
#![allow(internal_features, clippy::missing_safety_doc)]

extern crate self as kernel;

pub mod alloc;
pub mod error;
pub mod init;
pub mod misc;
pub mod model;
pub mod prelude;
pub mod rbtree;
pub mod sync;

pub use core::ffi;
pub use misc::{
    device,
    devres,
    mm,
    page,
    revocable,
    task,
    time,
    types, //
};

/// A static lock class, without contents here.
#[macro_export]
macro_rules! static_lock_class {
    () => {
        ::core::pin::Pin::static_ref(&$crate::sync::LockClassKey)
    };
}

/// The structure that contains `$pointer` as its field `$field`.
#[macro_export]
macro_rules! container_of {
    ($pointer:expr, $type:ty, $field:ident) => {{
        let offset = ::core::mem::offset_of!($type, $field);
        ($pointer).cast::<u8>().wrapping_sub(offset).cast::<$type>()
    }};
}

/// Formatting.
pub mod fmt {
    pub use core::fmt::*;
}

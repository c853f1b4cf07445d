// SPDX-License-Identifier: GPL-2.0

//! Bindings of the kernel crate, and those that it lacks.
//!
//! Types that both need are those of the kernel crate: no binding is generated twice.

#![allow(
    clippy::all,
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unused_imports,
    improper_ctypes
)]
#![expect(clippy::undocumented_unsafe_blocks, reason = "generated code")]

pub use kernel::bindings::*;
use kernel::ffi;

include!(env!("RUST_HMM_BINDINGS"));

// SPDX-License-Identifier: GPL-2.0

//! The library for drivers in C, as `include/rust_hmm.h` declares it.
//!
//! Each function does what one of the library does for Rust; what is said of context, errors and ownership is
//! said in the header. The types are those that bindgen makes of the header, and each function is compared with
//! its declaration there ([`declared`]): a header that says something else does not compile. `rust/capi.c` exports
//! them, and asserts the same layout as [`layout`].
//!
//! This is a boundary like `mm`: what a type says in Rust, a driver in C is trusted with.

use crate::{
    bindings,
    memory::{Memory, MemoryOps},
    mm::{addr::PageRange, notifier::Cookie},
};
use kernel::{ffi, prelude::*};

mod attributes;
mod fence;
mod layout;
mod memory;
mod migrate;
mod mirror;
mod queue;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;

/// That functions are as the header declares them.
macro_rules! declared {
    ($($name:ident),* $(,)?) => {
        $(const _: () = {
            if true {
                $crate::bindings::$name
            } else {
                $name
            };
        };)*
    };
}
use declared;

/// What a driver gets in its callbacks.
#[derive(Clone, Copy)]
struct Data(*mut ffi::c_void);

// SAFETY: It is only handed back; the header says that callbacks come from any task, several at a time.
unsafe impl Send for Data {}
// SAFETY: As above.
unsafe impl Sync for Data {}

/// As C wants it.
fn number(result: Result) -> ffi::c_int {
    match result {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}

/// As C wants it.
fn pointer<T>(result: Result<*mut T>) -> *mut T {
    result.unwrap_or_else(|error| error.to_ptr())
}

/// What a `*_destroy()` function is to end, unless it is NULL or `ERR_PTR()`.
fn to_destroy<T>(pointer: *mut T) -> Option<*mut T> {
    // CAST: Numbers of errors.
    let is_error = (pointer as isize) < 0 && (pointer as isize) >= -(bindings::MAX_ERRNO as isize);
    (!pointer.is_null() && !is_error).then_some(pointer)
}

/// The result of what the driver has done. Anything but 0 and an error number is `EINVAL`.
fn from_driver(errno: ffi::c_int) -> Result {
    match errno {
        0 => Ok(()),
        errno if errno < 0 && errno >= -(bindings::MAX_ERRNO as ffi::c_int) => {
            Err(Error::from_errno(errno))
        }
        _ => Err(EINVAL),
    }
}

/// Whether `flags` has `RUST_HMM_WRITE`, and nothing that is not known.
fn is_write(flags: u32) -> Result<bool> {
    match flags {
        0 => Ok(false),
        bindings::RUST_HMM_WRITE => Ok(true),
        _ => Err(EINVAL),
    }
}

/// The name of a driver's type of device.
fn kind(kind: *const ffi::c_void) -> Cookie {
    Cookie::of_driver(kind)
}

// SPDX-License-Identifier: GPL-2.0

//! The library for drivers in C, as `include/rust_hmm.h` declares it.
//!
//! Each function wraps one function of the Rust interface. The header documents context, errors and
//! ownership. The types are generated from the header by bindgen. [`declared`] compares each
//! function with its declaration, so that a difference fails the build. `rust/helpers/capi.c`
//! exports the functions and asserts the same layout as [`layout`].
//!
//! Like `mm`, this is a boundary of safety. Drivers in C must follow the rules that the type system
//! enforces in Rust; the functions check those that they can check at run time.

#[cfg(CONFIG_RUST_HMM_QUEUE)]
use crate::kernel::identity::FenceType;
use crate::{
    bindings,
    memory::{
        Memory,
        MemoryOps, //
    },
    mm::addr::PageRange, //
};
use kernel::{
    ffi,
    prelude::*, //
};

mod attributes;
#[cfg(CONFIG_RUST_HMM_QUEUE)]
mod fence;
mod layout;
mod memory;
mod migrate;
mod mirror;
#[cfg(CONFIG_RUST_HMM_QUEUE)]
mod queue;
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
mod tests;

/// Asserts at compile time that functions have the types that the header declares.
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

/// Opaque pointer of a driver, the first argument of its callbacks.
#[derive(Clone, Copy)]
struct DriverData(*mut ffi::c_void);

// SAFETY: The library never dereferences the pointer and only passes it to callbacks, which the
// header allows to be called by any task.
unsafe impl Send for DriverData {}
// SAFETY: A shared reference only gives the pointer, which the library never dereferences. The
// header allows concurrent callbacks.
unsafe impl Sync for DriverData {}

/// Converts a result to 0 or a negative error number.
fn number(result: Result) -> ffi::c_int {
    match result {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}

/// Converts a result to a pointer or `ERR_PTR()`.
fn pointer<T>(result: Result<*mut T>) -> *mut T {
    result.unwrap_or_else(|error| error.to_ptr())
}

/// Returns the argument of a `*_destroy()` function, or `None` if it is NULL or an `ERR_PTR()`, for
/// which these functions do nothing.
fn to_destroy<T>(pointer: *mut T) -> Option<*mut T> {
    // CAST: `ERR_PTR()` is a negative number as a pointer; `MAX_ERRNO` fits.
    let is_error = (pointer as isize) < 0 && (pointer as isize) >= -(bindings::MAX_ERRNO as isize);
    (!pointer.is_null() && !is_error).then_some(pointer)
}

/// Converts the return value of a driver's callback. Values other than 0 and negative error numbers
/// become `EINVAL`.
fn from_driver(errno: ffi::c_int) -> Result {
    match errno {
        0 => Ok(()),
        errno if errno < 0 && errno >= -(bindings::MAX_ERRNO as ffi::c_int) => {
            Err(Error::from_errno(errno))
        }
        _ => Err(EINVAL),
    }
}

/// Returns whether `flags` has `RUST_HMM_WRITE`; `EINVAL` if it has unknown flags.
fn is_write(flags: u32) -> Result<bool> {
    match flags {
        0 => Ok(false),
        bindings::RUST_HMM_WRITE => Ok(true),
        _ => Err(EINVAL),
    }
}

/// Returns the identity of a driver's type of device.
#[cfg(CONFIG_RUST_HMM_QUEUE)]
fn kind(kind: *const ffi::c_void) -> FenceType {
    FenceType::of_raw(kind)
}

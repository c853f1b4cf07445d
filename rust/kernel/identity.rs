// SPDX-License-Identifier: GPL-2.0

//! Identities: addresses of objects that are compared and never dereferenced.

use crate::bindings;
use core::ptr;
use kernel::{
    ffi,
    mm::{Mm, MmWithUser},
    prelude::*, //
};

/// Identifies the originator of a migration: an address that is unique while it is in use. It is
/// never dereferenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie(usize);

impl Cookie {
    /// Returns the address of `place`, which must not move as long as the cookie is used. A
    /// zero-sized type has no unique address, and does not compile.
    pub fn of<T>(place: &T) -> Self {
        const { assert!(size_of::<T>() != 0) };
        Self(ptr::from_ref(place) as usize)
    }

    /// Cookie of no originator.
    pub const NONE: Self = Self(0);

    /// Returns the cookie of a driver in C: the address of an object of that driver.
    pub(crate) fn of_driver(place: *const ffi::c_void) -> Self {
        Self(place as usize)
    }

    /// Returns the address one byte into `place`. It differs from the cookie of an object that
    /// begins at `place` or encloses it.
    pub(crate) fn inside<T>(place: &T) -> Self {
        const { assert!(size_of::<T>() > 1 && align_of::<T>() > 1) };
        Self(ptr::from_ref(place) as usize + 1)
    }

    /// Returns the cookie of an address space.
    pub(crate) fn of_mm(mm: *const bindings::mm_struct) -> Self {
        Self(mm as usize)
    }

    /// Returns the cookie of the address space that `mm` references.
    pub(crate) fn of_mm_ref(mm: &Mm) -> Self {
        Self::of_mm(mm.as_raw())
    }

    /// Returns the cookie of the address space of `mm`.
    pub(crate) fn of_space(mm: &MmWithUser) -> Self {
        Self::of_mm(mm.as_raw())
    }

    /// Returns a number that differs from those of all other cookies in use.
    pub(crate) fn number(self) -> usize {
        self.0
    }

    /// Returns the cookie with the address `owner`.
    pub(crate) fn from_raw(owner: *const ffi::c_void) -> Self {
        Self(owner as usize)
    }

    pub(crate) fn as_ptr(self) -> *mut ffi::c_void {
        self.0 as *mut ffi::c_void
    }
}

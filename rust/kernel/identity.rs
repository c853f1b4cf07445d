// SPDX-License-Identifier: GPL-2.0

//! Identities: addresses of objects that are compared and never dereferenced.
//!
//! An identity is unique as long as its object exists and does not move. There is one type for each
//! kind of object, so that the compiler rejects the identity of another kind.

use crate::bindings;
use core::ptr;
use kernel::{
    ffi,
    mm::{
        Mm,
        MmWithUser, //
    },
    prelude::*, //
};

/// Returns the address of `object`. A zero-sized type has no unique address and does not compile.
fn address_of<T>(object: &T) -> usize {
    const { assert!(size_of::<T>() != 0) };
    ptr::from_ref(object).addr()
}

/// Owner of device memory: `dev_pagemap.owner`, which all memories of a device share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PgmapOwner(usize);

impl PgmapOwner {
    /// Owner of no device memory.
    pub const NONE: Self = Self(0);

    /// Returns the address one byte into `object`. It differs from the address of every other
    /// object, including one that begins at `object` or encloses it.
    pub(crate) fn inside<T>(object: &T) -> Self {
        const { assert!(size_of::<T>() > 1 && align_of::<T>() > 1) };
        Self(ptr::from_ref(object).addr() + 1)
    }

    /// Returns the owner with the number `number`, for a test.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(crate) fn for_test(number: usize) -> Self {
        Self(number)
    }

    /// Returns the address as the argument of a C function, which does not dereference it.
    pub(crate) fn as_ptr(self) -> *mut ffi::c_void {
        ptr::without_provenance_mut(self.0)
    }
}

/// One memory of a device: the operations of its `dev_pagemap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryId(usize);

impl MemoryId {
    /// No memory.
    pub(crate) const NONE: Self = Self(0);

    /// Returns the identity of the memory with the operations `ops`.
    pub(crate) fn of<T>(ops: &T) -> Self {
        Self(address_of(ops))
    }

    /// Returns the address as the argument of a C function, which does not dereference it.
    pub(crate) fn as_ptr(self) -> *mut ffi::c_void {
        ptr::without_provenance_mut(self.0)
    }
}

/// A device, as range attributes identify it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceId(usize);

impl DeviceId {
    /// No device.
    pub(crate) const NONE: Self = Self(0);

    /// Returns the identity of the device to which `object` belongs.
    pub(crate) fn of<T>(object: &T) -> Self {
        Self(address_of(object))
    }

    /// Returns the identity with the number `number`, for a test.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(crate) fn for_test(number: usize) -> Self {
        Self(number)
    }
}

impl From<PgmapOwner> for DeviceId {
    /// Returns the identity of the device with memory of `owner`.
    fn from(owner: PgmapOwner) -> Self {
        Self(owner.0)
    }
}

/// A migration, or a request for exclusive access.
///
/// # Examples
///
/// ```
/// use rust_hmm::kernel::identity::MigrationId;
/// use rust_hmm::mm::notifier::NotifierRange;
///
/// /// A migration by a driver without a mirror.
/// struct Migration {
///     pages: usize,
/// }
///
/// /// Returns whether a notifier event is one that the migration itself causes.
/// fn is_own(event: &NotifierRange<'_>, migration: &Migration) -> bool {
///     event.is_from(MigrationId::of(migration))
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationId(usize);

impl MigrationId {
    /// Returns the address of `object`, which must exist and not move until the migration has
    /// ended.
    ///
    /// # Context
    ///
    /// Any.
    pub fn of<T>(object: &T) -> Self {
        Self(address_of(object))
    }

    /// Returns a number that differs from those of all other migrations in flight.
    pub(crate) fn number(self) -> usize {
        self.0
    }
}

/// Originator of a notifier event: `mmu_notifier_range.owner`. A migration of system memory is its
/// own originator. The originator of a migration of device memory is the owner of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventOwner(usize);

impl EventOwner {
    /// No originator.
    pub const NONE: Self = Self(0);

    /// Returns the originator `owner`, which is not dereferenced. NULL is [`Self::NONE`].
    pub(crate) fn from_raw(owner: *const ffi::c_void) -> Self {
        Self(owner.addr())
    }

    /// Returns the address as the argument of a C function, which does not dereference it.
    pub(crate) fn as_ptr(self) -> *mut ffi::c_void {
        ptr::without_provenance_mut(self.0)
    }
}

impl From<MigrationId> for EventOwner {
    fn from(migration: MigrationId) -> Self {
        Self(migration.0)
    }
}

impl From<PgmapOwner> for EventOwner {
    fn from(owner: PgmapOwner) -> Self {
        Self(owner.0)
    }
}

/// An address space: the address of its `mm_struct`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmId(usize);

impl MmId {
    /// Returns the identity of `mm`, which is not dereferenced.
    pub(crate) fn of_raw(mm: *const bindings::mm_struct) -> Self {
        Self(mm.addr())
    }

    /// Returns the identity of the address space that `mm` references.
    pub(crate) fn of_mm(mm: &Mm) -> Self {
        Self::of_raw(mm.as_raw())
    }

    /// Returns the identity of the address space of `mm`.
    pub(crate) fn of_user(mm: &MmWithUser) -> Self {
        Self::of_raw(mm.as_raw())
    }

    /// Returns the identity with the number `number`, for a test.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(crate) fn for_test(number: usize) -> Self {
        Self(number)
    }

    /// Returns a number that differs from those of all other address spaces.
    pub(crate) fn number(self) -> usize {
        self.0
    }
}

/// Type of the devices that signal a fence. A device that waits for a fence of its own type does
/// not need to poll.
///
/// # Examples
///
/// ```
/// use rust_hmm::kernel::identity::FenceType;
///
/// /// Its address identifies the rings of this driver.
/// static RINGS: u8 = 0;
///
/// assert_eq!(FenceType::of(&RINGS), FenceType::of(&RINGS));
/// assert_ne!(FenceType::of(&RINGS), FenceType::NONE);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FenceType(usize);

impl FenceType {
    /// A type that is equal to no type of a device.
    pub const NONE: Self = Self(0);

    /// Returns the address of `object`, which must exist and not move while fences of the
    /// type exist. A `static` of the driver is suitable.
    ///
    /// # Context
    ///
    /// Any.
    pub fn of<T>(object: &T) -> Self {
        Self(address_of(object))
    }

    /// Returns the type of the fences of a driver in C: the address of an object of that driver.
    #[cfg(all(CONFIG_RUST_HMM_CAPI, CONFIG_RUST_HMM_QUEUE))]
    pub(crate) fn of_raw(object: *const ffi::c_void) -> Self {
        Self(object.addr())
    }

    /// Returns the address as the argument of a C function, which does not dereference it.
    #[cfg(CONFIG_RUST_HMM_QUEUE)]
    pub(crate) fn as_ptr(self) -> *mut ffi::c_void {
        ptr::without_provenance_mut(self.0)
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_identity)]
mod tests {
    use super::*;

    #[test]
    fn owner_differs_from_objects_at_its_address() {
        let object = [0u64; 2];
        let owner = EventOwner::from(PgmapOwner::inside(&object));
        assert_ne!(owner, MigrationId::of(&object).into());
        assert_ne!(owner, MigrationId::of(&object[0]).into());
        assert_ne!(owner, MigrationId::of(&object[1]).into());
        assert_ne!(owner, EventOwner::NONE);
    }

    #[test]
    fn identities_of_two_objects_differ() {
        let objects = [0u8; 2];
        assert_ne!(FenceType::of(&objects[0]), FenceType::of(&objects[1]));
        assert_ne!(MemoryId::of(&objects[0]), MemoryId::of(&objects[1]));
        assert_ne!(DeviceId::of(&objects[0]), DeviceId::of(&objects[1]));
        assert_eq!(FenceType::of(&objects), FenceType::of(&objects[0]));
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Owners of device memory. An owner identifies a device in `dev_pagemap.owner`, and numbers the
//! pages of its memories for device page table entries.

use super::MAX_PAGES;
use crate::kernel::identity::PgmapOwner;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc, //
    }, //
};

/// Owner of one device memory, or of several memories of one device (tiles).
///
/// Each memory gets an interval of the owner's page numbers when it is created. No interval is
/// given out twice, so that a number identifies one page of one memory for the lifetime of the
/// owner.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::mm::device_pages::DevicePageOps;
/// use rust_hmm::mm::device_pages::MemoryKind;
/// use rust_hmm::mm::device_pages::OwnedDevicePages;
/// use rust_hmm::mm::device_pages::Owner;
///
/// /// Creates two memories of a device. Their pages have different device page numbers.
/// fn tiles<T: DevicePageOps>(ops: [T; 2]) -> Result<[OwnedDevicePages<T>; 2]> {
///     let owner = Owner::new()?;
///     let tile =
///         |ops| OwnedDevicePages::of_owner(Some(owner.clone()), MemoryKind::Private, 512, ops);
///     let [first, second] = ops;
///     Ok([tile(first)?, tile(second)?])
/// }
/// ```
pub struct Owner {
    /// Number of page numbers given out so far.
    given: Atomic<usize>,
}

impl Owner {
    /// Creates an owner without memory.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`: memory allocation failed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new() -> Result<Arc<Self>> {
        let given = Atomic::new(0);
        Ok(Arc::new(Self { given }, GFP_KERNEL)?)
    }

    /// Returns the value for `dev_pagemap.owner`. It must differ from that of every other object,
    /// including an object that encloses this one, because own notifier events are recognised by
    /// it.
    pub(super) fn name(&self) -> PgmapOwner {
        PgmapOwner::inside(self)
    }

    /// Gives out `count` consecutive numbers. Returns the first one.
    ///
    /// # Errors
    ///
    /// * `EINVAL`: the owner would have more than [`MAX_PAGES`] pages.
    pub(super) fn give(&self, count: usize) -> Result<usize> {
        let mut given = self.given.load(Relaxed);
        loop {
            let next = given.checked_add(count).filter(|next| *next <= MAX_PAGES);
            match self.given.cmpxchg(given, next.ok_or(EINVAL)?, Relaxed) {
                Ok(_) => return Ok(given),
                Err(now) => given = now,
            }
        }
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_owner)]
mod tests {
    use super::*;

    #[test]
    fn owner_numbers_are_unique() -> Result {
        let owner = Owner::new()?;
        assert_eq!((owner.give(512)?, owner.give(1024)?), (0, 512));
        assert_eq!(owner.give(0)?, 1536);
        // A failed request does not give out numbers.
        for count in [MAX_PAGES, usize::MAX] {
            assert_eq!(owner.give(count).err(), Some(EINVAL));
        }
        assert_eq!(owner.give(MAX_PAGES - 1536)?, 1536);
        assert_eq!(owner.give(1).err(), Some(EINVAL));
        Ok(())
    }
}

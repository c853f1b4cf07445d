// SPDX-License-Identifier: GPL-2.0

//! A mirror: a device page table that follows the address space of a process.
//!
//! [`Mirror`] owns the *table lock*, a mutex under which the table is changed. The table changes in
//! exactly four ways:
//!
//! - A device [fault](Mirror::fault) installs entries from the CPU page table.
//! - An invalidation removes or write-protects entries.
//! - A migration replaces the entries that still have its mark (`in_flight`).
//! - Reclaim removes cold entries to free their table pages (`cold`).

use crate::{
    debug::stats::Stats,
    kernel::{
        deferred::Deferred,
        identity::MmId,
        reentry, //
    },
    memory::Memory,
    mm::{
        addr::PageRange,
        range_fault::AddressSpace, //
    },
    pgtable::{
        DevicePte,
        Prealloc, //
    },
    policy::Bounces,
    space::Membership, //
};
// Used by the tests, which import all names of this module.
use kernel::{
    mm::MmWithUser,
    prelude::*,
    sync::LockClassKey, //
};

mod announce;
mod announced;
mod attributes;
mod cold;
mod commit;
mod debugfs;
mod device;
mod exclusive;
mod flushes;
#[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
pub(crate) mod host_locks;
mod immovable;
pub(crate) mod in_flight;
mod install;
mod invalidate;
mod lost;
mod ops;
mod outcome;
mod parts;
mod present;
mod retry;
mod shared;
mod snapshot;
mod software_mmu;
mod table_guard;
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
mod tests;
mod tiles;
mod walkers;

pub use crate::mm::location::{
    PageAddress,
    PageMemory,
    PageMemoryMut, //
};
pub(crate) use announce::{
    AnnounceTries,
    Attempt, //
};
pub(crate) use announced::{
    Announced,
    StepReaders, //
};
pub(crate) use attributes::AttributesAt;
pub(crate) use commit::CommitResult;
pub use device::Device;
pub(crate) use install::{
    FaultRequest,
    InstallFilter, //
};
pub use outcome::{
    Outcome,
    PageOutcome, //
};
pub(crate) use shared::{
    MirrorShared,
    MirrorState, //
};
pub use snapshot::{
    PageLocation,
    Snapshot, //
};
pub use software_mmu::{
    AccessSection,
    TableTranslation,
    TranslateError, //
};
pub use table_guard::TableGuard;
pub use walkers::Walkers;

#[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
use host_locks::HostLocks;
use invalidate::{
    remove,
    remove_some, //
};
use parts::MirrorParts;

/// A device page table that follows the address space of a process.
///
/// Dropping a mirror removes all its entries, flushes the device's TLBs, waits for running
/// callbacks, and drops the device. The address space may have been torn down before.
///
/// # Context
///
/// The drop may sleep. In a callback, in a section, or with a table lock held, it returns
/// immediately, and a worker tears the mirror down after the callback has returned.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::mirror::Device;
/// use rust_hmm::mirror::Mirror;
/// use rust_hmm::mm::addr::PageRange;
/// use rust_hmm::mm::range_fault::Access;
///
/// /// Attaches a device to the current process.
/// fn attach<D: Device>(device: D) -> Result<Mirror<D>> {
///     let current = current!();
///     let mm = current.mm().ok_or(EINVAL)?;
///     rust_hmm::new_mirror!(mm, device)
/// }
///
/// /// Handles a device fault, in a thread of the driver.
/// fn device_fault<D: Device>(mirror: &Mirror<D>, range: PageRange, write: bool) -> Result {
///     mirror.migrate(range).to_device()?;
///     mirror.fault(range, if write { Access::Write } else { Access::Read })
/// }
/// ```
pub struct Mirror<D: Device>(Deferred<MirrorParts<D>>);

impl<D: Device> Mirror<D> {
    /// Creates a mirror of `mm` for `device`. Use [`new_mirror!`](crate::new_mirror), which creates
    /// a lock class for the caller.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    /// - `EINTR` if a fatal signal is pending.
    /// - `EDEADLK` within a callback.
    /// - `EINVAL` if the format and [`Device::dma`] do not agree, or if the format cannot encode
    ///   the addresses of [`Device::table_memory`].
    /// - `ENODEV` if the device of [`Device::dma`] or of [`Device::table_memory`] was unbound.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    pub fn new(
        mm: &MmWithUser,
        device: D,
        name: &'static CStr,
        key: Pin<&'static LockClassKey>,
    ) -> Result<Self> {
        reentry::may_wait()?;
        let make = || MirrorParts::new(mm, device, name, key);
        Deferred::new(make, GFP_KERNEL_ACCOUNT).map(Self)
    }

    /// Returns the driver's device.
    ///
    /// # Context
    ///
    /// Any.
    pub fn device(&self) -> &D {
        &self.inner().device
    }

    /// Returns the address of the root of the table that the hardware walks. Returns `None` if
    /// [`Device::table_memory`] returned
    /// [`TableMemory::none()`](crate::mm::table_memory::TableMemory::none), or if its device is
    /// closed. The address does not change during the lifetime of the mirror.
    ///
    /// The table is valid at every instant until the mirror is dropped or the device is closed. The
    /// driver must stop hardware walks before that. [`Device::flush_wait`] must wait for walks that
    /// began before the flush.
    ///
    /// # Context
    ///
    /// Any.
    pub fn table_root(&self) -> Option<u64> {
        self.inner().reader.root_address()
    }

    /// Returns the counters of this mirror.
    ///
    /// # Context
    ///
    /// Any.
    pub fn stats(&self) -> &Stats {
        &self.inner().stats
    }

    /// Returns the identity of the mirrored address space. It is unique as long as the mirror
    /// exists.
    ///
    /// # Context
    ///
    /// Any.
    pub fn mm_id(&self) -> MmId {
        self.inner().space.name()
    }

    /// Returns whether the address space is still in use. It may be torn down concurrently.
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_alive(&self) -> bool {
        self.inner().space.is_alive()
    }

    /// Takes a reference that prevents the teardown of the address space.
    ///
    /// # Errors
    ///
    /// - `EFAULT` if the address space was torn down.
    /// - `ENODEV` if the device memory was unplugged.
    pub(crate) fn space(&self) -> Result<AddressSpace> {
        if self.device().memory().is_some_and(Memory::is_gone) {
            return Err(ENODEV);
        }
        AddressSpace::new(self.inner().space.mm())
    }

    /// Removes the device's entries for `range`, which the device no longer needs, and waits for
    /// the TLB flush.
    ///
    /// Pages in device memory are not migrated.
    ///
    /// # Errors
    ///
    /// - `EDEADLK` within a callback.
    ///
    /// # Context
    ///
    /// May sleep. Takes the table lock.
    pub fn discard(&self, range: PageRange) -> Result {
        reentry::may_wait()?;
        remove(self.inner(), range);
        Ok(())
    }

    /// Removes the entries of `range` for which `which` returns `true`, and waits for the TLB
    /// flush.
    pub(crate) fn remove_some(
        &self,
        range: PageRange,
        which: impl FnMut(PageRange, DevicePte) -> bool,
    ) {
        remove_some(self.inner(), range, which);
    }

    /// Returns an empty set of spare table pages for an update of the table.
    pub(crate) fn prealloc(&self) -> Prealloc<D::Format> {
        self.inner().reader.prealloc()
    }

    /// Returns the locked ranges of the address space.
    #[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
    pub(crate) fn host_locks(&self) -> &HostLocks {
        &self.0.host_locks
    }

    /// Returns the index of the mirror in its space.
    pub(crate) fn place_in_space(&self) -> Option<usize> {
        self.0.membership.as_ref().map(Membership::number)
    }

    /// Returns the thrashing history that this process and memory share.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the mirror is being dropped.
    pub(crate) fn bounces(&self) -> Result<&Bounces> {
        let membership = self.0.membership.as_ref().ok_or(ENODEV)?;
        Ok(membership.bounces())
    }

    /// Returns the part of the mirror that the space, the device memory and other mirrors share.
    #[inline]
    pub(crate) fn inner(&self) -> &MirrorShared<D> {
        &self.0.inner
    }
}

/// Creates a [`Mirror`] with a lock class for the caller, which may have a name.
#[macro_export]
macro_rules! new_mirror {
    ($mm:expr, $device:expr $(, $name:literal)? $(,)?) => {
        $crate::mirror::Mirror::new(
            $mm,
            $device,
            ::kernel::optional_name!($($name)?),
            ::kernel::static_lock_class!(),
        )
    };
}

// SPDX-License-Identifier: GPL-2.0

//! Placement policies: decide which pages a device fault migrates to the device, and which pages it
//! maps in place.
//!
//! A policy is a function from the state at a fault ([`FaultInfo`]) to a decision ([`Decision`]),
//! which [`Mirror::fault_with_policy`](crate::mirror::Mirror::fault_with_policy) executes. Policies
//! use no hardware, page tables or locks of the engine. Therefore unit tests cover them with plain
//! numbers and a simulated clock.
//!
//! - [`Density`]: the default. Prefetches by the density of accesses in 2 MiB and along sequential
//!   streams, and maps thrashing memory in place for a while.
//! - [`SinglePage`]: migrates the touched pages only, as the kernel's `lib/test_hmm.c` does.
//! - [`NoMigration`]: migrates nothing.

use crate::{
    attributes::Attributes,
    mm::addr::{
        PageRange,
        PMD_PAGES,
        PMD_SIZE, //
    }, //
};

mod bounces;
mod density;
pub(crate) mod fault_around;
mod immovable;
mod parameters;
mod prefetch;
mod thrash;

pub use crate::mm::page_set::PageSet;
pub use bounces::Bounces;
pub use density::Density;
pub(crate) use immovable::Immovable;
pub use parameters::Parameters;

/// State at a device fault, the input of a policy.
pub struct FaultInfo<'a> {
    /// The touched pages, within the memory that one PMD maps.
    pub range: PageRange,
    /// Whether the access is a write.
    pub write: bool,
    /// The range from which pages may be prefetched: the part of the VMA that has the same
    /// attributes.
    pub limits: PageRange,
    /// Attributes of the touched pages.
    pub attributes: Attributes,
    /// Number of free pages of device memory.
    pub free: usize,
    /// Number of all pages of device memory.
    pub total: usize,
    /// Time in ms since an arbitrary start.
    pub now: u64,
    /// Returns the pages of the block at an address (the memory that one PMD maps) that are in the
    /// memory of the device, and for which this mirror or another one of the process has device
    /// PTEs.
    pub resident: &'a dyn Fn(usize) -> PageSet,
    /// Thrashing detection, shared by the mirrors of the process with the same device memory.
    pub bounces: &'a Bounces,
}

/// Decision of a policy about a device fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Migrate these pages to the device, best effort, then map the touched pages.
    Move {
        /// The pages, including the touched ones.
        range: PageRange,
        /// Whether other pages may be evicted from the device for them.
        evict: bool,
    },
    /// Map these pages in place.
    InPlace(PageRange),
    /// Map these pages in place, because they thrash.
    Stay(PageRange),
    /// Sleep killably for this number of ms, then ask the policy again, because the memory is in
    /// use where it is. After a few such decisions in a row, the pages are mapped in place.
    Later(u64),
}

/// A placement policy. Each mirror has a policy object of its own.
///
/// # Examples
///
/// ```
/// use rust_hmm::policy::Decision;
/// use rust_hmm::policy::FaultInfo;
/// use rust_hmm::policy::Policy;
///
/// /// Migrates pages for writes of the device, and maps pages for reads in place.
/// struct OnWrite;
///
/// impl Policy for OnWrite {
///     fn place(&self, fault: &FaultInfo<'_>) -> Decision {
///         if fault.write && fault.free != 0 {
///             Decision::Move { range: fault.range, evict: false }
///         } else {
///             Decision::InPlace(fault.range)
///         }
///     }
/// }
/// ```
pub trait Policy: Send + Sync {
    /// Decides about a device fault.
    ///
    /// # Context
    ///
    /// May sleep; no lock of the library is held.
    fn place(&self, fault: &FaultInfo<'_>) -> Decision;

    /// Returns whether the policy never migrates pages, so that only attributes do.
    ///
    /// # Context
    ///
    /// As for [`Self::place`].
    fn is_idle(&self) -> bool {
        false
    }

    /// Reports that the pages of `range` have moved to the device or were there already. Called in
    /// ascending order for each run of such pages in the range of a [`Decision::Move`], unless no
    /// page has moved.
    ///
    /// # Context
    ///
    /// As [`Self::place`].
    fn moved(&self, range: PageRange, now: u64) {
        let _ = (range, now);
    }
}

/// Policy that migrates no pages; only attributes do.
pub struct NoMigration;

impl Policy for NoMigration {
    fn place(&self, fault: &FaultInfo<'_>) -> Decision {
        Decision::InPlace(fault.range)
    }

    fn is_idle(&self) -> bool {
        true
    }
}

/// Policy that migrates the touched pages.
pub struct SinglePage;

impl Policy for SinglePage {
    fn place(&self, fault: &FaultInfo<'_>) -> Decision {
        Decision::Move {
            range: fault.range,
            evict: true,
        }
    }
}

/// Returns the start of the block that contains `addr`.
pub(crate) fn block_start(addr: usize) -> usize {
    addr & !(PMD_SIZE - 1)
}

/// Returns the block that contains `addr`; `None` for the last block of the address space, which no
/// process uses.
pub(crate) fn block(addr: usize) -> Option<PageRange> {
    PageRange::from_pages(block_start(addr), PMD_PAGES).ok()
}

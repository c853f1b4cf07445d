// SPDX-License-Identifier: GPL-2.0

//! Snapshots of the CPU page table, for diagnostics and tests.

use super::{
    retry::RetryBudget,
    Device,
    Mirror, //
};
use crate::{
    kernel::{
        identity::PgmapOwner,
        reentry::{
            self,
            ReentryGuard, //
        }, //
    },
    mm::{
        addr::PageRange,
        folio::is_zero_pfn,
        range_fault::{
            Access,
            HmmPfn,
            PfnBuffer,
            Retry, //
        }, //
    }, //
};
use kernel::prelude::*;

/// State of one page in the CPU page table, see [`Mirror::snapshot`].
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::mirror::Device;
/// use rust_hmm::mirror::Mirror;
/// use rust_hmm::mirror::PageLocation;
/// use rust_hmm::mirror::Snapshot;
/// use rust_hmm::mm::addr::PageRange;
///
/// /// Returns the number of pages of a range that are in the device's memory.
/// fn on_device<D: Device>(mirror: &Mirror<D>, range: PageRange) -> Result<usize> {
///     let mut count = 0;
///     mirror.snapshot(range, |page| {
///         if let Snapshot::Page { location: PageLocation::Device, .. } = page {
///             count += 1;
///         }
///     })?;
///     Ok(count)
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Snapshot {
    /// The page cannot be accessed.
    Error,
    /// No page, or private memory of another device.
    None,
    /// A page is present.
    Page {
        /// Whether the CPU can write to the page without a fault.
        writable: bool,
        /// Order of the CPU mapping.
        order: u32,
        /// Location of the page.
        location: PageLocation,
    },
}

/// Location of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageLocation {
    /// In system memory.
    System,
    /// The zero page.
    Zero,
    /// In this device's memory.
    Device,
    /// In the coherent memory of another device.
    Remote,
}

impl<D: Device> Mirror<D> {
    /// Reports the state of each page of `range` in the CPU page table, without faulting in any
    /// page.
    ///
    /// `each` is called once per page in ascending order, with the table lock held. It must not
    /// wait for memory.
    ///
    /// # Errors
    ///
    /// - `EFAULT` if the address space was torn down.
    /// - `EBUSY`, `EINTR`, `ENOMEM`, `EDEADLK` as for [`Mirror::fault`].
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    pub fn snapshot(&self, range: PageRange, mut each: impl FnMut(Snapshot)) -> Result {
        reentry::may_wait()?;
        let mut buffer = PfnBuffer::new()?;
        let space = self.space()?;
        let owner = self
            .device()
            .memory()
            .map_or(PgmapOwner::NONE, |memory| memory.owner());
        for piece in range.pmd_pieces() {
            let mut budget = RetryBudget::new();
            let window = self.window(&space, piece.start())?;
            loop {
                let access = Access::Snapshot;
                let collected = match space.collect(&window, piece, access, owner, &mut buffer) {
                    Ok(collected) => collected,
                    Err(error) => {
                        budget.again(error)?;
                        continue;
                    }
                };
                let mut valid = match collected.lock(self.inner()) {
                    Ok(valid) => valid,
                    Err(Retry) => {
                        budget.again(EBUSY)?;
                        continue;
                    }
                };
                let (_, range, mut entry_at) = valid.parts();
                let _within = ReentryGuard::enter();
                for index in 0..range.pages() {
                    each(self.describe(entry_at(range.address(index))));
                }
                break;
            }
        }
        Ok(())
    }

    fn describe(&self, pfn: HmmPfn) -> Snapshot {
        if pfn.is_error() {
            return Snapshot::Error;
        }
        if !pfn.is_valid() {
            return Snapshot::None;
        }
        let own = self
            .device()
            .memory()
            .is_some_and(|memory| memory.lookup(pfn.pfn()).is_some());
        let location = if own {
            PageLocation::Device
        } else if is_zero_pfn(pfn.pfn()) {
            PageLocation::Zero
        } else if pfn.is_device() {
            PageLocation::Remote
        } else {
            PageLocation::System
        };
        Snapshot::Page {
            writable: pfn.is_writable(),
            order: pfn.map_order(),
            location,
        }
    }
}

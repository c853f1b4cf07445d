// SPDX-License-Identifier: GPL-2.0

//! Snapshots: what the CPU's page table says, for a look at it.

use super::{fault::Patience, Device, Mirror};
use crate::{
    mm::{
        addr::PageRange,
        notifier::Cookie,
        page::is_zero_pfn,
        range_fault::{Access, HmmPfn, PfnBuffer, Retry},
    },
    within::{self, Within},
};
use kernel::prelude::*;

/// What the CPU's page table says of one page, see [`Mirror::snapshot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Snapshot {
    /// It cannot be accessed.
    Error,
    /// Nothing, or memory of another device.
    None,
    /// A page.
    Page {
        /// Whether the CPU may write it without a fault.
        writable: bool,
        /// Order of the CPU's mapping.
        order: u32,
        /// Where it is.
        location: Location,
    },
}

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
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
    /// Tells for each page of `range` what the CPU's page table says, without faulting anything in.
    ///
    /// `each` is called once a page in ascending order, with the table lock held: it must not
    /// sleep for memory.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the process is gone; `EBUSY`, `EINTR`, `ENOMEM`, `EDEADLK` as [`Mirror::fault`].
    pub fn snapshot(&self, range: PageRange, mut each: impl FnMut(Snapshot)) -> Result {
        within::may_wait()?;
        let mut buffer = PfnBuffer::new()?;
        let space = self.space()?;
        let owner = self
            .device()
            .memory()
            .map_or(Cookie::NONE, |memory| memory.owner());
        for piece in range.pmd_pieces() {
            let mut patience = Patience::new();
            let window = self.window(&space, piece.start())?;
            loop {
                let access = Access::Snapshot;
                let collected = match space.collect(&window, piece, access, owner, &mut buffer) {
                    Ok(collected) => collected,
                    Err(error) => {
                        patience.again(error)?;
                        continue;
                    }
                };
                let mut valid = match collected.lock(self.inner()) {
                    Ok(valid) => valid,
                    Err(Retry) => {
                        patience.again(EBUSY)?;
                        continue;
                    }
                };
                let (_, _, pfns) = valid.parts();
                let _within = Within::enter();
                pfns.for_each(|pfn| each(self.describe(pfn)));
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
            Location::Device
        } else if is_zero_pfn(pfn.pfn()) {
            Location::Zero
        } else if pfn.is_device() {
            Location::Remote
        } else {
            Location::System
        };
        Snapshot::Page {
            writable: pfn.is_writable(),
            order: pfn.map_order(),
            location,
        }
    }
}

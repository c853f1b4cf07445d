// SPDX-License-Identifier: GPL-2.0

//! Bus addresses for the copy engine: describes a copy of the library to the hardware, and is the
//! IOMMU behind the addresses that it gives out.
//!
//! Each copy has a domain of its own, with one window for its source, and one for its destination.

use crate::{
    format::VRAM,
    hardware::{
        copy_engine::{
            CopyBus,
            Descriptor,
            Request, //
        },
        store::Store, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};
use rust_hmm::{
    memory::{
        CopyDesc,
        CopyJob, //
    },
    mirror::{
        PageMemory,
        PageMemoryMut, //
    },
    mm::{
        device_pages::DeviceRange,
        folio::SharedBytes, //
    }, //
};

/// Bus address of the pages of the CPU from which a copy reads.
const SOURCE: u64 = 1 << 44;

/// Bus address of the pages of the CPU to which a copy writes.
const DESTINATION: u64 = 1 << 45;

/// Bus address at which a copy to another device finds the memory of that one.
pub(crate) const PEER: u64 = 1 << 47;

/// Offset of `range` in the memory of its device.
#[inline]
pub(crate) fn offset(range: DeviceRange) -> usize {
    // OVERFLOW: The page is of a memory, whose size in bytes was checked.
    range.first * PAGE_SIZE
}

/// Describes a copy to the hardware. `memory` is the bus address of the device memory that has the
/// destination, if a device has it.
#[inline]
pub(crate) fn describe(copy: &CopyDesc<'_>, memory: u64) -> Descriptor {
    Descriptor {
        source: copy.source.as_ref().map(|source| match source {
            PageMemory::Cpu(_) => SOURCE,
            PageMemory::Device(range) => VRAM + offset(*range) as u64,
        }),
        destination: match &copy.destination {
            PageMemoryMut::Cpu(_) => DESTINATION,
            PageMemoryMut::Device(range) => memory + offset(*range) as u64,
        },
        bytes: copy.bytes(),
    }
}

/// The windows of a copy, which are all addresses that the hardware can access during it.
pub(crate) struct Window<'c> {
    copy: &'c CopyDesc<'c>,
    /// Memory of the other device, at [`PEER`].
    peer: Option<&'c Store>,
}

impl<'c> Window<'c> {
    #[inline]
    pub(crate) fn new(copy: &'c CopyDesc<'c>, peer: Option<&'c Store>) -> Self {
        Self { copy, peer }
    }

    /// Returns the block of other device memory for a bus address, and the offset there. `EFAULT`
    /// if the address is not in the window of that memory.
    // Not inlined, because most copies do not need it.
    #[inline(never)]
    fn peer(&self, address: u64) -> Result<(&SharedBytes, usize)> {
        let offset = address.checked_sub(PEER).ok_or(EFAULT)?;
        let store = self.peer.ok_or(EFAULT)?;
        store.find_or_make(usize::try_from(offset)?)
    }
}

impl CopyBus for Window<'_> {
    #[inline]
    fn read(&self, from: u64, to: &SharedBytes, at: usize, bytes: usize) -> Result {
        match &self.copy.source {
            Some(PageMemory::Cpu(pages)) if from == SOURCE && bytes == self.copy.bytes() => {
                to.load(at, pages)
            }
            _ => Err(EFAULT),
        }
    }

    #[inline]
    fn write(&self, to: u64, from: &SharedBytes, at: usize, bytes: usize) -> Result {
        match &self.copy.destination {
            PageMemoryMut::Cpu(pages) if to == DESTINATION && bytes == self.copy.bytes() => {
                from.store(at, pages)
            }
            _ => {
                let (block, place) = self.peer(to)?;
                block.copy_from(place, from, at, bytes)
            }
        }
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result {
        match (&self.copy.source, &self.copy.destination) {
            (Some(PageMemory::Cpu(source)), PageMemoryMut::Cpu(destination))
                if (from, to) == (SOURCE, DESTINATION) && bytes == self.copy.bytes() =>
            {
                destination.copy_from(source)
            }
            _ => {
                let (block, at) = self.peer(to)?;
                self.read(from, block, at, bytes)
            }
        }
    }

    fn clear(&self, to: u64, bytes: usize) -> Result {
        match &self.copy.destination {
            PageMemoryMut::Cpu(pages) if to == DESTINATION && bytes == self.copy.bytes() => {
                pages.clear();
                Ok(())
            }
            _ => {
                let (block, at) = self.peer(to)?;
                block.clear(at, bytes)
            }
        }
    }
}

/// A copy of the library, mapped for the copy engine until it ends.
pub(crate) struct Mapping {
    job: CopyJob,
    /// Memory of the destination, if that belongs to another device.
    peer: Option<Arc<Store>>,
}

impl Mapping {
    pub(crate) fn new(job: CopyJob, peer: Option<Arc<Store>>) -> Self {
        Self { job, peer }
    }

    /// Calls `f` with the windows of the copy.
    fn with(&self, f: impl FnOnce(&Window<'_>) -> Result) -> Result {
        f(&Window::new(&self.job.copy(), self.peer.as_deref()))
    }
}

impl CopyBus for Mapping {
    fn read(&self, from: u64, to: &SharedBytes, at: usize, bytes: usize) -> Result {
        self.with(|window| window.read(from, to, at, bytes))
    }

    fn write(&self, to: u64, from: &SharedBytes, at: usize, bytes: usize) -> Result {
        self.with(|window| window.write(to, from, at, bytes))
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result {
        self.with(|window| window.copy(from, to, bytes))
    }

    fn clear(&self, to: u64, bytes: usize) -> Result {
        self.with(|window| window.clear(to, bytes))
    }
}

impl Request for Mapping {
    fn is_aborted(&self) -> bool {
        self.job.is_cancelled()
    }

    fn end(self, result: Result) {
        self.job.complete(result);
    }
}

// SPDX-License-Identifier: GPL-2.0
//! Attributes, policies and the amount of device memory: 0x50 to 0x55 of
//! `samples/dmirror/dmirror_uapi.h`.

use crate::device::Device;
use crate::engine::Extension;
use crate::errno::Errno;

/// Preferred location of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Preferred {
    /// Decided by the policy.
    #[default]
    Anywhere = 0,
    /// In the device's memory.
    Device = 1,
    /// In system memory.
    System = 2,
    /// In the memory of another device of the process.  Cannot be set.
    Other = 3,
}

/// Attributes of a range, in the layout of the ioctl.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Set when it is used.
    pub size: u32,
    /// 0.
    pub flags: u32,
    /// Set when it is used.
    pub addr: u64,
    /// Set when it is used.
    pub npages: u64,
    /// Mask of the attributes to change, or of those that are uniform in the range.
    pub what: u32,
    /// A [`Preferred`].
    pub preferred: u32,
    /// The bits that are set.
    pub values: u32,
    /// 0, or 1 plus the order.
    pub granularity: u32,
}

impl Attributes {
    /// The defaults, and nothing to change.
    pub const NONE: Attributes = Attributes {
        size: 0,
        flags: 0,
        addr: 0,
        npages: 0,
        what: 0,
        preferred: 0,
        values: 0,
        granularity: 0,
    };
    /// Bit of the preferred location.
    pub const PREFERRED: u32 = 1;
    /// Always mapped by the device.
    pub const ACCESSED_BY: u32 = 2;
    /// Mostly read.
    pub const READ_MOSTLY: u32 = 4;
    /// Never migrated to the device.
    pub const NEVER_MIGRATE: u32 = 8;
    /// Bit of the granularity.
    pub const GRANULARITY: u32 = 16;
    /// All bits that can be set.
    pub const ALL: u32 = 31;

    /// With a preferred location.
    pub const fn prefer(self, preferred: Preferred) -> Self {
        Self { what: self.what | Self::PREFERRED, preferred: preferred as u32, ..self }
    }

    /// With a flag.
    pub const fn flag(self, bit: u32, yes: bool) -> Self {
        let values = if yes { self.values | bit } else { self.values & !bit };
        Self { what: self.what | bit, values, ..self }
    }

    /// With a granularity.
    pub fn order(self, order: Option<u32>) -> Self {
        let granularity = order.map_or(0, |order| order + 1);
        Self { what: self.what | Self::GRANULARITY, granularity, ..self }
    }
}

/// Counters of the fault policies.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    pub(crate) size: u32,
    pub(crate) flags: u32,
    /// Faults on which a policy decided.
    pub faults: u64,
    /// Pages migrated by these faults.
    pub moved: u64,
    /// Faults for which the policy decided against a migration.
    pub in_place: u64,
    /// Pages evicted for lack of device memory.
    pub evicted_for_room: u64,
    /// Chunks of device memory.
    pub pieces: u64,
    /// Idle chunks.
    pub pieces_idle: u64,
    /// Folios for which the device chose the location.
    pub chosen: u64,
}

/// Policy for faults of engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Policy {
    /// No policy: nothing is migrated.
    None = 0,
    /// The library's default.
    Default = 1,
    /// Migrates the faulting page.
    OnePage = 2,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PolicyRaw {
    pub(crate) size: u32,
    pub(crate) flags: u32,
    pub(crate) policy: u32,
    pub(crate) old: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemoryRaw {
    pub(crate) size: u32,
    pub(crate) flags: u32,
    pub(crate) first: u64,
    pub(crate) count: u64,
    pub(crate) left: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UnplugRaw {
    pub(crate) size: u32,
    pub(crate) flags: u32,
    pub(crate) addr: u64,
    pub(crate) npages: u64,
    pub(crate) saved: u64,
    pub(crate) lost: u64,
}

// SAFETY: Plain numbers.
unsafe impl Extension for Attributes {}
// SAFETY: Plain numbers.
unsafe impl Extension for Placement {}
// SAFETY: Plain numbers.
unsafe impl Extension for PolicyRaw {}
// SAFETY: Plain numbers.
unsafe impl Extension for MemoryRaw {}
// SAFETY: Plain numbers.
unsafe impl Extension for UnplugRaw {}

impl UnplugRaw {
    /// Magic number that confirms the unplug.
    pub(crate) const SURE: u32 = 0x676f_6e65;
}

impl Device {
    /// Sets the attributes selected by `new` for some pages.
    pub fn set_attributes(&self, addr: usize, npages: usize, new: Attributes) -> Result<(), Errno> {
        let addr = addr as u64;
        let npages = npages as u64;
        self.extension(0x50, &mut Attributes { size: 40, flags: 0, addr, npages, ..new })
    }

    /// Attributes that are uniform for some pages.
    pub fn attributes(&self, addr: usize, npages: usize) -> Result<Attributes, Errno> {
        let addr = addr as u64;
        let npages = npages as u64;
        let mut raw = Attributes { size: 40, addr, npages, ..Attributes::default() };
        self.extension(0x51, &mut raw)?;
        Ok(Attributes { size: 0, flags: 0, addr: 0, npages: 0, ..raw })
    }

    /// Counters of the fault policies of this file.
    pub fn placement(&self) -> Result<Placement, Errno> {
        let mut raw = Placement { size: 64, ..Placement::default() };
        self.extension(0x52, &mut raw).map(|()| raw)
    }

    /// Sets the policy for faults of this file's commands.
    pub fn set_policy(&self, policy: Policy) -> Result<(), Errno> {
        let mut raw = PolicyRaw { size: 16, policy: policy as u32, ..PolicyRaw::default() };
        self.extension(0x53, &mut raw)
    }

    /// Takes device pages out of use, or brings them back. Returns the number of pages that are
    /// still in use.
    pub fn resize(&self, first: usize, count: usize, restore: bool) -> Result<u64, Errno> {
        let first = first as u64;
        let count = count as u64;
        let mut raw = MemoryRaw { size: 32, flags: restore.into(), first, count, left: 0 };
        self.extension(0x54, &mut raw).map(|()| raw.left)
    }

    /// Unplugs the device and discards the contents of some pages. Returns the number of pages
    /// saved and lost.
    pub fn unplug(&self, addr: usize, npages: usize) -> Result<(u64, u64), Errno> {
        let addr = addr as u64;
        let npages = npages as u64;
        let flags = UnplugRaw::SURE;
        let mut raw = UnplugRaw { size: 40, flags, addr, npages, ..UnplugRaw::default() };
        self.extension(0x55, &mut raw).map(|()| (raw.saved, raw.lost))
    }
}

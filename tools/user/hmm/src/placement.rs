// SPDX-License-Identifier: GPL-2.0
//! Attributes, policies and the amount of device memory: 0x50 to 0x55 of
//! `samples/dmirror/dmirror_uapi.h`.

use crate::device::Device;
use crate::engine::Extension;
use crate::errno::Errno;

/// Where memory should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Preferred {
    /// The policy decides.
    #[default]
    Anywhere = 0,
    /// In the device's memory.
    Device = 1,
    /// In system memory.
    System = 2,
    /// In the memory of another device of the process.  Cannot be set.
    Other = 3,
}

/// Attributes of a range, as the kernel has them.
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
    /// Which ones to change, or which ones are the same everywhere.
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
    /// The device always has it mapped.
    pub const ACCESSED_BY: u32 = 2;
    /// It is mostly read.
    pub const READ_MOSTLY: u32 = 4;
    /// It does not move to the device.
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

/// What policies did.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    pub(crate) size: u32,
    pub(crate) flags: u32,
    /// Faults that a policy decided about.
    pub faults: u64,
    /// Pages that they moved.
    pub moved: u64,
    /// Faults that left memory where it is on purpose.
    pub in_place: u64,
    /// Pages that left the device to make room.
    pub evicted_for_room: u64,
    /// Pieces of device memory.
    pub pieces: u64,
    /// Those that are idle.
    pub pieces_idle: u64,
    /// Folios used where the device chose.
    pub chosen: u64,
}

/// Who decides about faults of engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Policy {
    /// Nobody: nothing moves.
    None = 0,
    /// The library's default.
    Default = 1,
    /// What was touched moves.
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
    /// Nobody unplugs a device by chance.
    pub(crate) const SURE: u32 = 0x676f_6e65;
}

impl Device {
    /// Changes the attributes that `new` names, of some pages.
    pub fn set_attributes(&self, addr: usize, npages: usize, new: Attributes) -> Result<(), Errno> {
        let (addr, npages) = (addr as u64, npages as u64);
        self.extension(0x50, &mut Attributes { size: 40, flags: 0, addr, npages, ..new })
    }

    /// What holds for all of some pages.
    pub fn attributes(&self, addr: usize, npages: usize) -> Result<Attributes, Errno> {
        let (addr, npages) = (addr as u64, npages as u64);
        let mut raw = Attributes { size: 40, addr, npages, ..Attributes::default() };
        self.extension(0x51, &mut raw)?;
        Ok(Attributes { size: 0, flags: 0, addr: 0, npages: 0, ..raw })
    }

    /// What policies did so far.
    pub fn placement(&self) -> Result<Placement, Errno> {
        let mut raw = Placement { size: 64, ..Placement::default() };
        self.extension(0x52, &mut raw).map(|()| raw)
    }

    /// Sets who decides about faults of this file's commands.
    pub fn set_policy(&self, policy: Policy) -> Result<(), Errno> {
        let mut raw = PolicyRaw { size: 16, policy: policy as u32, ..PolicyRaw::default() };
        self.extension(0x53, &mut raw)
    }

    /// Takes device pages out of use, or brings them back.  Returns how many are
    /// still in use.
    pub fn resize(&self, first: usize, count: usize, restore: bool) -> Result<u64, Errno> {
        let (first, count) = (first as u64, count as u64);
        let mut raw = MemoryRaw { size: 32, flags: restore.into(), first, count, left: 0 };
        self.extension(0x54, &mut raw).map(|()| raw.left)
    }

    /// Takes the device away; what it has of some pages is lost.  Returns pages
    /// saved and lost.
    pub fn unplug(&self, addr: usize, npages: usize) -> Result<(u64, u64), Errno> {
        let (addr, npages) = (addr as u64, npages as u64);
        let flags = UnplugRaw::SURE;
        let mut raw = UnplugRaw { size: 40, flags, addr, npages, ..UnplugRaw::default() };
        self.extension(0x55, &mut raw).map(|()| (raw.saved, raw.lost))
    }
}

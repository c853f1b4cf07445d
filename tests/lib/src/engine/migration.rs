// SPDX-License-Identifier: GPL-2.0
//! Migration, with the result for each page.

use super::Extension;
use crate::device::{
    Device,
    Ptr, //
};
use crate::errno::Errno;

/// Result for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PageOutcome {
    /// No page to migrate.
    None,
    /// Could not be migrated.
    Skipped,
    /// No memory at the destination.
    NoMemory,
    /// The copy failed.
    CopyFailed,
    /// Moved; the device had no entry.
    Moved,
    /// Moved; the device's entry was switched.
    Switched,
    /// Moved; the device lost its entry.
    Lost,
    /// A number that this program does not know.
    Unknown,
}

impl PageOutcome {
    /// Whether the page moved.
    pub fn has_moved(self) -> bool {
        matches!(self, Self::Moved | Self::Switched | Self::Lost)
    }
}

impl From<u8> for PageOutcome {
    fn from(raw: u8) -> Self {
        match raw {
            0 => Self::None,
            1 => Self::Skipped,
            2 => Self::NoMemory,
            3 => Self::CopyFailed,
            4 => Self::Moved,
            5 => Self::Switched,
            6 => Self::Lost,
            _ => Self::Unknown,
        }
    }
}

/// Arguments and results of a migration.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Migration {
    pub(super) size: u32,
    pub(super) flags: u32,
    pub(super) addr: u64,
    pub(super) npages: u64,
    pub(super) outcomes: u64,
    /// Pages that moved.
    pub moved: u64,
    /// Pages that moved and whose device entry was switched.
    pub switched: u64,
    /// Pages that could not move.
    pub skipped: u64,
    /// Pages that had no memory at the destination.
    pub no_memory: u64,
    /// Pages whose copy failed.
    pub copy_failed: u64,
    /// Duration in ns.
    pub ns: u64,
}

/// Direction and kind of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the device, faultless.
    ToDevice,
    /// To system memory, faultless.
    ToSystem,
    /// To the device, invalidating its PTEs first.
    ToDeviceOrdinary,
    /// To system memory, invalidating the device PTEs first.
    ToSystemOrdinary,
}

impl Way {
    /// The same direction, faultless or not.
    pub fn faultless(self, yes: bool) -> Way {
        match (self, yes) {
            (Way::ToDevice | Way::ToDeviceOrdinary, true) => Way::ToDevice,
            (Way::ToDevice | Way::ToDeviceOrdinary, false) => Way::ToDeviceOrdinary,
            (Way::ToSystem | Way::ToSystemOrdinary, true) => Way::ToSystem,
            (Way::ToSystem | Way::ToSystemOrdinary, false) => Way::ToSystemOrdinary,
        }
    }

    pub(super) fn flags(self) -> u32 {
        match self {
            Way::ToDevice => 0,
            Way::ToSystem => 1,
            Way::ToDeviceOrdinary => 2,
            Way::ToSystemOrdinary => 3,
        }
    }
}

// SAFETY: Plain numbers; `outcomes` is only set where a buffer is lent.
unsafe impl Extension for Migration {}

impl Device {
    /// Migrates pages. Pages that cannot be migrated are skipped.
    pub fn migrate(&self, addr: usize, npages: usize, way: Way) -> Result<Migration, Errno> {
        let mut raw = Migration {
            size: size_of::<Migration>() as u32,
            flags: way.flags(),
            addr: addr as u64,
            npages: npages as u64,
            ..Migration::default()
        };
        self.extension(0x46, &mut raw).map(|()| raw)
    }

    /// Like [`Device::migrate`], and returns the result for each page.
    pub fn migrate_pages(
        &self,
        addr: usize,
        npages: usize,
        way: Way,
    ) -> Result<(Migration, Vec<PageOutcome>), Errno> {
        let mut bytes = vec![0xffu8; npages];
        let mut raw = Migration {
            size: size_of::<Migration>() as u32,
            flags: way.flags(),
            addr: addr as u64,
            npages: npages as u64,
            outcomes: bytes.as_mut_ptr() as u64,
            ..Migration::default()
        };
        self.extension(0x46, &mut raw)?;
        Ok((raw, bytes.into_iter().map(PageOutcome::from).collect()))
    }

    /// Migrates with a place for outcomes that may not be accessible: the start
    /// of a mapping, or the guard page in front of it.
    pub fn probe_outcomes(
        &self,
        addr: usize,
        npages: usize,
        to: Ptr<'_>,
    ) -> Result<Migration, Errno> {
        let outcomes = match to {
            Ptr::Map(map) => map.addr() as u64,
            Ptr::Guard(map) => map.guard() as u64,
            Ptr::Null | Ptr::Slice(_) => 0,
        };
        let mut raw = Migration {
            size: size_of::<Migration>() as u32,
            addr: addr as u64,
            npages: npages as u64,
            outcomes,
            ..Migration::default()
        };
        self.extension(0x46, &mut raw).map(|()| raw)
    }
}

// SPDX-License-Identifier: GPL-2.0
//! Migration between two devices of a process.

use crate::device::Device;
use crate::engine::Extension;
use crate::errno::Errno;

/// `struct dmirror_pull`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawPull {
    pub(crate) size: u32,
    pub(crate) flags: u32,
    pub(crate) fd: i32,
    pub(crate) reserved: u32,
    pub(crate) addr: u64,
    pub(crate) npages: u64,
    pub(crate) connection: u64,
    pub(crate) moved: u64,
    pub(crate) switched: u64,
    pub(crate) no_memory: u64,
    pub(crate) copy_failed: u64,
}
// SAFETY: Plain numbers.
unsafe impl Extension for RawPull {}

/// Access of a device to the memory of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// None: pages move through system memory.
    None = 0,
    /// By a direct copy.
    Migratable = 1,
    /// In place, without a copy.
    Unified = 2,
}

/// Results of a migration between devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The connection that was used.
    pub connection: Connection,
    /// Pages that moved.
    pub moved: u64,
    /// Pages whose entry was switched.
    pub switched: u64,
    /// Pages that had no memory.
    pub no_memory: u64,
    /// Pages whose copy failed.
    pub copy_failed: u64,
}

impl Device {
    fn pull_call(&self, mut raw: RawPull, other: &Device) -> Result<Pulled, Errno> {
        raw.size = size_of::<RawPull>() as u32;
        raw.fd = other.fd();
        self.extension(0x78, &mut raw)?;
        let connection = match raw.connection {
            0 => Connection::None,
            1 => Connection::Migratable,
            _ => Connection::Unified,
        };
        let RawPull { moved, switched, no_memory, copy_failed, .. } = raw;
        Ok(Pulled { connection, moved, switched, no_memory, copy_failed })
    }

    /// Returns the connection of this device to the memory of `other`.
    pub fn connection(&self, other: &Device) -> Result<Connection, Errno> {
        let raw = RawPull { flags: 1, ..RawPull::default() };
        self.pull_call(raw, other).map(|pulled| pulled.connection)
    }

    /// Migrates pages from `other` to this device.
    pub fn pull(&self, addr: usize, npages: usize, other: &Device) -> Result<Pulled, Errno> {
        let addr = addr as u64;
        let npages = npages as u64;
        self.pull_call(RawPull { addr, npages, ..RawPull::default() }, other)
    }
}

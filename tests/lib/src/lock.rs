// SPDX-License-Identifier: GPL-2.0
//! Locked memory: it does not migrate, and devices access it by a separate address.

use crate::device::Device;
use crate::engine::Extension;
use crate::errno::Errno;

/// `struct dmirror_lock`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawLock {
    pub(crate) size: u32,
    pub(crate) flags: u32,
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    pub(crate) agents: u64,
    pub(crate) device_addr: u64,
    pub(crate) fine: u64,
    pub(crate) users: u64,
    pub(crate) ns: u64,
    pub(crate) looks: u64,
}
// SAFETY: Plain numbers; the kernel accesses these addresses only by commands, like any others.
unsafe impl Extension for RawLock {}

/// A lock that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Locked {
    /// The device address, for commands.
    pub device_addr: usize,
    /// Fine-grained: CPU writes are visible while commands run.
    pub fine: bool,
}

/// A locked range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockedRange {
    /// Start address.
    pub addr: usize,
    /// Length.
    pub bytes: usize,
    /// Fine-grained: CPU writes are visible while commands run.
    pub fine: bool,
    /// Number of locks on it.
    pub users: u64,
    /// Duration of the lookups, in ns.
    pub ns: u64,
}

impl Device {
    fn lock_call(&self, number: u8, raw: &mut RawLock) -> Result<(), Errno> {
        raw.size = size_of::<RawLock>() as u32;
        self.extension(number, raw)
    }

    /// Locks memory for the devices of the bit mask `agents`.
    pub fn lock(
        &self,
        addr: usize,
        bytes: usize,
        agents: u64,
        fine: bool,
    ) -> Result<Locked, Errno> {
        let flags = fine.into();
        let addr = addr as u64;
        let bytes = bytes as u64;
        let mut raw = RawLock { flags, addr, bytes, agents, ..RawLock::default() };
        self.lock_call(0x70, &mut raw)?;
        Ok(Locked { device_addr: raw.device_addr as usize, fine: raw.fine != 0 })
    }

    /// Removes one lock.
    pub fn unlock(&self, device_addr: usize) -> Result<(), Errno> {
        let mut raw = RawLock { device_addr: device_addr as u64, ..RawLock::default() };
        self.lock_call(0x71, &mut raw)
    }

    /// The locked range that contains `addr`, looked up `looks` times.
    pub fn locked(&self, addr: usize, looks: u64) -> Result<LockedRange, Errno> {
        let mut raw = RawLock { addr: addr as u64, looks, ..RawLock::default() };
        self.lock_call(0x72, &mut raw)?;
        Ok(LockedRange {
            addr: raw.addr as usize,
            bytes: raw.bytes as usize,
            fine: raw.fine != 0,
            users: raw.users,
            ns: raw.ns,
        })
    }
}

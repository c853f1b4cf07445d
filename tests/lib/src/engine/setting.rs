// SPDX-License-Identifier: GPL-2.0
//! Test parameters of a device.

use super::Extension;
use crate::device::Device;
use crate::errno::Errno;

/// A test parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Setting {
    /// Minimum duration of each copy, in ns.
    CopyDelay = 0,
    /// Copies that succeed before one fails; `u64::MAX`: none fails.
    CopyFail = 1,
    /// Number of flushes to skip.
    SkipFlush = 2,
    /// 1: no write protection before a faultless migration.
    KeepWrite = 3,
    /// Minimum duration of each flush, in ns.
    FlushDelay = 4,
    /// Best connection to other devices: see [`crate::Connection`].
    Connection = 5,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Set {
    pub(super) size: u32,
    pub(super) flags: u32,
    pub(super) what: u32,
    pub(super) reserved: u32,
    pub(super) value: u64,
    pub(super) old: u64,
}

// SAFETY: Plain numbers.
unsafe impl Extension for Set {}

impl Device {
    /// Sets a test parameter of the device; returns the previous value.
    pub fn set(&self, what: Setting, value: u64) -> Result<u64, Errno> {
        let size = size_of::<Set>() as u32;
        let mut raw = Set { size, flags: 0, what: what as u32, reserved: 0, value, old: 0 };
        self.extension(0x47, &mut raw).map(|()| raw.old)
    }
}

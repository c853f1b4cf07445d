// SPDX-License-Identifier: GPL-2.0
//! Blits, whose fences are DMA fences: what tests have to export.

use crate::check;
use crate::harness::{Ctx, Stop, What};
use hmm::{Device, Errno, Fence, Mapping, Setting, SyncFile};

/// Time that a copy takes where a test needs it to be under way, in ns.
pub const SLOW: u64 = 300_000_000;

/// Memory that is locked for a device: what blits copy.
pub struct Locked<'d> {
    device: &'d Device,
    /// The memory.
    pub map: Mapping,
    /// Its address for the device.
    pub address: usize,
}

impl<'d> Locked<'d> {
    /// Some pages with the pattern `seed`.
    pub fn new(ctx: &Ctx, device: &'d Device, pages: usize, seed: u64) -> Result<Self, Stop> {
        let map = Mapping::anon(pages)?;
        map.fill(seed);
        let locked = device.lock(map.addr(), map.len(), 1 << ctx.device, true).what("lock")?;
        check!(locked.fine, "the lock is coarse");
        Ok(Locked { device, map, address: locked.device_addr })
    }

    /// Copies it to `to`.
    pub fn copy(&self, to: &Locked<'_>, after: &[&Fence<'d>]) -> Result<Fence<'d>, Errno> {
        self.device.blit(to.address, self.address, self.map.len(), after)
    }
}

/// Starts a copy of `from` to the device address `to` that takes [`SLOW`], and then fails if `fails`. Returns its sync file. Copies of the
/// device stay slow until its last file is closed.
pub fn slow_file(from: &Locked<'_>, to: usize, fails: bool) -> Result<SyncFile, Stop> {
    from.device.set(Setting::CopyDelay, SLOW).what("set the delay")?;
    if fails {
        from.device.set(Setting::CopyFail, 0).what("have the copy fail")?;
    }
    let blit = from.device.blit(to, from.address, from.map.len(), &[]).what("blit")?;
    blit.export().what("export")
}

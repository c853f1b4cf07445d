// SPDX-License-Identifier: GPL-2.0
//! Blits, whose fences are DMA fences, for tests that need a fence to export.

use crate::check;
use crate::harness::{
    Ctx,
    Stop,
    What, //
};
use hmm::{
    Device,
    Errno,
    Fence,
    Mapping,
    Setting,
    SyncFile, //
};

/// Duration of a copy in tests that need it in flight, in ns.
pub const SLOW: u64 = 300_000_000;

/// Memory that is locked for a device, as source or destination of blits.
pub struct Locked<'d> {
    device: &'d Device,
    /// The memory.
    pub map: Mapping,
    /// Device address of the memory.
    pub address: usize,
}

impl<'d> Locked<'d> {
    /// Locks `pages` pages with the pattern `seed`.
    pub fn new(ctx: &Ctx, device: &'d Device, pages: usize, seed: u64) -> Result<Self, Stop> {
        let map = Mapping::anon(pages)?;
        map.fill(seed);
        let locked = device.lock(map.addr(), map.len(), 1 << ctx.device, true).what("lock")?;
        check!(locked.fine, "the lock is coarse");
        Ok(Locked { device, map, address: locked.device_addr })
    }

    /// Starts a blit to `to` that waits for the fences `after`.
    pub fn copy(&self, to: &Locked<'_>, after: &[&Fence<'d>]) -> Result<Fence<'d>, Errno> {
        self.device.blit(to.address, self.address, self.map.len(), after)
    }
}

/// Starts a blit of `from` to the device address `to` and returns its sync file. The blit takes
/// [`SLOW`], and then fails if `fails` is set. Copies of the device stay slow until its last file
/// is closed.
pub fn slow_file(from: &Locked<'_>, to: usize, fails: bool) -> Result<SyncFile, Stop> {
    from.device.set(Setting::CopyDelay, SLOW).what("set the delay")?;
    if fails {
        from.device.set(Setting::CopyFail, 0).what("have the copy fail")?;
    }
    let blit = from.device.blit(to, from.address, from.map.len(), &[]).what("blit")?;
    blit.export().what("export")
}

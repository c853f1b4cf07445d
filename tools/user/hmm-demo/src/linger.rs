// SPDX-License-Identifier: GPL-2.0
//! Something to look at: memory in all places, always in the same ones, and some that moves all the time.

use anyhow::{Context, Result};
use hmm::engine::Way;
use hmm::{Device, Mapping, HUGE_PAGES, PAGE_SIZE};
use std::time::{Duration, Instant};

/// MiB that stay where they are.
const MIB: usize = 16;

/// Pages that move.
const MOVING: usize = 1024;

/// Time between two rounds.
const PAUSE: Duration = Duration::from_millis(20);

/// Memory that stays: a third of it on the device, in a huge page and in small ones, a third in system memory that
/// the device has mapped, and the rest.
fn still(device: &Device) -> Result<Mapping> {
    let map = Mapping::anon_aligned(MIB / 2)?;
    map.fill(1);
    let pages = map.pages();
    device.migrate(map.addr(), pages / 3, Way::ToDevice).context("migration")?;
    let mut seen = vec![0; pages / 3 * PAGE_SIZE];
    device.read(map.page_addr(pages / 3), &mut seen).context("device read")?;
    // Some islands.
    for block in 0..3 {
        let first = pages * 2 / 3 / HUGE_PAGES * HUGE_PAGES + block * 400;
        device.migrate(map.page_addr(first), 64, Way::ToDevice).context("migration")?;
    }
    for block in 0..4 {
        let first = HUGE_PAGES + block * 256;
        device.migrate(map.page_addr(first), 64, Way::ToSystem).context("migration back")?;
    }
    Ok(map)
}

/// Does so for `seconds`.
pub fn linger(device: &Device, seconds: u64) -> Result<()> {
    let still = still(device)?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let moving = Mapping::anon(MOVING)?;
    moving.forbid_huge()?;
    let mut seed = 2;
    while Instant::now() < end {
        moving.fill(seed);
        let mut seen = vec![0; moving.len()];
        device.read(moving.addr(), &mut seen).context("device read")?;
        device.migrate(moving.addr(), MOVING, Way::ToDevice).context("migration")?;
        // By CPU faults.
        moving.check(seed)?;
        seed += 1;
        std::thread::sleep(PAUSE);
    }
    still.check(1)?;
    Ok(())
}

// SPDX-License-Identifier: GPL-2.0
//! Memory to observe with other tools: some in every place, which stays there, and some that
//! migrates all the time.

use anyhow::{
    Context,
    Result, //
};
use hmm::engine::Way;
use hmm::{
    Device,
    Mapping,
    HUGE_PAGES,
    PAGE_SIZE, //
};
use std::time::{
    Duration,
    Instant, //
};

/// Huge pages of memory that stays in place.
const STILL: usize = 8;

/// Pages that migrate in each round.
const MOVING: usize = (4 << 20) / PAGE_SIZE;

/// Pause between two rounds.
const PAUSE: Duration = Duration::from_millis(20);

/// Returns memory that stays in place. One third is in device memory, as a huge page and as small
/// pages, and one third is in system memory and mapped by the device. The rest is not mapped by the
/// device.
fn still(device: &Device) -> Result<Mapping> {
    let map = Mapping::anon_aligned(STILL)?;
    map.fill(1);
    let pages = map.pages();
    device.migrate(map.addr(), pages / 3, Way::ToDevice).context("migration")?;
    let mut seen = vec![0; pages / 3 * PAGE_SIZE];
    device.read(map.page_addr(pages / 3), &mut seen).context("device read")?;
    // A few islands of the other kind within each part.
    for block in 0..3 {
        let first = pages * 2 / 3 / HUGE_PAGES * HUGE_PAGES + block * (HUGE_PAGES * 25 / 32);
        device.migrate(map.page_addr(first), 64, Way::ToDevice).context("migration")?;
    }
    for block in 0..4 {
        let first = HUGE_PAGES + block * (HUGE_PAGES / 2);
        device.migrate(map.page_addr(first), 64, Way::ToSystem).context("migration back")?;
    }
    Ok(map)
}

/// Moves memory back and forth for `seconds`, while other memory stays in place.
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
        // CPU faults migrate all pages back.
        moving.check(seed)?;
        seed += 1;
        std::thread::sleep(PAUSE);
    }
    still.check(1)?;
    Ok(())
}

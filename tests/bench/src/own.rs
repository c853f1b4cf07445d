// SPDX-License-Identifier: GPL-2.0
//! Rows without a peer to compare with, because they use the interface of `rust_dmirror`.

use crate::bench::Bench;
use anyhow::Result;
use hmm::engine::{
    Command,
    EngineOp,
    Way, //
};
use hmm::Device;
use std::time::Duration;

/// Measures how long an engine that reads continuously waits for its pages while these migrate to
/// the device and back.
pub fn faultless(bench: &mut Bench) -> Result<()> {
    if Device::open(0)?.info().is_err() {
        // Another driver.
        return Ok(());
    }
    let pages = bench.pages();
    let mut row = |name, faultless: bool| {
        bench.row(name, "page moved", 2 * pages, |bench| {
            let device = Device::open(0)?;
            let map = bench.small()?;
            bench.fill(&map, 1);
            let reader = Command::new(EngineOp::Checksum, map.addr(), map.len());
            // All pages have device PTEs before the measurement begins.
            device.run(reader)?;
            let job = device.submit(reader.rounds(0))?;
            let before = device.engine_counters(0)?;
            let mut moved = 0;
            for way in [Way::ToDevice, Way::ToSystem] {
                moved += device.migrate(map.addr(), pages, way.faultless(faultless))?.moved;
                // The engine reads all pages that have migrated, or waits for them.
                std::thread::sleep(Duration::from_millis(20));
            }
            job.stop()?;
            job.finish()?;
            let after = device.engine_counters(0)?;
            anyhow::ensure!(moved == 2 * pages as u64, "{moved} pages have moved");
            anyhow::ensure!(after.accesses > before.accesses, "the engine has not run");
            bench.check(&map, 1)?;
            Ok(after.stall_ns_read - before.stall_ns_read)
        })
    };
    row("reader's lost time, faultless migration", true)?;
    row("reader's lost time, ordinary migration", false)
}

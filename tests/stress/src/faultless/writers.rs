// SPDX-License-Identifier: GPL-2.0
//! An engine and a CPU thread increment words of the same pages while these migrate. No update may
//! be lost.

use anyhow::{
    ensure,
    Context,
    Result, //
};
use hmm::engine::Way;
use hmm::{
    Command,
    Device,
    EngineOp,
    Mapping,
    PAGE_SIZE, //
};
use serde::Serialize;
use std::sync::atomic::{
    AtomicBool,
    Ordering::Relaxed, //
};

/// Size of the memory, in aligned blocks of a huge page.
const BLOCKS: usize = 2;

/// Counts of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Writers {
    pub trips: u64,
    pub moved: u64,
    pub switched: u64,
    /// Additions by the engine, and the sum found in memory afterwards.
    pub device_adds: u64,
    pub device_found: u64,
    pub cpu_adds: u64,
    pub cpu_found: u64,
    /// Read faults and read stalls. No engine reads meanwhile, so any count here is a write counted
    /// as a read.
    pub reads_disturbed: u64,
    pub write_stalls: u64,
    pub write_stall_ms: f64,
    pub stale_hits: u64,
}

/// Migrates the pages while the engine and the CPU thread increment.
pub fn measure(device: &Device, trips: u64) -> Result<Writers> {
    let map = Mapping::anon_aligned(BLOCKS)?;
    map.fill_pages(0, 0, 0);
    for page in 0..map.pages() {
        map.set(page, 0, 0);
        map.set(page, 1, 0);
    }
    let add = Command::new(EngineOp::AtomicAdd, map.addr(), map.len()).stride(PAGE_SIZE).value(1);
    let first = device.run(add)?;
    ensure!(first.error.is_none(), "the first pass failed: {:?}", first.error);
    let before = device.counters()?;
    let job = device.submit(add.rounds(0).engine(1)).context("writer")?;
    let stop = AtomicBool::new(false);
    let mut result = Writers {
        trips: 0,
        moved: 0,
        switched: 0,
        device_adds: map.pages() as u64,
        device_found: 0,
        cpu_adds: 0,
        cpu_found: 0,
        reads_disturbed: 0,
        write_stalls: 0,
        write_stall_ms: 0.0,
        stale_hits: 0,
    };
    std::thread::scope(|scope| -> Result<()> {
        let cpu = scope.spawn(|| {
            let mut adds = 0u64;
            let mut page = 0;
            while !stop.load(Relaxed) {
                page = (page + 7) % map.pages();
                map.atomic(page, 1).fetch_add(1, Relaxed);
                adds += 1;
                if adds % 16 == 0 {
                    std::thread::yield_now();
                }
            }
            adds
        });
        let moves = (|| -> Result<()> {
            // The CPU thread faults pages back as fast as it can, so several trips are needed.
            for _ in 0..trips * 2 {
                for way in [Way::ToDevice, Way::ToSystem] {
                    let done = device.migrate(map.addr(), map.pages(), way)?;
                    result.moved += done.moved;
                    result.switched += done.switched;
                }
                result.trips += 1;
            }
            Ok(())
        })();
        stop.store(true, Relaxed);
        result.cpu_adds = cpu.join().map_err(|_| anyhow::anyhow!("the CPU thread panicked"))?;
        moves
    })?;
    let ended = job.finish().context("end of the writer")?;
    ensure!(ended.error.is_none(), "the writer failed: {:?}", ended.error);
    let after = device.counters()?;
    result.device_adds += (after.bytes_written - before.bytes_written) / 8;
    result.device_found = (0..map.pages()).map(|page| map.get(page, 0)).sum();
    result.cpu_found = (0..map.pages()).map(|page| map.get(page, 1)).sum();
    let faults = after.engine_faults_read - before.engine_faults_read;
    result.reads_disturbed = faults + after.stalls_read - before.stalls_read;
    result.write_stalls = after.stalls_write - before.stalls_write;
    result.write_stall_ms = (after.stall_ns_write - before.stall_ns_write) as f64 / 1e6;
    result.stale_hits = after.stale_hits - before.stale_hits;
    Ok(result)
}

impl Writers {
    /// Describes each bound that is not met.
    pub fn broken_bounds(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let mut must = |met: bool, what: String| {
            if !met {
                broken.push(format!("writers: {what}"));
            }
        };
        let adds = self.device_adds;
        let found = self.device_found;
        must(adds == found, format!("{adds} additions by the engine, {found} found"));
        let adds = self.cpu_adds;
        let found = self.cpu_found;
        must(adds == found, format!("{adds} additions by the CPU, {found} found"));
        must(self.device_adds > 0 && self.cpu_adds > 0, "one of them did not count".to_string());
        must(self.moved > 0, "nothing moved".to_string());
        let disturbed = self.reads_disturbed;
        must(disturbed == 0, format!("{disturbed} faults and stalls of writes count as of reads"));
        must(self.stale_hits == 0, format!("{} stale hits", self.stale_hits));
        broken
    }

    /// Summary in a few lines.
    pub fn text(&self) -> String {
        let lost = self.device_adds.abs_diff(self.device_found);
        let lost = lost + self.cpu_adds.abs_diff(self.cpu_found);
        let lost = if lost == 0 { "none".to_string() } else { lost.to_string() };
        format!(
            "Engine and CPU count in the same pages during {} trips ({} pages moved):\n\
             {} additions by the engine and {} by the CPU, {lost} lost; {} engine writes waited,\n\
             {:.1} ms in sum.\n",
            self.trips,
            self.moved,
            self.device_adds,
            self.cpu_adds,
            self.write_stalls,
            self.write_stall_ms
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writers() -> Writers {
        Writers {
            trips: 1,
            moved: 10,
            switched: 5,
            device_adds: 100,
            device_found: 100,
            cpu_adds: 50,
            cpu_found: 50,
            reads_disturbed: 0,
            write_stalls: 3,
            write_stall_ms: 1.0,
            stale_hits: 0,
        }
    }

    #[test]
    fn bounds_are_enforced() {
        assert!(writers().broken_bounds().is_empty());
        assert!(writers().text().contains("none lost"));
        let lost = Writers { cpu_found: 49, ..writers() };
        assert_eq!(lost.broken_bounds(), ["writers: 50 additions by the CPU, 49 found"]);
        assert!(lost.text().contains("1 lost"));
        assert_eq!(Writers { reads_disturbed: 1, ..writers() }.broken_bounds().len(), 1);
        assert_eq!(Writers { moved: 0, stale_hits: 1, ..writers() }.broken_bounds().len(), 2);
    }
}

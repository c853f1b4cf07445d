// SPDX-License-Identifier: GPL-2.0
//! Measures an engine that reads and checks its working set in a loop while the working set
//! migrates.

use anyhow::{
    bail,
    ensure,
    Context,
    Result, //
};
use hmm::engine::{
    checksum_of_pattern,
    Way, //
};
use hmm::{
    Command,
    Device,
    EngineOp,
    Job,
    Mapping,
    HUGE_SIZE,
    PAGE_SIZE, //
};
use serde::Serialize;
use std::time::{
    Duration,
    Instant, //
};

/// Parameters of a measurement.
pub struct Run {
    pub mib: usize,
    pub trips: u64,
    pub rounds: u64,
    pub time: Duration,
    pub huge: bool,
    pub faultless: bool,
}

/// Figures of a measurement, from the engine's first round to its end.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Size of a page, see [`size_name`].
    pub pages: &'static str,
    pub faultless: bool,
    pub trips: u64,
    /// Rounds of the engine. The checksum of each was right.
    pub rounds: u64,
    /// Migrated pages, and the number of them whose entry was switched.
    pub moved: u64,
    pub switched: u64,
    pub stayed: u64,
    pub read_faults: u64,
    pub read_stalls: u64,
    pub stall_ms: f64,
    pub stale_hits: u64,
    /// Read rate of the engine, in MiB per second.
    pub read_mib_s: f64,
    /// Migration rate, in MiB per second.
    pub moved_mib_s: f64,
}

/// Maximal time to wait for the engine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Returns the size of a base page, or of a huge page.
fn size_name(huge: bool) -> &'static str {
    match (huge, PAGE_SIZE) {
        (false, 4096) => "4 KiB",
        (true, 4096) => "2 MiB",
        (false, _) => "16 KiB",
        (true, _) => "32 MiB",
    }
}

fn rounds(job: &Job<'_>) -> Result<u64> {
    let (ended, status) = job.poll(Duration::ZERO).context("state of the reader")?;
    if let Some(ended) = ended {
        bail!("the reader has ended: {:?} after {} rounds", ended.error, status.rounds);
    }
    Ok(status.rounds)
}

impl Run {
    /// Describes the parameters in one line.
    pub fn name(&self) -> String {
        let size = size_name(self.huge);
        let way = if self.faultless { "faultless" } else { "ordinary" };
        format!("{} MiB of {size} pages, {way}", self.mib)
    }

    /// Migrates the working set back and forth until the minimal number of trips and rounds and the
    /// minimal time are reached.
    pub fn measure(&self, device: &Device) -> Result<Row> {
        let blocks = ((self.mib << 20) / HUGE_SIZE).max(1);
        let map =
            if self.huge { Mapping::anon_huge(blocks)? } else { Mapping::anon_aligned(blocks)? };
        map.fill(7);
        let sum = checksum_of_pattern(7, map.pages());
        let read = Command::new(EngineOp::Checksum, map.addr(), map.len()).verify(sum);
        let first = device.run(read).context("first pass")?;
        ensure!(first.error.is_none(), "the first pass failed: {:?}", first.error);

        let before = device.counters()?;
        let job = device.submit(read.rounds(0)).context("reader")?;
        let begin = Instant::now();
        let mut row = Row {
            pages: size_name(self.huge),
            faultless: self.faultless,
            trips: 0,
            rounds: 0,
            moved: 0,
            switched: 0,
            stayed: 0,
            read_faults: 0,
            read_stalls: 0,
            stall_ms: 0.0,
            stale_hits: 0,
            read_mib_s: 0.0,
            moved_mib_s: 0.0,
        };
        let mut moving = 0u64;
        let enough = |row: &Row| row.trips >= self.trips && row.rounds >= self.rounds;
        while !enough(&row) || begin.elapsed() < self.time {
            ensure!(begin.elapsed() < PATIENCE + self.time, "the engine is too slow: {row:?}");
            for way in [Way::ToDevice, Way::ToSystem] {
                let way = way.faultless(self.faultless);
                let done = device.migrate(map.addr(), map.pages(), way).context("migration")?;
                row.moved += done.moved;
                row.switched += done.switched;
                row.stayed += done.skipped + done.no_memory + done.copy_failed;
                moving += done.ns;
            }
            row.trips += 1;
            row.rounds = rounds(&job)?;
        }
        let seconds = begin.elapsed().as_secs_f64();
        let after = device.counters()?;
        let ended = job.finish().context("end of the reader")?;
        ensure!(ended.error.is_none(), "the reader failed: {:?}", ended.error);
        map.check(7).context("contents at the end")?;
        row.read_faults = after.engine_faults_read - before.engine_faults_read;
        row.read_stalls = after.stalls_read - before.stalls_read;
        row.stall_ms = (after.stall_ns_read - before.stall_ns_read) as f64 / 1e6;
        row.stale_hits = after.stale_hits - before.stale_hits;
        let mib = (after.bytes_read - before.bytes_read) as f64 / f64::from(1 << 20);
        row.read_mib_s = mib / seconds;
        row.moved_mib_s =
            (row.moved * PAGE_SIZE as u64) as f64 / f64::from(1 << 20) / (moving as f64 / 1e9);
        Ok(row)
    }
}

impl Row {
    /// Describes each bound that is not met.
    pub fn broken_bounds(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let way = if self.faultless { "faultless" } else { "ordinary" };
        let mut must = |met: bool, what: String| {
            if !met {
                broken.push(format!("{} pages, {way}: {what}", self.pages));
            }
        };
        must(self.moved > 0, "nothing moved".to_string());
        must(self.stale_hits == 0, format!("{} stale hits", self.stale_hits));
        if self.faultless {
            must(self.read_faults == 0, format!("{} read faults", self.read_faults));
            must(self.read_stalls == 0, format!("{} read stalls", self.read_stalls));
            must(self.switched > 0, "no entry was switched".to_string());
        } else {
            // Ordinary migrations disturb reads; if nothing is counted here, the counters do not
            // work.
            must(self.read_faults > 0, "no read fault".to_string());
            must(self.read_stalls > 0, "no read stall".to_string());
        }
        broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(faultless: bool, faults: u64) -> Row {
        Row {
            pages: "4 KiB",
            faultless,
            trips: 1,
            rounds: 1,
            moved: 10,
            switched: if faultless { 10 } else { 0 },
            stayed: 0,
            read_faults: faults,
            read_stalls: faults,
            stall_ms: 0.0,
            stale_hits: 0,
            read_mib_s: 1.0,
            moved_mib_s: 1.0,
        }
    }

    #[test]
    fn bounds_are_enforced() {
        assert!(row(true, 0).broken_bounds().is_empty());
        assert_eq!(row(true, 1).broken_bounds().len(), 2);
        assert!(row(false, 3).broken_bounds().is_empty());
        assert_eq!(row(false, 0).broken_bounds().len(), 2);
        assert_eq!(Row { stale_hits: 1, ..row(true, 0) }.broken_bounds().len(), 1);
        assert_eq!(Row { moved: 0, switched: 0, ..row(true, 0) }.broken_bounds().len(), 2);
    }
}

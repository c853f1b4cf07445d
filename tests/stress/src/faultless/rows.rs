// SPDX-License-Identifier: GPL-2.0
//! Rows in which engines must run on undisturbed: beside CPU threads that touch device memory,
//! other mirrors, evictions, and migrations of neighbouring pages.

pub mod evict;
pub mod touch;
pub mod writers;

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
    Counters,
    Device,
    EngineOp,
    Job,
    Mapping,
    HUGE_PAGES, //
};
use serde::Serialize;
use std::sync::atomic::{
    AtomicBool,
    AtomicU64,
    Ordering::Relaxed, //
};
use std::thread::ScopedJoinHandle;
use std::time::{
    Duration,
    Instant, //
};

/// Seed of the contents that engines read.
const SEED: u64 = 7;

/// Maximal time to wait for the engines and the threads of a row.
const PATIENCE: Duration = Duration::from_secs(300);

/// Minimal amount of work in a row.
#[derive(Clone, Copy)]
pub struct Size {
    /// Number of the device.
    pub device: u32,
    /// Minimal number of trips of each thread.
    pub trips: u64,
    /// Minimal number of rounds of each engine.
    pub rounds: u64,
    /// Minimal duration.
    pub time: Duration,
}

impl Size {
    fn open(&self) -> Result<Device> {
        Device::open(self.device).context("the device")
    }
}

/// Events that must have occurred besides migrations. Without them a row would prove nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Besides {
    /// CPU faults migrated pages back.
    pub cpu_faults: bool,
    /// Pages were evicted.
    pub evictions: bool,
    /// Engines wrote to pages while these migrated. A write may wait only for the step of its own
    /// block.
    pub writes_wait: bool,
}

/// Figures of a row.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    pub name: &'static str,
    pub besides: Besides,
    /// Sum of the trips of all threads.
    pub trips: u64,
    /// Rounds of the slowest engine.
    pub rounds: u64,
    /// Pages migrated by calls, and the number of them whose entry was switched.
    pub moved: u64,
    pub switched: u64,
    /// Pages migrated back by CPU faults, and evicted pages.
    pub touched: u64,
    pub evicted: u64,
    pub read_faults: u64,
    pub read_stalls: u64,
    pub write_faults: u64,
    pub write_stalls: u64,
    /// In microseconds: the time that engines waited in total, the longest wait, the longest call
    /// that migrates, and, if calls of one block were made, their mean and their longest duration.
    pub waited_us: u64,
    pub longest_wait_us: u64,
    pub longest_call_us: u64,
    pub mean_step_us: u64,
    pub longest_step_us: u64,
    pub stale_hits: u64,
    /// Additions by engines, and the sum found in memory afterwards.
    pub added: u64,
    pub found: u64,
}

impl Row {
    /// Describes each bound that is not met.
    pub fn broken_bounds(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let mut must = |met: bool, what: String| {
            if !met {
                broken.push(format!("{}: {what}", self.name));
            }
        };
        must(self.moved > 0, "nothing moved".to_string());
        must(self.touched > 0 || !self.besides.cpu_faults, "no CPU fault".to_string());
        must(self.evicted > 0 || !self.besides.evictions, "no eviction".to_string());
        must(self.read_faults == 0, format!("{} read faults", self.read_faults));
        must(self.read_stalls == 0, format!("{} read stalls", self.read_stalls));
        if self.besides.writes_wait {
            must(self.write_stalls > 0, "no write waited".to_string());
            // A block is announced when the copies of the one before it are outstanding, so that a
            // write to it can wait for two steps. On average it waits for one, because the engine
            // accesses the blocks in the order in which they migrate.
            let longest = self.longest_wait_us;
            let step = self.longest_step_us;
            must(
                longest <= 2 * step,
                format!("a write waited {longest} us, the longest step took {step} us"),
            );
            let mean = self.waited_us / self.write_stalls.max(1);
            let step = self.mean_step_us;
            must(2 * mean <= 3 * step, format!("writes waited {mean} us, steps take {step} us"));
        } else {
            must(self.write_faults == 0, format!("{} write faults", self.write_faults));
            must(self.write_stalls == 0, format!("{} write stalls", self.write_stalls));
        }
        let added = self.added;
        let found = self.found;
        must(added == found, format!("{added} additions, {found} found"));
        must(self.stale_hits == 0, format!("{} stale hits", self.stale_hits));
        broken
    }

    /// Adds the faults, stalls and stale hits that `device` counted since `before`.
    fn count(&mut self, device: &Device, before: &Counters) -> Result<()> {
        let after = device.counters()?;
        self.read_faults += after.engine_faults_read - before.engine_faults_read;
        self.read_stalls += after.stalls_read - before.stalls_read;
        self.write_faults += after.engine_faults_write - before.engine_faults_write;
        self.write_stalls += after.stalls_write - before.stalls_write;
        self.waited_us += (after.stall_ns_read - before.stall_ns_read) / 1000;
        self.waited_us += (after.stall_ns_write - before.stall_ns_write) / 1000;
        self.stale_hits += after.stale_hits - before.stale_hits;
        Ok(())
    }

    /// Adds the pages that CPU faults and evictions removed from the device's memory since
    /// `before`.
    fn count_memory(&mut self, device: &Device, before: &Counters) -> Result<()> {
        let after = device.counters()?;
        self.touched += after.cpu_fault_pages - before.cpu_fault_pages;
        self.evicted += after.evicted_pages - before.evicted_pages;
        Ok(())
    }
}

/// Starts an engine that reads and checks `map` in an endless loop. Its first pass has ended.
fn reader<'d>(device: &'d Device, map: &Mapping, engine: u32) -> Result<Job<'d>> {
    let read = Command::new(EngineOp::Checksum, map.addr(), map.len());
    let read = read.verify(checksum_of_pattern(SEED, map.pages())).engine(engine);
    let first = device.run(read).context("first pass")?;
    ensure!(first.error.is_none(), "the first pass failed: {:?}", first.error);
    device.submit(read.rounds(0)).context("reader")
}

/// Starts an engine that adds 1 to the first word of each of `pages` pages, in an endless loop. Its
/// first pass has ended, so the device has written to all of them.
fn adder<'d>(device: &'d Device, map: &Mapping, pages: usize) -> Result<Job<'d>> {
    let add = Command::new(EngineOp::AtomicAdd, map.addr(), pages * hmm::PAGE_SIZE);
    let add = add.stride(hmm::PAGE_SIZE).value(1);
    let first = device.run(add).context("first pass")?;
    ensure!(first.error.is_none(), "the first pass failed: {:?}", first.error);
    device.submit(add.rounds(0)).context("writer")
}

/// Stops the engines. Fails if one of them has failed.
fn finish(jobs: &[Job<'_>]) -> Result<()> {
    for job in jobs {
        let ended = job.finish().context("end of an engine")?;
        ensure!(ended.error.is_none(), "an engine failed: {:?}", ended.error);
    }
    Ok(())
}

/// Returns the rounds of the slowest engine.
fn fewest(jobs: &[Job<'_>]) -> Result<u64> {
    let mut fewest = u64::MAX;
    for job in jobs {
        let (ended, status) = job.poll(Duration::ZERO).context("state of an engine")?;
        if let Some(ended) = ended {
            bail!("an engine has ended: {:?} after {} rounds", ended.error, status.rounds);
        }
        fewest = fewest.min(status.rounds);
    }
    Ok(fewest)
}

/// State of a thread's loop: the flag that ends it, and the number of its trips.
struct Moves<'a> {
    stop: &'a AtomicBool,
    trips: &'a AtomicU64,
}

/// Pages that a thread has migrated.
#[derive(Clone, Copy, Default)]
struct Done {
    moved: u64,
    switched: u64,
    /// Duration of the longest call, in microseconds.
    longest_us: u64,
    /// Calls of one block, the sum of their durations and the longest one, in microseconds.
    steps: u64,
    steps_us: u64,
    longest_step_us: u64,
}

impl Done {
    /// Migrates some pages of `map`.
    fn migrate(
        &mut self,
        device: &Device,
        map: &Mapping,
        pages: std::ops::Range<usize>,
        way: Way,
    ) -> Result<()> {
        let addr = map.page_addr(pages.start);
        let begin = Instant::now();
        let done = device.migrate(addr, pages.len(), way).context("migration")?;
        let us = begin.elapsed().as_micros() as u64;
        self.longest_us = self.longest_us.max(us);
        if pages.len() == HUGE_PAGES {
            self.steps += 1;
            self.steps_us += us;
            self.longest_step_us = self.longest_step_us.max(us);
        }
        self.moved += done.moved;
        self.switched += done.switched;
        Ok(())
    }
}

impl Moves<'_> {
    fn run(&self, mut trip: impl FnMut(&mut Done) -> Result<()>) -> Result<Done> {
        let mut done = Done::default();
        while !self.stop.load(Relaxed) {
            trip(&mut done)?;
            self.trips.fetch_add(1, Relaxed);
        }
        Ok(done)
    }
}

/// Repeats `trip` in `threads` threads, each of which gets its number, until the amount of work
/// that `size` demands is done.
fn while_running(
    size: &Size,
    threads: usize,
    jobs: &[Job<'_>],
    row: &mut Row,
    trip: impl Fn(usize, &mut Done) -> Result<()> + Sync,
) -> Result<Done> {
    let stop = AtomicBool::new(false);
    let trips: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
    let begin = Instant::now();
    let sum = std::thread::scope(|scope| -> Result<Done> {
        let stop = &stop;
        let trip = &trip;
        let all: Vec<ScopedJoinHandle<'_, Result<Done>>> = trips
            .iter()
            .enumerate()
            .map(|(number, trips)| {
                scope.spawn(move || Moves { stop, trips }.run(|done| trip(number, done)))
            })
            .collect();
        let enough = loop {
            let rounds = fewest(jobs);
            let trips = trips.iter().map(|trips| trips.load(Relaxed)).min().unwrap_or(0);
            let enough = match &rounds {
                Ok(rounds) => trips >= size.trips && *rounds >= size.rounds,
                Err(_) => true,
            };
            let late = begin.elapsed() >= size.time + PATIENCE;
            let ended = all.iter().any(ScopedJoinHandle::is_finished);
            if enough && (rounds.is_err() || begin.elapsed() >= size.time) || late || ended {
                break rounds.and_then(|rounds| {
                    ensure!(!late, "too slow: {rounds} rounds, {trips} trips");
                    Ok(rounds)
                });
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        stop.store(true, Relaxed);
        let mut sum = Done::default();
        for thread in all {
            let done = thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            sum.moved += done.moved;
            sum.switched += done.switched;
            sum.longest_us = sum.longest_us.max(done.longest_us);
            sum.steps += done.steps;
            sum.steps_us += done.steps_us;
            sum.longest_step_us = sum.longest_step_us.max(done.longest_step_us);
        }
        row.rounds = enough?;
        Ok(sum)
    })?;
    row.trips = trips.iter().map(|trips| trips.load(Relaxed)).sum();
    row.moved = sum.moved;
    row.switched = sum.switched;
    row.longest_call_us = sum.longest_us;
    row.mean_step_us = sum.steps_us / sum.steps.max(1);
    row.longest_step_us = sum.longest_step_us;
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row { name: "row", moved: 10, added: 5, found: 5, ..Row::default() }
    }

    #[test]
    fn faults_and_stalls_break_a_row() {
        assert!(row().broken_bounds().is_empty());
        for broken in [
            Row { read_faults: 1, ..row() },
            Row { read_stalls: 1, ..row() },
            Row { write_faults: 1, ..row() },
            Row { write_stalls: 1, ..row() },
            Row { stale_hits: 1, ..row() },
            Row { found: 4, ..row() },
            Row { besides: Besides { writes_wait: true, ..Besides::default() }, ..row() },
            Row { moved: 0, ..row() },
        ] {
            assert_eq!(broken.broken_bounds().len(), 1, "{broken:?}");
        }
    }

    #[test]
    fn row_without_activity_is_broken() {
        let besides = Besides { cpu_faults: true, evictions: true, writes_wait: false };
        assert_eq!(Row { besides, ..row() }.broken_bounds().len(), 2);
        assert!(Row { besides, touched: 1, evicted: 1, ..row() }.broken_bounds().is_empty());
    }

    #[test]
    fn write_wait_is_bounded_by_two_steps() {
        let besides = Besides { writes_wait: true, ..Besides::default() };
        let waited = Row {
            besides,
            write_stalls: 2,
            longest_call_us: 1000,
            mean_step_us: 20,
            longest_step_us: 50,
            ..row()
        };
        let waited =
            |waited_us, longest_wait_us| Row { waited_us, longest_wait_us, ..waited.clone() };
        assert!(waited(60, 100).broken_bounds().is_empty());
        assert_eq!(waited(62, 100).broken_bounds().len(), 1);
        assert_eq!(waited(60, 101).broken_bounds().len(), 1);
    }
}

// SPDX-License-Identifier: GPL-2.0
//! Measures how copies overlap. A queue, and one call of a thread, migrate 64 blocks of 2 MiB. The
//! copy engine takes a fixed time for each block. The total time must be at most 1.25 times the
//! larger of two sums:
//!
//! - the CPU's work, which is the time without any delay,
//! - the delays of all copies.

use anyhow::{
    bail,
    ensure,
    Context,
    Result, //
};
use hmm::{
    engine::Way,
    Device,
    Mapping,
    QueueOp,
    Setting,
    HUGE_PAGES,
    HUGE_SIZE, //
};
use std::time::{
    Duration,
    Instant, //
};

/// The bound in per cent.
const BOUND: u128 = 125;

/// Copy delays, in quarters of the CPU's work on a block.
const QUARTERS: [u32; 9] = [0, 1, 2, 3, 4, 6, 8, 12, 16];

/// Measures how copies overlap with each other and with the CPU's work
#[derive(clap::Args)]
pub struct Args {
    /// Index of the device
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Blocks of 2 MiB
    #[arg(long, default_value_t = 64)]
    blocks: usize,
    /// Number of runs, of which the best counts, because the machine may be busy meanwhile
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Move the blocks one after the other, to see the bound fail
    #[arg(long)]
    serial: bool,
}

/// Method by which the blocks are migrated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// By one operation of a queue.
    Queue,
    /// By one call.
    Call,
    /// By operations of a queue, each of which is submitted when the previous one has ended.
    Serial,
}

impl How {
    fn name(self) -> &'static str {
        match self {
            How::Queue => "a queue",
            How::Call => "one call",
            How::Serial => "one operation after the other",
        }
    }
}

struct Bench {
    device: Device,
    map: Mapping,
    how: How,
}

impl Bench {
    /// Migrates all blocks with this copy delay, and migrates them back. Returns the time of the
    /// first migration.
    fn once(&self, delay: Duration) -> Result<Duration> {
        let queue = self.device.queue().context("make a queue")?;
        self.device.set(Setting::CopyDelay, delay.as_nanos() as u64).context("set the delay")?;
        let begin = Instant::now();
        let moved = match self.how {
            How::Call => {
                let addr = self.map.addr();
                let pages = self.map.pages();
                self.device.migrate(addr, pages, Way::ToDevice).context("migrate")?.moved
            }
            How::Queue => {
                let all = QueueOp::migrate(self.map.addr(), self.map.len());
                queue.submit(all, &[]).context("submit")?.done().context("migrate")?.moved
            }
            How::Serial => {
                let mut moved = 0;
                for block in 0..self.map.pages() / HUGE_PAGES {
                    let addr = self.map.page_addr(block * HUGE_PAGES);
                    let one = queue.submit(QueueOp::migrate(addr, HUGE_SIZE), &[]);
                    moved += one.context("submit")?.done().context("migrate")?.moved;
                }
                moved
            }
        };
        let took = begin.elapsed();
        self.device.set(Setting::CopyDelay, 0).context("set the delay back")?;
        let back = QueueOp::evict(self.map.addr(), self.map.len());
        let back = queue.submit(back, &[]).context("submit")?.done().context("evict")?.moved;
        let pages = self.map.pages() as u64;
        ensure!((moved, back) == (pages, pages), "{moved} pages moved, {back} came back");
        Ok(took)
    }

    fn best(&self, delay: Duration, runs: u32) -> Result<Duration> {
        let mut best = self.once(delay)?;
        for _ in 1..runs {
            best = best.min(self.once(delay)?);
        }
        Ok(best)
    }
}

/// Measures each method, and fails if the bound is not met.
pub fn main(args: &Args) -> Result<()> {
    let all = if args.serial { &[How::Serial][..] } else { &[How::Queue, How::Call] };
    let mut good = true;
    for how in all {
        good &= measure_how(args, *how)?;
    }
    ensure!(good, "the bound is not met");
    Ok(())
}

fn measure_how(args: &Args, how: How) -> Result<bool> {
    let device = Device::open(args.device).context("open the device")?;
    let map = Mapping::anon_huge(args.blocks).context("map the blocks")?;
    map.fill(1);
    let bench = Bench { device, map, how };
    let blocks = u32::try_from(args.blocks)?;
    if blocks == 0 {
        bail!("no blocks");
    }
    // The first migration adds device memory.
    bench.once(Duration::ZERO)?;
    let cpu = bench.best(Duration::ZERO, args.runs)?;
    let name = how.name();
    let work = cpu.as_micros();
    println!("{blocks} blocks of 2 MiB by {name}; the CPU's work is {work} us");
    println!(
        "{:>12} {:>12} {:>12} {:>12} {:>10}",
        "copy, us", "copies, us", "took, us", "bound, us", "of larger"
    );
    let mut good = true;
    for quarters in QUARTERS {
        let delay = cpu * quarters / 4 / blocks;
        let copies = delay * blocks;
        let larger = cpu.max(copies);
        let took = bench.best(delay, args.runs)?;
        let bound = larger.as_nanos() * BOUND / 100;
        let met = took.as_nanos() <= bound;
        good &= met;
        println!(
            "{:>12} {:>12} {:>12} {:>12} {:>10.2}{}",
            delay.as_micros(),
            copies.as_micros(),
            took.as_micros(),
            bound / 1000,
            took.as_secs_f64() / larger.as_secs_f64(),
            if met { "" } else { "  not met" },
        );
    }
    bench.map.check(1).context("contents")?;
    Ok(good)
}

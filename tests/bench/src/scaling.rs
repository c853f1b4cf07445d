// SPDX-License-Identifier: GPL-2.0
//! Measures how the service of device faults scales with the number of engines. Each engine uses a
//! range of its own in the same mirror.
//!
//! The result is the number of faults completed per acquisition of the mirror's table lock. Retries
//! acquire the lock, too. If the kernel has `lock_stat`, it gives the acquisitions, contentions and
//! times of the lock. Otherwise the driver's counters give the acquisitions.

use anyhow::{
    Context,
    Result, //
};
use hmm::engine::{
    Command,
    EngineOp, //
};
use hmm::mapping::Mapping;
use hmm::{
    pattern,
    Device,
    PAGE_SIZE, //
};
use serde_json::{
    json,
    Value, //
};
use std::time::Instant;

const LOCK_STAT: &str = "/proc/lock_stat";
const SWITCH: &str = "/proc/sys/kernel/lock_stat";

/// Measures how device faults scale with the number of engines
#[derive(clap::Args)]
pub struct Args {
    /// Numbers of engines, ascending.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4")]
    engines: Vec<u32>,
    /// Pages that each engine touches.
    #[arg(long, default_value_t = 2048)]
    pages: usize,
    /// Repetitions, of which the median of the ratio counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Minimal part of linear scaling.
    #[arg(long, default_value_t = 0.8)]
    limit: f64,
    /// Name of the lock in lock_stat.
    #[arg(long, default_value = "dmirror::table")]
    lock: String,
}

/// Figures of lock_stat for a lock; times in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Lock {
    contentions: f64,
    waited: f64,
    acquisitions: f64,
    held: f64,
}

/// Parses the line of lock `name`, whose last twelve words are numbers.
fn parse(text: &str, name: &str) -> Option<Lock> {
    text.lines().find_map(|line| {
        let (before, _) = line.rsplit_once(':')?;
        let words: Vec<f64> = line[before.len() + 1..]
            .split_whitespace()
            .map_while(|word| word.parse().ok())
            .collect();
        let [_, contentions, _, _, waited, _, _, acquisitions, _, _, held, _] = words[..] else {
            return None;
        };
        before.trim().ends_with(name).then_some(Lock { contentions, waited, acquisitions, held })
    })
}

/// Resets the figures. Returns `false` if the kernel has no lock_stat.
fn clear() -> bool {
    let _ = std::fs::write(SWITCH, "1");
    std::fs::write(LOCK_STAT, "0").is_ok()
}

/// Measurement with one number of engines.
struct Point {
    engines: u32,
    faults: f64,
    holds: f64,
    retries: f64,
    ns: f64,
    lock: Option<Lock>,
}

impl Point {
    fn per_hold(&self) -> f64 {
        self.faults / self.holds
    }
}

fn measure(args: &Args, engines: u32) -> Result<Point> {
    let device = Device::open(0)?;
    let there = device.info()?.engines;
    anyhow::ensure!(engines <= there, "the device has {there} engines");
    let mut maps = Vec::new();
    for index in 0..engines {
        let map = Mapping::anon(args.pages)?;
        map.fill(u64::from(index) + 1);
        maps.push(map);
    }
    let before = device.counters()?;
    let counting = clear();
    let begin = Instant::now();
    let mut jobs = Vec::new();
    for (index, map) in maps.iter().enumerate() {
        let touch = Command::new(EngineOp::Strided, map.addr(), map.len()).stride(PAGE_SIZE);
        jobs.push(device.submit(touch.engine(index as u32))?);
    }
    let mut sums = Vec::new();
    for job in &jobs {
        sums.push(job.wait()?.status.result);
    }
    let ns = begin.elapsed().as_nanos() as f64;
    let text = if counting { std::fs::read_to_string(LOCK_STAT)? } else { String::new() };
    let after = device.counters()?;
    for (index, sum) in sums.iter().enumerate() {
        let words = (0..args.pages).map(|page| pattern::word(index as u64 + 1, page, 0));
        let expected = words.fold(0u64, u64::wrapping_add);
        anyhow::ensure!(*sum == expected, "engine {index} read {sum:#x}, not {expected:#x}");
    }
    let faults = (after.engine_faults_read - before.engine_faults_read) as f64;
    anyhow::ensure!(faults > 0.0, "no engine has faulted");
    let retries = (after.retries - before.retries) as f64;
    let lock = if counting {
        Some(parse(&text, &args.lock).with_context(|| format!("no lock {}", args.lock))?)
    } else {
        None
    };
    // Each batch of faults acquires the lock once, and once more for each retry.
    let tries = (after.fault_batches - before.fault_batches) as f64 + retries;
    let holds = lock.map_or(tries, |lock| lock.acquisitions);
    Ok(Point { engines, faults, holds, retries, ns, lock })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Measures each number of engines, and fails if one is below the limit.
pub fn main(args: &Args) -> Result<()> {
    let mut rounds: Vec<Vec<Point>> = Vec::new();
    for _ in 0..args.rounds.max(1) {
        let points = args.engines.iter().map(|engines| measure(args, *engines));
        rounds.push(points.collect::<Result<_>>()?);
    }
    let mut rows = [
        ("completed faults, for each hold of the table lock", Vec::new()),
        ("completed faults per second", Vec::new()),
    ];
    let mut low = Vec::new();
    let mut table: Vec<Value> = Vec::new();
    for index in 0..args.engines.len() {
        let engines = f64::from(args.engines[index]);
        let first = f64::from(args.engines[0]);
        let of =
            |value: &dyn Fn(&[Point]) -> f64| median(rounds.iter().map(|r| value(r)).collect());
        // Scaling is linear if an acquisition completes as many faults as with the first number of
        // engines.
        let part = of(&|points| points[index].per_hold() / points[0].per_hold());
        let rate = of(&|points| points[index].faults / points[index].ns * 1e9);
        rows[0].1.push(json!({ "engines": engines, "value": engines / first * of(&|points| points[index].per_hold()) }));
        rows[1].1.push(json!({ "engines": engines, "value": rate }));
        let lock = |value: &dyn Fn(&Lock) -> f64| {
            of(&|points| points[index].lock.as_ref().map_or(0.0, value))
        };
        let line = json!({
            "engines": engines, "part_of_linear": part, "faults_per_second": rate,
            "faults": of(&|points| points[index].faults), "holds": of(&|points| points[index].holds),
            "retries": of(&|points| points[index].retries),
            "contentions": lock(&|lock| lock.contentions), "wait_us": lock(&|lock| lock.waited),
            "hold_us": lock(&|lock| lock.held),
        });
        eprintln!("{line}");
        table.push(line);
        if part < args.limit {
            low.push(rounds[0][index].engines);
        }
    }
    let rows = rows.map(|(row, points)| json!({ "row": row, "points": points }));
    println!(
        "{}",
        json!({ "rows": rows, "table": table, "lock_stat": rounds[0][0].lock.is_some() })
    );
    anyhow::ensure!(low.is_empty(), "with {low:?} engines it is less than {} x linear", args.limit);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_is_found_by_its_name() {
        let text = "lock_stat version 0.4\n\
            class name    con-bounces    contentions\n\
            &mm->mmap_lock-R:  1 2 0.1 0.2 0.3 0.4 5 6 0.7 0.8 0.9 1.0\n\
            dmirror::table:  1 7 0.10 0.20 30.5 0.4 5 600 0.7 0.8 90.5 1.0\n\
            --------------\n\
            dmirror::table  3 [<00000000>] something+0x1/0x2\n";
        let lock = Lock { contentions: 7.0, waited: 30.5, acquisitions: 600.0, held: 90.5 };
        assert_eq!(parse(text, "dmirror::table"), Some(lock));
        assert_eq!(parse(text, "other"), None);
    }
}

// SPDX-License-Identifier: GPL-2.0
//! Results of a run.

use crate::{
    calls::{
        Op,
        NAMES,
        OPS, //
    },
    stats::{
        Shared,
        WORDS, //
    }, //
};
use hmm::Errno;
use serde::Serialize;
use std::sync::atomic::Ordering::Relaxed;

/// Results of one kind of call.
#[derive(Debug, Serialize)]
pub struct Line {
    /// Its name.
    pub call: &'static str,
    /// Number of calls.
    pub calls: u64,
    /// Number of successful calls.
    pub ok: u64,
    /// Errors, the most frequent first.
    pub errors: Vec<(String, u64)>,
    /// Total wall time, in ms.
    pub total_ms: f64,
    /// Longest wall time in ms.
    pub max_ms: f64,
    /// Longest CPU time, in ms.
    pub max_cpu_ms: f64,
}

/// Results of the run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Seed that reproduces the calls of each thread.
    pub seed: u64,
    /// Total number of calls.
    pub calls: u64,
    /// Duration.
    pub seconds: f64,
    /// Calls per second.
    pub per_second: f64,
    /// Number of processes, and of those killed during calls.
    pub processes: [u64; 2],
    /// Number of times that the victim's memory was read and checked by its device and its CPU.
    pub checks: u64,
    /// Pages of the victim that were migrated to a device.
    pub moved: u64,
    /// Results by kind of call.
    pub lines: Vec<Line>,
}

/// Results by kind of call.
pub fn lines(shared: &Shared, ticks_per_ms: f64) -> Vec<Line> {
    (0..OPS)
        .map(|index| {
            let stats = &shared.ops[index];
            let results = stats.results.iter().map(|count| count.load(Relaxed));
            let counts: Vec<u64> = results.collect();
            let mut errors: Vec<(String, u64)> = counts
                .iter()
                .enumerate()
                .skip(1)
                .filter(|(_, count)| **count != 0)
                .map(|(errno, count)| (Errno(errno as i32).to_string(), *count))
                .collect();
            errors.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            Line {
                call: NAMES[index],
                calls: counts.iter().sum(),
                ok: counts[0],
                errors,
                total_ms: stats.total.load(Relaxed) as f64 / ticks_per_ms,
                max_ms: stats.wall.load(Relaxed) as f64 / ticks_per_ms,
                max_cpu_ms: stats.cpu.load(Relaxed) as f64 / 1e6,
            }
        })
        .collect()
}

/// Prints a table.
pub fn print(report: &Report) {
    println!(
        "{:<30} {:>9} {:>9} {:>9} {:>9} {:>9}  errors",
        "call", "calls", "ok", "sum ms", "max ms", "max cpu"
    );
    for line in &report.lines {
        let errors: Vec<String> =
            line.errors.iter().take(6).map(|(name, count)| format!("{name} {count}")).collect();
        println!(
            "{:<30} {:>9} {:>9} {:>9.0} {:>9.2} {:>9.2}  {}",
            line.call,
            line.calls,
            line.ok,
            line.total_ms,
            line.max_ms,
            line.max_cpu_ms,
            errors.join(", ")
        );
    }
    let longest = report.lines.iter().filter(|line| line.call != NAMES[Op::Wait as usize]);
    let by_cpu = longest.clone().max_by(|a, b| a.max_cpu_ms.total_cmp(&b.max_cpu_ms));
    let by_wall = longest.max_by(|a, b| a.max_ms.total_cmp(&b.max_ms));
    if let (Some(cpu), Some(wall)) = (by_cpu, by_wall) {
        println!("most processor time: {:.2} ms in {}", cpu.max_cpu_ms, cpu.call);
        println!("most time: {:.2} ms in {}", wall.max_ms, wall.call);
    }
    println!(
        "{} calls in {:.1} s, {:.0} a second, by {} processes of which {} were killed in the middle; \
         {} checks of another process's memory, of which {} pages moved; seed {}",
        report.calls,
        report.seconds,
        report.per_second,
        report.processes[0],
        report.processes[1],
        report.checks,
        report.moved,
        report.seed
    );
}

/// Number of calls after which at least one must have succeeded. Success is rare for calls that
/// need the number of an existing queue, fence or lock.
const TRIES: u64 = 400;

/// Kinds of calls that never succeeded in enough attempts, so that the run did not cover them.
pub fn never_succeeded(lines: &[Line], hardware: bool) -> Vec<&'static str> {
    // The nodes support neither write() nor lseek(), and the unplug never has the correct flags.
    let never = [Op::WriteFd, Op::Lseek, Op::Unplug].map(|op| NAMES[op as usize]);
    // `qemu_gpu` has no event stream and no test parameters.
    let no_events = [Op::ReadFd, Op::Set].map(|op| NAMES[op as usize]);
    let cannot = |call| never.contains(&call) || (hardware && no_events.contains(&call));
    lines
        .iter()
        .filter(|line| line.ok == 0 && line.calls >= TRIES && !cannot(line.call))
        .map(|line| line.call)
        .collect()
}

/// Describes a running call.
pub fn describe(op: u32, words: &[u64; WORDS]) -> String {
    let name = NAMES.get(op.wrapping_sub(1) as usize).unwrap_or(&"?");
    let words: Vec<String> = words.iter().map(|word| format!("{word:#x}")).collect();
    format!("{name}: request, argument, descriptor, words: {}", words.join(" "))
}

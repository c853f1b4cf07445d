// SPDX-License-Identifier: GPL-2.0
//! Result of a run.

use crate::torture::hang;
use crate::torture::script::Script;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Failure of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// Description.
    pub text: String,
    /// Lane and operation, if known.
    pub at: Option<(usize, usize)>,
    /// A lane or process made no progress.
    pub hang: bool,
    /// Number of operations that each lane had begun.
    pub begun: Vec<u64>,
    /// All operations were completed: the failure is in the last part, or at the end.
    pub last_part: bool,
}

impl Failure {
    /// A failure without a location.
    pub fn new(text: String) -> Failure {
        Failure { text, at: None, hang: false, begun: Vec::new(), last_part: false }
    }

    /// A hang, with a report of the blocked threads.
    pub fn hang(text: String, at: Option<(usize, usize)>) -> Failure {
        let text = format!("{text}\n{}", hang::report());
        Failure { at, hang: true, ..Failure::new(text) }
    }

    /// Text with the last `count` operations of each lane.
    pub fn tail(&self, script: &Script, count: usize) -> String {
        let mut text = String::new();
        for (lane, (ops, begun)) in script.lanes.iter().zip(&self.begun).enumerate() {
            let end = (*begun as usize).min(ops.len());
            for (index, op) in ops.iter().enumerate().take(end).skip(end.saturating_sub(count)) {
                let mark = if self.at == Some((lane, index)) { " <- here" } else { "" };
                let _ = writeln!(text, "  lane {lane} #{index}: {op:?}{mark}");
            }
        }
        text
    }
}

/// Contents that the model does not determine.
const NOT_COMPARED: [&str; 8] = [
    "pages after MADV_FREE, until they are written: the old contents or zeros are right",
    "words of a command that failed at a page that a userfaultfd handler had to fill: old or new",
    "words of a queued write that a failed copy or a lack of memory has ended: old or new",
    "how far an addition came that was stopped: the first words have it, the others do not",
    "how many pages a migration moves, and which, but for locked ones",
    "which of the copies that were made to fail a bus error is of: each has one of its own",
    "events for which a stream had no room: how many they are",
    "memory of a child that is being killed: only pages that it read before",
];

/// Statistics and result of a run.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Number of operations executed.
    pub ops: u64,
    /// Number of each operation and observation.
    pub counts: BTreeMap<String, u64>,
    /// Sums of the counters of all devices.
    pub devices: BTreeMap<&'static str, u64>,
    /// Bus errors of each lane, and at last of the killed processes. Each follows an injected copy
    /// failure.
    pub bus_errors: Vec<u64>,
    /// Number of processes killed.
    pub killed: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// The failure, if any.
    pub failure: Option<Failure>,
}

impl Outcome {
    /// Formats the result as a table.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "{:<44} {:>10} {:>10}", "", "times", "ms");
        for (name, count) in self.counts.iter().filter(|(name, _)| !name.starts_with("ms ")) {
            let _ = write!(text, "{name:<44} {count:>10}");
            let _ = match self.counts.get(&format!("ms {name}")) {
                Some(us) => writeln!(text, " {:>10}", us / 1000),
                None => writeln!(text),
            };
        }
        for name in ["cpu_fault_pages", "evicted_pages", "copy_failures", "device_pages_used"] {
            let _ =
                writeln!(text, "{name:<44} {:>10}", self.devices.get(name).copied().unwrap_or(0));
        }
        let sum = self.bus_errors.iter().sum::<u64>();
        let each = &self.bus_errors;
        let _ = writeln!(text, "{:<44} {sum:>10} of lanes {each:?}", "bus errors");
        let _ = writeln!(text, "not compared, or not exactly:");
        for line in NOT_COMPARED {
            let _ = writeln!(text, "  {line}");
        }
        let _ = writeln!(
            text,
            "{} operations in {:.1} s, {} processes killed: {}",
            self.ops,
            self.seconds,
            self.killed,
            if self.failure.is_none() { "no mismatch" } else { "FAILED" }
        );
        text
    }
}

// SPDX-License-Identifier: GPL-2.0
//! What came of a run.

use crate::hang;
use crate::script::Script;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// How a run failed.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// What is wrong.
    pub text: String,
    /// Lane and operation, if one is known.
    pub at: Option<(usize, usize)>,
    /// Something does not end.
    pub hang: bool,
    /// Operations that each lane had begun.
    pub begun: Vec<u64>,
    /// All operations were done: it is about a device that was unplugged, or the end.
    pub last_part: bool,
}

impl Failure {
    /// Something is wrong; where is not known yet.
    pub fn new(text: String) -> Failure {
        Failure { text, at: None, hang: false, begun: Vec::new(), last_part: false }
    }

    /// Something does not end.
    pub fn hang(text: String, at: Option<(usize, usize)>) -> Failure {
        let text = format!("{text}\n{}", hang::report());
        Failure { at, hang: true, ..Failure::new(text) }
    }

    /// The last `count` operations of each lane.
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

/// What the model leaves open.
const NOT_COMPARED: [&str; 8] = [
    "pages after MADV_FREE, until they are written: the old contents or zeros are right",
    "words of a command that failed at a page that a userfaultfd handler had to fill: old or new",
    "words of a queued write that a failed copy or a lack of memory has ended: old or new",
    "how far an addition came that was stopped: the first words have it, the others do not",
    "how many pages a migration moves, and which, but for locked ones",
    "which of the copies that were made to fail a bus error is of: each has one of its own",
    "events for which a stream had no room: how many they are",
    "memory of a child at the moment when it is killed: only what it read before",
];

/// What a run did.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Operations done.
    pub ops: u64,
    /// Operations and what was seen, with how often.
    pub counts: BTreeMap<String, u64>,
    /// Counters of the devices, summed up.
    pub devices: BTreeMap<&'static str, u64>,
    /// Bus errors of each lane, the last of processes that are killed: each after a copy that was made to fail.
    pub bus_errors: Vec<u64>,
    /// Processes that were killed.
    pub killed: u64,
    /// Seconds.
    pub seconds: f64,
    /// What went wrong.
    pub failure: Option<Failure>,
}

impl Outcome {
    /// As a table.
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
        let (sum, each) = (self.bus_errors.iter().sum::<u64>(), &self.bus_errors);
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

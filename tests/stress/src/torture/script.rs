// SPDX-License-Identifier: GPL-2.0
//! The operations of all lanes, drawn from a seed or read from a file. The file has one line of
//! JSON for the shape, then one for each operation.

use crate::torture::{
    draw::Draw,
    op::Op, //
};
use anyhow::{
    Context,
    Result, //
};
use serde::{
    Deserialize,
    Serialize, //
};

/// Seed, devices, processes and threads of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Seed of the operations.
    pub seed: u64,
    /// Number of devices, from device 0 on.
    pub devices: usize,
    /// Number of processes.
    pub procs: usize,
    /// Number of threads of each process.
    pub threads: usize,
    /// The device is `qemu_gpu`, which supports few of the mock's ioctls.
    #[serde(default)]
    pub hardware: bool,
    /// Device that is unplugged in the last part of the run, if any.
    #[serde(default)]
    pub unplug: Option<usize>,
}

impl Shape {
    /// Number of threads of all processes.
    pub fn lanes(&self) -> usize {
        self.procs * self.threads
    }
}

#[derive(Serialize, Deserialize)]
struct Line {
    lane: usize,
    op: Op,
}

/// The operations of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The shape that the operations were drawn for.
    pub shape: Shape,
    /// The operations of each lane.
    pub lanes: Vec<Vec<Op>>,
}

impl Script {
    /// Draws `count` operations, divided among the lanes.
    pub fn draw(shape: Shape, count: u64) -> Script {
        let each = count.div_ceil(shape.lanes() as u64);
        let lanes = (0..shape.lanes()).map(|lane| {
            let all = Draw::new(shape.seed, lane as u64, shape.devices);
            if shape.hardware {
                all.filter_map(Op::on_hardware).take(each as usize).collect()
            } else {
                all.take(each as usize).collect()
            }
        });
        Script { shape, lanes: lanes.collect() }
    }

    /// Total number of operations.
    pub fn len(&self) -> usize {
        self.lanes.iter().map(Vec::len).sum()
    }

    /// Formats the script as a file, lane after lane.
    pub fn text(&self) -> String {
        let mut text = serde_json::to_string(&self.shape).unwrap_or_default() + "\n";
        for (lane, ops) in self.lanes.iter().enumerate() {
            for op in ops {
                text += &serde_json::to_string(&Line { lane, op: *op }).unwrap_or_default();
                text += "\n";
            }
        }
        text
    }

    /// Parses the format of [`Script::text`]. Skips empty lines, and comments that begin with `#`.
    pub fn parse(text: &str) -> Result<Script> {
        let mut lines = text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
        let (_, first) = lines.next().context("the file is empty")?;
        let shape: Shape = serde_json::from_str(first).context("line 1: no shape")?;
        let mut lanes = vec![Vec::new(); shape.lanes()];
        for (number, line) in lines {
            let number = number + 1;
            let line: Line = serde_json::from_str(line)
                .with_context(|| format!("line {number}: no operation"))?;
            let ops = lanes
                .get_mut(line.lane)
                .with_context(|| format!("line {number}: there is no lane {}", line.lane))?;
            ops.push(line.op);
        }
        Ok(Script { shape, lanes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_determines_the_script_and_files_round_trip() {
        let hardware = false;
        let unplug = Some(1);
        let shape = Shape { seed: 5, devices: 2, procs: 2, threads: 2, hardware, unplug };
        let script = Script::draw(shape, 1001);
        assert_eq!(script.len(), 4 * 251);
        assert_eq!(Script::draw(shape, 1001), script);
        assert_ne!(script.lanes[0], script.lanes[1]);
        assert_eq!(Script::parse(&script.text()).unwrap(), script);
        let error = Script::parse("{\"seed\":1}").unwrap_err();
        assert!(format!("{error:#}").contains("line 1"), "{error:#}");
        let wrong = script.text().replace("\"lane\":3", "\"lane\":4");
        assert!(Script::parse(&wrong).is_err());
    }

    #[test]
    fn hardware_scripts_have_supported_operations_only() {
        let hardware = true;
        let unplug = None;
        let shape = Shape { seed: 5, devices: 1, procs: 1, threads: 2, hardware, unplug };
        let script = Script::draw(shape, 20_000);
        assert_eq!(script.len(), 20_000);
        let names: std::collections::BTreeSet<_> =
            script.lanes.iter().flatten().map(Op::name).collect();
        for name in ["DevWrite", "ToDevice", "HostLock", "Exclusive", "ForkExec", "Move"] {
            assert!(names.contains(name), "{name} of {names:?}");
        }
        for name in ["EngineRead", "Watch", "Queued", "Managed", "CopyDelay"] {
            assert!(!names.contains(name), "{name} of {names:?}");
        }
    }
}

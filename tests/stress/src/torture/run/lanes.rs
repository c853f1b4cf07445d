// SPDX-License-Identifier: GPL-2.0
//! The threads of a process: each executes the operations of one lane, and counts them.

use crate::torture::bus;
use crate::torture::env::Env;
use crate::torture::lane::Lane;
use crate::torture::op::Op;
use hmm::uffd::Missing;
use std::collections::BTreeMap;
use std::path::{
    Path,
    PathBuf, //
};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Barrier;
use std::time::Duration;

/// The userfaultfd handler: fills missing pages of a lane's region until it is stopped.
fn serve(missing: &Missing, filler: u8, stop: &AtomicBool) {
    while !stop.load(SeqCst) {
        // An error shows up in the access that waits for the page.
        let _ = missing.serve(filler, Duration::from_millis(50));
    }
}

/// Writes a lane's counts to a file for the supervisor.
fn report(into: &Path, counts: &BTreeMap<String, u64>) -> Result<(), String> {
    let text = serde_json::to_string(counts).map_err(|error| error.to_string())?;
    std::fs::write(into, text).map_err(|error| error.to_string())
}

fn counts_file(lane: usize) -> PathBuf {
    std::env::temp_dir().join(format!("hmm-stress-{lane}.json"))
}

/// Removes the counts of an earlier run.
pub fn forget_counts(lanes: usize) {
    for lane in 0..lanes {
        let _ = std::fs::remove_file(counts_file(lane));
    }
}

/// Sums the counts of all lanes.
pub fn counts(lanes: usize) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for lane in 0..lanes {
        let text = std::fs::read_to_string(counts_file(lane)).unwrap_or_default();
        let of_lane: BTreeMap<String, u64> = serde_json::from_str(&text).unwrap_or_default();
        for (name, count) in of_lane {
            *counts.entry(name).or_default() += count;
        }
    }
    counts
}

fn set_up(env: &Env, number: usize) -> Result<(Lane<'_>, Missing, u8), String> {
    let lane = Lane::new(env, number)?;
    let region = lane.uffd_region();
    let missing = Missing::new(&region.map).map_err(|error| format!("userfaultfd: {error}"))?;
    let filler = region.filler;
    Ok((lane, missing, filler))
}

/// Starts the lanes once all lanes of the process have mapped their memory. Then the kernel may use
/// the reserved addresses above it.
fn begin(env: &Env, ready: &Barrier) {
    if ready.wait().is_leader() {
        env.clearing.open();
    }
    ready.wait();
}

/// Executes all operations of lane `number`. `last`: the device to unplug in the last part, and a
/// seed for it.
pub fn run_lane(
    env: &Env,
    number: usize,
    ops: &[Op],
    ready: &Barrier,
    last: Option<(usize, u64)>,
) -> Result<(), String> {
    let board = &env.board;
    bus::set_lane(number);
    let (mut lane, missing, filler) = match set_up(env, number) {
        Ok(done) => done,
        Err(text) => {
            env.stop.store(true, SeqCst);
            begin(env, ready);
            return Err(text);
        }
    };
    let stop = AtomicBool::new(false);
    let serving = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Starting a thread maps memory: wait until it has started.
            serving.wait();
            serve(&missing, filler, &stop);
        });
        serving.wait();
        begin(env, ready);
        let mut result = Ok(());
        for (index, op) in ops.iter().enumerate() {
            if env.is_over() {
                break;
            }
            board.begun(number).store(index as u64 + 1, SeqCst);
            if let Err(text) = lane.execute(op) {
                board.failed(number).store(index as u64 + 1, SeqCst);
                result = Err(format!("lane {number} #{index} {op:?}: {text}"));
                break;
            }
        }
        let result = result.and_then(|()| {
            if env.stopped() {
                return Ok(());
            }
            lane.end().map_err(|text| format!("lane {number} at its end: {text}"))?;
            match last {
                Some((dev, seed)) if !env.stopped() => lane
                    .last_part(dev, seed)
                    .map_err(|text| format!("lane {number} in the last part: {text}")),
                _ => Ok(()),
            }
        });
        if result.is_err() {
            env.stop.store(true, SeqCst);
        }
        stop.store(true, SeqCst);
        report(&counts_file(number), &lane.counts).and(result)
    })
}

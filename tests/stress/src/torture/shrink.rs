// SPDX-License-Identifier: GPL-2.0
//! Reduces a failing script by delta debugging (Zeller 1999): first to the failing lane alone, then
//! without halves, quarters and so on of its operations, as long as it still fails.

use crate::torture::run::{
    self,
    Failure,
    Options, //
};
use crate::torture::script::Script;
use std::time::{
    Duration,
    Instant, //
};

/// Attempts for each candidate, because a race does not occur in each run.
const TRIES: usize = 3;

struct Search {
    until: Instant,
}

impl Search {
    fn over(&self) -> bool {
        Instant::now() > self.until
    }

    fn fails(&self, script: &Script) -> bool {
        let options = Options {
            patience: Duration::from_secs(60),
            most: None,
            visitors: false,
            progress: false,
        };
        (0..TRIES).any(|_| {
            !self.over()
                && run::run(script, &options).is_ok_and(|outcome| outcome.failure.is_some())
        })
    }

    /// Removes operations of lane `lane` that are not needed for the failure.
    fn reduce(&self, script: &mut Script, lane: usize) {
        let mut pieces = 2;
        while !self.over() && script.lanes[lane].len() > 1 {
            let ops = script.lanes[lane].clone();
            let size = ops.len().div_ceil(pieces);
            let mut shorter = false;
            for start in (0..ops.len()).step_by(size).rev() {
                let mut less = ops.clone();
                less.drain(start..(start + size).min(ops.len()));
                let candidate = with_lane(script, lane, less);
                if self.fails(&candidate) {
                    *script = candidate;
                    shorter = true;
                    break;
                }
            }
            match (shorter, size) {
                (true, _) => pieces = pieces.saturating_sub(1).max(2),
                (false, 1) => break,
                (false, _) => pieces *= 2,
            }
        }
    }
}

fn with_lane(script: &Script, lane: usize, ops: Vec<crate::torture::op::Op>) -> Script {
    let mut script = script.clone();
    script.lanes[lane] = ops;
    script
}

/// The shortest failing script found within `time`, or else the script up to the failure.
pub fn shrink(script: &Script, failure: &Failure, time: Duration) -> Script {
    let search = Search { until: Instant::now() + time };
    let mut short = script.clone();
    if !failure.last_part {
        // Each attempt would have to reload the driver.
        short.shape.unplug = None;
    }
    for (ops, begun) in short.lanes.iter_mut().zip(&failure.begun) {
        ops.truncate(*begun as usize);
    }
    let lanes = short.lanes.len();
    if let Some((lane, _)) = failure.at {
        let mut alone = short.clone();
        for other in (0..lanes).filter(|other| *other != lane) {
            alone.lanes[other].clear();
        }
        if search.fails(&alone) {
            short = alone;
        }
    }
    eprintln!("making {} operations fewer", short.len());
    for lane in 0..lanes {
        search.reduce(&mut short, lane);
    }
    eprintln!("{} operations are left", short.len());
    short
}

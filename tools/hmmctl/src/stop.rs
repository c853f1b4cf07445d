// SPDX-License-Identifier: GPL-2.0
//! Ends when a signal says so, or the time has come: what was set up is undone before.

use crate::problem::{Problem, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// Whether it is time to end.
#[derive(Clone, Debug)]
pub struct Stop {
    signal: Arc<AtomicBool>,
    end: Option<Instant>,
}

impl Stop {
    /// From here on SIGINT, SIGTERM and SIGHUP only say so.
    pub fn new() -> Result<Stop> {
        let signal = Arc::new(AtomicBool::new(false));
        for number in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(number, signal.clone())
                .map_err(|error| Problem::Io { what: "wait for signals".to_string(), error })?;
        }
        Ok(Stop { signal, end: None })
    }

    /// The end comes so many seconds from now, if any are given: what had to be set up does not count.
    pub fn after(&mut self, seconds: Option<f64>) {
        let time = |seconds: f64| Duration::try_from_secs_f64(seconds.min(1e9)).unwrap_or_default();
        self.end = seconds.map(|seconds| Instant::now() + time(seconds));
    }

    /// Whether it is.
    pub fn now(&self) -> bool {
        self.signal.load(Relaxed) || self.end.is_some_and(|end| Instant::now() >= end)
    }

    /// Waits until `until`, or the end.
    pub fn wait_until(&self, until: Instant) {
        while !self.now() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(LOOK));
        }
    }

    /// Waits a moment.
    pub fn pause(&self) {
        self.wait_until(Instant::now() + LOOK);
    }
}

// SPDX-License-Identifier: GPL-2.0
//! Orderly end on a signal or after a time, with cleanup.

use crate::problem::{
    Problem,
    Result, //
};
use signal_hook::consts::{
    SIGHUP,
    SIGINT,
    SIGTERM, //
};
use std::sync::atomic::{
    AtomicBool,
    Ordering::Relaxed, //
};
use std::sync::Arc;
use std::time::{
    Duration,
    Instant, //
};

/// Maximum interval between checks.
const LOOK: Duration = Duration::from_millis(20);

/// Condition for the end.
#[derive(Clone, Debug)]
pub struct Stop {
    signal: Arc<AtomicBool>,
    end: Option<Instant>,
}

impl Stop {
    /// From here on SIGINT, SIGTERM and SIGHUP only set a flag.
    pub fn new() -> Result<Stop> {
        let signal = Arc::new(AtomicBool::new(false));
        for number in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(number, signal.clone())
                .map_err(|error| Problem::Io { what: "wait for signals".to_string(), error })?;
        }
        Ok(Stop { signal, end: None })
    }

    /// Sets the end to `seconds` from now, if given. Called after the setup, whose time does not
    /// count.
    pub fn after(&mut self, seconds: Option<f64>) {
        let time = |seconds: f64| Duration::try_from_secs_f64(seconds.min(1e9)).unwrap_or_default();
        self.end = seconds.map(|seconds| Instant::now() + time(seconds));
    }

    /// Whether the end has come.
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

    /// Waits for a short time, or until the end.
    pub fn pause(&self) {
        self.wait_until(Instant::now() + LOOK);
    }
}

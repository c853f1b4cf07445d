// SPDX-License-Identifier: GPL-2.0
//! Visitors: processes that use the devices and are killed at random times.

use super::outcome::Failure;
use super::process::visitor;
use super::Options;
use crate::torture::env::Board;
use crate::torture::script::Script;
use anyhow::Result;
use hmm::child::{
    kill_group,
    Child,
    Ended,
    SIGKILL, //
};
use hmm::rng::Rng;
use std::time::{
    Duration,
    Instant, //
};

/// Minimum interval between visitors, to leave CPU time for the lanes.
const INTERVAL: Duration = Duration::from_secs(4);

/// Timeout for the end of a killed visitor.
const LEAVE: Duration = Duration::from_secs(60);

/// Kills a visitor and its children, some of which run endlessly.
fn kill(child: &Child) {
    child.signal(SIGKILL);
    kill_group(child.pid());
}

/// At most one visitor at a time.
pub struct Visitors {
    /// The current visitor, and the time at which it is killed.
    guest: Option<(Child, Instant)>,
    /// Earliest time for the next visitor.
    next: Instant,
    rng: Rng,
    /// Number of visitors killed.
    pub killed: u64,
}

impl Visitors {
    /// Without a visitor yet.
    pub fn new(seed: u64) -> Visitors {
        Visitors { guest: None, next: Instant::now(), rng: Rng::new(seed, u64::MAX), killed: 0 }
    }

    /// Starts or kills a visitor if its time has come.
    pub fn look(
        &mut self,
        script: &Script,
        options: &Options,
        board: &Board,
    ) -> Result<Option<Failure>> {
        let Some((child, until)) = self.guest.take() else {
            if Instant::now() >= self.next {
                self.next = Instant::now() + INTERVAL;
                let time = Duration::from_millis(50 + self.rng.below(1500) as u64);
                let child = visitor(script, self.killed + 1, board)?;
                self.guest = Some((child, Instant::now() + time));
            }
            return Ok(None);
        };
        Ok(self.see_off(child, until, options.patience))
    }

    /// Reaps a visitor that has ended, and kills one whose time has come or that does not end.
    fn see_off(&mut self, mut child: Child, until: Instant, patience: Duration) -> Option<Failure> {
        if child.try_wait().is_some() {
            let text = child.outcome().err()?;
            return Some(Failure::new(format!("process to be killed: {text}")));
        }
        if Instant::now() <= until {
            self.guest = Some((child, until));
            return None;
        }
        kill(&child);
        match child.wait_timeout(patience) {
            Some(Ended::Signal(SIGKILL)) => self.killed += 1,
            Some(_) => {}
            None => return Some(Failure::hang("a killed process does not end".into(), None)),
        }
        None
    }
}

impl Visitors {
    /// Kills the current visitor.
    pub fn leave(&mut self) {
        if let Some((mut child, _)) = self.guest.take() {
            kill(&child);
            child.wait_timeout(LEAVE);
        }
    }
}

impl Drop for Visitors {
    fn drop(&mut self) {
        self.leave();
    }
}

// SPDX-License-Identifier: GPL-2.0
//! Processes that come, use the devices, and are killed at random moments.

use super::outcome::Failure;
use super::process::visitor;
use super::Options;
use crate::env::Board;
use crate::script::Script;
use anyhow::Result;
use hmm::child::{kill_group, Child, Ended, SIGKILL};
use hmm::rng::Rng;
use std::time::{Duration, Instant};

/// From one visitor to the next at least: others want processors, too.
const INTERVAL: Duration = Duration::from_secs(4);

/// How long one that is killed at last may take to end.
const LEAVE: Duration = Duration::from_secs(60);

/// Kills a visitor and what it has forked, some of which would go on for ever.
fn kill(child: &Child) {
    child.signal(SIGKILL);
    kill_group(child.pid());
}

/// One visitor at a time.
pub struct Visitors {
    /// The one that is there, and when it is killed.
    guest: Option<(Child, Instant)>,
    /// When the next one may come.
    next: Instant,
    rng: Rng,
    /// How many were killed.
    pub killed: u64,
}

impl Visitors {
    /// Nobody yet.
    pub fn new(seed: u64) -> Visitors {
        Visitors { guest: None, next: Instant::now(), rng: Rng::new(seed, u64::MAX), killed: 0 }
    }

    /// Starts one or kills one, if it is time.
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

    /// Takes leave of a visitor that has ended, or has to.
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
    /// Kills the one that is there.
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

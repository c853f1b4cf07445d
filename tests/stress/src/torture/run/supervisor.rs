// SPDX-License-Identifier: GPL-2.0
//! Supervises the processes of a run: detects failures, and lanes without progress.

use super::outcome::Failure;
use super::process::process;
use super::visitors::Visitors;
use super::Options;
use crate::torture::env::{
    Board,
    Common, //
};
use crate::torture::script::Script;
use anyhow::Result;
use hmm::child::kill_group;
use hmm::{
    Child,
    Mapping, //
};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{
    Duration,
    Instant, //
};

/// The processes, and the last known progress of their lanes.
pub struct Supervisor<'a> {
    script: &'a Script,
    options: &'a Options,
    board: &'a Board,
    begin: Instant,
    children: Vec<Child>,
    running: Vec<bool>,
    /// Number of operations that each lane had begun, and the time of its last progress.
    seen: Vec<(u64, Instant)>,
    visitors: Visitors,
    /// Time at which the progress was last printed.
    last_report: Instant,
}

impl<'a> Supervisor<'a> {
    /// Starts the processes. They end early when the first word of `end` is not 0.
    pub fn start(
        script: &'a Script,
        options: &'a Options,
        board: &'a Board,
        wide: &Common,
        end: &Mapping,
    ) -> Result<Supervisor<'a>> {
        let begin = Instant::now();
        let mut children = Vec::new();
        for number in 0..script.shape.procs {
            let shared = Common { map: wide.map.again()?, sums: wide.sums.again()? };
            children.push(Child::spawn(|| {
                process(script, number, Some(shared), board, end.atomic(0, 0))
            })?);
        }
        let now = Instant::now();
        Ok(Supervisor {
            script,
            options,
            board,
            begin,
            running: vec![true; children.len()],
            children,
            seen: vec![(0, now); script.shape.lanes()],
            visitors: Visitors::new(script.shape.seed),
            last_report: now,
        })
    }

    /// Waits until all processes have ended, or returns the first failure.
    pub fn watch(&mut self, end: &Mapping) -> Result<Option<Failure>> {
        while self.running.contains(&true) {
            std::thread::sleep(Duration::from_millis(20));
            let failure = self.ended().or_else(|| self.hang());
            if failure.is_some() {
                return Ok(failure);
            }
            if self.options.most.is_some_and(|most| self.begin.elapsed() > most) {
                end.set(0, 0, 1);
            }
            if self.board.resting() == self.seen.len() as u64 {
                // From now on only the lanes use the devices.
                self.visitors.leave();
                self.board.alone().store(1, SeqCst);
            } else if self.options.visitors {
                let failure = self.visitors.look(self.script, self.options, self.board)?;
                if failure.is_some() {
                    return Ok(failure);
                }
            }
            self.report();
        }
        Ok(None)
    }

    /// Reaps the processes that have ended, and returns the first failure among them.
    fn ended(&mut self) -> Option<Failure> {
        let mut failure = None;
        for (child, running) in self.children.iter_mut().zip(&mut self.running) {
            if *running && child.try_wait().is_some() {
                *running = false;
                if let Err(mut text) = child.outcome() {
                    if let Some((lane, addr)) = self.board.bad_bus() {
                        text += &format!("\nlane {lane}: bus error at {addr:#x}, without a cause");
                    }
                    failure.get_or_insert(Failure::new(text));
                }
            }
        }
        failure
    }

    /// Returns a failure for the first lane without progress.
    fn hang(&mut self) -> Option<Failure> {
        for (lane, (begun, since)) in self.seen.iter_mut().enumerate() {
            let begun_now = self.board.begun(lane).load(SeqCst);
            let now = begun_now + self.board.beat(lane).load(SeqCst);
            let done = !self.running[lane / self.script.shape.threads];
            if now != *begun || done {
                (*begun, *since) = (now, Instant::now());
            } else if since.elapsed() > self.options.patience {
                let index = (begun_now as usize).checked_sub(1);
                let what = match index {
                    Some(_) if now != begun_now => "the last part".to_string(),
                    Some(index) => format!("{:?}", self.script.lanes[lane].get(index)),
                    None => "its beginning".to_string(),
                };
                let at = index.map(|index| (lane, index));
                return Some(Failure::hang(format!("lane {lane} hangs in {what}"), at));
            }
        }
        None
    }

    /// Prints the progress every 10 seconds.
    fn report(&mut self) {
        if self.options.progress && self.last_report.elapsed() > Duration::from_secs(10) {
            self.last_report = Instant::now();
            let begun = |lane| self.board.begun(lane).load(SeqCst);
            let done: u64 = (0..self.seen.len()).map(begun).sum();
            let seconds = self.begin.elapsed().as_secs_f64();
            eprintln!("{done} of {} operations, {seconds:.0} s", self.script.len());
        }
    }

    /// Kills the remaining processes and all that they forked. Returns the number of visitors
    /// killed.
    pub fn stop(self) -> u64 {
        for child in &self.children {
            kill_group(child.pid());
        }
        drop(self.children);
        self.visitors.killed
    }
}

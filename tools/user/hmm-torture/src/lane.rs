// SPDX-License-Identifier: GPL-2.0
//! A lane: a thread with memory of its own, whose operations follow each other,
//! and the model of that memory.
//!
//! Accesses race in these ways only, and this is what may be seen then:
//!
//! * Engines read a range again and again (`Watch`) while it moves, is swapped
//!   out, merged or forked: each round sees the contents of the model.
//! * Engines add to words (`Count`) while the CPU adds to the same ones: no
//!   addition is lost, and of the round that was stopped the first words have it.
//! * Lanes and devices add to common words: in the end all additions are there.
//!   In common pages, words that one agent writes never change by the others.
//! * Memory that stays locked for a device (`Hold`) is written by CPUs and devices,
//!   and does not move; what takes its mapping away unlocks it first.
//! * Contents freed by `MADV_FREE` are the old ones or zero, a page at a time,
//!   until the page is written.
//!
//! Everything else of a lane happens one after the other, so that each read has
//! one right result. What disturbs it are the other lanes, processes that are
//! killed, and the kernel.

mod blit;
mod common;
mod cpu;
mod device;
mod dispatch;
mod engine;
mod errors;
mod explain;
mod fences;
mod held;
mod managed;
mod memory;
mod more;
mod placement;
mod process;
mod queue;
mod status;
mod streams;
mod unplug;

pub use process::self_test;

use crate::bus::Known;
use crate::env::Env;
use crate::op::{Kind, Op, Span, REGIONS};
use crate::region::Region;
use hmm::engine::Ended;
use hmm::{Command, Counters, Device, Errno, Mapping};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Display;
use std::time::{Duration, Instant};

/// Why a run has failed.
pub type Fail = String;

/// Repetitions of what an invalidation, or an injected failure, got in the way of.
const PATIENCE: u32 = 2000;

/// Gaps between libraries that are filled at most.
const PLUGS: usize = 100;

/// Memory of each lane that presses others into swap, in MiB.
const BALLAST_MIB: usize = 32;

/// A command that an engine carries out meanwhile.
#[derive(Debug)]
struct Running {
    dev: usize,
    id: u64,
    at: Span,
    /// What a counter adds; a watcher has none.
    adds: Option<u64>,
    /// Copies that had failed when it was submitted.
    failures: u64,
}

/// What an operation does to a range.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Its result depends on the contents.
    Looks,
    /// It changes the contents, or who may access them.
    Changes,
    /// It adds to words.
    Adds,
}

/// A lane.
pub struct Lane<'a> {
    env: &'a Env,
    /// Number among all lanes.
    number: usize,
    regions: Vec<Region>,
    /// What is locked for devices over several operations; before the devices, which unlock it at last.
    held: Vec<held::Held>,
    devices: Vec<Device>,
    running: Vec<Running>,
    children: Vec<process::Background>,
    own: common::Own,
    ballast: Mapping,
    /// Addresses for managed memory.
    area: Mapping,
    /// Device, region and page of what was made exclusive since the device was opened.
    exclusive: HashSet<(usize, usize, usize)>,
    seen: status::Seen,
    copy_failures: u64,
    _known: Vec<Known>,
    /// How often each operation was done, and each error seen.
    pub counts: BTreeMap<String, u64>,
}

fn fail<T>(what: impl Display, why: impl Display) -> Result<T, Fail> {
    Err(format!("{what}: {why}"))
}

/// A region below the addresses at which the kernel maps memory later.
fn region(env: &Env, kind: Kind, pages: usize, filler: u8) -> Result<Region, Fail> {
    for _ in 0..PLUGS {
        let region = Region::new(kind, pages, filler)
            .map_err(|error| format!("{kind:?} memory: {error}"))?;
        if env.clearing.is_above(&region.map) {
            return Ok(region);
        }
        // A gap between libraries: it stays filled.
        std::mem::forget(region);
    }
    fail("memory", "no place below that of what the kernel maps later")
}

/// Registers the memory of a lane. Shared memory is never on a device.
fn known(regions: &[Region], area: &Mapping) -> Option<Vec<Known>> {
    let moves = |region: &Region| region.kind != Kind::Shared;
    let regions = regions.iter().map(|region| Known::mapping(&region.map, moves(region)));
    regions.chain([Known::mapping(area, true)]).collect()
}

impl<'a> Lane<'a> {
    /// Lane `number`, with memory and devices of its own.
    pub fn new(env: &'a Env, number: usize) -> Result<Lane<'a>, Fail> {
        let filler = (number + 1) as u8;
        let regions = REGIONS
            .iter()
            .map(|&(kind, pages)| region(env, kind, pages, filler))
            .collect::<Result<Vec<_>, _>>()?;
        let devices = (0..env.devices)
            .map(|dev| Device::open(dev as u32).map_err(|error| format!("device {dev}: {error}")))
            .collect::<Result<_, _>>()?;
        let ballast =
            Mapping::anon(BALLAST_MIB << 8).map_err(|error| format!("ballast: {error}"))?;
        // Of the size and alignment of a huge page.
        let area = Mapping::anon_aligned(1).map_err(|error| format!("area: {error}"))?;
        let known = known(&regions, &area).ok_or("too many ranges of memory")?;
        let mut lane = Lane {
            env,
            number,
            ballast,
            area,
            regions,
            devices,
            running: Vec::new(),
            children: Vec::new(),
            held: Vec::new(),
            own: common::Own::default(),
            exclusive: HashSet::new(),
            seen: status::Seen::default(),
            copy_failures: 0,
            _known: known,
            counts: BTreeMap::new(),
        };
        // Failures of others before are no excuse.
        lane.copy_failures = lane.failures().map_err(|error| format!("counters: {error}"))?;
        Ok(lane)
    }

    /// The region that a userfaultfd handler is to fill.
    pub fn uffd_region(&self) -> &Region {
        &self.regions[REGIONS.len() - 1]
    }

    /// Does one operation.
    pub fn execute(&mut self, op: &Op) -> Result<(), Fail> {
        let (name, begin) = (op.name(), Instant::now());
        self.note(name.clone());
        let result = self.dispatch(op);
        *self.counts.entry(format!("ms {name}")).or_default() += begin.elapsed().as_micros() as u64;
        result
    }

    /// Ends what runs, unlocks and evicts everything, and compares it once more.
    pub fn end(&mut self) -> Result<(), Fail> {
        self.finish_commands(|_| true)?;
        self.reap(true)?;
        self.unhold_all()?;
        if !self.env.hardware {
            (0..self.devices.len()).try_for_each(|dev| self.restore_memory(dev))?;
        }
        self.evict_all(None)?;
        self.read_all()?;
        self.no_stale()
    }

    /// Has the CPU read all memory, and compares it.
    fn read_all(&mut self) -> Result<(), Fail> {
        for r in 0..self.regions.len() {
            let at = Span { r, page: 0, n: self.regions[r].pages.len() };
            self.cpu_read(at)?;
        }
        Ok(())
    }

    /// No device has used a stale translation.
    fn no_stale(&self) -> Result<(), Fail> {
        match self.sum(|counters| counters.stale_hits) {
            Ok(0) => Ok(()),
            Ok(stale) => fail("devices", format!("{stale} stale hits")),
            Err(error) => fail("counters of the devices", error),
        }
    }

    fn note(&mut self, what: impl Into<String>) {
        *self.counts.entry(what.into()).or_default() += 1;
    }

    /// Counts an error that is allowed here, or fails.
    fn expect(&mut self, what: &str, error: Errno, allowed: &[Errno]) -> Result<(), Fail> {
        if !allowed.contains(&error) {
            return fail(what, error);
        }
        self.note(format!("  {what}: {error}"));
        Ok(())
    }

    /// A counter of all devices. `qemu_gpu` has none.
    fn sum(&self, counter: impl Fn(&Counters) -> u64) -> Result<u64, Errno> {
        if self.env.hardware {
            return Ok(0);
        }
        self.devices.iter().map(|device| device.counters().map(|found| counter(&found))).sum()
    }

    /// Copies that have failed, as they were told to.
    fn failures(&self) -> Result<u64, Errno> {
        self.sum(|counters| counters.copy_failures)
    }

    /// Whether a copy has failed since the last time that this was asked.
    fn excused(&mut self) -> bool {
        // What cannot be counted excuses nothing.
        let failures = self.failures().unwrap_or(self.copy_failures);
        let more = failures > self.copy_failures;
        self.copy_failures = failures;
        more
    }

    /// Waits as long as it takes: what hangs is for the supervisor to notice.
    fn run(&self, dev: usize, command: Command) -> Result<Ended, Errno> {
        self.devices[dev].submit(command)?.wait_for(Duration::MAX)
    }

    /// Repeats `attempt` while memory keeps changing, or after an injected failure.
    fn patiently<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Self) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        for round in 0..PATIENCE {
            let error = match attempt(self) {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            match error {
                Errno::EBUSY => self.note("  repeated after EBUSY"),
                Errno::EFAULT | Errno::EIO if self.excused() => {
                    self.note("  repeated after an injected failure")
                }
                _ => return Err(error),
            }
            if round > 10 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Err(Errno::EBUSY)
    }

    /// Ends those commands in flight whose outcome `effect` on the range would change.
    fn quiesce(&mut self, at: Span, effect: Effect) -> Result<(), Fail> {
        let overlaps = |other: Span| {
            other.r == at.r && other.page < at.page + at.n && at.page < other.page + other.n
        };
        self.finish_commands(|running| {
            let in_the_way = match effect {
                Effect::Looks => running.adds.is_some(),
                Effect::Adds => running.adds.is_none(),
                Effect::Changes => true,
            };
            in_the_way && overlaps(running.at)
        })
    }

    /// Ends the doubt about all lazily freed pages of the range.
    fn settle(&mut self, at: Span) -> Result<(), Fail> {
        for page in at.pages() {
            if let Err(mismatch) = self.regions[at.r].settle(page) {
                return fail("CPU read of a page freed lazily", mismatch);
            }
        }
        Ok(())
    }

    /// Whether the model lets a device access all of the range, and else the first page where not.
    fn allowed(&self, at: Span, write: bool) -> Result<(), usize> {
        match at.pages().find(|page| !self.regions[at.r].allows(*page, write)) {
            None => Ok(()),
            Some(page) => Err(page),
        }
    }

    fn addr(&self, at: Span) -> usize {
        self.regions[at.r].map.page_addr(at.page)
    }

    /// Whether a fault that nobody may wait in can fail: the userfaultfd handler would have to be asked.
    fn may_miss(&self, at: Span) -> bool {
        at.pages().any(|page| self.regions[at.r].pages[page].missing)
    }
}

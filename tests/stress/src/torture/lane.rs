// SPDX-License-Identifier: GPL-2.0
//! A lane: a thread with memory of its own, which executes operations one after the other, and the
//! model of that memory.
//!
//! Accesses are concurrent in these cases only. For each, the model defines which results are
//! correct:
//!
//! * Engines read a range in a loop (`Watch`) while it is migrated, swapped out, merged or forked.
//!   Each round must read the contents of the model.
//! * Engines add to words (`Count`) while the CPU adds to the same words. No addition may be lost.
//!   If a round was stopped, a prefix of the range has its addition.
//! * Lanes and devices add to common words. At the end, each word must equal the sum of all
//!   additions. Words of common pages that only one agent writes must never change otherwise.
//! * CPUs and devices write memory that stays locked for a device (`Hold`). It must not migrate.
//!   Operations that remove its mapping unlock it first.
//! * Pages freed by `MADV_FREE` contain the old contents or zeros until they are written.
//!
//! All other accesses of a lane are sequential, so that each read has exactly one correct result.
//! Interference comes from other lanes, from processes that are killed, and from the kernel.

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

use crate::torture::bus::Known;
use crate::torture::env::Env;
use crate::torture::op::{
    Kind,
    Op,
    Span,
    REGIONS, //
};
use crate::torture::region::Region;
use hmm::engine::Ended;
use hmm::{
    Command,
    Counters,
    Device,
    Errno,
    Mapping,
    PAGE_SIZE, //
};
use std::collections::{
    BTreeMap,
    HashSet, //
};
use std::fmt::Display;
use std::time::{
    Duration,
    Instant, //
};

/// Reason for which a run has failed.
pub type Fail = String;

/// Maximum number of attempts when an invalidation or an injected failure gets in the way.
const PATIENCE: u32 = 2000;

/// Maximum number of gaps between libraries that are filled.
const PLUGS: usize = 100;

/// Memory of each lane that pushes other memory to swap, in MiB.
const BALLAST_MIB: usize = 32;

/// A command that an engine executes in the background.
#[derive(Debug)]
struct Running {
    dev: usize,
    id: u64,
    at: Span,
    /// Addend of a `Count` command; `None` for `Watch`.
    adds: Option<u64>,
    /// Number of failed copies when the command was submitted.
    failures: u64,
}

/// Effect of an operation on a range.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// The operation reads the contents.
    Looks,
    /// The operation changes the contents or the access rights.
    Changes,
    /// The operation adds to words.
    Adds,
}

/// A lane.
pub struct Lane<'a> {
    env: &'a Env,
    /// Index among all lanes of the run.
    number: usize,
    regions: Vec<Region>,
    /// Locks held over several operations. Declared before `devices`, so that they are dropped
    /// first.
    held: Vec<held::Held>,
    devices: Vec<Device>,
    running: Vec<Running>,
    children: Vec<process::Background>,
    own: common::Own,
    ballast: Mapping,
    /// Address range for managed memory.
    area: Mapping,
    /// Device, region and page of each exclusive access since the device was opened.
    exclusive: HashSet<(usize, usize, usize)>,
    seen: status::Seen,
    copy_failures: u64,
    _known: Vec<Known>,
    /// Number of executions of each operation, and of each error.
    pub counts: BTreeMap<String, u64>,
}

fn fail<T>(what: impl Display, why: impl Display) -> Result<T, Fail> {
    Err(format!("{what}: {why}"))
}

/// Maps a region below the addresses at which the kernel will place mappings.
fn region(env: &Env, kind: Kind, pages: usize, filler: u8) -> Result<Region, Fail> {
    for _ in 0..PLUGS {
        let region = Region::new(kind, pages, filler)
            .map_err(|error| format!("{kind:?} memory: {error}"))?;
        if env.clearing.is_above(&region.map) {
            return Ok(region);
        }
        // The region lies in a gap between libraries: leak it, so that the gap stays filled.
        std::mem::forget(region);
    }
    fail("memory", "no address below those of later mappings of the kernel")
}

/// Registers the memory of a lane. Shared memory is never migrated to a device.
fn known(regions: &[Region], area: &Mapping) -> Option<Vec<Known>> {
    let moves = |region: &Region| region.kind != Kind::Shared;
    let regions = regions.iter().map(|region| Known::mapping(&region.map, moves(region)));
    regions.chain([Known::mapping(area, true)]).collect()
}

impl<'a> Lane<'a> {
    /// Creates lane `number`, with its memory and open devices.
    pub fn new(env: &'a Env, number: usize) -> Result<Lane<'a>, Fail> {
        let filler = (number + 1) as u8;
        let regions = REGIONS
            .iter()
            .map(|&(kind, pages)| region(env, kind, pages, filler))
            .collect::<Result<Vec<_>, _>>()?;
        let devices = (0..env.devices)
            .map(|dev| Device::open(dev as u32).map_err(|error| format!("device {dev}: {error}")))
            .collect::<Result<_, _>>()?;
        let ballast = Mapping::anon((BALLAST_MIB << 20) / PAGE_SIZE)
            .map_err(|error| format!("ballast: {error}"))?;
        // A range of the size and alignment of a huge page.
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
        // Copy failures before this point excuse no error of this lane.
        lane.copy_failures = lane.failures().map_err(|error| format!("counters: {error}"))?;
        Ok(lane)
    }

    /// The region that the userfaultfd handler has to fill.
    pub fn uffd_region(&self) -> &Region {
        &self.regions[REGIONS.len() - 1]
    }

    /// Executes one operation.
    pub fn execute(&mut self, op: &Op) -> Result<(), Fail> {
        let name = op.name();
        let begin = Instant::now();
        self.note(name.clone());
        let result = self.dispatch(op);
        *self.counts.entry(format!("ms {name}")).or_default() += begin.elapsed().as_micros() as u64;
        result
    }

    /// Ends commands and children, unlocks and evicts everything, and compares all memory once
    /// more.
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

    /// Reads all memory with the CPU and compares it with the model.
    fn read_all(&mut self) -> Result<(), Fail> {
        for r in 0..self.regions.len() {
            let at = Span { r, page: 0, n: self.regions[r].pages.len() };
            self.cpu_read(at)?;
        }
        Ok(())
    }

    /// Fails if a device has used a stale translation.
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

    /// Counts `error` if it is allowed here; fails otherwise.
    fn expect(&mut self, what: &str, error: Errno, allowed: &[Errno]) -> Result<(), Fail> {
        if !allowed.contains(&error) {
            return fail(what, error);
        }
        self.note(format!("  {what}: {error}"));
        Ok(())
    }

    /// Sum of a counter over all devices; 0 for `qemu_gpu`, which has no counters.
    fn sum(&self, counter: impl Fn(&Counters) -> u64) -> Result<u64, Errno> {
        if self.env.hardware {
            return Ok(0);
        }
        self.devices.iter().map(|device| device.counters().map(|found| counter(&found))).sum()
    }

    /// Number of copies that failed because of an injected failure.
    fn failures(&self) -> Result<u64, Errno> {
        self.sum(|counters| counters.copy_failures)
    }

    /// Whether a copy has failed since the last call.
    fn excused(&mut self) -> bool {
        // If the counters cannot be read, no error is excused.
        let failures = self.failures().unwrap_or(self.copy_failures);
        let more = failures > self.copy_failures;
        self.copy_failures = failures;
        more
    }

    /// Submits a command and waits without a timeout: the supervisor detects a hang.
    fn run(&self, dev: usize, command: Command) -> Result<Ended, Errno> {
        self.devices[dev].submit(command)?.wait_for(Duration::MAX)
    }

    /// Repeats `attempt` on `EBUSY`, and after an injected copy failure.
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

    /// Ends commands in flight whose result would be changed by `effect` on the range.
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

    /// Writes all pages of the range that were freed with `MADV_FREE`, so that their contents are
    /// defined.
    fn settle(&mut self, at: Span) -> Result<(), Fail> {
        for page in at.pages() {
            if let Err(mismatch) = self.regions[at.r].settle(page) {
                return fail("CPU read of a page freed lazily", mismatch);
            }
        }
        Ok(())
    }

    /// Whether the model lets a device access the whole range; if not, the first page that it
    /// denies.
    fn allowed(&self, at: Span, write: bool) -> Result<(), usize> {
        match at.pages().find(|page| !self.regions[at.r].allows(*page, write)) {
            None => Ok(()),
            Some(page) => Err(page),
        }
    }

    fn addr(&self, at: Span) -> usize {
        self.regions[at.r].map.page_addr(at.page)
    }

    /// Whether a page of the range may be missing. Accesses that cannot wait for the userfaultfd
    /// handler then fail.
    fn may_miss(&self, at: Span) -> bool {
        at.pages().any(|page| self.regions[at.r].pages[page].missing)
    }
}

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
//! * Contents freed by `MADV_FREE` are the old ones or zero, a page at a time,
//!   until the page is written.
//!
//! Everything else of a lane happens one after the other, so that each read has
//! one right result. What disturbs it are the other lanes, processes that are
//! killed, and the kernel.

mod common;
mod cpu;
mod device;
mod engine;
mod explain;
mod memory;
mod more;
mod placement;
mod process;
mod queue;

pub use process::self_test;

use crate::env::Env;
use crate::op::{Op, Span, REGIONS};
use crate::region::Region;
use hmm::engine::Ended;
use hmm::{Command, Counters, Device, Errno, Mapping};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Why a run has failed.
pub type Fail = String;

/// Repetitions of what an invalidation, or an injected failure, got in the way of.
const PATIENCE: u32 = 2000;

/// Memory of each lane that presses others into swap, in MiB.
const BALLAST_MIB: usize = 32;

/// Held for writing by who maps memory where the kernel likes, and by all others for reading.
static PLACES: RwLock<()> = RwLock::new(());

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
    devices: Vec<Device>,
    running: Vec<Running>,
    children: Vec<process::Background>,
    own: common::Own,
    ballast: Mapping,
    /// Addresses for managed memory.
    area: Mapping,
    copy_failures: u64,
    /// How often each operation was done, and each error seen.
    pub counts: BTreeMap<String, u64>,
}

fn fail<T>(what: impl Display, why: impl Display) -> Result<T, Fail> {
    Err(format!("{what}: {why}"))
}

impl<'a> Lane<'a> {
    /// Lane `number`, with memory and devices of its own.
    pub fn new(env: &'a Env, number: usize) -> Result<Lane<'a>, Fail> {
        let filler = (number + 1) as u8;
        let regions = REGIONS
            .iter()
            .map(|&(kind, pages)| {
                Region::new(kind, pages, filler)
                    .map_err(|error| format!("{kind:?} memory: {error}"))
            })
            .collect::<Result<_, _>>()?;
        let devices = (0..env.devices)
            .map(|dev| Device::open(dev as u32).map_err(|error| format!("device {dev}: {error}")))
            .collect::<Result<_, _>>()?;
        let ballast =
            Mapping::anon(BALLAST_MIB << 8).map_err(|error| format!("ballast: {error}"))?;
        // Of the size and alignment of a huge page.
        let area = Mapping::anon_aligned(1).map_err(|error| format!("area: {error}"))?;
        let mut lane = Lane {
            env,
            number,
            ballast,
            area,
            regions,
            devices,
            running: Vec::new(),
            children: Vec::new(),
            own: common::Own::default(),
            copy_failures: 0,
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
        // What the kernel maps where it likes may come to lie where another lane has unmapped, and must fail.
        let result = match op {
            Op::Managed { .. } | Op::ManagedLater { .. } => {
                let _alone = PLACES.write().unwrap_or_else(PoisonError::into_inner);
                self.dispatch(op)
            }
            _ => {
                let _others = PLACES.read().unwrap_or_else(PoisonError::into_inner);
                self.dispatch(op)
            }
        };
        *self.counts.entry(format!("ms {name}")).or_default() += begin.elapsed().as_micros() as u64;
        result
    }

    fn dispatch(&mut self, op: &Op) -> Result<(), Fail> {
        match *op {
            Op::CpuWrite { at, seed } => self.cpu_write(at, seed),
            Op::CpuRead { at } => self.cpu_read(at),
            Op::CpuAdd { at, word, value } => self.cpu_add(at, word, value),
            Op::DevWrite { dev, at, seed } => self.dev_write(dev, at, seed),
            Op::DevRead { dev, at, unlocked } => self.dev_read(dev, at, unlocked),
            Op::Exclusive { dev, at } => self.exclusive(dev, at),
            Op::Snapshot { dev, at } => self.snapshot(dev, at),
            Op::ToDevice { dev, at } => self.move_there(dev, at),
            Op::ToSystem { dev, at } => self.move_back(dev, at),
            Op::Release { dev } => self.release(dev),
            Op::Engine { .. } => self.engine(op),
            Op::Watch { dev, at } => self.watch(dev, at),
            Op::Count { dev, at, value } => self.count(dev, at, value),
            Op::Finish => {
                self.kill_children()?;
                self.finish_commands(|_| true)
            }
            Op::Migrate { dev, at, back, ordinary, outcomes } => {
                self.migrate(dev, at, device::way(back, ordinary), outcomes)
            }
            Op::Discard { dev, at } => self.discard(dev, at),
            Op::Queued { dev, other, at } => self.queued(dev, other, at),
            Op::Pull { dev, other, at } => self.pull(dev, other, at),
            Op::HostLock { dev, at, fine } => self.host_lock(dev, at, fine),
            Op::Managed { dev, pages, populate, seed } => self.managed(dev, pages, populate, seed),
            Op::ManagedBeside { dev, pages, bits, seed } => {
                self.managed_beside(dev, pages, bits, seed)
            }
            Op::ManagedLater { dev, pages, bits, seed } => {
                self.managed_later(dev, pages, bits, seed)
            }
            Op::QueueWork { dev, at, from, value, fails } => {
                self.queue_work(dev, at, from, value, fails)
            }
            Op::Connect { dev, which } => self.connect(dev, which),
            Op::Resize { dev, block, restore } => self.resize(dev, block, restore),
            Op::Events { dev, mask } => self.events(dev, mask),
            Op::CheckExclusive { dev, at } => self.check_exclusive(dev, at),
            Op::Unmap { at } => self.unmap(at),
            Op::MapAgain { at } => self.map_again(at),
            Op::Move { from, to } => self.move_pages(from, to),
            Op::Protect { at, rights } => self.protect(at, rights),
            Op::Advise { at, advice } => self.advise(at, advice),
            Op::Lock { at } => self.lock(at, true),
            Op::Unlock { at } => self.lock(at, false),
            Op::Fork { how, dev, at, seed } => self.fork(how, dev, at, seed),
            Op::Reopen { dev } => self.reopen(dev),
            Op::FailAlloc { dev } => self.fail_alloc(dev),
            Op::CopyFail { dev, after } => self.set(dev, hmm::Setting::CopyFail, after),
            Op::CopyDelay { dev, ns } => self.set(dev, hmm::Setting::CopyDelay, ns),
            Op::FlushDelay { dev, ns } => self.set(dev, hmm::Setting::FlushDelay, ns),
            Op::CommonAdd { wide, page, value } => self.common_add(wide, page, value),
            Op::CommonDevAdd { wide, dev, page, value } => {
                self.common_dev_add(wide, dev, page, value)
            }
            Op::CommonOwn { wide, dev, page, by_device, value } => {
                self.common_own(wide, dev, page, by_device, value)
            }
            Op::CommonMove { dev, back, ordinary } => {
                self.common_move(dev, device::way(back, ordinary))
            }
            Op::CommonAdvise { advice } => self.common_advise(advice),
            Op::Policy { dev, which } => self.set_policy(dev, which),
            Op::Attributes { dev, at, preferred, values, order } => {
                self.attributes(dev, at, preferred, values, order)
            }
            Op::Squeeze { mib } => self.squeeze(mib),
        }
    }

    /// Ends what runs, evicts everything, and compares it once more.
    pub fn end(&mut self) -> Result<(), Fail> {
        self.finish_commands(|_| true)?;
        self.reap(true)?;
        if !self.env.hardware {
            (0..self.devices.len()).try_for_each(|dev| self.restore_memory(dev))?;
        }
        self.evict_all()?;
        for r in 0..self.regions.len() {
            let at = Span { r, page: 0, n: self.regions[r].pages.len() };
            self.cpu_read(at)?;
        }
        let stale = self.sum(|counters| counters.stale_hits);
        match stale {
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

// SPDX-License-Identifier: GPL-2.0
//! All kinds of failures at random, in several processes: contents are right all
//! the time, errors are those that the documentation names, nothing hangs.

use crate::run::{nothing_in_use, Tap};
use hmm::engine::{checksum, EngineOp, Way};
use hmm::inject::{self, Kernel, Kind, Source};
use hmm::pattern::{self, WORDS};
use hmm::{Child, Command, Device, Errno, Gate, Mapping, PAGE_SIZE};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The name of the case.
pub const NAME: &str = "mixed";

const PROCESSES: u64 = 3;
/// Pages of each process.
const PAGES: usize = 48;
/// Time between two settings of the points.
const TURN: Duration = Duration::from_millis(300);
/// Calls of our modules that the kernel fails, in percent.
const PERCENT: u32 = 2;
/// An access that fails so often does not work at all.
const PATIENCE: usize = 10_000;

/// Pseudo-random numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let x = self.0 ^ (self.0 >> 33);
        x.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 17
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// What a process knows of its memory.
struct Model {
    device: Device,
    map: Mapping,
    /// The pattern of each page, and another one that an operation may have left.
    seeds: Vec<(u64, Option<u64>)>,
    random: Random,
    last: u64,
    errors: BTreeMap<String, u64>,
}

impl Model {
    fn new(index: u32, seed: u64) -> Result<Model, Errno> {
        let map = Mapping::anon(PAGES)?;
        map.fill(seed);
        let seeds = vec![(seed, None); PAGES];
        let device = Device::open(index)?;
        let errors = BTreeMap::new();
        Ok(Model { device, map, seeds, random: Random(seed), last: seed, errors })
    }

    /// A part of the memory.
    fn part(&mut self) -> (usize, usize) {
        let first = self.random.below(PAGES as u64) as usize;
        let most = (PAGES - first).min(24) as u64;
        (first, 1 + self.random.below(most) as usize)
    }

    fn is_right(&self, page: usize, bytes: &[u8]) -> Result<(), String> {
        let (seed, other) = self.seeds[page];
        let is = |seed| pattern::check(seed, page, bytes);
        let result = is(seed).or_else(|wrong| other.map_or(Err(wrong), is));
        result.map_err(|wrong| format!("{wrong} (seed {seed}, other {other:?})"))
    }

    /// Takes note of what a page is known to have.
    fn learn(&mut self, page: usize, bytes: &[u8]) -> Result<(), String> {
        self.is_right(page, bytes)?;
        if let (_, Some(other)) = self.seeds[page] {
            if pattern::check(other, page, bytes).is_ok() {
                self.seeds[page].0 = other;
            }
        }
        self.seeds[page].1 = None;
        Ok(())
    }

    /// An error must be a documented one; it is counted.
    fn outcome<T>(&mut self, what: &str, result: Result<T, Errno>) -> Result<Option<T>, String> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(
                error @ (Errno::ENOMEM
                | Errno::EBUSY
                | Errno::EINTR
                | Errno::ENOENT
                | Errno::EFAULT),
            ) => {
                *self.errors.entry(format!("{what}: {error}")).or_default() += 1;
                Ok(None)
            }
            // Of a process that has gone, where `test_hmm` says so.
            Err(Errno::EINVAL) if what.starts_with("migrate") || what == "exclusive" => {
                *self.errors.entry(format!("{what}: the process")).or_default() += 1;
                Ok(None)
            }
            Err(error) => Err(format!("{what}: {error} is not documented")),
        }
    }

    /// The CPU reads a page, until no failure is in the way.
    fn cpu_read(&mut self, page: usize) -> Result<(), String> {
        for _ in 0..PATIENCE {
            let bytes = inject::kernel_reads(&self.map, page);
            if let Some(bytes) = self.outcome("cpu read", bytes)? {
                return self.learn(page, &bytes);
            }
        }
        Err(format!("page {page} cannot be read by the CPU"))
    }

    fn cpu_write(&mut self, page: usize) -> Result<(), String> {
        // A part of a page would be neither old nor new.
        let seed = self.next_seed();
        let bytes = pattern::buffer(seed, page, 1);
        for _ in 0..PATIENCE {
            let result = inject::kernel_writes(&self.map, page, &bytes);
            if self.outcome("cpu write", result)?.is_some() {
                self.seeds[page] = (seed, None);
                return Ok(());
            }
        }
        Err(format!("page {page} cannot be written by the CPU"))
    }

    fn next_seed(&mut self) -> u64 {
        self.last += PROCESSES;
        self.last
    }

    fn device_read(&mut self, first: usize, pages: usize) -> Result<(), String> {
        let mut bytes = vec![0xaa; pages * PAGE_SIZE];
        let result = self.device.read(self.map.page_addr(first), &mut bytes);
        if self.outcome("read", result)?.is_some() {
            for (index, bytes) in bytes.chunks_exact(PAGE_SIZE).enumerate() {
                self.learn(first + index, bytes)?;
            }
        }
        Ok(())
    }

    fn device_write(&mut self, first: usize, pages: usize) -> Result<(), String> {
        for page in first..first + pages {
            // Of three possible contents one would be forgotten.
            if self.seeds[page].1.is_some() {
                self.cpu_read(page)?;
            }
        }
        let seed = self.next_seed();
        let bytes = pattern::buffer(seed, first, pages);
        let result = self.device.write(self.map.page_addr(first), &bytes);
        let done = self.outcome("write", result)?.is_some();
        for entry in &mut self.seeds[first..first + pages] {
            *entry = if done { (seed, None) } else { (entry.0, Some(seed)) };
        }
        Ok(())
    }

    fn engine_read(&mut self, first: usize, pages: usize) -> Result<(), String> {
        if self.seeds[first..first + pages].iter().any(|(_, other)| other.is_some()) {
            return Ok(());
        }
        let seeds = self.seeds[first..first + pages].to_vec();
        let page_words = |(index, (seed, _)): (usize, &(u64, Option<u64>))| {
            let (page, seed) = (first + index, *seed);
            (0..WORDS).map(move |word| pattern::word(seed, page, word))
        };
        let expected = checksum(seeds.iter().enumerate().flat_map(page_words));
        let command =
            Command::new(EngineOp::Checksum, self.map.page_addr(first), pages * PAGE_SIZE);
        let ended = self.device.run(command.verify(expected).engine(Command::ANY));
        if let Some(ended) = self.outcome("submit", ended)? {
            let result = ended.error.map_or(Ok(()), Err);
            self.outcome("engine", result)?;
        }
        Ok(())
    }

    fn migrate(&mut self, first: usize, pages: usize) -> Result<(), String> {
        let ways = [Way::ToDevice, Way::ToSystem, Way::ToDeviceOrdinary, Way::ToSystemOrdinary];
        // Rather to the device: the rest comes back by itself.
        let way = ways[[0, 0, 0, 1, 2, 2, 3, 1][self.random.below(8) as usize]];
        let result = self.device.migrate_pages(self.map.page_addr(first), pages, way);
        self.outcome("migrate", result).map(|_| ())
    }

    fn step(&mut self, index: u32) -> Result<(), String> {
        let (first, pages) = self.part();
        let addr = self.map.page_addr(first);
        match self.random.below(32) {
            0..=4 => self.device_read(first, pages),
            5..=8 => self.device_write(first, pages),
            9..=15 => self.migrate(first, pages),
            16..=18 => self.engine_read(first, pages),
            19..=21 => self.cpu_read(first),
            22..=24 => self.cpu_write(first),
            25 => {
                let result = self.device.snapshot(addr, pages);
                self.outcome("snapshot", result).map(|_| ())
            }
            26 => {
                let result = self.device.discard(addr, pages);
                self.outcome("discard", result).map(|_| ())
            }
            27 => {
                let mut bytes = vec![0; PAGE_SIZE];
                let result = self.device.exclusive(addr, &mut bytes);
                match self.outcome("exclusive", result)? {
                    Some(_) => self.learn(first, &bytes),
                    None => Ok(()),
                }
            }
            28 => {
                let result = self.device.release();
                self.outcome("release", result).map(|_| ())
            }
            29 => {
                let result = Device::open(index);
                if let Some(device) = self.outcome("open", result)? {
                    self.device = device;
                }
                Ok(())
            }
            _ => {
                let result = self.device.migrate_to_system(addr, pages);
                self.outcome("migrate_to_sys", result).map(|_| ())
            }
        }
    }
}

/// A process: random operations until `deadline`, then, when all failures are
/// off, everything is looked at.
fn process(index: u32, seed: u64, deadline: Instant, gates: &[Gate; 2]) -> Result<(), String> {
    let mut model = Model::new(index, seed).map_err(|error| format!("set-up: {error}"))?;
    let mut steps = 0u64;
    while Instant::now() < deadline {
        model.step(index).map_err(|error| format!("step {steps}: {error}"))?;
        steps += 1;
    }
    let errors = model.errors.values().sum::<u64>();
    gates[0].send(steps).and_then(|()| gates[0].send(errors)).map_err(|e| e.to_string())?;
    gates[1].wait().map_err(|error| error.to_string())?;
    for page in 0..PAGES {
        let bytes = inject::kernel_reads(&model.map, page).map_err(|error| error.to_string())?;
        model.learn(page, &bytes).map_err(|error| format!("at the end: {error}"))?;
    }
    Ok(())
}

/// Sets a point. The kernel's failures hit this write, too.
fn set_point(point: &str, setting: &str) -> std::io::Result<()> {
    let mut tries = PATIENCE;
    loop {
        match inject::set_point(point, setting) {
            Err(error) if error.raw_os_error() == Some(Errno::EFAULT.0) && tries > 0 => tries -= 1,
            result => return result,
        }
    }
}

/// Sets the points anew.
fn roll(points: &[String], random: &mut Random) -> std::io::Result<()> {
    for point in points {
        let setting = match random.below(2) {
            0 => "0".to_string(),
            _ => format!("{} every", 2 + random.below(60)),
        };
        set_point(point, &setting)?;
    }
    Ok(())
}

fn all(device: u32, sources: &[Source], seconds: u64, seed: u64) -> Result<String, String> {
    let points: Vec<String> = sources
        .iter()
        .filter_map(|source| match source {
            Source::Point(name) => Some(name.clone()),
            Source::Kernel(_) | Source::AnyTask(_) | Source::Lasting(_) => None,
        })
        .collect();
    let kinds: Vec<Kind> = sources
        .iter()
        .filter_map(|source| match source {
            Source::Kernel(kind) => Some(*kind),
            Source::Point(_) | Source::AnyTask(_) | Source::Lasting(_) => None,
        })
        .collect();
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let gate = || Gate::new().map_err(|error| error.to_string());
    let mut children = Vec::new();
    for number in 0..PROCESSES {
        let gates = [gate()?, gate()?];
        let body = || process(device, seed + number + 1, deadline, &gates);
        let child = Child::spawn(body).map_err(|error| error.to_string())?;
        children.push((child, gates));
    }
    // Set up without failures, which the processes need some time for.
    std::thread::sleep(TURN);
    let kernel = match kinds.is_empty() {
        true => None,
        false => Some(Kernel::prepare(&kinds, PERCENT).map_err(|error| error.to_string())?),
    };
    let mut random = Random(seed);
    while Instant::now() < deadline {
        roll(&points, &mut random).map_err(|error| error.to_string())?;
        std::thread::sleep(TURN);
    }
    drop(kernel);
    inject::clear_points().map_err(|error| error.to_string())?;
    let (mut steps, mut errors) = (0, 0);
    for (mut child, gates) in children {
        // A child that ended early has a report, and sends nothing.
        let ended = child.wait_timeout(Duration::from_millis(200));
        if ended.is_none() {
            let receive = || gates[0].receive().map_err(|error| format!("no end: {error}"));
            steps += receive()?;
            errors += receive()?;
            gates[1].open().map_err(|error| error.to_string())?;
            child.wait_timeout(Duration::from_secs(60));
        }
        child.outcome()?;
    }
    nothing_in_use(device)?;
    Ok(format!("seed {seed}: {steps} operations, {errors} errors"))
}

/// Random failures for so many seconds.
pub fn run(tap: &mut Tap, device: u32, sources: &[Source], seconds: u64, seed: u64) {
    let result = all(device, sources, seconds, seed);
    let _ = inject::clear_points();
    tap.result(NAME, result);
}

// SPDX-License-Identifier: GPL-2.0
//! All kinds of failures at random, in several concurrent processes. Contents must be right all the
//! time, and nothing may hang. Each error must be a documented one and be returned only while one
//! of its causes is set.

mod board;
mod devices;
mod locks;
mod mirror;
mod model;
mod placement;
mod queues;

use crate::inject::run::{
    nothing_in_use,
    Tap, //
};
use board::Board;
use hmm::inject::{
    self,
    Kernel,
    Kind,
    Source, //
};
use hmm::{
    Child,
    Device,
    Errno,
    Gate, //
};
use model::{
    Model,
    Random, //
};
use std::time::{
    Duration,
    Instant, //
};

/// Name of the case.
pub const NAME: &str = "mixed";

/// Operations of a process besides those on a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// No other operations.
    Mirror,
    /// Queues and fences.
    Queues,
    /// Locks and blits.
    Locks,
    /// Another device, and managed memory.
    Devices,
    /// Attributes and events.
    Placement,
}

/// Operations of each process.
const WORK: [Work; 6] =
    [Work::Mirror, Work::Queues, Work::Locks, Work::Devices, Work::Placement, Work::Mirror];
const PROCESSES: usize = WORK.len();
/// Memory size of each process, in pages.
const PAGES: usize = 48;
/// Time between two updates of the failure sources.
const TURN: Duration = Duration::from_millis(300);
/// Percentage of allocations and user copies of our modules that the kernel fails.
const PERCENT: u32 = 2;
/// Number of attempts after which a call counts as never working.
const PATIENCE: usize = 10_000;
/// Time limit of each wait.
const LIMIT: Duration = Duration::from_secs(60);
/// Sources by which memory looks as if it did not exist. In half of the turns none of them is set,
/// so that an error caused by them is a failure of the test then.
const LOSE: [&str; 4] = ["space", "copy", "isolate", "fail_usercopy"];

/// State of a process: its devices and the model of its memory.
pub struct Worker<'b> {
    work: Work,
    index: u32,
    device: Device,
    /// Another device, for [`Work::Devices`] only.
    partner: Option<Device>,
    model: Model<'b>,
    /// Number of steps so far.
    steps: u64,
    /// Sequence number of the last event that was read from this open file.
    last_event: Option<u64>,
}

impl Worker<'_> {
    fn new(work: Work, index: u32, seed: u64, board: &Board) -> Result<Worker<'_>, Errno> {
        let device = Device::open(index)?;
        let model = Model::new(seed, board)?;
        let partner = match work {
            Work::Devices => Some(devices::partner(&device, index)?),
            _ => None,
        };
        Ok(Worker { work, index, device, partner, model, steps: 0, last_event: None })
    }

    /// Continues with another open file.
    fn replace(&mut self, device: Device) {
        self.device = device;
        self.last_event = None;
    }

    fn step(&mut self) -> Result<(), String> {
        self.steps += 1;
        let choice = self.model.random.below(4);
        match (self.work, choice) {
            (Work::Mirror, _) | (_, 0 | 1) => mirror::step(self),
            (Work::Queues, 2) => queues::step(self),
            (Work::Queues, _) => queues::host_fence(self),
            (Work::Locks, _) => locks::step(self),
            (Work::Devices, 2) => devices::pull(self),
            (Work::Devices, _) => devices::managed(self),
            (Work::Placement, 2) => placement::attributes(self),
            (Work::Placement, _) => placement::events(self),
        }
    }
}

/// Body of a process: random operations until `deadline`. Then it waits until all failures are off,
/// and checks all pages.
fn process(worker: &mut Worker<'_>, deadline: Instant, gates: &[Gate; 2]) -> Result<(), String> {
    while Instant::now() < deadline {
        let steps = worker.steps;
        worker.step().map_err(|error| format!("{:?}, step {steps}: {error}", worker.work))?;
    }
    let model = &mut worker.model;
    // One write, because all processes print to the same output.
    let line = format!("# {:?}: {}\n", worker.work, model.summary());
    print!("{line}");
    let steps = worker.steps;
    let errors = model.errors();
    gates[0].send(steps).and_then(|()| gates[0].send(errors)).map_err(|e| e.to_string())?;
    gates[1].wait().map_err(|error| error.to_string())?;
    for page in 0..PAGES {
        let bytes = inject::kernel_reads(&model.map, page).map_err(|error| error.to_string())?;
        model.learn(page, &bytes).map_err(|error| format!("at the end: {error}"))?;
    }
    match model.never_succeeded().as_slice() {
        [] => Ok(()),
        never => Err(format!("{:?}: never successful: {}", worker.work, never.join(", "))),
    }
}

/// Sets an injection point. Kernel failures hit this write, too, so it is repeated.
fn set_point(point: &str, setting: &str) -> std::io::Result<()> {
    let mut tries = PATIENCE;
    loop {
        match inject::set_point(point, setting) {
            Err(error) if error.raw_os_error() == Some(Errno::EFAULT.0) && tries > 0 => tries -= 1,
            result => return result,
        }
    }
}

/// All failure sources and their current state.
struct Failures<'b> {
    points: Vec<String>,
    kinds: Vec<Kind>,
    kernel: Option<Kernel>,
    board: &'b Board,
    random: Random,
}

impl Failures<'_> {
    /// Sets or clears each source at random.
    fn roll(&mut self) -> std::io::Result<()> {
        let lose = self.random.one_in(2);
        for point in &self.points {
            let on = self.random.one_in(2) && (lose || !LOSE.contains(&point.as_str()));
            let setting = format!("{} every", 2 + self.random.below(60));
            if on {
                self.board.publish(point, true);
                set_point(point, &setting)?;
            } else {
                set_point(point, "0")?;
                self.board.publish(point, false);
            }
        }
        for kind in &self.kinds {
            let on = *kind != Kind::Usercopy || lose;
            if on {
                self.board.publish(kind.name(), true);
            }
            inject::set_percent(*kind, if on { PERCENT } else { 0 })?;
            if !on {
                self.board.publish(kind.name(), false);
            }
        }
        Ok(())
    }

    fn end(self) -> std::io::Result<()> {
        drop(self.kernel);
        inject::clear_points()
    }
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
    let names = points.iter().cloned().chain(kinds.iter().map(|kind| kind.name().to_string()));
    let board = &Board::new(names.collect()).map_err(|error| error.to_string())?;
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let gate = || Gate::new().map_err(|error| error.to_string());
    let mut children = Vec::new();
    for (number, work) in WORK.into_iter().enumerate() {
        let gates = [gate()?, gate()?];
        let body = || {
            let worker = Worker::new(work, device, seed + number as u64 + 1, board);
            let mut worker = worker.map_err(|error| format!("set-up: {error}"))?;
            gates[0].send(0).map_err(|error| error.to_string())?;
            process(&mut worker, deadline, &gates)
        };
        let child = Child::spawn(body).map_err(|error| error.to_string())?;
        children.push((child, gates));
    }
    // The processes set up their devices before the first failure is armed.
    for (child, gates) in &mut children {
        if gates[0].receive().is_err() {
            child.outcome()?;
        }
    }
    let kernel = if kinds.is_empty() {
        None
    } else {
        Some(Kernel::prepare(&kinds, 0).map_err(|error| error.to_string())?)
    };
    let mut failures = Failures { points, kinds, kernel, board, random: Random(seed) };
    while Instant::now() < deadline {
        failures.roll().map_err(|error| error.to_string())?;
        std::thread::sleep(TURN);
    }
    failures.end().map_err(|error| error.to_string())?;
    let mut steps = 0;
    let mut errors = 0;
    for (mut child, gates) in children {
        // A child that ended early has reported its error and sends no numbers.
        let ended = child.wait_timeout(Duration::from_millis(200));
        if ended.is_none() {
            let receive = || gates[0].receive().map_err(|error| format!("no end: {error}"));
            steps += receive()?;
            errors += receive()?;
            gates[1].open().map_err(|error| error.to_string())?;
            child.wait_timeout(LIMIT);
        }
        child.outcome()?;
    }
    for index in [device, device ^ 1] {
        nothing_in_use(index).map_err(|error| format!("device {index}: {error}"))?;
    }
    Ok(format!("seed {seed}: {steps} operations, {errors} errors"))
}

/// Injects random failures for `seconds` seconds.
pub fn run(tap: &mut Tap, device: u32, sources: &[Source], seconds: u64, seed: u64) {
    let result = all(device, sources, seconds, seed);
    let _ = inject::clear_points();
    tap.result(NAME, result);
}

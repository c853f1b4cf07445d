// SPDX-License-Identifier: GPL-2.0
//! Runs a script: a process for each of the shape, a thread for each lane, and a
//! supervisor that looks whether all make progress.

use crate::env::{Board, Common, Env};
use crate::hang;
use crate::lane::Lane;
use crate::op;
use crate::rng::Rng;
use crate::script::Script;
use anyhow::{anyhow, Result};
use hmm::child::{kill_group, own_group, Ended, SIGKILL};
use hmm::uffd::Missing;
use hmm::{Child, Device};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// How to run.
pub struct Options {
    /// A lane that makes no progress for so long hangs.
    pub patience: Duration,
    /// End after so long, if all goes well.
    pub most: Option<Duration>,
    /// Processes that are killed at random moments.
    pub visitors: bool,
    /// Lines about the progress.
    pub progress: bool,
}

/// How a run failed.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// What is wrong.
    pub text: String,
    /// Lane and operation, if one is known.
    pub at: Option<(usize, usize)>,
    /// Something does not end.
    pub hang: bool,
    /// Operations that each lane had begun.
    pub begun: Vec<u64>,
}

impl Failure {
    /// The last `count` operations of each lane.
    pub fn tail(&self, script: &Script, count: usize) -> String {
        let mut text = String::new();
        for (lane, (ops, begun)) in script.lanes.iter().zip(&self.begun).enumerate() {
            let end = (*begun as usize).min(ops.len());
            for (index, op) in ops.iter().enumerate().take(end).skip(end.saturating_sub(count)) {
                let mark = if self.at == Some((lane, index)) { " <- here" } else { "" };
                let _ = writeln!(text, "  lane {lane} #{index}: {op:?}{mark}");
            }
        }
        text
    }
}

/// What a run did.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Operations done.
    pub ops: u64,
    /// Operations and what was seen, with how often.
    pub counts: BTreeMap<String, u64>,
    /// Counters of the devices, summed up.
    pub devices: BTreeMap<&'static str, u64>,
    /// Processes that were killed.
    pub killed: u64,
    /// Seconds.
    pub seconds: f64,
    /// What went wrong.
    pub failure: Option<Failure>,
}

impl Outcome {
    /// As a table.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "{:<44} {:>10} {:>10}", "", "times", "ms");
        for (name, count) in self.counts.iter().filter(|(name, _)| !name.starts_with("ms ")) {
            let _ = write!(text, "{name:<44} {count:>10}");
            let _ = match self.counts.get(&format!("ms {name}")) {
                Some(us) => writeln!(text, " {:>10}", us / 1000),
                None => writeln!(text),
            };
        }
        for name in ["cpu_fault_pages", "evicted_pages", "copy_failures", "device_pages_used"] {
            let _ =
                writeln!(text, "{name:<44} {:>10}", self.devices.get(name).copied().unwrap_or(0));
        }
        let _ = writeln!(
            text,
            "{} operations in {:.1} s, {} processes killed: {}",
            self.ops,
            self.seconds,
            self.killed,
            if self.failure.is_none() { "no mismatch" } else { "FAILED" }
        );
        text
    }
}

/// Accesses to a page whose copy was made to fail are repeated: the copy of the next one succeeds.
fn survive_bus_errors() {
    static IN_A_ROW: AtomicU64 = AtomicU64::new(0);
    extern "C" fn again(_: libc::c_int) {
        if IN_A_ROW.fetch_add(1, SeqCst) > 1_000_000 {
            // SAFETY: ends the process.
            unsafe { libc::_exit(70) };
        }
    }
    // SAFETY: zero is a valid value of all fields.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = again as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: a valid structure; the handler only counts.
    unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) };
}

/// Fills what is missing in a lane's region until told to stop.
fn serve(missing: &Missing, filler: u8, stop: &AtomicBool) {
    while !stop.load(SeqCst) {
        // What fails here, fails there.
        let _ = missing.serve(filler, Duration::from_millis(50));
    }
}

/// Sends a lane's counts to the supervisor.
fn report(into: &std::path::Path, counts: &BTreeMap<String, u64>) -> Result<(), String> {
    let text = serde_json::to_string(counts).map_err(|error| error.to_string())?;
    std::fs::write(into, text).map_err(|error| error.to_string())
}

fn counts_file(lane: usize) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("hmm-torture-{lane}.json"))
}

fn set_up(env: &Env, number: usize) -> Result<(Lane<'_>, Missing, u8), String> {
    let lane = Lane::new(env, number)?;
    let region = lane.uffd_region();
    let missing = Missing::new(&region.map).map_err(|error| format!("userfaultfd: {error}"))?;
    let filler = region.filler;
    Ok((lane, missing, filler))
}

/// `ready` is passed when all lanes of the process have their memory: what they map must not come
/// to lie in holes that others make.
fn run_lane(
    env: &Env,
    number: usize,
    ops: &[op::Op],
    board: &Board,
    ready: &Barrier,
) -> Result<(), String> {
    let (mut lane, missing, filler) = match set_up(env, number) {
        Ok(done) => done,
        Err(text) => {
            env.stop.store(true, SeqCst);
            ready.wait();
            return Err(text);
        }
    };
    let (stop, serving) = (AtomicBool::new(false), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // A thread maps memory of its own when it starts.
            serving.wait();
            serve(&missing, filler, &stop);
        });
        serving.wait();
        ready.wait();
        let mut result = Ok(());
        for (index, op) in ops.iter().enumerate() {
            if env.stopped() {
                break;
            }
            board.begun(number).store(index as u64 + 1, SeqCst);
            if let Err(text) = lane.execute(op) {
                board.failed(number).store(index as u64 + 1, SeqCst);
                result = Err(format!("lane {number} #{index} {op:?}: {text}"));
                break;
            }
        }
        let result = result.and_then(|()| {
            if env.stopped() {
                return Ok(());
            }
            lane.end().map_err(|text| format!("lane {number} at its end: {text}"))
        });
        if result.is_err() {
            env.stop.store(true, SeqCst);
        }
        stop.store(true, SeqCst);
        report(&counts_file(number), &lane.counts).and(result)
    })
}

/// Memory that others can map would fill the holes that lanes make.
fn keep_malloc_off_mmap() {
    // Neither for large blocks nor for the first one of a thread.
    for what in [libc::M_MMAP_MAX, libc::M_ARENA_TEST] {
        // SAFETY: plain numbers.
        unsafe { libc::mallopt(what, 0) };
    }
    // SAFETY: plain numbers.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
    }
    // Where the heap cannot grow, malloc takes a mapping after all: let it have all that it will need
    // before there are holes.
    drop(std::hint::black_box(Vec::<u8>::with_capacity(HEAP)));
}

/// Bytes of the heap of each process.
const HEAP: usize = 96 << 20;

/// One process: its lanes, and what they share.
fn process(
    script: &Script,
    number: usize,
    wide: Option<Common>,
    board: &Board,
    end: &AtomicU64,
) -> Result<(), String> {
    own_group();
    keep_malloc_off_mmap();
    survive_bus_errors();
    let narrow = Common::narrow().map_err(|error| format!("common memory: {error}"))?;
    let env = Env { devices: script.shape.devices, narrow, wide, stop: AtomicBool::new(false) };
    let first = number * script.shape.threads;
    let ready = Barrier::new(script.shape.threads);
    let results: Vec<_> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (first..first + script.shape.threads)
            .map(|lane| {
                let (env, ops, ready) = (&env, &script.lanes[lane], &ready);
                scope.spawn(move || run_lane(env, lane, ops, board, ready))
            })
            .collect();
        // Told to end early.
        while lanes.iter().any(|lane| !lane.is_finished()) {
            if end.load(SeqCst) != 0 {
                env.stop.store(true, SeqCst);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        lanes.into_iter().map(|lane| lane.join().unwrap_or_else(|_| Err("panic".into()))).collect()
    });
    let failures: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    if failures.is_empty() {
        return env.narrow.check();
    }
    Err(failures.join("\n"))
}

/// A process that is killed soon: what it finds until then must be right, too.
fn visitor(script: &Script, number: u64, board: &Board) -> Result<Child, hmm::Errno> {
    let mut shape = script.shape;
    (shape.seed, shape.procs, shape.threads) = (shape.seed ^ (number << 32), 1, 1);
    let ops: Vec<_> = op::Draw::new(shape.seed, 0, shape.devices)
        .take(4096)
        // What is told of failures is told of all devices: only those who count them may cause them.
        .filter(|op| !matches!(op, op::Op::CopyFail { .. }))
        .collect();
    let lane = script.shape.lanes();
    let lanes = (0..=lane).map(|index| if index == lane { ops.clone() } else { Vec::new() });
    let script = Script { shape, lanes: lanes.collect() };
    Child::spawn(|| process_of_lane(&script, lane, board))
}

fn process_of_lane(script: &Script, lane: usize, board: &Board) -> Result<(), String> {
    own_group();
    keep_malloc_off_mmap();
    survive_bus_errors();
    let narrow = Common::narrow().map_err(|error| format!("common memory: {error}"))?;
    let env =
        Env { devices: script.shape.devices, narrow, wide: None, stop: AtomicBool::new(false) };
    run_lane(&env, lane, &script.lanes[lane], board, &Barrier::new(1))
}

fn device_counters(devices: usize) -> BTreeMap<&'static str, u64> {
    let mut sums = BTreeMap::new();
    for dev in 0..devices {
        if let Ok(counters) = Device::open(dev as u32).and_then(|device| device.counters()) {
            for (name, value) in counters.fields() {
                *sums.entry(name).or_default() += value;
            }
        }
    }
    sums
}

/// Runs a script.
pub fn run(script: &Script, options: &Options) -> Result<Outcome> {
    let lanes = script.shape.lanes();
    let board = Board::new(lanes + 1)?;
    let end = hmm::Mapping::shared(1)?;
    let wide = Common::wide()?;
    for lane in 0..=lanes {
        let _ = std::fs::remove_file(counts_file(lane));
    }
    // As long as they are open, settings and counters stay.
    let open: Vec<_> = (0..script.shape.devices)
        .map(|dev| Device::open(dev as u32).map_err(|error| anyhow!("device {dev}: {error}")))
        .collect::<Result<_>>()?;
    let begin = Instant::now();
    let mut children = Vec::new();
    for number in 0..script.shape.procs {
        let shared = Common { map: wide.map.again()?, sums: wide.sums.again()? };
        children.push(Child::spawn(|| {
            process(script, number, Some(shared), &board, end.atomic(0, 0))
        })?);
    }
    let mut failure: Option<Failure> = None;
    let mut seen = vec![(0u64, Instant::now()); lanes];
    let mut running = vec![true; script.shape.procs];
    let (mut guest, mut killed, mut rng) =
        (None::<(Child, Instant)>, 0u64, Rng::new(script.shape.seed, u64::MAX));
    let mut told = Instant::now();
    let mut next_guest = Instant::now();
    while running.contains(&true) {
        std::thread::sleep(Duration::from_millis(20));
        for (number, child) in children.iter_mut().enumerate() {
            if running[number] && child.try_wait().is_some() {
                running[number] = false;
                if let Err(text) = child.outcome() {
                    failure.get_or_insert(Failure {
                        text,
                        at: None,
                        hang: false,
                        begun: Vec::new(),
                    });
                }
            }
        }
        for (lane, (begun, since)) in seen.iter_mut().enumerate() {
            let now = board.begun(lane).load(SeqCst);
            let done = !running[lane / script.shape.threads];
            if now != *begun || done {
                (*begun, *since) = (now, Instant::now());
            } else if since.elapsed() > options.patience && failure.is_none() {
                let what = match (now as usize).checked_sub(1) {
                    Some(index) => format!("{:?}", script.lanes[lane].get(index)),
                    None => "its beginning".to_string(),
                };
                let text = format!("lane {lane} hangs in {what}\n{}", hang::report());
                let at = (now as usize).checked_sub(1).map(|index| (lane, index));
                failure = Some(Failure { text, at, hang: true, begun: Vec::new() });
            }
        }
        if failure.is_some() {
            break;
        }
        if options.most.is_some_and(|most| begin.elapsed() > most) {
            end.set(0, 0, 1);
        }
        if options.visitors {
            match guest.take() {
                None if Instant::now() < next_guest => {}
                None => {
                    // Others want processors, too.
                    next_guest = Instant::now() + Duration::from_secs(4);
                    let time = Duration::from_millis(50 + rng.below(1500) as u64);
                    guest = Some((visitor(script, killed + 1, &board)?, Instant::now() + time));
                }
                Some((mut child, until)) => {
                    if child.try_wait().is_some() {
                        if let Err(text) = child.outcome() {
                            let text = format!("process to be killed: {text}");
                            failure =
                                Some(Failure { text, at: None, hang: false, begun: Vec::new() });
                        }
                    } else if Instant::now() > until {
                        child.signal(SIGKILL);
                        match child.wait_timeout(options.patience) {
                            Some(Ended::Signal(SIGKILL)) => killed += 1,
                            Some(_) => {}
                            None => {
                                let text =
                                    format!("a killed process does not end\n{}", hang::report());
                                failure =
                                    Some(Failure { text, at: None, hang: true, begun: Vec::new() });
                            }
                        }
                    } else {
                        guest = Some((child, until));
                    }
                }
            }
        }
        if options.progress && told.elapsed() > Duration::from_secs(10) {
            told = Instant::now();
            let done: u64 = (0..lanes).map(|lane| board.begun(lane).load(SeqCst)).sum();
            eprintln!(
                "{done} of {} operations, {:.0} s",
                script.len(),
                begin.elapsed().as_secs_f64()
            );
        }
    }
    // Also what they forked.
    for child in &children {
        kill_group(child.pid());
    }
    drop(children);
    drop(guest);
    let begun: Vec<u64> = (0..lanes).map(|lane| board.begun(lane).load(SeqCst)).collect();
    let failed = (0..lanes).find_map(|lane| {
        let number = board.failed(lane).load(SeqCst) as usize;
        Some((lane, number.checked_sub(1)?))
    });
    if let Some(failure) = &mut failure {
        failure.begun = begun.clone();
        failure.at = failure.at.or(failed);
    } else if let Err(text) = wide.check() {
        failure = Some(Failure { text, at: None, hang: false, begun: begun.clone() });
    }
    drop(open);
    // Now nobody has them open, once the last killed process is gone: nothing may be left in their
    // memory.
    let gone = Instant::now() + options.patience;
    let (devices, left) = loop {
        let devices = device_counters(script.shape.devices);
        let left = devices.get("device_pages_used").copied().unwrap_or(0);
        if left == 0 || Instant::now() > gone {
            break (devices, left);
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    if failure.is_none() && left != 0 {
        let text = format!("{left} device pages are in use, by nobody");
        failure = Some(Failure { text, at: None, hang: false, begun: begun.clone() });
    }
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for lane in 0..lanes {
        let text = std::fs::read_to_string(counts_file(lane)).unwrap_or_default();
        let of_lane: BTreeMap<String, u64> = serde_json::from_str(&text).unwrap_or_default();
        for (name, count) in of_lane {
            *counts.entry(name).or_default() += count;
        }
    }
    Ok(Outcome {
        ops: begun.iter().sum(),
        counts,
        devices,
        killed,
        seconds: begin.elapsed().as_secs_f64(),
        failure,
    })
}

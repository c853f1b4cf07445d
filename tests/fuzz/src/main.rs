// SPDX-License-Identifier: GPL-2.0
//! Hostile calls on `/dev/hmm_dmirror*` and on the nodes of the other samples, from unprivileged
//! processes. The arguments are mostly valid, partly invalid, and change concurrently. The kernel
//! must not report a problem, no call may take too long, and no process may read or change memory
//! of another process.
//!
//! Runs as root in a virtual machine only, because the nodes are accessible to all users during a
//! run.

mod arena;
mod args;
mod calls;
mod chaos;
mod extended;
mod kill;
mod mutate;
mod pass;
mod report;
mod stats;
mod sys;
mod victim;
mod worker;

use clap::Parser;
use hmm::{
    Child,
    Device, //
};
use stats::Shared;
use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{
    Duration,
    Instant, //
};

#[derive(Parser, Clone)]
#[command(name = "hmm-fuzz", about = "Hostile calls on the device nodes")]
struct Args {
    /// Calls to make
    #[arg(long, default_value_t = 200_000)]
    calls: u64,
    /// End after this time, whatever was done by then
    #[arg(long)]
    seconds: Option<u64>,
    /// Processes that make calls at once, up to 4
    #[arg(long, default_value_t = 2)]
    procs: u64,
    /// Threads of each that make calls, up to 6
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// The same seed gives the same calls in each thread
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Calls of a thread before its process ends and another one begins
    #[arg(long, default_value_t = 20_000)]
    round: u64,
    /// A call that takes longer is a failure, in seconds
    #[arg(long, default_value_t = 30)]
    limit: u64,
    /// Stay root
    #[arg(long)]
    root: bool,
    /// The devices are those of qemu_gpu, which take 200 ms for a page: ioctls that it has, and few
    /// pages
    #[arg(long)]
    hardware: bool,
    /// Instead: kill a process in each kind of long call, so often
    #[arg(long, value_name = "ROUNDS")]
    kill: Option<u32>,
    /// With --kill: only calls whose names contain one of these
    filters: Vec<String>,
    /// With --kill: a process must be gone after this time, in seconds
    #[arg(long, default_value_t = 5)]
    kill_limit: u64,
    /// With --kill: the node
    #[arg(long, default_value_t = 0)]
    node: u32,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Timeout until all device memory is free.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Makes the nodes accessible to all users; restores their permissions on drop.
struct Permissions(Vec<(std::path::PathBuf, u32)>);

impl Permissions {
    fn open_to_all(devices: u64) -> std::io::Result<Permissions> {
        let mut all = Permissions(Vec::new());
        let mock = (0..devices as u32).map(Device::path);
        for path in mock.chain(calls::small_nodes().map(std::path::PathBuf::from)) {
            let mode = std::fs::metadata(&path)?.permissions().mode() & 0o7777;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
            all.0.push((path, mode));
        }
        Ok(all)
    }
}

impl Drop for Permissions {
    fn drop(&mut self) {
        for (path, mode) in &self.0 {
            let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(*mode));
        }
    }
}

/// Ticks of [`sys::ticks`] per ms.
fn ticks_per_ms() -> f64 {
    let time = Instant::now();
    let ticks = sys::ticks();
    std::thread::sleep(Duration::from_millis(100));
    (sys::ticks() - ticks) as f64 / (time.elapsed().as_secs_f64() * 1e3)
}

/// The call that has been running for the longest time, if for more than `limit` ticks.
fn overdue(shared: &Shared, limit: u64) -> Option<String> {
    let now = sys::ticks();
    shared.slots.iter().find_map(|slot| {
        let op = slot.op.load(Relaxed);
        let since = slot.since.load(Relaxed);
        // The slot of a killed process keeps its last call.
        let alive = slot.tid.load(Relaxed) != 0;
        let words = std::array::from_fn(|index| slot.words[index].load(Relaxed));
        (op != 0 && alive && now.saturating_sub(since) > limit)
            .then(|| report::describe(op, &words))
    })
}

/// Prints the kernel stacks of all threads of the fuzzer and of the devices.
fn tell_stacks() {
    let name = |path: &std::path::Path| std::fs::read_to_string(path).unwrap_or_default();
    let entries = |path: &std::path::Path| std::fs::read_dir(path).into_iter().flatten().flatten();
    for process in entries(std::path::Path::new("/proc")) {
        let comm = name(&process.path().join("comm"));
        if !["hmm-fuzz", "dmirror", "engines"].iter().any(|name| comm.starts_with(name)) {
            continue;
        }
        for task in entries(&process.path().join("task")) {
            let id = task.file_name();
            let stack = name(&task.path().join("stack"));
            eprintln!("{} {}:\n{stack}", comm.trim(), id.to_string_lossy());
        }
    }
}

/// Processes with a call that only a fatal signal interrupts and that has waited for `timeout`
/// ticks. SIGKILL must end it.
fn to_be_killed(shared: &Shared, timeout: u64) -> impl Iterator<Item = usize> + '_ {
    let now = sys::ticks();
    let waiting = shared.slots.iter().enumerate().filter(move |(_, slot)| {
        let op = (slot.op.load(Relaxed) as usize).checked_sub(1).map(|index| calls::ALL[index]);
        let long = now.saturating_sub(slot.since.load(Relaxed)) > timeout;
        long && slot.tid.load(Relaxed) != 0 && op.is_some_and(extended::only_a_kill_ends)
    });
    waiting.map(|(index, _)| index / worker::SLOTS)
}

fn forget_slots(shared: &Shared, process: u64) {
    for slot in shared.slots.iter().skip(process as usize * worker::SLOTS).take(worker::SLOTS) {
        slot.tid.store(0, Relaxed);
        slot.op.store(0, Relaxed);
    }
}

/// Pages in use of each device, from the text of `/sys/kernel/debug/rust_hmm/devices`; `None` on
/// another format.
fn pages_in_use(text: &str) -> Option<Vec<u64>> {
    let mut lines = text.lines();
    let column = lines.next()?.split_whitespace().position(|name| name == "used")?;
    lines.map(|line| line.split_whitespace().nth(column)?.parse().ok()).collect()
}

/// Checks that no device memory is in use and no page is mapped for DMA, once all files are closed.
fn left_behind(timeout: Duration) -> Result<(), String> {
    let since = Instant::now();
    loop {
        let text = std::fs::read_to_string("/sys/kernel/debug/rust_hmm/devices");
        let text = text.map_err(|error| format!("list of devices: {error}"))?;
        let used = pages_in_use(&text).filter(|used| !used.is_empty());
        let used = used.ok_or_else(|| format!("no list of devices: {text}"))?;
        let mapped = hmm::dma::account().map_err(|error| error.to_string())?.live();
        if mapped == 0 && used.iter().all(|used| *used == 0) {
            return Ok(());
        }
        if since.elapsed() > timeout {
            let what = "pages of the devices are still in use";
            return Err(format!("{used:?} {what}, {mapped} are mapped for DMA"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn run(args: &Args) -> Result<report::Report, String> {
    let procs = args.procs.clamp(1, 4);
    let threads = args.threads.clamp(1, 6);
    let devices = (0..4).take_while(|index| Device::path(*index).exists()).count() as u64;
    if devices == 0 {
        return Err("there is no device node".to_string());
    }
    let shared = Shared::new().map_err(|error| error.to_string())?;
    let per_ms = ticks_per_ms();
    let limit = (args.limit as f64 * 1000.0 * per_ms) as u64;
    let _permissions = Permissions::open_to_all(devices).map_err(|error| error.to_string())?;
    let hardware = args.hardware;
    let victim = Child::spawn(|| victim::run(devices, hardware, shared));
    let victim = victim.map_err(|e| e.to_string())?;
    let drawn = calls::Drawn::new(hardware);

    let mut round = 0;
    let mut started = 0;
    let mut ended_killed = 0;
    let mut start = |process: u64| {
        let plan = worker::Plan {
            seed: args.seed,
            place: [process, round],
            threads,
            calls: args.round,
            devices,
            drawn,
            hardware,
            root: args.root,
            per_ms: per_ms as u64,
        };
        round += 1;
        started += 1;
        Child::spawn(move || worker::run(&plan, shared)).map_err(|error| error.to_string())
    };
    let begin = Instant::now();
    let mut last_report = begin;
    let mut running = Vec::new();
    for process in 0..procs {
        running.push(start(process)?);
    }
    let mut failure = None;
    let mut dying = std::collections::BTreeSet::new();
    loop {
        std::thread::sleep(Duration::from_millis(2));
        let calls = shared.calls.load(Relaxed);
        let late = args.seconds.is_some_and(|s| begin.elapsed() > Duration::from_secs(s));
        let over = calls >= args.calls || late || failure.is_some();
        if over {
            shared.stop.store(true, Relaxed);
        }
        for (process, child) in running.iter_mut().enumerate() {
            let Some(ended) = child.try_wait() else { continue };
            match (ended, child.outcome()) {
                (_, Ok(())) => {}
                (hmm::child::Ended::Signal(9), _) => ended_killed += 1,
                (_, Err(why)) => failure = failure.or(Some(format!("process {process}: {why}"))),
            }
            forget_slots(shared, process as u64);
            dying.remove(&process);
            if !over {
                *child = start(process as u64)?;
            }
        }
        for process in to_be_killed(shared, limit / 8) {
            if let Some(child) = running.get(process).filter(|_| !dying.contains(&process)) {
                dying.insert(process);
                shared.kills.fetch_add(1, Relaxed);
                child.signal(hmm::child::SIGKILL);
            }
        }
        if failure.is_none() {
            failure = overdue(shared, limit)
                .map(|call| format!("a call does not end within {} s: {call}", args.limit));
            if failure.is_some() {
                tell_stacks();
            }
        }
        if last_report.elapsed() > Duration::from_secs(10) {
            last_report = Instant::now();
            let seconds = begin.elapsed().as_secs_f64();
            eprintln!("{calls} calls, {:.0} a second", calls as f64 / seconds);
        }
        if over && (failure.is_some() || running.iter_mut().all(|child| child.try_wait().is_some()))
        {
            break;
        }
    }
    drop(running);
    let seconds = begin.elapsed().as_secs_f64();
    victim.join().map_err(|why| format!("the other process: {why}"))?;
    let calls = shared.calls.load(Relaxed);
    let kills = shared.kills.load(Relaxed);
    let lines = report::lines(shared, per_ms);
    let report = report::Report {
        seed: args.seed,
        calls,
        seconds,
        per_second: calls as f64 / seconds,
        processes: [started, kills],
        checks: shared.checks.load(Relaxed),
        moved: shared.moved.load(Relaxed),
        lines,
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report).map_err(|e| e.to_string())?)
    } else {
        report::print(&report)
    }
    if let Some(why) = failure {
        return Err(why);
    }
    if ended_killed != kills {
        return Err(format!("{ended_killed} processes were killed, {kills} of them on purpose"));
    }
    let leaks = shared.leaks.load(Relaxed);
    let damages = shared.damages.load(Relaxed);
    if leaks + damages != 0 {
        return Err(format!(
            "another process's memory: {leaks} words were read, {damages} changed"
        ));
    }
    left_behind(TIMEOUT * if hardware { 100 } else { 1 })?;
    let never = report::never_succeeded(&report.lines, hardware);
    if !never.is_empty() {
        return Err(format!("these never succeeded, so that nothing was tested: {never:?}"));
    }
    if report.checks == 0 || report.moved == 0 {
        let checks = report.checks;
        let moved = report.moved;
        return Err(format!("the other process: {checks} checks, {moved} pages moved"));
    }
    Ok(report)
}

fn run_kill(args: &Args, rounds: u32) -> Result<(), String> {
    let limit = Duration::from_secs(args.kill_limit);
    let all = kill::run(&args.filters, rounds, limit, args.node, args.json);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&all).map_err(|error| error.to_string())?);
    }
    let wrong = all.iter().filter(|died| died.wrong.is_some()).count();
    left_behind(TIMEOUT)?;
    match (wrong, all.len()) {
        (_, 0) => Err("no call matches".to_string()),
        (0, _) => Ok(()),
        (wrong, _) => Err(format!("{wrong} kinds of calls do not die as they should")),
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match args.kill {
        Some(rounds) => run_kill(&args, rounds),
        None => {
            // Print the plan first: after a crash, the test then counts as missing.
            if !args.json {
                println!("1..1");
            }
            let result = run(&args).map(|_| ());
            match &result {
                _ if args.json => {}
                Ok(()) => println!("ok 1 hostile calls"),
                Err(why) => println!("not ok 1 hostile calls # {why}"),
            }
            result
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("hmm-fuzz: {why}; seed {}", args.seed);
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::pages_in_use;

    #[test]
    fn used_pages_are_parsed() {
        let text = "device kind used total\n1 private 3 512\n2 coherent 0 512\n";
        assert_eq!(pages_in_use(text), Some(vec![3, 0]));
        assert_eq!(pages_in_use("device kind\n1 private\n"), None);
        assert_eq!(pages_in_use(""), None);
    }
}

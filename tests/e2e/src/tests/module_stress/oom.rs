// SPDX-License-Identifier: GPL-2.0
//! Processes that exceed the limit of their cgroup, and the OOM reaper.

use super::idle;
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::engine::Way;
use hmm::{
    Child,
    Command,
    Device,
    EngineOp,
    Gate,
    Mapping,
    Setting, //
};
use std::path::Path;
use std::time::{
    Duration,
    Instant, //
};

/// A memory control group with a limit, which is removed when it is dropped.
pub struct Limited(std::path::PathBuf);

impl Limited {
    pub fn new(name: &str, bytes: u64) -> Result<Limited, Stop> {
        let top = Path::new("/tmp/hmm-cgroup");
        if !top.join("cgroup.procs").exists() {
            std::fs::create_dir_all(top)?;
            let mount = std::process::Command::new("mount")
                .args(["-t", "cgroup2", "none"])
                .arg(top)
                .status()?;
            if !mount.success() {
                return Err(Stop::Skip("this kernel has no cgroup2".to_string()));
            }
        }
        let controllers = std::fs::read_to_string(top.join("cgroup.controllers"))?;
        if !controllers.split_whitespace().any(|name| name == "memory") {
            return Err(Stop::Skip("this kernel cannot limit the memory of a group".to_string()));
        }
        std::fs::write(top.join("cgroup.subtree_control"), "+memory")?;
        let dir = top.join(name);
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join("memory.max"), bytes.to_string())?;
        // With swap, the memory would be swapped out instead.
        if dir.join("memory.swap.max").exists() {
            std::fs::write(dir.join("memory.swap.max"), "0")?;
        }
        Ok(Limited(dir))
    }

    pub fn enter(&self) -> Outcome {
        std::fs::write(self.0.join("cgroup.procs"), "0").what("enter the group")
    }

    pub fn permit_swap(&self) -> Outcome {
        std::fs::write(self.0.join("memory.swap.max"), "max").what("permit swap")
    }

    /// Has the kernel examine the group's pages, and reclaim at most `bytes`. It may find less.
    pub fn reclaim(&self, bytes: usize) -> Outcome {
        match std::fs::write(self.0.join("memory.reclaim"), bytes.to_string()) {
            Err(error) if error.raw_os_error() != Some(libc::EAGAIN) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Returns the number of the group's pages that reclaim has examined.
    pub fn scanned(&self) -> Result<u64, Stop> {
        let text = std::fs::read_to_string(self.0.join("memory.stat"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("pgscan "));
        line.and_then(|count| count.parse().ok()).ok_or(Stop::Fail(format!("no pgscan: {text}")))
    }

    fn kills(&self) -> Result<u64, Stop> {
        let text = std::fs::read_to_string(self.0.join("memory.events"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.parse().ok()).ok_or(Stop::Fail(format!("no oom_kill: {text}")))
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Memory of the process that is killed.
struct Victim {
    /// Pages that migrate meanwhile.
    moving: Mapping,
    /// Pages in device memory.
    device: Mapping,
    /// More memory than the limit allows.
    rest: Mapping,
}

/// Allocates memory until it is killed.
fn starve(ctx: &Ctx, group: &Limited, own: &Victim, ready: &Gate, go: &Gate) -> Outcome {
    group.enter()?;
    let device = ctx.open()?;
    own.moving.fill(1);
    own.device.fill(2);
    device_sees(&device, &own.device, 2, "before")?;
    migrate(&device, &own.device, 2)?;
    let read = Command::new(EngineOp::Read, own.device.addr(), own.device.len()).rounds(0);
    device.submit(read).what("READ")?;
    ready.send(device.fd() as u64)?;
    go.wait()?;
    own.rest.fill(3);
    Err(Stop::Fail("the group's limit does not hold".to_string()))
}

/// Returns the kernel's messages on the OOM reaper and process `pid`.
fn reaper_log(pid: i32) -> Result<String, Stop> {
    let log = std::process::Command::new("dmesg").output()?;
    let log = String::from_utf8_lossy(&log.stdout).into_owned();
    let ours = |line: &&str| {
        let after = line.split("oom_reaper: ").nth(1).unwrap_or_default();
        let word = |word: &str| word.trim_start_matches("pid:").parse() == Ok(pid);
        after.split_whitespace().any(word)
    };
    Ok(log.lines().filter(ours).collect::<Vec<_>>().join(" | "))
}

/// The OOM killer kills a process while another process migrates its memory through its file. That
/// migration holds the mmap lock for seconds, so the OOM reaper acts.
pub(super) fn oom(ctx: &Ctx, served: bool) -> Outcome {
    let own = ctx.open()?;
    let group = Limited::new(if served { "served" } else { "refused" }, 48 << 20)?;
    let victim = Victim {
        moving: Mapping::anon(16)?,
        device: Mapping::anon(64)?,
        rest: Mapping::anon(32768)?,
    };
    let ready = Gate::new()?;
    let go = Gate::new()?;
    let mut child = Child::spawn(|| starve(ctx, &group, &victim, &ready, &go))?;
    let pid = child.pid();
    let fd = ready.receive().what("the child's device")?;
    let device = Device::of_process(pid, fd as i32).what("the child's device file")?;
    device.set(Setting::CopyDelay, 1_000_000_000)?;
    device.set(Setting::FlushDelay, if served { 0 } else { 100_000 })?;
    let want = if served { "reaped process" } else { "unable to reap" };
    let through = &device;
    let moving = &victim.moving;
    let said = std::thread::scope(|scope| -> Result<String, Stop> {
        // 16 copies of a second each. The reaper acts two seconds after the kill and tries for one
        // second.
        let begin = Instant::now();
        let used = own.counters()?.device_pages_used;
        scope.spawn(move || {
            let done = through.migrate(moving.addr(), 16, Way::ToDevice);
            println!("# the migration took {:?}: {done:?}", begin.elapsed());
        });
        // The migration allocates device pages with the mmap lock held, and holds it while it
        // copies.
        until("pages of the migration", || Ok(own.counters()?.device_pages_used > used))?;
        go.open()?;
        // Do not reap the child yet, because the kernel names it by its process id.
        let deadline = Instant::now() + Duration::from_secs(20);
        let said = loop {
            let said = reaper_log(pid)?;
            if said.contains(want) || Instant::now() > deadline {
                break said;
            }
            std::thread::sleep(Duration::from_millis(200));
        };
        // The remaining copies need not be slow.
        own.set(Setting::CopyDelay, 0)?;
        Ok(said)
    })?;
    check!(said.contains(want), "the OOM reaper said '{said}', expected '{want}'");
    let ended = child.wait_timeout(Duration::from_secs(60));
    check_eq!(ended, Some(hmm::child::Ended::Signal(9)), "end: {:?}", child.outcome());
    check_eq!(group.kills()?, 1, "OOM kills");
    own.set(Setting::FlushDelay, 0)?;
    device.close().what("close the file of the killed process")?;
    idle(&own, "after the OOM kill")?;
    let map = Mapping::anon(64)?;
    map.fill(4);
    migrate(&own, &map, 4)?;
    cpu_sees(&map, 4, "after the OOM kill")
}

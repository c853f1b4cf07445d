// SPDX-License-Identifier: GPL-2.0
//! Exits and interruptions at any time: kills, out of memory, suspend, CPU hotplug, memory hotplug,
//! shared files.

use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    Test,
    What, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::engine::Way;
use hmm::mapping::has_huge_pages;
use hmm::procfs::selected;
use hmm::{
    Child,
    Command,
    Device,
    EngineOp,
    Errno,
    Gate,
    Mapping,
    Setting,
    Settings,
    HUGE_PAGES,
    HUGE_SIZE,
    PAGE_SIZE, //
};
use std::path::Path;
use std::sync::atomic::{
    AtomicBool,
    AtomicU64,
    Ordering, //
};
use std::time::{
    Duration,
    Instant, //
};

const OURS: &str = "the C driver has no engines";

pub const TESTS: &[Test] = &[
    Test::new("module_stress", "kill_at_random_points_leaks_nothing", kill_at_random)
        .only_rust(OURS)
        .seconds(300),
    Test::new("module_stress", "oom_reaper_frees_memory_of_a_victim", |ctx| oom(ctx, true))
        .only_rust(OURS),
    Test::new("module_stress", "oom_reaper_is_refused_during_a_slow_flush", |ctx| oom(ctx, false))
        .only_rust(OURS),
    Test::new("module_stress", "suspend", |ctx| sleep(ctx, "mem")).only_rust(OURS),
    Test::new("module_stress", "hibernation", |ctx| sleep(ctx, "disk")).only_rust(OURS),
    Test::new("module_stress", "cpu_hotplug_does_not_disturb_devices", cpu_hotplug).only_rust(OURS),
    Test::new("module_stress", "chunks_are_added_while_in_use", grows).only_rust(OURS).private(),
    Test::new(
        "module_stress",
        "dup_shares_a_mirror_and_open_does_not",
        dup_shares_a_mirror_and_open_does_not,
    )
    .only_rust(OURS),
    Test::new("module_stress", "file_keeps_the_mirror_of_its_opener", file_of_another)
        .only_rust(OURS),
];

/// Pseudo-random numbers (xorshift64), the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Waits until no page of the device is in use.
fn idle(device: &Device, when: &str) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let used = device.counters().what("counters")?.device_pages_used;
        if used == 0 {
            return Ok(());
        }
        check!(Instant::now() < deadline, "{used} device pages in use {when}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Body of a child that does everything at random until it is killed.
fn busy(ctx: &Ctx, seed: u64, ready: &Gate) -> Outcome {
    let mut random = Random(seed);
    let device = ctx.open()?;
    let map = Mapping::anon(96)?;
    map.fill(1);
    let big = if has_huge_pages() { huge(1, 1)? } else { Mapping::anon(HUGE_PAGES)? };
    device.submit(Command::new(EngineOp::Write, map.addr(), map.len()).rounds(0)).what("WRITE")?;
    let read = Command::new(EngineOp::Read, big.addr(), big.len()).engine(1).rounds(0);
    device.submit(read).what("READ")?;
    ready.open()?;
    loop {
        let target = if random.below(3) == 0 { &big } else { &map };
        let way = [Way::ToDevice, Way::ToSystem, Way::ToDeviceOrdinary][random.below(3) as usize];
        let first = random.below(target.pages() as u64) as usize;
        let pages = 1 + random.below((target.pages() - first) as u64) as usize;
        let start = target.page_addr(first);
        match random.below(6) {
            0 => device.discard(start, pages).what("discard")?,
            1 => target.set(first, 0, 7),
            2 => {
                // A child that shares the pages also exits meanwhile.
                let child = Child::spawn(|| {
                    map.set(1, 1, 1);
                    Ok::<(), String>(())
                });
                child?.join().map_err(Stop::Fail)?;
            }
            3 => target.advise_pages(libc_advice::DONTNEED, first, pages)?,
            // A killed process gets no result. Concurrent operations may disturb the migration.
            _ => match device.migrate(start, pages, way) {
                Ok(_) | Err(Errno::EBUSY) => {}
                Err(error) => return Err(Stop::Fail(format!("migrate: {error}"))),
            },
        }
    }
}

/// `madvise` values that the tests use.
mod libc_advice {
    pub const DONTNEED: i32 = 4;
}

fn kill_at_random(ctx: &Ctx) -> Outcome {
    let own = ctx.open()?;
    let mut random = Random(0x1234_5678_9abc_def1);
    for round in 0..ctx.cycles.max(2) / 2 {
        let ready = Gate::new()?;
        let before = own.counters()?.bytes_copied;
        let mut child = Child::spawn(|| busy(ctx, random.0 | 1, &ready))?;
        // Sometimes kill it during its setup, but the first one while its pages move.
        if round == 0 || random.below(4) != 0 {
            ready.wait().what("the child's start")?;
        }
        if round == 0 {
            let end = Instant::now() + Duration::from_secs(60);
            while own.counters()?.bytes_copied == before {
                check!(Instant::now() < end, "no page of the child moves");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        std::thread::sleep(Duration::from_micros(random.below(40_000)));
        child.signal(hmm::child::SIGKILL);
        let ended = child.wait_timeout(Duration::from_secs(60));
        check_eq!(ended, Some(hmm::child::Ended::Signal(9)), "end of the child, round {round}");
        if round % 16 == 0 {
            idle(&own, &format!("after {} kills", round + 1))?;
        }
    }
    idle(&own, "after all kills")?;
    let map = Mapping::anon(64)?;
    map.fill(2);
    migrate(&own, &map, 2)?;
    device_fills(&own, &map, 3, "after all kills")?;
    cpu_sees(&map, 3, "after all kills")
}

/// A memory control group with a limit, which is removed when it is dropped.
pub(super) struct Limited(std::path::PathBuf);

impl Limited {
    pub(super) fn new(name: &str, bytes: u64) -> Result<Limited, Stop> {
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

    pub(super) fn enter(&self) -> Outcome {
        std::fs::write(self.0.join("cgroup.procs"), "0").what("enter the group")
    }

    pub(super) fn permit_swap(&self) -> Outcome {
        std::fs::write(self.0.join("memory.swap.max"), "max").what("permit swap")
    }

    /// Has the kernel examine the group's pages, and reclaim at most `bytes`. It may find less.
    pub(super) fn reclaim(&self, bytes: usize) -> Outcome {
        match std::fs::write(self.0.join("memory.reclaim"), bytes.to_string()) {
            Err(error) if error.raw_os_error() != Some(libc::EAGAIN) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Returns the number of the group's pages that reclaim has examined.
    pub(super) fn scanned(&self) -> Result<u64, Stop> {
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
fn oom(ctx: &Ctx, served: bool) -> Outcome {
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

/// Waits until more pages have moved.
type GoesOn<'a> = &'a dyn Fn() -> Outcome;

/// Runs `disturb` while a thread migrates `map` back and forth and an engine increments its words.
/// Checks that no increment is lost.
fn undisturbed(ctx: &Ctx, disturb: impl FnOnce(GoesOn<'_>) -> Outcome) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(128)?;
    (0..map.pages()).for_each(|page| map.set(page, 0, 0));
    let add = Command::new(EngineOp::AtomicAdd, map.addr(), map.len()).stride(PAGE_SIZE).value(1);
    let job = device.submit(add.rounds(0)).what("ATOMIC_ADD")?;
    let stop = AtomicBool::new(false);
    let moved = AtomicU64::new(0);
    let moves = || -> Outcome {
        while !stop.load(Ordering::Relaxed) {
            for way in [Way::ToDevice, Way::ToSystem] {
                let done = device.migrate(map.addr(), map.pages(), way).what("migrate")?;
                moved.fetch_add(done.moved, Ordering::Relaxed);
            }
        }
        Ok(())
    };
    let goes_on = || -> Outcome {
        let before = moved.load(Ordering::Relaxed);
        until("migrations to go on", || {
            Ok(moved.load(Ordering::Relaxed) >= before + HUGE_PAGES as u64)
        })
    };
    let (disturbed, migrated) = std::thread::scope(|scope| {
        let mover = scope.spawn(moves);
        let disturbed = disturb(&goes_on).and_then(|()| goes_on());
        stop.store(true, Ordering::Relaxed);
        let migrated = mover.join().unwrap_or_else(|_| Err(Stop::Fail("panic".to_string())));
        (disturbed, migrated)
    });
    migrated?;
    disturbed?;
    let ended = job.finish().what("end of ATOMIC_ADD")?;
    let rounds = ended.status.rounds;
    check!(rounds > 0, "the engine did nothing");
    for page in 0..map.pages() {
        let found = map.get(page, 0);
        // The round that was stopped may have incremented the first pages.
        let fits = found == rounds || found == rounds + 1;
        check!(fits, "page {page} counts {found} after {rounds} rounds");
    }
    Ok(())
}

/// Suspends and resumes the machine, as deep as the kernel's test levels allow.
fn sleep(ctx: &Ctx, state: &str) -> Outcome {
    let states = std::fs::read_to_string("/sys/power/state").unwrap_or_default();
    if !Path::new("/sys/power/pm_test").exists() || !states.contains(state) {
        return Err(Stop::Skip(format!("this kernel has no '{state}' to test")));
    }
    let kinds = std::fs::read_to_string("/sys/power/mem_sleep").unwrap_or_default();
    let mut settings = Settings::new();
    settings.set("/sys/module/suspend/parameters/pm_test_delay", "1")?;
    undisturbed(ctx, |_| {
        // Each level of suspend to disk takes 10 seconds. The last one includes the others.
        let levels: &[&str] = match state {
            "disk" if ctx.cycles <= 100 => &["core"],
            // Suspend to idle, all that QEMU's machine for arm64 has, ends before "core".
            "mem" if selected(&kinds) == "s2idle" => &["freezer", "devices", "platform"],
            _ => &["freezer", "devices", "core"],
        };
        for level in levels {
            std::fs::write("/sys/power/pm_test", level).what("choose the level")?;
            let slept = std::fs::write("/sys/power/state", state);
            let _ = std::fs::write("/sys/power/pm_test", "none");
            slept.what(&format!("{state} up to '{level}'"))?;
        }
        Ok(())
    })
}

fn cpu_hotplug(ctx: &Ctx) -> Outcome {
    let online = "/sys/devices/system/cpu/cpu1/online";
    if !Path::new(online).exists() {
        return Err(Stop::Skip("there is no second processor that can go".to_string()));
    }
    let rounds = (ctx.cycles / 10).clamp(3, 40);
    let result = undisturbed(ctx, |goes_on| {
        for round in 0..rounds {
            std::fs::write(online, "0").what(&format!("take the processor, round {round}"))?;
            goes_on()?;
            std::fs::write(online, "1").what(&format!("bring it back, round {round}"))?;
            goes_on()?;
        }
        Ok(())
    });
    let _ = std::fs::write(online, "1");
    result
}

/// Chunks of device memory are added while others are in use.
fn grows(ctx: &Ctx) -> Outcome {
    /// Size of a chunk.
    const CHUNK: usize = 256 << 20;
    let device = ctx.open()?;
    let before = device.counters().what("counters")?.device_pages_total;
    undisturbed(ctx, |_| {
        let map = huge((CHUNK + CHUNK / 6).div_ceil(HUGE_SIZE), 5)?;
        let done = device.migrate(map.addr(), map.pages(), Way::ToDevice).what("migrate")?;
        // Some pages may stay: in blocks that other allocations have begun, or pages with
        // additional references.
        let least = map.pages() * 9 / 10;
        check!(done.moved > least as u64, "{} of {} pages moved", done.moved, map.pages());
        cpu_sees(&map, 5, "after the memory grew")
    })?;
    let after = device.counters().what("counters")?.device_pages_total;
    let chunk = (CHUNK / PAGE_SIZE) as u64;
    check!(after > chunk && after >= before, "{after} device pages, {before} before");
    Ok(())
}

/// Duplicates of a descriptor share one file with one mirror. A second open has a mirror of its
/// own.
fn dup_shares_a_mirror_and_open_does_not(ctx: &Ctx) -> Outcome {
    let first = ctx.open()?;
    let copy = Device::of_process(std::process::id() as i32, first.fd()).what("copy the file")?;
    let second = ctx.open()?;
    let map = Mapping::anon(16)?;
    map.fill(1);
    // A command that was started through one descriptor belongs to the file.
    let job = copy.submit(Command::new(EngineOp::Read, map.addr(), map.len())).what("READ")?;
    let id = job.id();
    job.wait().what("end of READ")?;
    let faults = |device: &Device| Ok::<_, Stop>(device.counters()?.engine_faults_read);
    check!(faults(&first)? > 0, "the file's counters are not those of its copy");
    check_eq!(faults(&first)?, faults(&copy)?, "counters of file and copy");
    check_eq!(faults(&second)?, 0, "counters of another open");
    check!(id > 0, "the command has no name");
    // Closing one of the descriptors ends nothing.
    migrate(&first, &map, 1)?;
    first.close().what("close the first descriptor")?;
    check_eq!(resident(&copy, &map, 0, 16)?, 16, "pages on the device after one close");
    device_fills(&copy, &map, 2, "through the copy")?;
    device_sees(&second, &map, 2, "through the other open")?;
    copy.close().what("close the copy")?;
    // The other open keeps the device's memory in use.
    device_sees(&second, &map, 2, "after the first file was closed")?;
    cpu_sees(&map, 2, "at the end")
}

/// The file belongs to the mirror of the process that opened it, whichever process uses it.
fn file_of_another(ctx: &Ctx) -> Outcome {
    let ready = Gate::new()?;
    let go = Gate::new()?;
    // The child inherits the mapping at the same address, and fills it with other contents.
    let map = Mapping::anon(8)?;
    map.fill(1);
    let child = Child::spawn(|| -> Outcome {
        map.fill(2);
        let device = ctx.open()?;
        ready.send(device.fd() as u64)?;
        go.wait()?;
        cpu_sees(&map, 3, "in the process that opened the file")
    })?;
    let fd = ready.receive().what("the child's device")?;
    let device = Device::of_process(child.pid(), fd as i32).what("the child's device file")?;
    device_sees(&device, &map, 2, "through another process's file")?;
    let sum = Command::new(EngineOp::Read, map.addr(), PAGE_SIZE).rounds(1);
    let ended = device.run(sum).what("READ")?;
    let words = (0..hmm::pattern::WORDS).map(|word| hmm::pattern::word(2, 0, word));
    check_eq!(ended.status.result, words.fold(0, u64::wrapping_add), "sum of the opener's words");
    migrate(&device, &map, 2)?;
    device_fills(&device, &map, 3, "through another process's file")?;
    cpu_sees(&map, 1, "in the process that only uses the file")?;
    go.open()?;
    child.join().map_err(Stop::Fail)?;
    cpu_sees(&map, 1, "at the end")?;
    fails(device.read(map.addr(), &mut [0; PAGE_SIZE]), Errno::EFAULT, "read of a process gone")
}

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
use hmm::{
    Child,
    Command,
    Device,
    EngineOp,
    Errno,
    Gate,
    Mapping,
    HUGE_PAGES,
    PAGE_SIZE, //
};
use std::time::{
    Duration,
    Instant, //
};

mod hotplug;
mod oom;

pub use oom::Limited;

const OURS: &str = "the C driver has no engines";

pub const TESTS: &[Test] = &[
    Test::new("module_stress", "kill_at_random_points_leaks_nothing", kill_at_random)
        .only_rust(OURS)
        .seconds(300),
    Test::new("module_stress", "oom_reaper_frees_memory_of_a_victim", |ctx| oom::oom(ctx, true))
        .only_rust(OURS),
    Test::new("module_stress", "oom_reaper_is_refused_during_a_slow_flush", |ctx| {
        oom::oom(ctx, false)
    })
    .only_rust(OURS),
    Test::new("module_stress", "suspend", |ctx| hotplug::sleep(ctx, "mem")).only_rust(OURS),
    Test::new("module_stress", "hibernation", |ctx| hotplug::sleep(ctx, "disk")).only_rust(OURS),
    Test::new("module_stress", "cpu_hotplug_does_not_disturb_devices", hotplug::cpu_hotplug)
        .only_rust(OURS),
    Test::new("module_stress", "chunks_are_added_while_in_use", hotplug::grows)
        .only_rust(OURS)
        .private(),
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

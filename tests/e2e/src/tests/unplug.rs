// SPDX-License-Identifier: GPL-2.0
//! Unplug of a device while its memory is in use or while pages migrate.

use super::memory::{
    to_device,
    with, //
};
use super::module_reload::unload;
use super::p2p::while_pulled;
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    Test,
    What, //
};
use crate::mover::{
    races,
    Mover, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::child::Ended;
use hmm::engine::Way;
use hmm::{
    pattern,
    procfs,
    Child,
    Command,
    Connection,
    Device,
    EngineOp,
    Errno,
    Gate,
    Mapping,
    Prot,
    Setting,
    PAGE_SIZE, //
};
use std::sync::atomic::{
    AtomicBool,
    Ordering::Relaxed, //
};
use std::time::{
    Duration,
    Instant, //
};

const OURS: &str = "test_hmm cannot be unplugged";

pub const TESTS: &[Test] = &[
    Test::new(
        "memory",
        "unplug_during_accesses_keeps_contents",
        unplug_during_accesses_keeps_contents,
    )
    .only_rust(OURS)
    .private()
    .seconds(120),
    Test::new("memory", "killed_unplug_can_be_repeated", killed_unplug_can_be_repeated)
        .only_rust(OURS)
        .private(),
    Test::new("memory", "unplug_waits_for_migrations", unplug_waits_for_migrations)
        .only_rust(OURS)
        .private()
        .seconds(120),
    Test::new("memory", "unplug_waits_for_copies_to_the_system", unplug_waits_for_copies_back)
        .only_rust(OURS)
        .private()
        .seconds(120),
    Test::new(
        "memory",
        "unplug_during_migrations_keeps_contents",
        unplug_during_migrations_keeps_contents,
    )
    .only_rust(OURS)
    .private()
    .seconds(120),
    Test::new("memory", "unplug_during_a_pull_keeps_contents", unplug_during_a_pull_keeps_contents)
        .only_rust(OURS)
        .private()
        .seconds(120),
];

/// A device is unplugged while pages are copied to it, from system memory and from another device.
/// When the unplug returns, its memory is empty and stays so. The pages stay at their source.
fn unplug_waits_for_migrations(ctx: &Ctx) -> Outcome {
    const PAGES: usize = 8;
    for pulled in [false, true] {
        let _restore = with(ctx, &vram(32))?;
        let (device, other) =
            (ctx.open()?, Device::open(ctx.second).what("open the second device")?);
        for device in [&device, &other] {
            let connection = Connection::Migratable as u64;
            device.set(Setting::Connection, connection).what("set the connection")?;
        }
        let map = Mapping::anon(PAGES)?;
        map.fill(9);
        let source = if pulled { &other } else { &device };
        if pulled {
            let there = other.migrate(map.addr(), PAGES, Way::ToDevice).what("migrate")?;
            check_eq!(there.moved, PAGES as u64, "pages that moved to the source");
        }
        // Delay of each page.
        source.set(Setting::CopyDelay, 100_000_000).what("set the delay")?;
        let (ended, used) = std::thread::scope(|scope| -> Result<_, Stop> {
            let mover = scope.spawn(|| {
                if pulled {
                    device.pull(map.addr(), PAGES, &other).map(|_| ())
                } else {
                    device.migrate(map.addr(), PAGES, Way::ToDevice).map(|_| ())
                }
            });
            let waited = Instant::now();
            while device.counters()?.device_pages_used != PAGES as u64 {
                check!(!mover.is_finished(), "no page was under way (pulled: {pulled})");
                check!(waited.elapsed() < Duration::from_secs(20), "nothing moves");
                std::thread::sleep(Duration::from_millis(1));
            }
            device.unplug(0, 0).what("unplug")?;
            let used = device.counters()?.device_pages_used;
            match mover.join() {
                Ok(ended) => Ok((ended, used)),
                Err(_) => Err(Stop::Fail("the mover panicked".into())),
            }
        })?;
        check_eq!(used, 0, "pages in use when unplug has returned (pulled: {pulled})");
        check_eq!(device.counters()?.device_pages_used, 0, "pages that came later");
        check_eq!(ended, Err(Errno::ENODEV), "end of the migration");
        if pulled {
            other.set(Setting::CopyDelay, 0).what("set the delay back")?;
        }
        cpu_sees(&map, 9, "after the device was unplugged")?;
        drop(map);
        for device in [device, other] {
            device.close().what("close")?;
        }
        unload(ctx)?;
    }
    Ok(())
}

/// Operation that removes pages from the memory of a device that is unplugged.
#[derive(Clone, Copy, Debug)]
enum Departure {
    Request,
    CpuFault,
    Pull,
}

/// A device is unplugged while its pages are copied to system memory or to another device. The
/// unplug must return only after these copies, so that the driver can stop its copy engine. No page
/// may be lost.
fn unplug_waits_for_copies_back(ctx: &Ctx) -> Outcome {
    const PAGES: usize = 8;
    for departure in [Departure::Request, Departure::CpuFault, Departure::Pull] {
        let _restore = with(ctx, &vram(32))?;
        let (device, other) =
            (ctx.open()?, Device::open(ctx.second).what("open the second device")?);
        for device in [&device, &other] {
            let connection = Connection::Migratable as u64;
            device.set(Setting::Connection, connection).what("set the connection")?;
        }
        let map = Mapping::anon(PAGES)?;
        map.fill(9);
        check_eq!(to_device(&device, &map)?.moved, PAGES as u64, "pages that moved there");
        // Delay of each page, far longer than the time for which the unplug retries evictions.
        device.set(Setting::CopyDelay, 100_000_000).what("set the delay")?;
        let before = device.counters()?.bytes_copied;
        let (lost, used) = std::thread::scope(|scope| -> Result<_, Stop> {
            let mover = scope.spawn(|| match departure {
                Departure::Request => {
                    device.migrate(map.addr(), PAGES, Way::ToSystem).map(|done| done.moved)
                }
                Departure::CpuFault => Ok(u64::from(map.get(0, 0) == pattern::word(9, 0, 0))),
                Departure::Pull => {
                    other.pull(map.addr(), PAGES, &device).map(|pulled| pulled.moved)
                }
            });
            let waited = Instant::now();
            while device.counters()?.bytes_copied == before {
                check!(!mover.is_finished(), "no copy was under way ({departure:?})");
                check!(waited.elapsed() < Duration::from_secs(20), "nothing moves");
                std::thread::sleep(Duration::from_millis(1));
            }
            check!(!mover.is_finished(), "the copies ended before the unplug ({departure:?})");
            let (_, lost) = device.unplug(0, 0).what("unplug")?;
            let used = device.counters()?.device_pages_used;
            let ended = mover.join().map_err(|_| Stop::Fail("the mover panicked".into()))?;
            check!(ended.what("the way back")? > 0, "no page came back ({departure:?})");
            Ok((lost, used))
        })?;
        check_eq!((lost, used), (0, 0), "pages lost, and in use after unplug ({departure:?})");
        cpu_sees(&map, 9, "after the device was unplugged")?;
        drop(map);
        for device in [device, other] {
            device.close().what("close")?;
        }
        unload(ctx)?;
    }
    Ok(())
}

fn unplug_during_accesses_keeps_contents(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &format!("{} policy=1", vram(32)))?;
    let device = ctx.open()?;
    let maps = [Mapping::anon_aligned(4)?, Mapping::anon_aligned(4)?];
    for (map, seed) in maps.iter().zip(1..) {
        map.fill(seed);
        check_eq!(to_device(&device, map)?.moved, map.pages() as u64, "pages that moved");
    }
    let lost = 100..103;
    let stop = AtomicBool::new(false);
    let unplugged = std::thread::scope(|scope| -> Result<(u64, u64), Stop> {
        for reader in 0..2 {
            let map = &maps[1];
            let stop = &stop;
            scope.spawn(move || {
                let mut page = reader * 7;
                while !stop.load(Relaxed) {
                    assert_eq!(map.get(page, 1), pattern::word(2, page, 1), "read by a CPU");
                    page = (page + 131) % map.pages();
                }
            });
        }
        let run = || -> Result<(u64, u64), Stop> {
            let read = Command::new(EngineOp::Read, maps[0].addr(), maps[0].len()).rounds(0);
            let jobs = [device.submit(read)?, device.submit(read.engine(1))?];
            std::thread::sleep(Duration::from_millis(200));
            let done = device.unplug(maps[0].page_addr(lost.start), lost.len()).what("unplug")?;
            for job in &jobs {
                check_eq!(job.wait()?.error, Some(Errno::ENODEV), "end of an engine's work");
            }
            Ok(done)
        };
        let result = run();
        stop.store(true, Relaxed);
        result
    })?;
    check_eq!(unplugged.1, lost.len() as u64, "pages lost");
    let again = device.migrate(maps[0].addr(), 1, Way::ToDevice);
    fails(again, Errno::ENODEV, "migrate")?;
    let mut data = vec![0; PAGE_SIZE];
    fails(device.read(maps[0].addr(), &mut data), Errno::ENODEV, "device read")?;
    fails(device.write(maps[0].addr(), &data), Errno::ENODEV, "device write")?;
    let read = Command::new(EngineOp::Read, maps[0].addr(), PAGE_SIZE);
    fails(device.submit(read).map(|_| ()), Errno::ENODEV, "submit")?;
    fails(device.release(), Errno::ENODEV, "release")?;
    fails(device.unplug(0, 0), Errno::ENODEV, "a second unplug")?;
    check_eq!(device.counters()?.device_pages_used, lost.len() as u64, "pages still in use");
    cpu_sees(&maps[1], 2, "that were saved")?;
    let near = lost.start - 2..lost.end + 2;
    for page in (0..maps[0].pages()).filter(|page| !near.contains(page)) {
        check_eq!(maps[0].get(page, 5), pattern::word(1, page, 5), "words saved");
    }
    for page in near {
        let mut child = Child::spawn(|| -> Outcome {
            check_eq!(maps[0].get(page, 5), pattern::word(1, page, 5), "words saved");
            Ok(())
        })?;
        let ended = child.wait_timeout(Duration::from_secs(20));
        let expected =
            if lost.contains(&page) { Ended::Signal(libc::SIGBUS) } else { Ended::Exit(0) };
        check_eq!(ended, Some(expected), "a touch of page {page}");
    }
    drop(maps);
    check_eq!(device.counters()?.device_pages_used, 0, "pages in use when they are unmapped");
    device.close().what("close")?;
    unload(ctx)
}

/// A process holds its mmap lock for writing while its second device takes seconds for a flush. A
/// task that unplugs the first device waits for that lock, and is killed. No page is lost, and
/// another task can repeat the unplug.
fn killed_unplug_can_be_repeated(ctx: &Ctx) -> Outcome {
    const STALL: Duration = Duration::from_secs(8);
    let _restore = with(ctx, &vram(32))?;
    let device = ctx.open()?;
    let other = Device::open(ctx.second).what("open the second device")?;
    let ready = Gate::new()?;
    let go = Gate::new()?;
    let stalled = Child::spawn(|| -> Outcome {
        let device = ctx.open()?;
        let other = Device::open(ctx.second).what("open the second device")?;
        let map = Mapping::anon_aligned(1)?;
        map.fill(1);
        check_eq!(to_device(&device, &map)?.moved, map.pages() as u64, "pages that moved");
        let mapped = Mapping::anon(8).what("map")?;
        mapped.fill(2);
        device_sees(&other, &mapped, 2, "of memory in place")?;
        ready.open()?;
        go.wait()?;
        mapped.protect(Prot::Read).what("protect")?;
        ready.open()?;
        go.wait()?;
        cpu_sees(&map, 1, "after the unplug")
    })?;
    ready.wait()?;
    other.set(Setting::FlushDelay, STALL.as_nanos() as u64).what("set the delay")?;
    go.open()?;
    procfs::wait_for_call(stalled.pid(), stalled.pid(), libc::SYS_mprotect)
        .what("wait for the lock")?;
    let mut unplugs = Child::spawn(|| -> Outcome {
        let done = device.unplug(0, 0);
        Err(Stop::Fail(format!("the unplug has ended: {done:?}")))
    })?;
    std::thread::sleep(Duration::from_millis(500));
    check!(unplugs.try_wait().is_none(), "the unplug did not wait for the lock");
    let begin = Instant::now();
    unplugs.signal(libc::SIGKILL);
    let ended = unplugs.wait_timeout(STALL / 4);
    println!("# the unplug ended {:?} after the signal", begin.elapsed());
    check_eq!(ended, Some(Ended::Signal(libc::SIGKILL)), "end of the killed unplug");
    let used = device.counters()?.device_pages_used;
    check!(used != 0, "no page is left, so that the unplug was not interrupted");
    other.set(Setting::FlushDelay, 0).what("set the delay back")?;
    ready.wait()?;
    check_eq!(device.unplug(0, 0).what("repeat the unplug")?, (used, 0), "pages saved and lost");
    check_eq!(device.counters()?.device_pages_used, 0, "pages in use after the unplug");
    fails(device.unplug(0, 0), Errno::ENODEV, "a further unplug")?;
    go.open()?;
    stalled.join().map_err(Stop::Fail)?;
    drop((device, other));
    unload(ctx)
}

/// The device is unplugged while pages migrate back and forth. Every page must keep its contents.
fn unplug_during_migrations_keeps_contents(ctx: &Ctx) -> Outcome {
    races(3, |round| {
        let _restore = with(ctx, &vram(32))?;
        let device = ctx.open()?;
        device.set(Setting::CopyDelay, 100_000)?;
        let map = Mapping::anon_aligned(1)?;
        let mover = Mover::start(&device, &map)?;
        map.fill(round);
        mover.wait_for(map.pages() as u64)?;
        let done = mover.during(|| device.unplug(0, 0)).what("unplug")?;
        check_eq!(done.1, 0, "pages lost");
        let tally = mover.kill()?;
        cpu_sees(&map, round, "after an unplug during migrations")?;
        check_eq!(device.counters()?.device_pages_used, 0, "pages in use after the unplug");
        device.close().what("close")?;
        unload(ctx)?;
        Ok(tally)
    })
}

/// One of two devices is unplugged while pages migrate from one to the other.
fn unplug_during_a_pull_keeps_contents(ctx: &Ctx) -> Outcome {
    for (is_source, copies) in [(true, 1), (true, 12), (false, 1), (false, 12)] {
        let _restore = with(ctx, &vram(32))?;
        let one = ctx.open()?;
        let two = Device::open(ctx.second).what("open the second")?;
        for device in [&one, &two] {
            device.set(Setting::Connection, Connection::Migratable as u64)?;
        }
        let map = Mapping::anon(32)?;
        map.fill(3);
        migrate(&one, &map, 3)?;
        one.set(Setting::CopyDelay, 20_000_000)?;
        let unplugged = if is_source { &one } else { &two };
        let mut lost = 0;
        let unplug = || -> Outcome {
            lost = unplugged.unplug(0, 0).what("unplug")?.1;
            Ok(())
        };
        match while_pulled(&two, &map, &one, copies, unplug)? {
            Ok(_) | Err(Errno::ENODEV) => {}
            Err(error) => return Err(Stop::Fail(format!("pull during an unplug: {error}"))),
        }
        check_eq!(lost, 0, "pages lost");
        check_eq!(unplugged.counters()?.device_pages_used, 0, "pages in use after the unplug");
        cpu_sees(&map, 3, "after an unplug during a pull")?;
        drop((one, two));
        unload(ctx)?;
    }
    Ok(())
}

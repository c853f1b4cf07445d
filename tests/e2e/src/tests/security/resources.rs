// SPDX-License-Identifier: GPL-2.0
//! Resources that a process can hold, and calls in which it can be killed.

use super::{
    NOBODY,
    PAGES, //
};
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::support::*;
use crate::tests::module_reload::grown;
use crate::{
    check,
    check_eq, //
};
use hmm::engine::Way;
use hmm::{
    child,
    hostile,
    procfs,
    slabs,
    Child,
    Command,
    EngineOp,
    Errno,
    Gate,
    Mapping,
    Prot,
    HUGE_SIZE,
    PAGE_SIZE, //
};
use std::collections::BTreeMap;
use std::time::{
    Duration,
    Instant, //
};

/// Number of commands that a file can have.
pub(super) fn commands_per_file_are_bounded(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let other = ctx.open()?;
    let map = Mapping::anon(1)?;
    map.fill(1);
    let info = device.info()?;
    let long = Command::new(EngineOp::Read, map.addr(), 8).rounds(0).think(Duration::from_secs(1));
    // The queue of an engine is limited and then refuses commands. Other engines are not affected.
    for n in 0..info.queue_depth {
        device.submit(long).what(&format!("command {n}"))?;
    }
    fails(device.submit(long).map(|_| ()), Errno::EBUSY, "one more")?;
    let free = Command::new(EngineOp::Read, map.addr(), 8).engine(1);
    check_eq!(other.run(free)?.error, None, "a command of another engine");
    // Completed commands that no process waits for are limited, too.
    let mut made = info.queue_depth;
    loop {
        match device.submit(free) {
            Ok(_) => made += 1,
            Err(Errno::EBUSY) if made == 1024 => break,
            // The engine has not completed earlier commands yet.
            Err(Errno::EBUSY) if made < 1024 => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => return Err(Stop::Fail(format!("command {made}: {error}"))),
        }
        check!(made <= 1024, "more than 1024 commands without a waiter");
    }
    // The engine takes commands in order. When a command of another file has ended, so have all of
    // these, and the queue has room.
    until("room in the engine", || match other.run(free) {
        Ok(ended) => {
            check_eq!(ended.error, None, "a command of another file");
            Ok(true)
        }
        Err(Errno::EBUSY) => Ok(false),
        Err(error) => Err(error.into()),
    })?;
    fails(device.submit(free).map(|_| ()), Errno::EBUSY, "more than a file may have")?;
    // Closing the file ends all of its commands.
    drop(device);
    check_eq!(other.run(Command::new(EngineOp::Read, map.addr(), 8))?.error, None, "afterwards");
    Ok(())
}

/// With RLIMIT_MEMLOCK of 0. Device accesses and migrations must not lock or pin pages.
pub(super) fn accesses_and_migrations_pin_no_pages(ctx: &Ctx) -> Outcome {
    let pins = procfs::pins()?;
    let child = Child::spawn(|| -> Outcome {
        let device = ctx.open()?;
        hostile::forbid_locked_memory();
        hostile::become_user(NOBODY).what("setuid")?;
        let map = Mapping::anon(PAGES)?;
        map.fill(1);
        device_sees(&device, &map, 1, "with no right to lock memory")?;
        migrate(&device, &map, 1)?;
        let mut data = vec![0; PAGE_SIZE];
        cpu_sees(&map, 1, "with no right to lock memory")?;
        device.exclusive(map.addr(), &mut data).what("EXCLUSIVE")?;
        device_fills(&device, &map, 2, "with no right to lock memory")?;
        let mapped = device.map_file(4).what("mmap of the node")?;
        mapped.set(0, 0, 1);
        for name in ["VmLck", "VmPin"] {
            check_eq!(hostile::status_kib(name).what(name)?, 0, "{name}");
        }
        Ok(())
    })?;
    child.join().map_err(Stop::Fail)?;
    if let (Some((before, _)), Some((after, left))) = (pins, procfs::pins()?) {
        check_eq!((after - before, left), (0, 0), "pins made and left");
    }
    Ok(())
}

/// Page tables of a mirror are charged to the memory control group of the process, also if the
/// fault of an engine has allocated them.
pub(super) fn page_tables_are_charged_to_the_cgroup(ctx: &Ctx) -> Outcome {
    /// Number of ranges of the size of a huge page, with a table for each.
    const TABLES: usize = 1024;
    /// Bytes of a table in the library's tree and in the image: 512 entries of 8 bytes in each.
    const BYTES: usize = 2 * 4096;
    let group = hostile::Group::new("hmm-e2e").what("a control group")?;
    let Some(group) = group else {
        return Err(Stop::Skip("this kernel has no memory control groups".to_string()));
    };
    let child = Child::spawn(|| -> Outcome {
        group.enter().what("enter the group")?;
        let device = ctx.open()?;
        let map = Mapping::reserve(TABLES * HUGE_SIZE, Prot::Read).what("map much")?;
        let before = group.kernel_bytes().what("charge")?;
        let strided = Command::new(EngineOp::Strided, map.addr(), map.len()).stride(HUGE_SIZE);
        check_eq!(device.run(strided)?.error, None, "accesses");
        let tables = (TABLES * BYTES) as u64;
        let grown = group.kernel_bytes().what("charge")?.saturating_sub(before);
        check!(grown >= tables, "{grown} bytes are charged for tables of {tables}");
        Ok(())
    })?;
    child.join().map_err(Stop::Fail)
}

/// Opens and closes many files with tables. No memory may stay allocated.
pub(super) fn files_give_back(ctx: &Ctx) -> Outcome {
    let map = Mapping::anon(1)?;
    map.fill(1);
    let round = || -> Outcome {
        let devices: Result<Vec<_>, _> = (0..100).map(|_| ctx.open()).collect();
        for device in devices? {
            device_sees(&device, &map, 1, "by one of many")?;
        }
        Ok(())
    };
    // Page-table pages are counted exactly. vmalloc areas and slab objects are counted by caller
    // and cache.
    let used = || -> Result<BTreeMap<String, u64>, Stop> {
        let mut used = slabs::objects()?;
        let areas = procfs::vmallocinfo().unwrap_or_default();
        used.extend(areas.into_iter().map(|(name, sum)| (format!("vmalloc {name}"), sum.areas)));
        Ok(used)
    };
    let tables = || std::fs::read_to_string("/sys/kernel/debug/rust_hmm/tables");
    round()?;
    let pages = tables()?;
    let start = used()?;
    let many = || (0..10).try_for_each(|_| round());
    many()?;
    let middle = used()?;
    many()?;
    check_eq!(tables()?, pages, "pages of page tables");
    // Some objects are freed with a delay. Processors cache others, one slab or sheaf each, which a
    // leak in one of 30 files exceeds.
    const NOISE: u64 = 32;
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let end = used()?;
        let more = grown([&start, &middle, &end], |_| NOISE);
        if more.is_empty() {
            return Ok(());
        }
        check!(Instant::now() < deadline, "after 2 times 1000 files: {}", more.join(", "));
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Kills a child that sleeps in the ioctl after it has opened the gate. It must exit soon.
fn dies(child: Child, gate: &Gate, what: &str) -> Outcome {
    gate.wait().what(what)?;
    child_sleeps_in(&child, libc::SYS_ioctl)?;
    let mut child = child;
    check_eq!(child.try_wait(), None, "{what}: it ended by itself");
    child.signal(child::SIGKILL);
    let ended = child.wait_timeout(Duration::from_secs(10));
    check_eq!(ended, Some(child::Ended::Signal(9)), "{what}: 10 s after it was killed");
    Ok(())
}

/// Copies take a second each, and a step has a block of them. A task that waits for them can be
/// killed, and pages that were not copied stay in place.
pub(super) fn kill_interrupts_copies(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    // The child maps the same memory and migrates its own view of it.
    let map = Mapping::anon_aligned(1)?;
    map.fill(1);
    for way in [Way::ToDevice, Way::ToSystem] {
        let gate = Gate::new()?;
        let child = Child::spawn(|| -> Outcome {
            let own = ctx.open()?;
            let mine = Mapping::anon_aligned(1)?;
            mine.fill(2);
            if way == Way::ToSystem {
                own.migrate(mine.addr(), mine.pages(), Way::ToDevice)?;
            }
            own.set(hmm::Setting::CopyDelay, 1_000_000_000)?;
            gate.open()?;
            own.migrate(mine.addr(), mine.pages(), way)?;
            Ok(())
        })?;
        let ended = dies(child, &gate, &format!("{way:?}"));
        device.set(hmm::Setting::CopyDelay, 0)?;
        ended?;
    }
    // The copy engine still serves other processes.
    let moved = device.migrate(map.addr(), map.pages(), Way::ToDevice)?;
    check_eq!(moved.moved, map.pages() as u64, "pages moved afterwards");
    cpu_sees(&map, 1, "afterwards")
}

/// mmap() of a large range of the node. A kill ends it before all pages are populated.
pub(super) fn kill_interrupts_population(ctx: &Ctx) -> Outcome {
    let gate = Gate::new()?;
    let child = Child::spawn(|| -> Outcome {
        let device = ctx.open()?;
        gate.open()?;
        device.map_file((4 << 30) / PAGE_SIZE).what("mmap of 4 GiB")?;
        Ok(())
    })?;
    gate.wait().what("begin")?;
    let mut child = child;
    // The process itself has at most 4 MiB.
    until("pages of the mapping", || Ok(hostile::resident_kib(child.pid())? > 16 << 10))?;
    child.signal(child::SIGKILL);
    let ended = child.wait_timeout(Duration::from_secs(10));
    check_eq!(ended, Some(child::Ended::Signal(9)), "10 s after it was killed");
    Ok(())
}

// SPDX-License-Identifier: GPL-2.0
//! Faults of engines: those that fail a command, and those that are served meanwhile.

use super::{
    ends_with,
    operations::words,
    run,
    PAGES, //
};
use crate::harness::{
    Ctx,
    Outcome,
    What, //
};
use crate::{
    check,
    check_eq, //
};
use hmm::engine::Way;
use hmm::{
    Command,
    EngineOp,
    Errno,
    Mapping,
    Prot,
    Setting,
    HUGE_PAGES,
    PAGE_SIZE, //
};
use std::time::Duration;

pub(super) fn unmapped_and_read_only_memory_fail_commands(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    map.unmap_pages(8, 8)?;
    let read = Command::new(EngineOp::Read, map.addr(), map.len());
    ends_with(&device, read, Errno::EFAULT, "READ across a gap")?;
    let write = Command::new(EngineOp::Fill, map.page_addr(10), 8);
    ends_with(&device, write, Errno::EFAULT, "FILL of unmapped memory")?;
    map.protect_pages(Prot::Read, 16, 8)?;
    let at = map.page_addr(16);
    ends_with(
        &device,
        Command::new(EngineOp::Fill, at, PAGE_SIZE),
        Errno::EPERM,
        "FILL of read-only",
    )?;
    let add = Command::new(EngineOp::AtomicAdd, at, 8).stride(8).value(1);
    ends_with(&device, add, Errno::EPERM, "ATOMIC_ADD to read-only")?;
    run(&device, Command::new(EngineOp::Read, at, PAGE_SIZE), "READ of read-only")?;
    map.protect_pages(Prot::None, 16, 8)?;
    ends_with(
        &device,
        Command::new(EngineOp::Read, at, PAGE_SIZE),
        Errno::EFAULT,
        "READ of no access",
    )?;
    map.check_pages(1, 0, 8).what("contents")?;
    map.check_pages(1, 24, 8).what("contents")
}

pub(super) fn bad_page_kills_one(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    map.unmap_pages(16, 1)?;
    // Commands on the bad page and its neighbours, all in flight together.
    let jobs: Vec<_> = (12..20)
        .map(|page| device.submit(Command::new(EngineOp::Read, map.page_addr(page), PAGE_SIZE)))
        .collect::<Result<_, _>>()?;
    for (index, job) in jobs.iter().enumerate() {
        let want = (index == 4).then_some(Errno::EFAULT);
        check_eq!(job.wait().what("READ")?.error, want, "end of READ of page {}", 12 + index);
    }
    Ok(())
}

pub(super) fn another_runs(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon_aligned(1)?;
    map.fill(1);
    let other = Mapping::anon(4)?;
    other.fill(2);
    run(&device, Command::new(EngineOp::Write, map.addr(), map.len()).value(1), "WRITE")?;
    let reader = Command::new(EngineOp::Read, other.addr(), other.len());
    run(&device, reader, "READ")?;
    // A step with a copy of each page, which takes 500 us.
    device.set(Setting::CopyDelay, 500_000)?;
    let runs = device.submit(reader.rounds(0))?;
    let migration = std::thread::scope(|scope| {
        let mover = scope.spawn(|| device.migrate(map.addr(), map.pages(), Way::ToDevice));
        std::thread::sleep(Duration::from_millis(60));
        let rounds = || runs.poll(Duration::ZERO).map(|(_, status)| status.rounds);
        let waits = device.submit(Command::new(EngineOp::Fill, map.addr(), 8).value(99));
        let first = rounds();
        std::thread::sleep(Duration::from_millis(40));
        let second = rounds();
        let ended = waits.and_then(|job| job.wait());
        (first, second, ended, mover.join())
    });
    let (first, second, ended, moved) = migration;
    let moved = moved.map_err(|_| crate::harness::Stop::Fail("a thread panicked".into()))?;
    check_eq!(moved.what("migration")?.moved, HUGE_PAGES as u64, "pages moved");
    let ended = ended.what("FILL during the migration")?;
    check_eq!(ended.error, None, "end of FILL during the migration");
    check!(ended.status.stalls >= 1, "the write did not wait: {:?}", ended.status);
    check!(ended.status.stall_ns > 20_000_000, "the write waited too short: {:?}", ended.status);
    let first = first.what("rounds")?;
    let second = second.what("rounds")?;
    check!(second > first, "the reader stood still: {first} and {second} rounds");
    runs.finish().what("end of the reader")?;
    check_eq!(map.get(0, 0), 99, "words written during the migration");
    let engine = device.engine_counters(0)?;
    check!(engine.set_aside >= 1 && engine.busy_ns > 0, "counters of the engine: {engine:?}");
    Ok(())
}

pub(super) fn faults_coalesce(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let before = device.counters()?;
    for _ in 0..20 {
        let map = Mapping::anon(64)?;
        map.fill(3);
        let sum = words(&map, 3).fold(0u64, u64::wrapping_add);
        let read = Command::new(EngineOp::Read, map.addr(), map.len());
        let jobs: Vec<_> =
            (0..16).map(|index| device.submit(read.engine(index % 2))).collect::<Result<_, _>>()?;
        for job in &jobs {
            let ended = job.wait().what("READ")?;
            check_eq!((ended.error, ended.status.result), (None, sum), "end of READ");
        }
    }
    let after = device.counters()?;
    let faults = after.engine_faults_read - before.engine_faults_read;
    let joined = after.faults_coalesced - before.faults_coalesced;
    let batches = after.fault_batches - before.fault_batches;
    check!(faults > 0 && batches > 0, "{faults} faults in {batches} batches");
    check!(joined > 0, "no two of {faults} faults were of one page");
    check!(batches < faults, "{batches} batches for {faults} faults");
    Ok(())
}

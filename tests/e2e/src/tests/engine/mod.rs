// SPDX-License-Identifier: GPL-2.0
//! Engines: the result of each operation, faults, the TLB, scheduling, invalid input.

use crate::harness::{
    Ctx,
    Outcome,
    Test,
    What, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::engine::Ended;
use hmm::{
    Child,
    Command,
    Device,
    EngineOp,
    Errno,
    Gate,
    Mapping,
    Prot,
    Setting, //
};
use operations::every_operation;
use std::time::{
    Duration,
    Instant, //
};

mod faults;
mod operations;

const PAGES: usize = 32;
const OURS: &str = "the C driver has no engines";

pub const TESTS: &[Test] = &[
    Test::new("engine", "operations_on_system_memory_are_correct", operations::operations)
        .only_rust(OURS),
    Test::new(
        "engine",
        "operations_on_device_memory_are_correct",
        operations::operations_on_device,
    )
    .only_rust(OURS),
    Test::new(
        "engine",
        "chase_and_checksum_detect_changes",
        operations::chase_and_checksum_detect_changes,
    )
    .only_rust(OURS),
    Test::new(
        "engine",
        "unmapped_and_read_only_memory_fail_commands",
        faults::unmapped_and_read_only_memory_fail_commands,
    )
    .only_rust(OURS),
    Test::new("engine", "bad_page_fails_one_command_only", faults::bad_page_kills_one)
        .only_rust(OURS),
    Test::new("engine", "commands_run_while_one_waits_for_a_fault", faults::another_runs)
        .only_rust(OURS),
    Test::new("engine", "tlb_hits_and_misses_are_counted", tlb_counts).only_rust(OURS),
    Test::new("engine", "stale_detector_fires", stale_detector).only_rust(OURS).skips_flushes(),
    Test::new("engine", "concurrent_faults_of_a_page_coalesce", faults::faults_coalesce)
        .only_rust(OURS),
    Test::new("engine", "stopped_and_timed_out_commands_end", stopped_and_timed_out_commands_end)
        .only_rust(OURS),
    Test::new("engine", "full_queue_refuses_commands", queue_full).only_rust(OURS),
    Test::new(
        "engine",
        "atomics_with_the_cpu_lose_no_update",
        operations::atomics_with_the_cpu_lose_no_update,
    )
    .only_rust(OURS),
    Test::new("engine", "discard_removes_entries", discard).only_rust(OURS),
    Test::new("engine", "process_exit_ends_running_commands", exit_while_running).only_rust(OURS),
    Test::new("engine", "file_close_ends_running_commands", close_while_running).only_rust(OURS),
];

/// Runs a command and checks that it ends without an error.
fn run(device: &Device, command: Command, what: &str) -> Result<Ended, crate::harness::Stop> {
    let ended = device.run(command).what(what)?;
    check_eq!(ended.error, None, "end of {what}");
    Ok(ended)
}

/// Runs a command and checks that it ends with this error.
pub fn ends_with(device: &Device, command: Command, error: Errno, what: &str) -> Outcome {
    let ended = device.run(command).what(what)?;
    check_eq!(ended.error, Some(error), "end of {what}");
    Ok(())
}

fn tlb_counts(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    let read = Command::new(EngineOp::Read, map.addr(), map.len());
    run(&device, read, "first READ")?;
    let before = device.counters()?;
    run(&device, read.rounds(4), "more READs")?;
    let after = device.counters()?;
    let pages = PAGES as u64;
    check_eq!(after.accesses - before.accesses, 4 * pages, "accesses");
    check_eq!(after.engine_faults_read - before.engine_faults_read, 0, "faults");
    check_eq!(after.bytes_read - before.bytes_read, 4 * map.len() as u64, "bytes");
    let hits = after.tlb_hits - before.tlb_hits;
    let misses = after.tlb_misses - before.tlb_misses;
    check_eq!(hits + misses, 4 * pages, "hits and misses");
    // A direct-mapped TLB: some lines collide.
    check!(hits >= 2 * pages, "{hits} TLB hits of {} accesses", 4 * pages);
    // An invalidation removes the entries from the TLB.
    map.protect(Prot::None)?;
    map.protect(Prot::ReadWrite)?;
    let before = device.counters()?;
    run(&device, read, "READ after mprotect")?;
    let after = device.counters()?;
    check_eq!(after.engine_faults_read - before.engine_faults_read, pages, "faults after mprotect");
    check_eq!(after.stale_hits, 0, "stale hits");
    Ok(())
}

fn stale_detector(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(4)?;
    map.fill(1);
    let read = Command::new(EngineOp::Read, map.addr(), 8);
    run(&device, read, "READ")?;
    device.set(Setting::SkipFlush, 1)?;
    map.advise_pages(libc::MADV_DONTNEED, 0, 1)?;
    let ended = run(&device, read, "READ after the skipped flush")?;
    check_eq!(ended.status.result, 0, "words read by the engine");
    let counters = device.counters()?;
    check_eq!(counters.stale_hits, 1, "stale hits after one flush was skipped");
    check_eq!(device.set(Setting::SkipFlush, 0)?, 0, "flushes that are left to skip");
    map.fill(2);
    map.advise_pages(libc::MADV_DONTNEED, 0, 1)?;
    run(&device, read, "READ after a flush")?;
    check_eq!(device.counters()?.stale_hits, 1, "stale hits in the end");
    Ok(())
}

fn stopped_and_timed_out_commands_end(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(4)?;
    map.fill(1);
    let read = Command::new(EngineOp::Read, map.addr(), map.len());
    let job = device.submit(read.rounds(0))?;
    let begin = Instant::now();
    check_eq!(job.poll(Duration::from_millis(50))?.0, None, "end of a command that repeats");
    check!(begin.elapsed() >= Duration::from_millis(50), "the time-out came early");
    // A round may take long on a slow machine.
    while job.poll(Duration::from_millis(50))?.1.rounds == 0 {
        check!(begin.elapsed() < Duration::from_secs(20), "no round in 20 s");
    }
    let ended = job.finish().what("stop")?;
    check_eq!(ended.error, None, "end of a command that repeats");
    check!(ended.status.rounds > 0, "no round");
    fails(job.stop(), Errno::ENOENT, "stop of a command that is forgotten")?;
    fails(job.poll(Duration::ZERO), Errno::ENOENT, "wait for a command that is forgotten")?;
    // A command with a given number of rounds, and a pause of a second after each.
    let job = device.submit(read.rounds(100).think(Duration::from_secs(1)))?;
    while job.poll(Duration::ZERO)?.1.rounds == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let begin = Instant::now();
    check_eq!(job.finish()?.error, Some(Errno::ECANCELED), "end of a command that was stopped");
    check!(begin.elapsed() < Duration::from_millis(900), "the stop waited for the pause");
    Ok(())
}

fn queue_full(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let info = device.info()?;
    check!(info.engines >= 2 && info.tlb_entries > 0 && info.queue_depth > 0, "{info:?}");
    check_eq!((info.version, info.coherent), (3, u32::from(ctx.coherent())), "version and kind");
    let map = Mapping::anon(1)?;
    map.fill(1);
    let pause = Command::new(EngineOp::Read, map.addr(), 8).rounds(0).think(Duration::from_secs(1));
    let jobs: Vec<_> =
        (0..info.queue_depth).map(|_| device.submit(pause)).collect::<Result<_, _>>()?;
    let again = fails(device.submit(pause).map(|_| ()), Errno::EBUSY, "command for a full queue");
    // The other engine's queue has room.
    run(&device, Command::new(EngineOp::Read, map.addr(), 8).engine(1), "READ by engine 1")?;
    run(&device, Command::new(EngineOp::Read, map.addr(), 8).engine(Command::ANY), "READ by any")?;
    for job in &jobs {
        check_eq!(job.finish()?.error, None, "end of a command that repeats");
    }
    again
}

fn discard(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    migrate(&device, &map, 1)?;
    device.discard(map.addr(), PAGES / 2)?;
    let before = device.counters()?;
    run(&device, Command::new(EngineOp::Read, map.addr(), map.len()), "READ after discard")?;
    let after = device.counters()?;
    let faults = after.engine_faults_read - before.engine_faults_read;
    check_eq!(faults, PAGES as u64 / 2, "faults after half was discarded");
    check_eq!(resident(&device, &map, 0, PAGES)?, PAGES, "pages on the device");
    fails(device.discard(map.addr(), 0), Errno::EINVAL, "discard of nothing")?;
    fails(device.discard(map.addr() + 8, 1), Errno::EINVAL, "discard of half a page")?;
    cpu_sees(&map, 1, "at the end")
}

fn exit_while_running(ctx: &Ctx) -> Outcome {
    for round in 0..8 {
        let gate = Gate::new()?;
        let mut child = Child::spawn(|| -> Outcome {
            let device = ctx.open()?;
            let map = Mapping::anon(PAGES)?;
            map.fill(1);
            if round % 2 == 1 {
                migrate(&device, &map, 1)?;
            }
            let write = Command::new(EngineOp::Write, map.addr(), map.len()).rounds(0);
            device.submit(write)?;
            device.submit(write.engine(1))?;
            gate.open().what("gate")?;
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        })?;
        gate.wait().what("the child's commands")?;
        std::thread::sleep(Duration::from_millis(20));
        child.signal(libc::SIGKILL);
        let ended = child.wait_timeout(Duration::from_secs(20));
        check!(ended.is_some(), "the child does not end");
    }
    let device = ctx.open()?;
    check_eq!(device.counters()?.device_pages_used, 0, "device pages after the exits");
    let map = Mapping::anon(PAGES)?;
    every_operation(&device, &map)
}

fn close_while_running(ctx: &Ctx) -> Outcome {
    let map = Mapping::anon(PAGES)?;
    for _ in 0..10 {
        map.fill(1);
        let device = ctx.open()?;
        let read = Command::new(EngineOp::Read, map.addr(), map.len()).rounds(0);
        for engine in [0, 1, 0, 1] {
            device.submit(read.engine(engine))?;
        }
        let waits = Command::new(EngineOp::Read, map.guard(), 8).rounds(0);
        device.submit(waits)?;
        device.close().what("close with running commands")?;
        cpu_sees(&map, 1, "after the close")?;
    }
    Ok(())
}

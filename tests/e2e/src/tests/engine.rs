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
use hmm::engine::{
    checksum_of_pattern,
    Ended,
    Way, //
};
use hmm::pattern::{
    self,
    WORDS, //
};
use hmm::{
    Child,
    Command,
    Device,
    EngineOp,
    Errno,
    Gate,
    Mapping,
    Prot,
    Setting,
    HUGE_PAGES,
    PAGE_SIZE, //
};
use std::time::{
    Duration,
    Instant, //
};

const PAGES: usize = 32;
const OURS: &str = "the C driver has no engines";

pub const TESTS: &[Test] = &[
    Test::new("engine", "operations_on_system_memory_are_correct", operations).only_rust(OURS),
    Test::new("engine", "operations_on_device_memory_are_correct", operations_on_device)
        .only_rust(OURS),
    Test::new("engine", "chase_and_checksum_detect_changes", chase_and_checksum_detect_changes)
        .only_rust(OURS),
    Test::new(
        "engine",
        "unmapped_and_read_only_memory_fail_commands",
        unmapped_and_read_only_memory_fail_commands,
    )
    .only_rust(OURS),
    Test::new("engine", "bad_page_fails_one_command_only", bad_page_kills_one).only_rust(OURS),
    Test::new("engine", "commands_run_while_one_waits_for_a_fault", another_runs).only_rust(OURS),
    Test::new("engine", "tlb_hits_and_misses_are_counted", tlb_counts).only_rust(OURS),
    Test::new("engine", "stale_detector_fires", stale_detector).only_rust(OURS).skips_flushes(),
    Test::new("engine", "concurrent_faults_of_a_page_coalesce", faults_coalesce).only_rust(OURS),
    Test::new("engine", "stopped_and_timed_out_commands_end", stopped_and_timed_out_commands_end)
        .only_rust(OURS),
    Test::new("engine", "full_queue_refuses_commands", queue_full).only_rust(OURS),
    Test::new("engine", "atomics_with_the_cpu_lose_no_update", atomics_with_the_cpu_lose_no_update)
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

fn words(map: &Mapping, seed: u64) -> impl Iterator<Item = u64> {
    (0..map.pages())
        .flat_map(move |page| (0..WORDS).map(move |word| pattern::word(seed, page, word)))
}

fn every_operation(device: &Device, map: &Mapping) -> Outcome {
    let addr = map.addr();
    let len = map.len();
    map.fill(1);
    let sum = words(map, 1).fold(0u64, u64::wrapping_add);
    let ended = run(device, Command::new(EngineOp::Read, addr, len), "READ")?;
    check_eq!(ended.status.result, sum, "sum of READ");
    check_eq!(ended.status.rounds, 1, "rounds of READ");
    let ended = run(device, Command::new(EngineOp::Checksum, addr, len), "CHECKSUM")?;
    check_eq!(ended.status.result, checksum_of_pattern(1, map.pages()), "result of CHECKSUM");
    let strided = Command::new(EngineOp::Strided, addr, len).stride(PAGE_SIZE / 2);
    let ended = run(device, strided, "STRIDED")?;
    let want = (0..map.pages())
        .flat_map(|page| [0, WORDS / 2].map(|word| pattern::word(1, page, word)))
        .fold(0u64, u64::wrapping_add);
    check_eq!(ended.status.result, want, "sum of STRIDED");

    run(device, Command::new(EngineOp::Fill, addr + 8, PAGE_SIZE).value(77), "FILL")?;
    check_eq!(map.get(0, 0), pattern::word(1, 0, 0), "word before FILL");
    check_eq!((map.get(0, 1), map.get(1, 0)), (77, 77), "words of FILL");
    check_eq!(map.get(1, 1), pattern::word(1, 1, 1), "word after FILL");
    run(device, Command::new(EngineOp::Write, addr, len).value(1000), "WRITE")?;
    check_eq!(
        (map.get(0, 0), map.get(3, 5)),
        (1000, 1000 + 3 * WORDS as u64 + 5),
        "words of WRITE"
    );
    let add = Command::new(EngineOp::AtomicAdd, addr, len).stride(PAGE_SIZE).value(5).rounds(3);
    run(device, add, "ATOMIC_ADD")?;
    let third = 1000 + 2 * WORDS as u64;
    check_eq!((map.get(2, 0), map.get(2, 1)), (third + 15, third + 1), "after ATOMIC_ADD");
    // Source and destination have different offsets in their pages, so each page is copied in two
    // parts.
    map.fill(4);
    // The last word of a page that is copied from the page of the same number.
    const LAST: usize = WORDS - 64 - 1;
    let half = len / 2;
    let copy = Command::new(EngineOp::Memcpy, addr, half - 512).from(addr + half + 512);
    run(device, copy, "MEMCPY")?;
    for (page, word) in [(0, 0), (0, LAST), (0, LAST + 1), (PAGES / 2 - 1, LAST)] {
        let at = (PAGES / 2 + page) * WORDS + word + 64;
        let want = pattern::word(4, at / WORDS, at % WORDS);
        check_eq!(map.get(page, word), want, "word {word} of page {page} after MEMCPY");
    }
    let untouched = pattern::word(4, PAGES / 2 - 1, LAST + 1);
    check_eq!(map.get(PAGES / 2 - 1, LAST + 1), untouched, "word after MEMCPY");
    Ok(())
}

fn operations(ctx: &Ctx) -> Outcome {
    every_operation(&ctx.open()?, &Mapping::anon(PAGES)?)
}

fn operations_on_device(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(9);
    migrate(&device, &map, 9)?;
    let before = device.counters()?;
    run(&device, Command::new(EngineOp::Write, map.addr(), map.len()).value(3), "WRITE")?;
    let after = device.counters()?;
    check_eq!(after.engine_faults_write, before.engine_faults_write, "faults of device memory");
    check_eq!(resident(&device, &map, 0, PAGES)?, PAGES, "pages on the device");
    let sum = run(&device, Command::new(EngineOp::Read, map.addr(), map.len()), "READ")?;
    let words = (PAGES * WORDS) as u64;
    check_eq!(sum.status.result, 3 * words + words * (words - 1) / 2, "sum of the written words");
    every_operation(&device, &map)
}

fn chase_and_checksum_detect_changes(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(0);
    // A chain through all pages in an irregular order.
    let mut page = 0;
    for _ in 0..PAGES {
        let next = (page + 11) % PAGES;
        map.set(page, page, map.page_addr(next) as u64 + 8 * next as u64);
        page = next;
    }
    let chase = Command::new(EngineOp::Chase, map.addr(), PAGES * 8);
    let ended = run(&device, chase, "CHASE")?;
    check_eq!(ended.status.result, map.addr() as u64, "end of the chain");
    map.set(11, 11, 1);
    ends_with(&device, chase, Errno::EFAULT, "CHASE to nowhere")?;

    map.fill(5);
    let right = checksum_of_pattern(5, map.pages());
    let command = Command::new(EngineOp::Checksum, map.addr(), map.len());
    run(&device, command.verify(right).rounds(3), "CHECKSUM that is right")?;
    map.set(7, 7, 0);
    ends_with(&device, command.verify(right).rounds(3), Errno::EILSEQ, "CHECKSUM that is wrong")
}

fn unmapped_and_read_only_memory_fail_commands(ctx: &Ctx) -> Outcome {
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

fn bad_page_kills_one(ctx: &Ctx) -> Outcome {
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

fn another_runs(ctx: &Ctx) -> Outcome {
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

fn faults_coalesce(ctx: &Ctx) -> Outcome {
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

fn atomics_with_the_cpu_lose_no_update(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(4)?;
    for page in 0..4 {
        map.set(page, 0, 0);
    }
    let add = Command::new(EngineOp::AtomicAdd, map.addr(), map.len()).stride(PAGE_SIZE);
    let job = device.submit(add.value(1).rounds(2000))?;
    for n in 0..8000 {
        map.atomic(n % 4, 0).fetch_add(1 << 32, std::sync::atomic::Ordering::Relaxed);
    }
    check_eq!(job.wait()?.error, None, "end of ATOMIC_ADD");
    for page in 0..4 {
        check_eq!(map.get(page, 0), (2000 << 32) + 2000, "sum of both in page {page}");
    }
    Ok(())
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

// SPDX-License-Identifier: GPL-2.0
//! Faultless migration: the holes through which it could go wrong, and what
//! others do to memory while it migrates.
//!
//! H1 to H17 are explained in Documentation/faultless.rst.

use crate::harness::{Ctx, Outcome, Stop, Test, What};
use crate::support::*;
use crate::{check, check_eq};
use hmm::engine::{checksum, Way};
use hmm::pattern::{self, WORDS};
use hmm::{Child, Command, Device, EngineOp, Errno, Job, Mapping, PageOutcome, Prot, Setting};
use hmm::{HUGE_PAGES, PAGE_SIZE};
use std::time::{Duration, Instant};

const OURS: &str = "the C driver has no engines";
/// Time that a race goes on.
const LENGTH: Duration = Duration::from_millis(1500);
/// Of each copy.
const DELAY_NS: u64 = 20_000;

pub const TESTS: &[Test] = &[
    Test::new("faultless", "reads_see_no_fault", reads_see_no_fault).only_rust(OURS),
    Test::new("faultless", "reads_see_no_fault_thp", reads_see_no_fault_thp).only_rust(OURS),
    Test::new("faultless", "ordinary_reads_do", ordinary_reads_do).only_rust(OURS),
    Test::new("faultless", "outcome_of_each_page", outcome_of_each_page).only_rust(OURS),
    Test::new("faultless", "h01_device_write_during_the_copy", h01_write).only_rust(OURS),
    Test::new("faultless", "h02_fault_in_flight", h02_fault_in_flight).only_rust(OURS),
    Test::new("faultless", "h03_dontneed_during_the_copy", h03_dontneed).only_rust(OURS),
    Test::new("faultless", "h04_dontneed_before_the_step", h04_before).only_rust(OURS),
    Test::new("faultless", "h05_pinned_page", h05_pinned).only_rust(OURS),
    Test::new("faultless", "h06_holes_and_the_zero_page", h06_holes).only_rust(OURS),
    Test::new("faultless", "h07_page_shared_by_fork", h07_fork).only_rust(OURS),
    Test::new("faultless", "h08_partially_mapped_thp", h08_partial_thp).only_rust(OURS),
    Test::new("faultless", "h09_second_mirror", h09_second_mirror).only_rust(OURS),
    Test::new("faultless", "h10_other_device", h10_other_device).only_rust(OURS).private(),
    Test::new("faultless", "h11_munmap", h11_munmap).only_rust(OURS),
    Test::new("faultless", "h11_mremap", h11_mremap).only_rust(OURS),
    Test::new("faultless", "h11_mprotect", h11_mprotect).only_rust(OURS),
    Test::new("faultless", "h11_fork_and_writes", h11_fork).only_rust(OURS),
    Test::new("faultless", "h11_exit", h11_exit).only_rust(OURS),
    Test::new("faultless", "h12_eviction", h12_eviction).only_rust(OURS),
    Test::new("faultless", "h13_overlapping_migrations", h13_overlapping).only_rust(OURS),
    Test::new("faultless", "h14_cpu_faults", h14_cpu_faults).only_rust(OURS),
    Test::new("faultless", "h14_cpu_fault_keeps_the_entry", h14_keeps).only_rust(OURS),
    Test::new("faultless", "h15_flush_before_the_source_goes", h15_flush).only_rust(OURS),
    Test::new("faultless", "h16_free_keeps_what_the_device_wrote", h16_free).only_rust(OURS),
    Test::new("faultless", "h17_merged_pages_stay", h17_ksm).only_rust(OURS),
    Test::new("faultless", "pageout_during_the_copy", pageout).only_rust(OURS),
    Test::new("faultless", "madv_free_during_the_copy", madv_free).only_rust(OURS),
    Test::new("faultless", "merging_during_the_copy", merging).only_rust(OURS),
    Test::new("faultless", "thp_split_during_the_copy", thp_split).only_rust(OURS),
    Test::new("faultless", "collapse_during_the_copy", collapse).only_rust(OURS),
    Test::new("faultless", "failed_copies_lose_nothing", failed_copies).only_rust(OURS),
    Test::new("faultless", "close_during_the_copy", close_in_flight).only_rust(OURS),
    Test::new("faultless", "rmmod_during_the_copy", rmmod_in_flight).only_rust(OURS),
];

/// A child that migrates the range of its parent there and back until it goes.
/// It has no copy of that memory, so that nothing is shared with it.
struct Mover(Child);

impl Mover {
    fn start(device: &Device, map: &Mapping) -> Result<Mover, Stop> {
        map.advise(libc::MADV_DONTFORK)?;
        let (addr, pages) = (map.addr(), map.pages());
        let child = Child::spawn(|| -> Result<(), Errno> {
            loop {
                for way in [Way::ToDevice, Way::ToSystem] {
                    // What is gone meanwhile is the caller's business.
                    let _ = device.migrate(addr, pages, way);
                }
            }
        })?;
        map.advise(libc::MADV_DOFORK)?;
        Ok(Mover(child))
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.0.signal(libc::SIGKILL);
        let _ = self.0.wait_timeout(Duration::from_secs(20));
    }
}

fn words(seed: u64, pages: usize) -> impl Iterator<Item = u64> {
    (0..pages).flat_map(move |page| (0..WORDS).map(move |word| pattern::word(seed, page, word)))
}

fn open(ctx: &Ctx) -> Result<Device, Stop> {
    let device = ctx.open()?;
    device.set(Setting::CopyDelay, DELAY_NS)?;
    Ok(device)
}

/// A command that reads the pattern `seed` for ever, and fails if it is not so.
fn watch<'d>(device: &'d Device, map: &Mapping, seed: u64) -> Result<Job<'d>, Stop> {
    let read = Command::new(EngineOp::Checksum, map.addr(), map.len());
    let read = read.verify(checksum(words(seed, map.pages())));
    let first = device.run(read)?;
    check_eq!(first.error, None, "end of the first pass");
    Ok(device.submit(read.rounds(0))?)
}

/// The watch has seen nothing wrong, and something at all.
fn watched(job: &Job<'_>, what: &str) -> Outcome {
    // A slow machine needs its time for a whole round.
    let begin = Instant::now();
    while let (None, status) = job.poll(Duration::from_millis(5)).what(what)? {
        if status.rounds > 0 || begin.elapsed() > Duration::from_secs(60) {
            let ended = job.finish().what(what)?;
            check_eq!(ended.error, None, "reads {what}");
            check!(ended.status.rounds > 0, "no round {what}");
            return Ok(());
        }
    }
    Err(Stop::Fail(format!("the reader has ended, as only an error does, {what}")))
}

fn no_stale_hits(device: &Device) -> Outcome {
    check_eq!(device.counters()?.stale_hits, 0, "stale hits");
    Ok(())
}

/// Repeats `body` for a while.
fn repeat(mut body: impl FnMut(u64) -> Outcome) -> Outcome {
    let begin = Instant::now();
    let mut round = 0;
    while begin.elapsed() < LENGTH || round < 2 {
        body(round)?;
        round += 1;
    }
    Ok(())
}

/// Reads during trips. Returns (pages moved, pages switched, faults, stalls).
fn trips(device: &Device, map: &Mapping, faultless: bool) -> Result<(u64, u64, u64, u64), Stop> {
    map.fill(1);
    let job = watch(device, map, 1)?;
    let before = device.counters()?;
    let (mut moved, mut switched) = (0, 0);
    for _ in 0..3 {
        for way in [Way::ToDevice, Way::ToSystem] {
            let done = device.migrate(map.addr(), map.pages(), way.faultless(faultless))?;
            moved += done.moved;
            switched += done.switched;
        }
    }
    let after = device.counters()?;
    watched(&job, "during migrations")?;
    no_stale_hits(device)?;
    cpu_sees(map, 1, "at the end")?;
    let faults = after.engine_faults_read - before.engine_faults_read;
    Ok((moved, switched, faults, after.stalls_read - before.stalls_read))
}

fn reads_see_no_fault(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon_aligned(2)?;
    let pages = map.pages() as u64;
    let found = trips(&device, &map, true)?;
    check_eq!(found, (6 * pages, 6 * pages, 0, 0), "moved, switched, faults, stalls");
    Ok(())
}

fn reads_see_no_fault_thp(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = huge(2, 1)?;
    let pages = map.pages() as u64;
    let (moved, switched, faults, stalls) = trips(&device, &map, true)?;
    check_eq!(moved, 6 * pages, "pages moved");
    if !ctx.coherent() {
        // Coherent folios are small: splitting the huge page is a foreign event.
        check_eq!((switched, faults, stalls), (6 * pages, 0, 0), "switched, faults, stalls");
    }
    Ok(())
}

fn ordinary_reads_do(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon_aligned(2)?;
    let (moved, switched, faults, stalls) = trips(&device, &map, false)?;
    check!(moved > 0 && switched == 0, "{moved} moved, {switched} switched");
    check!(faults > 0 && stalls > 0, "{faults} faults, {stalls} stalls: the counter is dead");
    Ok(())
}

fn outcome_of_each_page(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon(8)?;
    map.fill(1);
    // The device knows the first four.
    let read = Command::new(EngineOp::Read, map.addr(), 4 * PAGE_SIZE);
    check_eq!(device.run(read)?.error, None, "READ");
    let (done, pages) = device.migrate_pages(map.addr(), 8, Way::ToDevice)?;
    let expected = [[PageOutcome::Switched; 4], [PageOutcome::Moved; 4]].concat();
    check_eq!(pages, expected, "outcomes of the way there");
    check_eq!((done.moved, done.switched, done.skipped), (8, 4, 0), "sums of the way there");
    let (_, pages) = device.migrate_pages(map.addr(), 8, Way::ToDevice)?;
    check_eq!(pages, [PageOutcome::None; 8], "outcomes of pages that are there");
    device.set(Setting::CopyFail, 2)?;
    let (done, pages) = device.migrate_pages(map.addr(), 8, Way::ToSystem)?;
    check_eq!((done.moved, done.copy_failed), (7, 1), "sums with a failed copy");
    let failed = pages.iter().filter(|page| **page == PageOutcome::CopyFailed).count();
    let switched = pages.iter().filter(|page| **page == PageOutcome::Switched).count();
    check_eq!((failed, switched), (1, 7), "outcomes with a failed copy: {pages:?}");
    check_eq!(resident(&device, &map, 0, 8)?, 1, "pages that stay");
    let (_, pages) = device.migrate_pages(map.addr(), 8, Way::ToSystem)?;
    let moved = pages.iter().filter(|page| page == &&PageOutcome::Switched).count();
    let none = pages.iter().filter(|page| page == &&PageOutcome::None).count();
    check_eq!((moved, none), (1, 7), "outcomes of the rest: {pages:?}");
    cpu_sees(&map, 1, "at the end")
}

fn h01_write(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon_aligned(1)?;
    (0..map.pages()).for_each(|page| map.set(page, 0, 0));
    let add = Command::new(EngineOp::AtomicAdd, map.addr(), map.len()).stride(PAGE_SIZE).value(1);
    check_eq!(device.run(add)?.error, None, "first pass");
    let before = device.counters()?;
    let job = device.submit(add.rounds(0))?;
    // One that hammers at a single page, so that it writes whenever it may.
    map.set(9, 1, 0);
    let hammer = Command::new(EngineOp::AtomicAdd, map.page_addr(9) + 8, 8).stride(8).value(1);
    let hammer = device.submit(hammer.engine(1).rounds(0))?;
    repeat(|round| {
        // A slow flush widens the time between the marks and the set-up, in which a write fault must
        // not give write access back.
        device.set(Setting::FlushDelay, round % 2 * 1_000_000)?;
        for way in [Way::ToDevice, Way::ToSystem] {
            check!(device.migrate(map.addr(), map.pages(), way)?.moved > 0, "nothing moved");
        }
        Ok(())
    })?;
    check_eq!(job.finish()?.error, None, "end of the writer");
    let hammered = hammer.finish()?;
    check_eq!(hammered.error, None, "end of the writer to one page");
    check_eq!(map.get(9, 1), hammered.status.rounds, "additions to one page, and those made");
    let after = device.counters()?;
    let adds = map.pages() as u64 + (after.bytes_written - before.bytes_written) / 8;
    let found: u64 = (0..map.pages()).map(|page| map.get(page, 0)).sum::<u64>() + map.get(9, 1);
    check_eq!(found, adds, "additions that are found, of those that were made");
    check!(adds > 2 * map.pages() as u64, "hardly any addition");
    no_stale_hits(&device)
}

fn h02_fault_in_flight(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon_aligned(1)?;
    let mover = Mover::start(&device, &map)?;
    map.fill(1);
    let job = watch(&device, &map, 1)?;
    // Entries go all the time, so that faults run into every phase.
    repeat(|round| {
        let first = (round as usize * 37) % (map.pages() - 64);
        Ok(device.discard(map.page_addr(first), 64)?)
    })?;
    watched(&job, "with faults in flight")?;
    check!(device.counters()?.engine_faults_read > 0, "no fault");
    drop(mover);
    cpu_sees(&map, 1, "at the end")?;
    no_stale_hits(&device)
}

/// Pages that are dropped are zero from then on, for both.
fn dropped(device: &Device, map: &Mapping, seed: u64, first: usize, count: usize) -> Outcome {
    map.advise_pages(libc::MADV_DONTNEED, first, count)?;
    device_sees_zero(device, map, first, count, "of dropped pages")?;
    map.check_zero(first, count).what("dropped pages")?;
    map.fill_pages(seed, first, count);
    device_sees_pages(device, map, seed, first, count, "of pages written again")?;
    Ok(())
}

fn h03_dontneed(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon_aligned(1)?;
    let mover = Mover::start(&device, &map)?;
    map.fill(1);
    device_sees(&device, &map, 1, "at first")?;
    repeat(|round| {
        let first = (round as usize * 61) % 448;
        if round % 2 == 0 {
            // Nobody looks before the step has come to its end.
            map.advise_pages(libc::MADV_DONTNEED, first, 64)?;
            std::thread::sleep(Duration::from_millis(25));
            device_sees_zero(&device, &map, first, 64, "of pages dropped during a step")?;
        }
        dropped(&device, &map, 1, first, 64)
    })?;
    drop(mover);
    device_sees(&device, &map, 1, "at the end")?;
    cpu_sees(&map, 1, "at the end")?;
    no_stale_hits(&device)
}

fn h04_before(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    // Flushes that take their time: announced long before anything is zapped.
    device.set(Setting::FlushDelay, 500_000)?;
    device.set(Setting::CopyDelay, 0)?;
    let map = Mapping::anon(16)?;
    let mover = Mover::start(&device, &map)?;
    map.fill(1);
    repeat(|round| dropped(&device, &map, 1 + round, 4, 8))?;
    drop(mover);
    device_sees_pages(&device, &map, 1, 0, 4, "at the end")?;
    no_stale_hits(&device)
}

fn h05_pinned(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon(16)?;
    map.fill(1);
    let job = watch(&device, &map, 1)?;
    let before = device.counters()?;
    let pin = hmm::files::Pin::of(map.page_addr(5)).what("pin a page by vmsplice")?;
    let (done, pages) = device.migrate_pages(map.addr(), 16, Way::ToDevice)?;
    check_eq!((done.moved, done.skipped), (15, 1), "pages moved and skipped");
    check_eq!(pages[5], PageOutcome::Skipped, "outcome of the pinned page");
    drop(pin);
    let (_, pages) = device.migrate_pages(map.addr(), 16, Way::ToDevice)?;
    check_eq!(pages[5], PageOutcome::Switched, "outcome of the page when it is free");
    let after = device.counters()?;
    check_eq!(after.engine_faults_read, before.engine_faults_read, "read faults");
    watched(&job, "of a pinned page")?;
    no_stale_hits(&device)
}

fn h06_holes(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    repeat(|round| {
        let map = Mapping::anon(64)?;
        // Every fourth is a hole, the next has the zero page, two have contents.
        for page in 0..64 {
            match page % 4 {
                0 => {}
                1 => check_eq!(map.get(page, 0), 0, "a page that nobody wrote"),
                _ => map.fill_pages(1, page, 1),
            }
        }
        if round % 2 == 0 {
            device_sees_zero(&device, &map, 1, 1, "of the zero page")?;
        }
        std::thread::scope(|scope| -> Outcome {
            let mover = scope.spawn(|| device.migrate(map.addr(), 64, Way::ToDevice));
            for page in (0..64).filter(|page| page % 8 < 2) {
                map.set(page, 3, 0x5555);
            }
            let moved = mover.join().map_err(|_| Stop::Fail("a thread panicked".into()))?;
            moved.what("migration of holes").map(|_| ())
        })?;
        for page in 0..64 {
            let mut data = vec![0; PAGE_SIZE];
            device.read(map.page_addr(page), &mut data)?;
            let word = |index: usize| {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(&data[index * 8..index * 8 + 8]);
                u64::from_ne_bytes(bytes)
            };
            let expected = match page % 8 {
                0 | 1 => [0, 0x5555],
                4 | 5 => [0, 0],
                _ => [pattern::word(1, page, 0), pattern::word(1, page, 3)],
            };
            check_eq!([word(0), word(3)], expected, "words of page {page}");
        }
        Ok(())
    })?;
    no_stale_hits(&device)
}

fn h07_fork(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    for map in [Mapping::anon(32)?, huge(1, 1)?] {
        map.fill(1);
        let gate = hmm::Gate::new()?;
        let child = Child::spawn(|| -> Outcome {
            gate.wait().what("gate")?;
            cpu_sees(&map, 1, "by the child")
        })?;
        let job = watch(&device, &map, 1)?;
        for way in [Way::ToDevice, Way::ToSystem, Way::ToDevice] {
            device.migrate(map.addr(), map.pages(), way)?;
        }
        watched(&job, "of pages shared by fork")?;
        device_fills(&device, &map, 2, "of pages shared by fork")?;
        gate.open().what("gate")?;
        child.join().map_err(Stop::Fail)?;
        cpu_sees(&map, 2, "by the parent")?;
    }
    no_stale_hits(&device)
}

fn h08_partial_thp(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    repeat(|_| {
        let map = huge(1, 1)?;
        map.unmap_pages(100, 3)?;
        device_sees_pages(&device, &map, 1, 0, 100, "before")?;
        device.migrate(map.addr(), 100, Way::ToDevice)?;
        device.migrate(map.page_addr(103), HUGE_PAGES - 103, Way::ToDevice)?;
        device_sees_pages(&device, &map, 1, 0, 100, "after")?;
        device_sees_pages(&device, &map, 1, 103, HUGE_PAGES - 103, "after")?;
        device.migrate(map.addr(), 100, Way::ToSystem)?;
        device_sees_pages(&device, &map, 1, 0, 100, "at the end")?;
        map.check_pages(1, 103, HUGE_PAGES - 103).what("CPU read")
    })?;
    no_stale_hits(&device)
}

fn h09_second_mirror(ctx: &Ctx) -> Outcome {
    let (device, second) = (open(ctx)?, ctx.open()?);
    let map = Mapping::anon(64)?;
    let mover = Mover::start(&second, &map)?;
    map.fill(1);
    repeat(|round| {
        // What one of them may have kept is not what is there now.
        map.fill(round);
        device_sees(&device, &map, round, "by the first mirror")?;
        device_sees(&second, &map, round, "by the second mirror")?;
        device_fills(&device, &map, round + 1, "by the first mirror")?;
        device_sees(&second, &map, round + 1, "of what the first one wrote")?;
        Ok(())
    })?;
    drop(mover);
    let reused = reuse_freed_pages(256)?;
    let job = watch(&device, &reused, 0).err();
    check!(job.is_some(), "memory with other contents has the right checksum");
    no_stale_hits(&device)?;
    no_stale_hits(&second)
}

fn h10_other_device(ctx: &Ctx) -> Outcome {
    let (device, other) = (open(ctx)?, Device::open(ctx.second)?);
    other.set(Setting::CopyDelay, DELAY_NS)?;
    let map = Mapping::anon_aligned(1)?;
    let mover = Mover::start(&device, &map)?;
    let rival = Mover::start(&other, &map)?;
    map.fill(1);
    let (here, there) = (watch(&device, &map, 1)?, watch(&other, &map, 1)?);
    std::thread::sleep(LENGTH);
    watched(&here, "by the device")?;
    watched(&there, "by the other device")?;
    drop((mover, rival));
    cpu_sees(&map, 1, "at the end")?;
    no_stale_hits(&device)?;
    no_stale_hits(&other)
}

/// A mover on memory of which a part comes and goes; the rest is watched.
fn disturbed(ctx: &Ctx, mut disturb: impl FnMut(&Device, &Mapping, u64) -> Outcome) -> Outcome {
    let device = open(ctx)?;
    let (steady, map) = (Mapping::anon_aligned(1)?, Mapping::anon_aligned(1)?);
    let movers = (Mover::start(&device, &steady)?, Mover::start(&device, &map)?);
    steady.fill(3);
    map.fill(1);
    let job = watch(&device, &steady, 3)?;
    repeat(|round| disturb(&device, &map, round))?;
    watched(&job, "of memory that nobody touches")?;
    drop(movers);
    cpu_sees(&steady, 3, "of memory that nobody touched")?;
    no_stale_hits(&device)
}

fn h11_munmap(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    repeat(|_| {
        let map = Mapping::anon_aligned(1)?;
        let mover = Mover::start(&device, &map)?;
        map.fill(1);
        device_sees(&device, &map, 1, "at first")?;
        let read = Command::new(EngineOp::Read, map.page_addr(256), PAGE_SIZE).rounds(0);
        let job = device.submit(read)?;
        map.unmap_pages(256, 128)?;
        check_eq!(job.wait()?.error, Some(Errno::EFAULT), "end of a read of what is gone");
        device_sees_pages(&device, &map, 1, 0, 256, "of what stays")?;
        drop(mover);
        map.check_pages(1, 384, 128).what("CPU read of what stays")
    })?;
    no_stale_hits(&device)
}

fn h11_mremap(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    repeat(|_| {
        let (map, target) = (Mapping::anon_aligned(1)?, Mapping::anon_aligned(1)?);
        let mover = Mover::start(&device, &map)?;
        map.fill(1);
        device_sees(&device, &map, 1, "at first")?;
        map.move_pages(128, 64, &target, 128)?;
        device_sees_pages(&device, &target, 1, 128, 64, "where the pages went")?;
        let old = Command::new(EngineOp::Read, map.page_addr(130), 8);
        check_eq!(device.run(old)?.error, Some(Errno::EFAULT), "read where the pages were");
        drop(mover);
        target.check_pages(1, 128, 64).what("CPU read where the pages went")?;
        map.check_pages(1, 0, 128).what("CPU read of the rest")
    })?;
    no_stale_hits(&device)
}

fn h11_mprotect(ctx: &Ctx) -> Outcome {
    disturbed(ctx, |device, map, round| {
        let (at, len) = (map.page_addr(64), 64 * PAGE_SIZE);
        let fill = Command::new(EngineOp::Fill, at, len).value(round);
        map.protect_pages(Prot::Read, 64, 64)?;
        check_eq!(device.run(fill)?.error, Some(Errno::EPERM), "write to what is read-only");
        let read = Command::new(EngineOp::Read, at, len);
        check_eq!(device.run(read)?.error, None, "read of what is read-only");
        map.protect_pages(Prot::None, 64, 64)?;
        check_eq!(device.run(read)?.error, Some(Errno::EFAULT), "read without access");
        map.protect_pages(Prot::ReadWrite, 64, 64)?;
        check_eq!(device.run(fill)?.error, None, "write with access");
        check_eq!((map.get(64, 0), map.get(127, 511)), (round, round), "what was written");
        Ok(())
    })
}

fn h11_fork(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon(64)?;
    let mover = Mover::start(&device, &map)?;
    map.fill(0);
    repeat(|round| {
        let (mine, theirs) = (2 * round + 1, 2 * round + 1_000_001);
        device_fills(&device, &map, mine, "before the fork")?;
        let child = Child::spawn(|| -> Outcome {
            cpu_sees(&map, mine, "by the child")?;
            map.fill(theirs);
            cpu_sees(&map, theirs, "by the child of what it wrote")
        })?;
        device_fills(&device, &map, mine + 1, "after the fork")?;
        device_sees(&device, &map, mine + 1, "of what it wrote after the fork")?;
        child.join().map_err(Stop::Fail)?;
        cpu_sees(&map, mine + 1, "by the parent")
    })?;
    drop(mover);
    no_stale_hits(&device)
}

fn h11_exit(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    for round in 0..6 {
        let gate = hmm::Gate::new()?;
        let mut child = Child::spawn(|| -> Outcome {
            let own = open(ctx)?;
            let map = Mapping::anon_aligned(1)?;
            let _mover = Mover::start(&own, &map)?;
            map.fill(1);
            let _job = watch(&own, &map, 1)?;
            gate.open().what("gate")?;
            std::thread::sleep(Duration::from_secs(60));
            Ok(())
        })?;
        gate.wait().what("the child")?;
        std::thread::sleep(Duration::from_millis(10 + 7 * round));
        child.signal(libc::SIGKILL);
        check!(child.wait_timeout(Duration::from_secs(20)).is_some(), "the child does not end");
    }
    // The movers of the dead hold their files for a moment, until they notice.
    let begin = Instant::now();
    while device.counters()?.device_pages_used != 0 && begin.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
    }
    check_eq!(device.counters()?.device_pages_used, 0, "device pages after the exits");
    no_stale_hits(&device)
}

fn h12_eviction(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    device.set(Setting::CopyDelay, 0)?;
    let map = Mapping::anon_aligned(1)?;
    let mover = Mover::start(&device, &map)?;
    map.fill(1);
    let job = watch(&device, &map, 1)?;
    repeat(|_| match device.release() {
        // Somebody takes new pages all the time.
        Ok(_) | Err(Errno::EBUSY) => Ok(()),
        Err(error) => Err(Stop::Fail(format!("release: {error}"))),
    })?;
    watched(&job, "during evictions")?;
    drop(mover);
    check!(device.counters()?.evicted_pages > 0, "nothing was evicted");
    cpu_sees(&map, 1, "at the end")?;
    no_stale_hits(&device)
}

fn h13_overlapping(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon_aligned(1)?;
    let movers = [Mover::start(&device, &map)?, Mover::start(&device, &map)?];
    map.fill(1);
    let job = watch(&device, &map, 1)?;
    repeat(|round| {
        let first = (round as usize * 29) % 448;
        let way = if round % 2 == 0 { Way::ToDevice } else { Way::ToSystem };
        device.migrate(map.page_addr(first), 64, way)?;
        Ok(())
    })?;
    watched(&job, "during migrations that overlap")?;
    drop(movers);
    cpu_sees(&map, 1, "at the end")?;
    no_stale_hits(&device)
}

fn h14_cpu_faults(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon_aligned(1)?;
    let mover = Mover::start(&device, &map)?;
    map.fill(1);
    let job = watch(&device, &map, 1)?;
    let before = device.counters()?;
    repeat(|round| {
        let page = (round as usize * 67) % map.pages();
        check_eq!(map.get(page, 1), pattern::word(1, page, 1), "CPU read of page {page}");
        Ok(())
    })?;
    watched(&job, "while CPUs bring pages back")?;
    drop(mover);
    check!(device.counters()?.cpu_faults > before.cpu_faults, "no CPU fault");
    no_stale_hits(&device)
}

fn h14_keeps(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    if ctx.coherent() {
        return Err(Stop::Skip("a CPU takes no fault on coherent memory".to_string()));
    }
    for map in [Mapping::anon(16)?, huge(1, 1)?] {
        map.fill(1);
        let job = watch(&device, &map, 1)?;
        device.migrate(map.addr(), map.pages(), Way::ToDevice)?;
        let before = device.counters()?;
        cpu_sees(&map, 1, "of device memory")?;
        let after = device.counters()?;
        watched(&job, "while CPUs bring pages back")?;
        check!(after.cpu_faults > before.cpu_faults, "no CPU fault");
        let switched = after.switched_pages - before.switched_pages;
        check_eq!(switched, map.pages() as u64, "pages switched by CPU faults");
        check_eq!(after.engine_faults_read, before.engine_faults_read, "faults of the reader");
    }
    no_stale_hits(&device)
}

fn h15_flush(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    device.set(Setting::FlushDelay, 1_000_000)?;
    let map = Mapping::anon_aligned(1)?;
    let mover = Mover::start(&device, &map)?;
    map.fill(1);
    let job = watch(&device, &map, 1)?;
    // What the migrations free is taken and overwritten at once. It is kept, for else the next round
    // would only get what this one has given back; and mapped before, for a step keeps others from
    // mapping anything.
    let room = Mapping::anon(100_000)?;
    repeat(|round| {
        let first = (round as usize * 16) % room.pages();
        for page in first..first + 16 {
            (0..WORDS).for_each(|word| room.set(page, word, 0xdead_dead_dead_dead));
        }
        Ok(())
    })?;
    watched(&job, "while freed pages are used again")?;
    drop(mover);
    no_stale_hits(&device)
}

fn h16_free(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    // By request, the device may write on, and so says that pages are dirty; by a touch, and the
    // ordinary way, it may not.
    for (there, back) in [(true, 0), (true, 1), (true, 2), (false, 0)] {
        if back == 2 && ctx.coherent() {
            continue;
        }
        let map = Mapping::anon(64)?;
        map.fill(1);
        map.advise(libc::MADV_FREE)?;
        if there {
            device.migrate(map.addr(), 64, Way::ToDevice)?;
        }
        device_fills(&device, &map, 2, "after MADV_FREE")?;
        match back {
            0 => drop(device.migrate(map.addr(), 64, Way::ToSystem)?),
            1 => drop(device.migrate(map.addr(), 64, Way::ToSystemOrdinary)?),
            _ => cpu_sees(&map, 2, "of device memory")?,
        }
        check_eq!(resident(&device, &map, 0, 64)?, 0, "pages on the device");
        // Reclaim takes clean pages of MADV_FREE, and these only: there is no swap.
        map.advise(libc::MADV_PAGEOUT)?;
        cpu_sees(&map, 2, "of what the device wrote after MADV_FREE")?;
    }
    Ok(())
}

fn h17_ksm(ctx: &Ctx) -> Outcome {
    let ksm = match hmm::files::Ksm::start() {
        Ok(ksm) => ksm,
        Err(error) => return Err(Stop::Skip(format!("no KSM: {error}"))),
    };
    let device = open(ctx)?;
    let map = Mapping::anon(32)?;
    for page in 0..32 {
        (0..WORDS).for_each(|word| map.set(page, word, 0x1234));
    }
    ksm.merge(&map).what("merge")?;
    let (done, pages) = device.migrate_pages(map.addr(), 32, Way::ToDevice)?;
    check!(done.skipped > 0, "no merged page was left: {pages:?}");
    let read = Command::new(EngineOp::Read, map.addr(), map.len());
    let sum = 0x1234u64.wrapping_mul((32 * WORDS) as u64);
    check_eq!(device.run(read)?.status.result, sum, "sum of merged pages");
    for page in 0..32 {
        check_eq!(map.get(page, 9), 0x1234, "CPU read of merged page {page}");
    }
    no_stale_hits(&device)
}

fn pageout(ctx: &Ctx) -> Outcome {
    disturbed(ctx, |device, map, round| {
        map.fill_pages(round, 0, 64);
        map.advise_pages(libc::MADV_PAGEOUT, 0, 64)?;
        map.advise_pages(libc::MADV_COLD, 64, 64)?;
        device_sees_pages(device, map, round, 0, 64, "after MADV_PAGEOUT")?;
        map.check_pages(round, 0, 64).what("CPU read after MADV_PAGEOUT")
    })
}

fn madv_free(ctx: &Ctx) -> Outcome {
    disturbed(ctx, |device, map, round| {
        map.advise_pages(libc::MADV_FREE, 0, 64)?;
        // Written after the advice, so that it must stay.
        device_fills_pages(device, map, round, 0, 64, "after MADV_FREE")?;
        map.check_pages(round, 0, 64).what("CPU read after MADV_FREE and a device write")
    })
}

fn merging(ctx: &Ctx) -> Outcome {
    let ksm = match hmm::files::Ksm::start() {
        Ok(ksm) => ksm,
        Err(error) => return Err(Stop::Skip(format!("no KSM: {error}"))),
    };
    disturbed(ctx, |device, map, round| {
        for page in 0..64 {
            (0..WORDS).for_each(|word| map.set(page, word, round));
        }
        ksm.advise(map)?;
        std::thread::sleep(Duration::from_millis(50));
        let read = Command::new(EngineOp::Read, map.addr(), 64 * PAGE_SIZE);
        let sum = round.wrapping_mul((64 * WORDS) as u64);
        check_eq!(device.run(read)?.status.result, sum, "sum of pages that merge");
        device_fills_pages(device, map, round, 3, 2, "of pages that merge")?;
        map.check_pages(round, 3, 2).what("CPU read of what the device wrote")?;
        check_eq!(map.get(5, 0), round, "a neighbour of what the device wrote");
        Ok(())
    })
}

fn thp_split(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    repeat(|_| {
        let map = Mapping::anon_huge(1)?;
        let mover = Mover::start(&device, &map)?;
        map.fill(1);
        let job = watch(&device, &map, 1)?;
        for page in [17, 300, 511] {
            map.protect_pages(Prot::Read, page, 1)?;
            map.protect_pages(Prot::ReadWrite, page, 1)?;
        }
        watched(&job, "of a huge page that is split")?;
        device_fills(&device, &map, 2, "of a huge page that was split")?;
        drop(mover);
        cpu_sees(&map, 2, "of a huge page that was split")
    })?;
    no_stale_hits(&device)
}

fn collapse(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon_huge(1)?;
    let mover = Mover::start(&device, &map)?;
    map.fill(1);
    let job = watch(&device, &map, 1)?;
    repeat(|_| {
        // It fails while pages are on the device.
        let _ = map.collapse();
        map.protect_pages(Prot::Read, 9, 1)?;
        Ok(map.protect_pages(Prot::ReadWrite, 9, 1)?)
    })?;
    watched(&job, "of pages that collapse")?;
    drop(mover);
    cpu_sees(&map, 1, "at the end")?;
    no_stale_hits(&device)
}

fn failed_copies(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    for map in [Mapping::anon_aligned(1)?, huge(1, 1)?] {
        map.fill(1);
        let job = watch(&device, &map, 1)?;
        let mut failed = 0;
        repeat(|round| {
            device.set(Setting::CopyFail, round % 7)?;
            for way in [Way::ToDevice, Way::ToSystem] {
                failed += device.migrate(map.addr(), map.pages(), way)?.copy_failed;
            }
            Ok(())
        })?;
        device.set(Setting::CopyFail, u64::MAX)?;
        watched(&job, "while copies fail")?;
        check!(failed > 0, "no copy failed");
        cpu_sees(&map, 1, "after failed copies")?;
        device_sees(&device, &map, 1, "after failed copies")?;
    }
    check!(device.counters()?.copy_failures > 0, "no failure was counted");
    no_stale_hits(&device)
}

fn close_in_flight(ctx: &Ctx) -> Outcome {
    let map = Mapping::anon_aligned(1)?;
    for _ in 0..8 {
        map.fill(1);
        let device = open(ctx)?;
        let job = watch(&device, &map, 1)?;
        let fd = device.fd();
        let mover = std::thread::scope(|scope| {
            let mover = scope.spawn(|| device.migrate(map.addr(), map.pages(), Way::ToDevice));
            std::thread::sleep(Duration::from_millis(3));
            // Another descriptor of the same file goes; the file stays while it is used.
            check!(fd >= 0, "no descriptor");
            mover.join().map_err(|_| Stop::Fail("a thread panicked".into()))
        })?;
        mover.what("migration")?;
        watched(&job, "before the close")?;
        device.close().what("close")?;
        cpu_sees(&map, 1, "after the close")?;
    }
    Ok(())
}

fn rmmod_in_flight(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon_aligned(1)?;
    let mover = Mover::start(&device, &map)?;
    map.fill(1);
    let job = watch(&device, &map, 1)?;
    repeat(|_| {
        for module in ["rust_dmirror", "rust_hmm"] {
            match hmm::module::unload(module) {
                Err(Errno::EBUSY | Errno::EAGAIN) => {}
                other => return Err(Stop::Fail(format!("rmmod {module} in use: {other:?}"))),
            }
        }
        std::thread::sleep(Duration::from_millis(50));
        Ok(())
    })?;
    watched(&job, "while rmmod is refused")?;
    drop(mover);
    cpu_sees(&map, 1, "at the end")
}

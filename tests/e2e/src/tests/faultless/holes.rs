// SPDX-License-Identifier: GPL-2.0
//! The holes through which faultless migration could go wrong, H1 to H17 of
//! Documentation/faultless.rst.

use super::*;
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
use hmm::pattern::{
    self,
    WORDS, //
};
use hmm::{
    pagemap,
    Child,
    Command,
    Device,
    EngineOp,
    Errno,
    Mapping,
    PageOutcome,
    Setting, //
};
use hmm::{
    HUGE_PAGES,
    PAGE_SIZE, //
};

pub const TESTS: &[Test] = &[
    Test::new("faultless", "h01_device_write_during_the_copy", h01_write).only_rust(OURS),
    Test::new("faultless", "h02_fault_in_flight", h02_fault_in_flight).only_rust(OURS),
    Test::new("faultless", "h03_dontneed_during_the_copy", h03_dontneed).only_rust(OURS),
    Test::new("faultless", "h04_dontneed_before_the_step", h04_before).only_rust(OURS),
    Test::new("faultless", "h05_pinned_page", h05_pinned).only_rust(OURS),
    Test::new("faultless", "h05_writes_to_a_pinned_page_never_fault", h05_written).only_rust(OURS),
    Test::new("faultless", "h06_holes_and_the_zero_page", h06_holes).only_rust(OURS),
    Test::new("faultless", "h06_cpu_write_to_a_filled_hole_is_kept", h06_written).only_rust(OURS),
    Test::new("faultless", "h07_page_shared_by_fork", h07_fork).only_rust(OURS),
    Test::new("faultless", "h08_partially_mapped_thp", h08_partial_thp).only_rust(OURS),
    Test::new("faultless", "h09_second_mirror", h09_second_mirror).only_rust(OURS),
    Test::new("faultless", "h09_second_mirror_keeps_write_access", h09_keeps).only_rust(OURS),
    Test::new("faultless", "h10_other_device", h10_other_device).only_rust(OURS).private(),
    Test::new("faultless", "h12_eviction", h12_eviction).only_rust(OURS),
    Test::new("faultless", "h13_overlapping_migrations", h13_overlapping).only_rust(OURS),
    Test::new("faultless", "h14_cpu_faults", h14_cpu_faults).only_rust(OURS),
    Test::new("faultless", "h14_cpu_fault_keeps_the_entry", h14_keeps).only_rust(OURS),
    Test::new("faultless", "h15_flush_before_the_source_is_freed", h15_flush).only_rust(OURS),
    Test::new("faultless", "h16_madv_free_keeps_device_writes", h16_free).only_rust(OURS),
    Test::new("faultless", "h17_merged_pages_stay", h17_ksm).only_rust(OURS),
];

fn h01_write(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon_aligned(1)?;
    (0..map.pages()).for_each(|page| map.set(page, 0, 0));
    let add = Command::new(EngineOp::AtomicAdd, map.addr(), map.len()).stride(PAGE_SIZE).value(1);
    check_eq!(device.run(add)?.error, None, "first pass");
    let before = device.counters()?;
    let job = device.submit(add.rounds(0))?;
    // An engine that writes to a single page as often as possible.
    map.set(9, 1, 0);
    let hammer = Command::new(EngineOp::AtomicAdd, map.page_addr(9) + 8, 8).stride(8).value(1);
    let hammer = device.submit(hammer.engine(1).rounds(0))?;
    repeat(|round| {
        // A slow flush widens the time between marking and isolation, in which a write fault must
        // not give write access back.
        device.set(Setting::FlushDelay, round % 2 * 1_000_000)?;
        for way in [Way::ToDevice, Way::ToSystem] {
            check!(device.migrate(map.addr(), map.pages(), way)?.moved > 0, "nothing moved");
        }
        Ok(())
    })?;
    // On a slow kernel with large blocks, a pass of the writer takes longer than these rounds.
    device.set(Setting::FlushDelay, 0)?;
    until("another pass of the writer, while the block moves", || {
        for way in [Way::ToDevice, Way::ToSystem] {
            device.migrate(map.addr(), map.pages(), way)?;
        }
        let written = device.counters()?.bytes_written - before.bytes_written;
        Ok(written / 8 > map.pages() as u64)
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
    let (device, map, mover) = moving(ctx)?;
    let job = watch(&device, &map, 1)?;
    // Entries are removed all the time, so that faults occur in every phase.
    race(&[&mover], |round| {
        let first = (round as usize * 37) % (map.pages() - 64);
        Ok(mover.during(|| device.discard(map.page_addr(first), 64))?)
    })?;
    watched(&job, "with faults in flight")?;
    check!(device.counters()?.engine_faults_read > 0, "no fault");
    mover.end()?;
    cpu_sees(&map, 1, "at the end")?;
    no_stale_hits(&device)
}

fn h03_dontneed(ctx: &Ctx) -> Outcome {
    let (device, map, mover) = moving(ctx)?;
    device_sees(&device, &map, 1, "at first")?;
    race(&[&mover], |round| {
        let first = (round as usize * 61) % 448;
        if round % 2 == 0 {
            // The device does not read before the step in flight has ended.
            mover.during(|| map.advise_pages(libc::MADV_DONTNEED, first, 64))?;
            mover.wait_for(1)?;
            device_sees_zero(&device, &map, first, 64, "of pages dropped during a step")?;
        }
        dropped((&device, &map, &mover), 1, first, 64)
    })?;
    mover.end()?;
    device_sees(&device, &map, 1, "at the end")?;
    cpu_sees(&map, 1, "at the end")?;
    no_stale_hits(&device)
}

fn h04_before(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    // A slow flush, so that an event is announced long before the CPU PTEs are cleared.
    device.set(Setting::FlushDelay, 500_000)?;
    device.set(Setting::CopyDelay, 0)?;
    let map = Mapping::anon(16)?;
    let mover = Mover::start(&device, &map)?;
    map.fill(1);
    race(&[&mover], |round| dropped((&device, &map, &mover), 1 + round, 4, 8))?;
    mover.end()?;
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

fn h05_written(ctx: &Ctx) -> Outcome {
    const PINNED: usize = 5;
    let device = open(ctx)?;
    let map = Mapping::anon(16)?;
    map.fill(1);
    device_sees(&device, &map, 1, "at first")?;
    let pin = hmm::files::Pin::of(map.page_addr(PINNED)).what("pin a page by vmsplice")?;
    let write = Command::new(EngineOp::Fill, map.page_addr(PINNED), PAGE_SIZE).value(2);
    check_eq!(device.run(write)?.error, None, "end of the first write");
    let job = device.submit(write.rounds(0))?;
    let before = device.counters()?;
    for _ in 0..200 {
        device.migrate(map.addr(), 16, Way::ToDevice)?;
    }
    let after = device.counters()?;
    let ended = job.finish()?;
    check_eq!(ended.error, None, "writes");
    check!(ended.status.rounds > 0, "no write during the migrations");
    let moved = after.migrated_to_device - before.migrated_to_device;
    check_eq!(moved, 15, "pages that moved");
    let faults = after.engine_faults_write - before.engine_faults_write;
    check_eq!(faults, 0, "write faults on the pinned page");
    drop(pin);
    device_sees_pages(&device, &map, 1, 0, PINNED, "of pages before the pinned one")?;
    device_sees_pages(&device, &map, 1, PINNED + 1, 10, "of pages after the pinned one")?;
    check_eq!(map.get(PINNED, WORDS - 1), 2, "the last word that the engine wrote");
    no_stale_hits(&device)
}

fn h06_holes(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    repeat(|round| {
        let map = Mapping::anon(64)?;
        // Every fourth page is a hole, the next one is the zero page, and two have contents.
        for page in 0..64 {
            match page % 4 {
                0 => {}
                1 => check_eq!(map.get(page, 0), 0, "a page that was never written"),
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
            let moved = moved.what("migration of holes")?;
            check!(moved.moved > 0, "no page moved while a CPU wrote into holes");
            Ok(())
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

/// A CPU writes to the page that replaces the zero page, as soon as it exists. In coherent memory
/// that is possible before the migration ends.
fn h06_written(ctx: &Ctx) -> Outcome {
    let indices = if ctx.coherent() { vec![ctx.device] } else { vec![ctx.device, 2] };
    indices.into_iter().try_for_each(|index| {
        let device = Device::open(index)?;
        let second = Device::open(index)?;
        // The entries of the other mirrors are switched and flushed before those of the mirror that
        // migrates.
        second.set(Setting::FlushDelay, 50_000_000)?;
        repeat(|round| {
            written_at_once([&device, &second], &Mapping::anon(16)?, round + 1)?;
            written_at_once([&device, &second], &Mapping::anon_huge(1)?, round + 1)
        })?;
        no_stale_hits(&device)
    })
}

fn written_at_once([device, second]: [&Device; 2], map: &Mapping, seed: u64) -> Outcome {
    map.check_zero(0, map.pages()).what("pages that were never written")?;
    device_sees_zero(device, map, 0, 16, "of the zero page")?;
    device_sees_zero(second, map, 0, 16, "of the zero page, by the second mirror")?;
    let frame = || pagemap::read(map.addr(), 1).what("page map");
    let zero = frame()?;
    std::thread::scope(|scope| -> Outcome {
        let mover = scope.spawn(|| device.migrate(map.addr(), 16, Way::ToDevice));
        let begin = Instant::now();
        while frame()? == zero {
            check!(begin.elapsed() < Duration::from_secs(60), "the zero page stays");
        }
        map.fill_pages(seed, 0, 16);
        device_sees_pages(device, map, seed, 0, 16, "of holes that were written")?;
        device_sees_pages(second, map, seed, 0, 16, "of them, by the second mirror")?;
        let done = mover.join().map_err(|_| Stop::Fail("a thread panicked".into()))?;
        check_eq!(done.what("migration of holes")?.moved, 16, "holes that moved");
        Ok(())
    })?;
    map.check_pages(seed, 0, 16).what("CPU read")
}

fn h07_fork(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let mut moved = 0;
    for map in [Mapping::anon(32)?, huge(1, 1)?] {
        map.fill(1);
        let gate = hmm::Gate::new()?;
        let child = Child::spawn(|| -> Outcome {
            gate.wait().what("gate")?;
            cpu_sees(&map, 1, "by the child")
        })?;
        let job = watch(&device, &map, 1)?;
        for way in [Way::ToDevice, Way::ToSystem, Way::ToDevice] {
            let done = device.migrate(map.addr(), map.pages(), way)?;
            println!("# {way:?}: {} moved, {} switched", done.moved, done.switched);
            // The core unmaps a page from both processes, which causes a foreign event.
            check_eq!(done.switched, 0, "entries kept of pages shared by fork, {way:?}");
            moved += done.moved;
        }
        watched(&job, "of pages shared by fork")?;
        device_fills(&device, &map, 2, "of pages shared by fork")?;
        gate.open().what("gate")?;
        child.join().map_err(Stop::Fail)?;
        cpu_sees(&map, 2, "by the parent")?;
    }
    check!(moved > 0, "no page shared by fork moved");
    no_stale_hits(&device)
}

fn h08_partial_thp(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    repeat(|_| {
        let map = huge(1, 1)?;
        map.unmap_pages(100, 3)?;
        device_sees_pages(&device, &map, 1, 0, 100, "before")?;
        let done = device.migrate(map.addr(), 100, Way::ToDevice)?;
        // The core splits the folio, which causes a foreign event, so the entries are removed.
        check_eq!((done.moved, done.switched), (100, 0), "pages moved, and switched");
        let done = device.migrate(map.page_addr(103), HUGE_PAGES - 103, Way::ToDevice)?;
        check_eq!(done.moved as usize, HUGE_PAGES - 103, "pages moved behind the hole");
        device_sees_pages(&device, &map, 1, 0, 100, "after")?;
        device_sees_pages(&device, &map, 1, 103, HUGE_PAGES - 103, "after")?;
        device.migrate(map.addr(), 100, Way::ToSystem)?;
        device_sees_pages(&device, &map, 1, 0, 100, "at the end")?;
        map.check_pages(1, 103, HUGE_PAGES - 103).what("CPU read")
    })?;
    no_stale_hits(&device)
}

fn h09_second_mirror(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let second = ctx.open()?;
    let map = Mapping::anon(64)?;
    let mover = Mover::start(&second, &map)?;
    map.fill(1);
    race(&[&mover], |round| {
        // The new contents differ from those that a stale entry of either mirror would show.
        map.fill(round);
        mover.during(|| {
            device_sees(&device, &map, round, "by the first mirror")?;
            device_sees(&second, &map, round, "by the second mirror")?;
            device_fills(&device, &map, round + 1, "by the first mirror")?;
            device_sees(&second, &map, round + 1, "of words that the first engine wrote")?;
            Ok(())
        })
    })?;
    mover.end()?;
    let reused = reuse_freed_pages(256)?;
    let job = watch(&device, &reused, 0).err();
    check!(job.is_some(), "memory with other contents has the right checksum");
    no_stale_hits(&device)?;
    no_stale_hits(&second)
}

fn h09_keeps(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let second = ctx.open()?;
    let map = Mapping::anon(16)?;
    map.fill(1);
    for (round, way) in [Way::ToDevice, Way::ToSystem, Way::ToDevice].into_iter().enumerate() {
        let seed = 10 * round as u64;
        device_fills(&second, &map, seed + 2, "by the second mirror")?;
        let moved = device.migrate(map.addr(), map.pages(), way)?.moved;
        check_eq!(moved, map.pages() as u64, "pages that moved, {way:?}");
        let done = device_fills(&second, &map, seed + 3, "by the second mirror, afterwards")?;
        check_eq!(done.faults, 0, "fault rounds of a write by the second mirror, {way:?}");
        device_sees(&device, &map, seed + 3, "of words that the second mirror wrote")?;
    }
    // Write access that was taken before the migration does not come back: the pages are shared.
    let child = Child::spawn(|| -> Outcome {
        std::thread::sleep(Duration::from_millis(100));
        cpu_sees(&map, 23, "by the child")
    })?;
    device.migrate(map.addr(), map.pages(), Way::ToSystem)?;
    device_fills(&second, &map, 24, "by the second mirror, after the fork")?;
    child.join().map_err(Stop::Fail)?;
    device_sees(&device, &map, 24, "of words written after the fork")?;
    cpu_sees(&map, 24, "at the end")?;
    no_stale_hits(&device)?;
    no_stale_hits(&second)
}

fn h10_other_device(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let other = Device::open(ctx.second)?;
    other.set(Setting::CopyDelay, DELAY_NS)?;
    let map = Mapping::anon_aligned(1)?;
    let mover = Mover::start(&device, &map)?;
    let rival = Mover::start(&other, &map)?;
    map.fill(1);
    let here = watch(&device, &map, 1)?;
    let there = watch(&other, &map, 1)?;
    race(&[&mover, &rival], |_| {
        mover.during(|| rival.during(|| std::thread::sleep(Duration::from_millis(100))));
        Ok(())
    })?;
    watched(&here, "by the device")?;
    watched(&there, "by the other device")?;
    mover.end()?;
    rival.end()?;
    cpu_sees(&map, 1, "at the end")?;
    no_stale_hits(&device)?;
    no_stale_hits(&other)
}

fn h12_eviction(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    device.set(Setting::CopyDelay, 0)?;
    let map = Mapping::anon_aligned(1)?;
    // It may get the device pages that evictions of `map` free.
    let other = Mapping::anon_aligned(4)?;
    map.fill(1);
    other.fill(2);
    device_sees(&device, &map, 1, "at first")?;
    for seed in 2..6 {
        device.migrate(map.addr(), map.pages(), Way::ToDevice)?;
        device.release().what("release")?;
        // The CPU writes to system memory. A stale entry for device memory would still show the old
        // contents.
        map.fill(seed);
        let done = device.migrate(other.addr(), other.pages(), Way::ToDevice)?;
        check!(done.moved > 0, "the other mapping took no device page");
        device_sees(&device, &map, seed, "whose device pages another mapping has")?;
        device.migrate(other.addr(), other.pages(), Way::ToSystem)?;
    }
    let mover = Mover::start(&device, &map)?;
    let job = watch(&device, &map, 5)?;
    race(&[&mover], |_| {
        match mover.during(|| device.release()) {
            // EBUSY: the mover allocates new pages all the time.
            Ok(_) | Err(Errno::EBUSY) => {}
            Err(error) => return Err(Stop::Fail(format!("release: {error}"))),
        }
        for way in [Way::ToDevice, Way::ToSystem] {
            device.migrate(other.addr(), other.pages(), way)?;
        }
        Ok(())
    })?;
    watched(&job, "during evictions")?;
    mover.end()?;
    check!(device.counters()?.evicted_pages > 0, "nothing was evicted");
    cpu_sees(&map, 5, "at the end")?;
    cpu_sees(&other, 2, "of the other mapping")?;
    no_stale_hits(&device)
}

fn h13_overlapping(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon_aligned(1)?;
    let movers = [Mover::start(&device, &map)?, Mover::start(&device, &map)?];
    let mut moved = 0;
    map.fill(1);
    let job = watch(&device, &map, 1)?;
    rounds(2, |round| {
        let first = (round as usize * 29) % 448;
        let way = if round % 2 == 0 { Way::ToDevice } else { Way::ToSystem };
        let migrate = || device.migrate(map.page_addr(first), 64, way);
        moved += movers[0].during(|| movers[1].during(migrate))?.moved;
        // On a busy machine the movers may leave no page to the third migration for a while.
        Ok(moved > 0 && movers.iter().all(Mover::raced))
    })?;
    watched(&job, "during migrations that overlap")?;
    check!(moved > 0, "the third moved nothing");
    let [one, two] = movers;
    one.end()?;
    two.end()?;
    cpu_sees(&map, 1, "at the end")?;
    no_stale_hits(&device)
}

fn h14_cpu_faults(ctx: &Ctx) -> Outcome {
    let (device, map, mover) = moving(ctx)?;
    let job = watch(&device, &map, 1)?;
    let before = device.counters()?;
    race(&[&mover], |round| {
        let page = (round as usize * 67) % map.pages();
        let word = mover.during(|| map.get(page, 1));
        check_eq!(word, pattern::word(1, page, 1), "CPU read of page {page}");
        Ok(())
    })?;
    mover.end()?;
    // The mover may have been faster than the CPU each time.
    for round in 0..8 {
        device.migrate(map.addr(), map.pages(), Way::ToDevice)?;
        let page = round * 64 + 1;
        check_eq!(map.get(page, 1), pattern::word(1, page, 1), "CPU read of page {page}");
    }
    watched(&job, "while CPUs bring pages back")?;
    let faults = device.counters()?.cpu_faults - before.cpu_faults;
    check!(faults > 0 || ctx.coherent(), "no CPU fault");
    no_stale_hits(&device)
}

fn h14_keeps(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let second = ctx.open()?;
    if ctx.coherent() {
        return Err(Stop::Skip("a CPU takes no fault on coherent memory".to_string()));
    }
    for map in [Mapping::anon(16)?, huge(1, 1)?] {
        map.fill(1);
        let job = watch(&device, &map, 1)?;
        device.migrate(map.addr(), map.pages(), Way::ToDevice)?;
        device_fills(&second, &map, 1, "by the second mirror")?;
        let before = device.counters()?;
        cpu_sees(&map, 1, "of device memory")?;
        let after = device.counters()?;
        watched(&job, "while CPUs bring pages back")?;
        check!(after.cpu_faults > before.cpu_faults, "no CPU fault");
        let switched = after.switched_pages - before.switched_pages;
        check_eq!(switched, map.pages() as u64, "pages switched by CPU faults");
        check_eq!(after.engine_faults_read, before.engine_faults_read, "faults of the reader");
        // Nothing has taken the write access that the engines had.
        let write = Command::new(EngineOp::Fill, map.addr(), map.len()).value(2);
        check_eq!(device.run(write)?.error, None, "a write after the CPU fault");
        let writes = device.counters()?.engine_faults_write - after.engine_faults_write;
        check_eq!(writes, 0, "faults of a write after the CPU fault");
        check_eq!(map.get(map.pages() - 1, WORDS - 1), 2, "the last word that the engine wrote");
        let done = device_fills(&second, &map, 3, "by the second mirror, after the CPU fault")?;
        check_eq!(done.faults, 0, "fault rounds of a write by the second mirror");
        cpu_sees(&map, 3, "of words that the second mirror wrote")?;
    }
    no_stale_hits(&device)?;
    no_stale_hits(&second)
}

fn h15_flush(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    device.set(Setting::FlushDelay, 1_000_000)?;
    let map = Mapping::anon_aligned(1)?;
    let mover = Mover::start(&device, &map)?;
    map.fill(1);
    let job = watch(&device, &map, 1)?;
    // Pages that the migrations free are allocated and overwritten immediately. They are kept,
    // because the next round would otherwise get only the pages that this round has freed. The
    // range is mapped in advance, because a step blocks `mmap()` of other tasks.
    let freed = Mapping::anon(100_000)?;
    race(&[&mover], |round| {
        let first = (round as usize * 16) % freed.pages();
        mover.during(|| {
            for page in first..first + 16 {
                (0..WORDS).for_each(|word| freed.set(page, word, 0xdead_dead_dead_dead));
            }
        });
        Ok(())
    })?;
    watched(&job, "while freed pages are used again")?;
    mover.end()?;
    no_stale_hits(&device)
}

fn h16_free(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    // After a faultless migration and a CPU fault the device may continue to write, and therefore
    // reports pages as dirty. After an ordinary migration it may not.
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
        // Reclaim frees clean pages of MADV_FREE immediately. It swaps out the others if there is
        // swap.
        map.advise(libc::MADV_PAGEOUT)?;
        cpu_sees(&map, 2, "of words that the device wrote after MADV_FREE")?;
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

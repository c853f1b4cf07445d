// SPDX-License-Identifier: GPL-2.0
//! Connections between several devices, and migration between them.

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
use hmm::{
    inject,
    pattern,
    Child,
    Command,
    Connection,
    Device,
    EngineOp,
    Errno,
    Gate,
    Mapping,
    PageState,
    Pulled,
    Setting,
    HUGE_PAGES,
    PAGE_SIZE, //
};
use std::sync::atomic::{
    AtomicBool,
    AtomicU64,
    Ordering, //
};
use std::time::{
    Duration,
    Instant, //
};

const OURS: &str = "the C driver has no connections";

pub const TESTS: &[Test] = &[
    Test::new("p2p", "connectivity_is_reported", connectivity).only_rust(OURS),
    Test::new("p2p", "pages_migrate_between_devices", moves).only_rust(OURS),
    Test::new("p2p", "huge_page_is_pulled_in_parts_without_a_free_block", in_parts)
        .only_rust(OURS)
        .private(),
    Test::new("p2p", "snapshot_reports_remote_pages", snapshot_of_remote).only_rust(OURS),
    Test::new("p2p", "holes_are_not_populated", around_holes).only_rust(OURS),
    Test::new("p2p", "unconnected_devices_copy_through_system_memory", through).only_rust(OURS),
    Test::new("p2p", "connected_reader_in_place_never_faults", in_place).only_rust(OURS),
    Test::new("p2p", "readers_of_the_source_never_fault", readers).only_rust(OURS).private(),
    Test::new("p2p", "readers_on_both_devices_never_fault", readers_on_both).only_rust(OURS),
    Test::new("p2p", "source_reads_writes_of_the_destination", source_first).only_rust(OURS),
    Test::new("p2p", "two_competing_devices_make_progress", fight).only_rust(OURS).seconds(120),
    Test::new("p2p", "failed_copy_keeps_contents", failed).only_rust(OURS),
    Test::new("p2p", "file_close_keeps_contents", closed).only_rust(OURS),
    Test::new("p2p", "one_process_uses_four_devices", four_devices).only_rust(OURS),
    Test::new("p2p", "four_processes_share_one_device", four_processes).only_rust(OURS),
];

pub(super) struct Pair {
    pub(super) one: Device,
    pub(super) two: Device,
}

/// Opens two devices with a connection over which pages are copied directly.
pub(super) fn pair(ctx: &Ctx, connection: Connection) -> Result<Pair, Stop> {
    let one = ctx.open()?;
    let two = Device::open(ctx.second).what("open the second device")?;
    for device in [&one, &two] {
        device.set(Setting::Connection, connection as u64).what("set the connection")?;
    }
    Ok(Pair { one, two })
}

fn connectivity(ctx: &Ctx) -> Outcome {
    let Pair { one, two } = pair(ctx, Connection::Unified)?;
    let ask = |from: &Device, to: &Device| from.connection(to).what("connection");
    // Access in place requires memory that the CPU can address.
    let best = if ctx.coherent() { Connection::Unified } else { Connection::Migratable };
    check_eq!((ask(&one, &two)?, ask(&two, &one)?), (best, best), "at first");
    for (mine, theirs, both) in [
        (Connection::None, Connection::Unified, Connection::None),
        (Connection::Migratable, Connection::None, Connection::None),
        (Connection::Migratable, Connection::Unified, Connection::Migratable),
    ] {
        one.set(Setting::Connection, mine as u64).what("set")?;
        two.set(Setting::Connection, theirs as u64).what("set")?;
        let found = (ask(&one, &two)?, ask(&two, &one)?);
        check_eq!(found, (both, both), "of {mine:?} and {theirs:?}");
        let again = ctx.open()?;
        check_eq!(ask(&one, &again)?, Connection::Unified, "of a device with itself");
    }
    // A mirror of another process.
    let ready = Gate::new()?;
    let child = Child::spawn(|| -> Result<(), Stop> {
        let mine = ctx.open()?;
        check_eq!(ask(&mine, &two)?, Connection::None, "with a mirror of another process");
        let map = Mapping::anon(1)?;
        fails(mine.pull(map.addr(), 1, &two), Errno::EINVAL, "pull from another process")?;
        ready.open().what("tell")
    })?;
    ready.wait()?;
    child.join().map_err(Stop::Fail)?;
    let map = Mapping::anon(1)?;
    let mut words = [72, u64::from(u32::MAX), map.addr() as u64, 1, 0, 0, 0, 0, 0];
    fails(one.probe_extension(0x78, &mut words), Errno(libc::EBADF), "no file")?;
    words[1] = 0;
    fails(one.probe_extension(0x78, &mut words), Errno(libc::EBADF), "a file that is no device")
}

fn moves(ctx: &Ctx) -> Outcome {
    let Pair { one, two } = pair(ctx, Connection::Migratable)?;
    let small = Mapping::anon(1100)?;
    small.fill(3);
    let large = huge(2, 4)?;
    for (map, seed) in [(&small, 3), (&large, 4)] {
        migrate(&one, map, seed)?;
        device_fills_pages(&one, map, seed + 10, 0, map.pages(), "on the first device")?;
        let delta = Delta::start(ctx, &one)?;
        let other = Delta::start(ctx, &two)?;
        let pulled = two.pull(map.addr(), map.pages(), &one).what("pull")?;
        check_eq!(pulled.connection, Connection::Migratable, "connection");
        check_eq!((pulled.moved, pulled.copy_failed), (map.pages() as u64, 0), "pages that moved");
        check_eq!(resident(&two, map, 0, map.pages())?, map.pages(), "pages on the second");
        device_sees(&two, map, seed + 10, "by the second device")?;
        other.exactly("faults_read", 0, "of the second device")?;
        for (name, delta) in [("first", &delta), ("second", &other)] {
            delta.exactly("cpu_faults", 0, name)?;
            delta.exactly("migrated_to_system", 0, name)?;
        }
        delta.exactly("device_pages_used", -(map.pages() as i64), "of the first")?;
        other.exactly("device_pages_used", map.pages() as i64, "of the second")?;
    }
    if !ctx.coherent() {
        check_eq!(resident_huge(&two, &large)?, 2 * HUGE_PAGES, "pages that are still huge");
    }
    // The source has no page left. Then all pages are pulled back.
    check_eq!(two.pull(small.addr(), small.pages(), &one).what("pull")?.moved, 0, "a second time");
    check_eq!(one.pull(small.addr(), 100, &two).what("back")?.moved, 100, "pages back");
    device_sees_pages(&one, &small, 13, 0, 100, "by the first device")?;
    cpu_sees(&small, 13, "at the end")?;
    cpu_sees(&large, 14, "at the end")
}

fn snapshot_of_remote(ctx: &Ctx) -> Outcome {
    let Pair { one, two } = pair(ctx, Connection::Migratable)?;
    let map = Mapping::anon(8)?;
    map.fill(3);
    migrate(&one, &map, 3)?;
    let states = two.snapshot(map.addr(), 8).what("snapshot")?;
    // Memory that the CPU cannot address is reported as not present.
    let state = if ctx.coherent() {
        PageState(PageState::DEV_COHERENT_REMOTE | PageState::WRITE)
    } else {
        PageState::NONE
    };
    check_eq!(states, [state; 8], "the first device's memory, by the second");
    cpu_sees(&map, 3, "at the end")
}

fn in_parts(ctx: &Ctx) -> Outcome {
    let Pair { one, two } = pair(ctx, Connection::Migratable)?;
    let map = huge(1, 5)?;
    let other = huge(1, 6)?;
    migrate(&one, &map, 5)?;
    migrate(&one, &other, 6)?;
    let pull = |map: &Mapping, setting| {
        inject::set_point("device_page", setting).what("set the point")?;
        let pulled = two.pull(map.addr(), map.pages(), &one);
        inject::clear_points().what("clear the points")?;
        pulled.what("pull")
    };
    let pages = map.pages() as u64;
    let all = pull(&map, "1")?;
    check_eq!((all.moved, all.no_memory), (pages, 0), "pages with small memory only");
    check_eq!(resident(&two, &map, 0, map.pages())?, map.pages(), "pages on the second");
    check_eq!(resident_huge(&two, &map)?, 0, "of these, huge");
    device_sees(&two, &map, 5, "by the second device")?;
    let none = pull(&other, "1 every")?;
    check_eq!((none.moved, none.no_memory), (0, pages), "pages with no memory at all");
    check_eq!(resident(&one, &other, 0, other.pages())?, other.pages(), "pages that stayed");
    device_sees(&one, &other, 6, "by the first device")?;
    cpu_sees(&map, 5, "at the end")?;
    cpu_sees(&other, 6, "at the end")
}

fn around_holes(ctx: &Ctx) -> Outcome {
    let Pair { one, two } = pair(ctx, Connection::Migratable)?;
    let map = Mapping::anon(64)?;
    map.fill(6);
    migrate(&one, &map, 6)?;
    map.advise_pages(libc::MADV_DONTNEED, 16, 8)?;
    let delta = Delta::start(ctx, &two)?;
    let pulled = two.pull(map.addr(), 64, &one).what("pull")?;
    check_eq!((pulled.moved, pulled.no_memory), (56, 0), "pages that moved");
    delta.exactly("device_pages_used", 56, "of the second")?;
    check_eq!(resident(&two, &map, 16, 8)?, 0, "pages of the hole on the second");
    device_sees_pages(&two, &map, 6, 0, 16, "before the hole")?;
    device_sees_zero(&two, &map, 16, 8, "in the hole")?;
    device_sees_pages(&two, &map, 6, 24, 40, "behind the hole")?;
    map.check_pages(6, 24, 40).what("CPU read")
}

fn through(ctx: &Ctx) -> Outcome {
    let Pair { one, two } = pair(ctx, Connection::None)?;
    let map = Mapping::anon(64)?;
    map.fill(3);
    migrate(&one, &map, 3)?;
    let delta = Delta::start(ctx, &one)?;
    let pulled = two.pull(map.addr(), 64, &one).what("pull")?;
    check_eq!((pulled.connection, pulled.moved), (Connection::None, 64), "pages that moved");
    delta.exactly("migrated_to_system", 64, "of the first")?;
    check_eq!(resident(&two, &map, 0, 64)?, 64, "pages on the second");
    device_sees(&two, &map, 3, "by the second device")?;
    if ctx.coherent() {
        // The memory is accessed in place: no page moves, and no access faults.
        let Pair { one, two } = pair(ctx, Connection::Unified)?;
        let delta = Delta::start(ctx, &two)?;
        let pulled = one.pull(map.addr(), 64, &two).what("pull")?;
        check_eq!((pulled.connection, pulled.moved), (Connection::Unified, 0), "in place");
        let before = one.counters().what("counters")?.faults_read;
        device_sees(&one, &map, 3, "in place")?;
        check_eq!(one.counters().what("counters")?.faults_read, before, "faults of the reader");
        delta.exactly("device_pages_used", 0, "where it is")?;
    }
    cpu_sees(&map, 3, "at the end")
}

/// A device reads pages that another device migrates to coherent memory. If the connection allows
/// access in place, it continues without a fault. Otherwise its PTEs are invalidated, and one fault
/// installs them again.
fn in_place(ctx: &Ctx) -> Outcome {
    let (device, second) = if ctx.coherent() { (ctx.device, ctx.second) } else { (2, 3) };
    let ctx = Ctx { device, second, ..ctx.clone() };
    for (round, connection) in
        [Connection::None, Connection::Unified, Connection::Migratable, Connection::Unified]
            .into_iter()
            .enumerate()
    {
        let Pair { one: reader, two: mover } = pair(&ctx, connection)?;
        // The connection may be queried on either end.
        let (asked, of) = if round < 2 { (&reader, &mover) } else { (&mover, &reader) };
        check_eq!(asked.connection(of).what("connection")?, connection, "reported, round {round}");
        let map = Mapping::anon(16)?;
        map.fill(round as u64);
        device_sees(&reader, &map, round as u64, "before the migration")?;
        migrate(&mover, &map, round as u64)?;
        check_eq!(resident(&mover, &map, 0, 16)?, 16, "pages of the mover");
        let done = device_sees(&reader, &map, round as u64, "after the migration")?;
        let faults = u64::from(connection != Connection::Unified);
        check_eq!(done.faults, faults, "fault rounds of the reader, {connection:?}");
        if connection == Connection::Unified {
            let done = device_fills(&reader, &map, round as u64, "after the migration")?;
            check_eq!(done.faults, 0, "fault rounds of a write in place");
        }
        cpu_sees(&map, round as u64, "at the end")?;
    }
    Ok(())
}

fn readers(ctx: &Ctx) -> Outcome {
    let Pair { one, two } = pair(ctx, Connection::Migratable)?;
    let map = Mapping::anon(1)?;
    map.fill(3);
    migrate(&one, &map, 3)?;
    let job = one
        .submit(Command::new(EngineOp::Read, map.addr(), PAGE_SIZE).rounds(0))
        .what("submit a reader")?;
    // The source's engine copies for a second, the longest delay, which is far longer than a few
    // rounds of the reader.
    one.set(Setting::CopyDelay, 1_000_000_000).what("set the delay")?;
    let before = one.counters().what("counters")?.bytes_copied;
    let copied = AtomicBool::new(false);
    std::thread::scope(|scope| -> Outcome {
        let puller = scope.spawn(|| {
            let pulled = two.pull(map.addr(), 1, &one);
            copied.store(true, Ordering::SeqCst);
            pulled
        });
        until("the copy", || Ok(one.counters()?.bytes_copied > before))?;
        let begin = job.poll(Duration::ZERO).what("poll")?.1.rounds;
        let mut after = None;
        until("a round of the reader during the copy", || {
            let status = job.poll(Duration::ZERO).what("poll")?.1;
            // The poll preceded this check, so its status is from before the end of the copy.
            if copied.load(Ordering::SeqCst) {
                return Err(Stop::Fail("the reader stands still while its page is copied".into()));
            }
            let done = status.rounds > begin + 1;
            after = done.then_some(status);
            Ok(done)
        })?;
        let faults = after.map(|status| status.faults);
        check_eq!(faults, Some(0), "faults of the reader while its page is copied");
        match puller.join() {
            Ok(pulled) => check_eq!(pulled.what("pull")?.moved, 1, "pages that moved"),
            Err(_) => return Err(Stop::Fail("the puller panicked".into())),
        }
        Ok(())
    })?;
    one.set(Setting::CopyDelay, 0).what("set the delay back")?;
    check_eq!(job.finish().what("stop")?.error, None, "error of the reader");
    cpu_sees(&map, 3, "at the end")
}

/// As soon as the destination has written to a page that it pulls, the source must not read the old
/// contents. Another mirror of the source is invalidated first, and its flush is slow. This leaves
/// time for a write between its commit and the commit of the source. The write must wait until both
/// mirrors have lost their PTEs.
fn source_first(ctx: &Ctx) -> Outcome {
    let (device, second) = if ctx.coherent() { (ctx.device, ctx.second) } else { (2, 3) };
    let before = Device::open(device)?;
    let Pair { one, two } = pair(&Ctx { device, second, ..ctx.clone() }, Connection::Migratable)?;
    before.set(Setting::FlushDelay, 10_000_000).what("set the delay")?;
    let mut round = 0;
    let mut during = 0;
    while during < 5 {
        round += 1;
        check!(round < 500, "{during} of {round} writes began before the end of their pull");
        let map = Mapping::anon(1)?;
        let read = Command::new(EngineOp::Read, map.addr(), 8);
        map.fill(round);
        migrate(&one, &map, round)?;
        let found = one.run(read).what("the source's read")?;
        check_eq!(found.status.result, pattern::word(round, 0, 0), "before, round {round}");
        device_sees(&before, &map, round, "by the other mirror")?;
        device_sees(&two, &map, round, "in place")?;
        let copied = one.counters()?.bytes_copied;
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| -> Outcome {
            let puller = scope.spawn(|| {
                let pulled = two.pull(map.addr(), 1, &one);
                over.store(true, Ordering::SeqCst);
                pulled
            });
            until("the copy", || Ok(one.counters()?.bytes_copied > copied))?;
            std::thread::sleep(Duration::from_millis(round % 8));
            during += u64::from(!over.load(Ordering::SeqCst));
            let write = Command::new(EngineOp::Fill, map.addr(), 8).value(1000 + round);
            check_eq!(two.run(write).what("the destination's write")?.error, None, "of a write");
            let after = one.run(read).what("the source's read")?;
            check_eq!(after.error, None, "error of a read after the write");
            check_eq!(after.status.result, 1000 + round, "read by the source, round {round}");
            if let Err(panic) = puller.join() {
                std::panic::resume_unwind(panic);
            }
            Ok(())
        })?;
        check_eq!(map.get(0, 0), 1000 + round, "CPU read, round {round}");
    }
    println!("# {during} writes of {round} began before the end of their pull");
    before.set(Setting::FlushDelay, 0).what("set the delay back")?;
    Ok(())
}

/// If both devices can access each other's memory in place, both read it all the time. Only its own
/// device has PTEs of private memory, so the test always uses the coherent devices.
fn readers_on_both(ctx: &Ctx) -> Outcome {
    let (device, second) = if ctx.coherent() { (ctx.device, ctx.second) } else { (2, 3) };
    let Pair { one, two } = pair(&Ctx { device, second, ..ctx.clone() }, Connection::Migratable)?;
    let map = Mapping::anon(8)?;
    map.fill(3);
    migrate(&one, &map, 3)?;
    device_sees(&two, &map, 3, "in place")?;
    let submit = |device: &Device| -> Result<_, Errno> {
        Ok((device.counters()?, Command::new(EngineOp::Read, map.addr(), map.len()).rounds(0)))
    };
    let ((mine, read), (theirs, _)) =
        (submit(&one).what("counters")?, submit(&two).what("counters")?);
    let jobs = [one.submit(read).what("the source")?, two.submit(read).what("the destination")?];
    one.set(Setting::CopyDelay, 400_000_000).what("set the delay")?;
    let rounds = || -> Result<Vec<u64>, Errno> {
        jobs.iter().map(|job| job.poll(Duration::ZERO).map(|polled| polled.1.rounds)).collect()
    };
    let before = one.counters().what("counters")?.bytes_copied;
    let copied = AtomicBool::new(false);
    let (during, pulled) = std::thread::scope(|scope| -> Result<_, Stop> {
        let puller = scope.spawn(|| {
            let pulled = two.pull(map.addr(), 8, &one);
            copied.store(true, Ordering::SeqCst);
            pulled
        });
        until("the first copy", || Ok(one.counters()?.bytes_copied > before))?;
        let before = rounds().what("poll")?;
        let mut after = before.clone();
        until("rounds of both readers", || {
            after = rounds().what("poll")?;
            if copied.load(Ordering::SeqCst) {
                let why = format!("{before:?} rounds at the first copy, {after:?} after the last");
                return Err(Stop::Fail(why));
            }
            Ok(before.iter().zip(&after).all(|(before, after)| before < after))
        })?;
        match puller.join() {
            Ok(pulled) => Ok(((before, after), pulled.what("pull")?)),
            Err(_) => Err(Stop::Fail("the puller panicked".into())),
        }
    })?;
    one.set(Setting::CopyDelay, 0).what("set the delay back")?;
    check_eq!(pulled.moved, 8, "pages that moved");
    let (before, after) = during;
    check!(before[0] < after[0] && before[1] < after[1], "rounds: {before:?}, then {after:?}");
    let there = rounds().what("poll")?;
    let waited = Instant::now();
    while rounds().what("poll")?.iter().zip(&there).any(|(now, then)| *now < then + 3) {
        check!(waited.elapsed() < Duration::from_secs(60), "a reader stands still");
        std::thread::sleep(Duration::from_millis(5));
    }
    for job in jobs {
        check_eq!(job.finish().what("stop")?.error, None, "error of a reader");
    }
    for (device, before, name) in [(&one, mine, "source"), (&two, theirs, "destination")] {
        let now = device.counters().what("counters")?;
        check_eq!(now.faults_read, before.faults_read, "read faults at the {name}");
    }
    check_eq!(resident(&two, &map, 0, 8)?, 8, "pages on the destination");
    cpu_sees(&map, 3, "at the end")
}

fn fight(ctx: &Ctx) -> Outcome {
    let Pair { one, two } = pair(ctx, Connection::Migratable)?;
    let map = Mapping::anon(64)?;
    map.fill(0);
    (0..64).for_each(|page| map.set(page, 0, 0));
    let sums = || -> Result<[u64; 2], Stop> {
        let one = one.counters()?;
        let two = two.counters()?;
        let faults = one.engine_faults_write + two.engine_faults_write;
        Ok([faults, one.migrated_to_device + two.migrated_to_device])
    };
    let before = sums()?;
    // Isolating a page that a CPU has just put back drains the LRU lists of all CPUs, which takes
    // milliseconds. Meanwhile the other device continues. For a second or two one device may be ten
    // times as fast. So both continue until neither has more than three times as many rounds as the
    // other, for at least two seconds and at most 60.
    let begin = Instant::now();
    let rounds = [AtomicU64::new(0), AtomicU64::new(0)];
    let fair = AtomicBool::new(false);
    let over = || {
        let [mine, theirs] = [0, 1].map(|index: usize| rounds[index].load(Ordering::Relaxed));
        let seconds = begin.elapsed().as_secs();
        if seconds >= 2 && mine + theirs >= 100 && mine.max(theirs) <= 3 * mine.min(theirs) {
            fair.store(true, Ordering::Relaxed);
        }
        // Rounds of one device after the other has ended do not count.
        fair.load(Ordering::Relaxed) || seconds >= 60
    };
    let fighter = |index: usize, mine: &Device, other: &Device| -> Result<(u64, u64), Errno> {
        let mut adds = 0;
        let mut moved = 0;
        while !over() {
            moved += mine.pull(map.addr(), 64, other)?.moved;
            moved += mine.migrate(map.addr(), 64, Way::ToDevice)?.moved;
            let add = Command::new(EngineOp::AtomicAdd, map.addr(), map.len());
            let ended = mine.run(add.value(1).stride(PAGE_SIZE))?;
            match ended.error {
                None => adds += 1,
                Some(error) => return Err(error),
            }
            rounds[index].store(adds, Ordering::Relaxed);
        }
        Ok((adds, moved))
    };
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| fighter(0, &one, &two));
        let second = scope.spawn(|| fighter(1, &two, &one));
        (first.join(), second.join())
    });
    let (Ok(first), Ok(second)) = (first, second) else {
        return Err(Stop::Fail("a fighter panicked".into()));
    };
    let ((adds, moved), (others, theirs)) = (first.what("the first")?, second.what("the second")?);
    check!(adds >= 3 && others >= 3, "rounds: {adds} and {others}");
    check!(moved > 0 && theirs > 0, "pages that moved: {moved} and {theirs}");
    // Each move removes the PTE of a page from each device at most once, and each fault migrates or
    // maps the page. So the numbers of faults and moves for one addition are bounded.
    let [faults, moves] = sums()?;
    let faults = faults - before[0];
    let moves = moves - before[1];
    println!("# {adds} and {others} rounds, {moves} pages moved, {faults} write faults");
    check!(faults <= moves + moves / 2 + 128, "{faults} write faults of {moves} pages that moved");
    check!(fair.into_inner(), "rounds: {adds} and {others}: unfair");
    for page in 0..64 {
        check_eq!(map.get(page, 0), adds + others, "sum in page {page}");
    }
    Ok(())
}

fn failed(ctx: &Ctx) -> Outcome {
    let Pair { one, two } = pair(ctx, Connection::Migratable)?;
    let map = Mapping::anon(16)?;
    map.fill(3);
    migrate(&one, &map, 3)?;
    // One copy in the middle, made by the source's engine, fails.
    one.set(Setting::CopyFail, 5).what("set")?;
    let pulled = two.pull(map.addr(), 16, &one).what("pull")?;
    check_eq!((pulled.moved, pulled.copy_failed), (15, 1), "pages moved and failed");
    check_eq!(resident(&one, &map, 0, 16)?, 1, "pages that stay");
    check_eq!(resident(&two, &map, 0, 16)?, 15, "pages that moved");
    two.discard(map.addr(), 16).what("discard")?;
    cpu_sees(&map, 3, "after it")?;
    Ok(())
}

/// Has `to` pull all of `map` from `from`, and runs `event` after `copies` copies. Fails if the
/// pull has ended before the event.
pub fn while_pulled(
    to: &Device,
    map: &Mapping,
    from: &Device,
    copies: u64,
    event: impl FnOnce() -> Outcome,
) -> Result<Result<Pulled, Errno>, Stop> {
    let counter = from.counters().what("counters")?;
    let pulled = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let puller = scope.spawn(|| {
            let result = to.pull(map.addr(), map.pages(), from);
            pulled.store(true, Ordering::SeqCst);
            result
        });
        let copied = |now: u64| (now - counter.bytes_copied) / PAGE_SIZE as u64;
        until("copies of a pull", || Ok(copied(from.counters()?.bytes_copied) >= copies))?;
        check!(!pulled.load(Ordering::SeqCst), "the pull was over before the event");
        event()?;
        puller.join().map_err(|_| Stop::Fail("the puller panicked".into()))
    })
}

/// Has `to` pull all of `map` from `from`, while the file `closed`, which is one of the two, is
/// closed.
fn pull_while_closed(
    to: &Device,
    map: &Mapping,
    from: &Device,
    closed: &Device,
    copies: u64,
) -> Outcome {
    let close = || closed.detach().what("close one of the files");
    let pulled = while_pulled(to, map, from, copies, close)?.what("pull")?;
    check_eq!(pulled.moved, map.pages() as u64, "pages moved");
    Ok(())
}

/// Migrates all pages to system memory. CPU reads would not do that for coherent memory.
fn migrate_back(devices: &[&Device], map: &Mapping) -> Outcome {
    for device in devices {
        device.migrate(map.addr(), map.pages(), Way::ToSystem).what("migrate to the system")?;
        check_eq!(resident(device, map, 0, map.pages())?, 0, "pages that stayed");
    }
    Ok(())
}

fn closed(ctx: &Ctx) -> Outcome {
    let Pair { one, two } = pair(ctx, Connection::Migratable)?;
    let map = Mapping::anon(32)?;
    map.fill(3);
    for round in 0..4 {
        let source = ctx.open()?;
        migrate(&source, &map, 3)?;
        source.set(Setting::CopyDelay, 10_000_000).what("set the delay")?;
        // The source is closed while its pages are copied. The call holds a reference on the file
        // until it returns.
        let copies = 2 + 5 * round;
        pull_while_closed(&two, &map, &source, &source, copies)?;
        one.set(Setting::CopyDelay, 0).what("set the delay back")?;
        device_sees(&two, &map, 3, "after the source was unplugged")?;
        cpu_sees(&map, 3, "after the source was unplugged")?;
        migrate_back(&[&one, &two], &map)?;
        // The destination is closed. Pages that have moved are migrated back; the others stay in
        // place.
        migrate(&one, &map, 3)?;
        one.set(Setting::CopyDelay, 10_000_000).what("set the delay")?;
        let destination = Device::open(ctx.second).what("open the second")?;
        pull_while_closed(&destination, &map, &one, &destination, copies)?;
        one.set(Setting::CopyDelay, 0).what("set the delay back")?;
        device_sees(&one, &map, 3, "after the destination was unplugged")?;
        cpu_sees(&map, 3, "after the destination was unplugged")?;
        migrate_back(&[&one, &two], &map)?;
    }
    Ok(())
}

fn four_devices(_: &Ctx) -> Outcome {
    let devices: Vec<Device> = (0..4).map_while(|index| Device::open(index).ok()).collect();
    if devices.len() < 4 {
        return Err(Stop::Skip("there are no coherent devices".into()));
    }
    let map = Mapping::anon(4 * 64)?;
    map.fill(5);
    let sum = |device: &Device| -> Result<u64, Stop> {
        let ended =
            device.run(Command::new(EngineOp::Checksum, map.addr(), map.len())).what("sum")?;
        check_eq!(ended.error, None, "error of a checksum");
        Ok(ended.status.result)
    };
    let expected = hmm::engine::checksum_of_pattern(5, map.pages());
    for (index, device) in devices.iter().enumerate() {
        // Migrate a quarter to each device.
        let moved = device.migrate(map.page_addr(64 * index), 64, Way::ToDevice).what("migrate")?;
        check_eq!(moved.moved, 64, "pages on device {index}");
    }
    for (index, device) in devices.iter().enumerate() {
        check_eq!(sum(device)?, expected, "checksum by device {index}");
    }
    // Each device pulls from its neighbour of the same kind, and from the others through system
    // memory.
    for (index, device) in devices.iter().enumerate() {
        let from = &devices[(index + 1) % 4];
        device.pull(map.addr(), map.pages(), from).what("pull")?;
        check_eq!(sum(device)?, expected, "checksum by device {index} after its pull");
    }
    cpu_sees(&map, 5, "at the end")
}

fn four_processes(ctx: &Ctx) -> Outcome {
    let children: Vec<Child> = (0..4u64)
        .map(|seed| {
            Child::spawn(|| -> Result<(), Stop> {
                let device = ctx.open()?;
                let map = Mapping::anon(128)?;
                for round in 0..8 {
                    map.fill(seed * 100 + round);
                    let expected = hmm::engine::checksum_of_pattern(seed * 100 + round, 128);
                    let way = Way::ToDevice;
                    device.migrate(map.addr(), 128, way).what("migrate")?;
                    let command = Command::new(EngineOp::Checksum, map.addr(), map.len());
                    let ended = device.run(command.verify(expected)).what("checksum")?;
                    check_eq!(ended.error, None, "checksum of process {seed}, round {round}");
                    cpu_sees(&map, seed * 100 + round, "after it")?;
                }
                Ok(())
            })
        })
        .collect::<Result<_, _>>()?;
    for child in children {
        child.join().map_err(Stop::Fail)?;
    }
    Ok(())
}

// SPDX-License-Identifier: GPL-2.0
//! The event stream: a process receives the events of its own memory, and no others.

use super::memory::with;
use super::module_reload::unload;
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
use hmm::events::{
    poll_fd,
    Record,
    Type,
    RECORD, //
};
use hmm::placement::Policy;
use hmm::{
    inject,
    procfs,
    Child,
    Device,
    Errno,
    Gate,
    Mapping,
    PAGE_SIZE, //
};
use std::sync::mpsc;
use std::time::{
    Duration,
    Instant, //
};

/// The system call of `poll()`.
#[cfg(target_arch = "x86_64")]
const SYS_POLL: libc::c_long = libc::SYS_poll;
#[cfg(not(target_arch = "x86_64"))]
const SYS_POLL: libc::c_long = libc::SYS_ppoll;

const OURS: &str = "test_hmm has no event stream";
const PAGES: usize = 24;
/// Capacity of a ring in records.
const ROOM: usize = 1024;

pub const TESTS: &[Test] = &[
    Test::new("events", "faults_and_migrations_are_reported", faults_and_migrations_are_reported)
        .only_rust(OURS),
    Test::new("events", "failures_are_reported", failures_are_reported).only_rust(OURS),
    Test::new("events", "mask_selects_event_types", mask_chooses).only_rust(OURS),
    Test::new("events", "poll_wakes_on_an_event", poll_wakes).only_rust(OURS),
    Test::new("events", "read_blocks_until_an_event_or_signal", read_waits).only_rust(OURS),
    Test::new("events", "lost_events_are_counted", lost).only_rust(OURS),
    Test::new("events", "stream_has_events_of_its_mirror_only", own_only).only_rust(OURS),
    Test::new("events", "events_of_all_mirrors_need_privileges", privileged).only_rust(OURS),
    Test::new("events", "close_during_poll_is_safe", closed_while_polled).only_rust(OURS),
    Test::new("events", "bad_calls_are_refused", bad_calls).only_rust(OURS),
];

/// Tests in the group that loads the modules with parameters.
pub const WITH_PARAMETERS: &[Test] = &[
    Test::new("memory", "evictions_are_reported_to_evicted_processes", evictions).only_rust(OURS),
    Test::new("memory", "thrashing_is_reported", thrashing).only_rust(OURS).private(),
];

fn all_types() -> u64 {
    Type::ALL.iter().map(|kind| kind.bit()).sum()
}

fn mask(types: &[Type]) -> u64 {
    types.iter().map(|kind| kind.bit()).sum()
}

fn listen(device: &Device, types: u64) -> Outcome {
    device.events(types, false).what("ask for events").map(|_| ())
}

fn records(device: &Device) -> Result<Vec<Record>, Stop> {
    device.records().what("read the events")
}

/// Returns the records of one type.
fn of(all: &[Record], kind: Type) -> Vec<Record> {
    all.iter().filter(|record| record.kind == kind).copied().collect()
}

fn one(all: &[Record], kind: Type) -> Result<Record, Stop> {
    let found = of(all, kind);
    check_eq!(found.len(), 1, "number of {kind:?} in {all:?}");
    Ok(found[0])
}

fn range(record: &Record, map: &Mapping, first: usize, pages: usize) -> Outcome {
    check_eq!(record.addr, map.page_addr(first) as u64, "address of {record:?}");
    check_eq!(record.npages, pages as u64, "pages of {record:?}");
    Ok(())
}

/// Checks that the records are in order, without a gap that no loss explains, and that their times
/// do not decrease.
fn in_order(all: &[Record]) -> Outcome {
    for pair in all.windows(2) {
        check_eq!(
            pair[1].sequence,
            pair[0].sequence + 1 + (pair[1].lost - pair[0].lost),
            "sequence"
        );
        check!(pair[1].time_ns >= pair[0].time_ns, "time runs back: {pair:?}");
    }
    Ok(())
}

fn faults_and_migrations_are_reported(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon_in_block(PAGES)?;
    map.fill(1);
    listen(&device, all_types())?;
    device_sees_pages(&device, &map, 1, 0, 4, "of some pages")?;
    let all = records(&device)?;
    let begins = of(&all, Type::FaultBegin);
    let ends = of(&all, Type::FaultEnd);
    check!(!begins.is_empty() && begins.len() == ends.len(), "begins and ends: {all:?}");
    range(&begins[0], &map, 0, 4)?;
    range(&ends[0], &map, 0, 4)?;
    check_eq!((ends[0].error, ends[0].detail), (0, 0), "error and access of {:?}", ends[0]);
    check!(begins[0].sequence < ends[0].sequence, "an end before its begin: {all:?}");
    in_order(&all)?;
    check_eq!((all[0].sequence, all[0].lost), (0, 0), "the first: {:?}", all[0]);

    device.migrate(map.addr(), PAGES, Way::ToDevice).what("migrate")?;
    let all = records(&device)?;
    let begin = one(&all, Type::MigrateBegin)?;
    range(&begin, &map, 0, PAGES)?;
    check!(begin.to_device && begin.detail == 0, "direction and trigger of {begin:?}");
    let end = one(&all, Type::MigrateEnd)?;
    let outcome = (end.to_device, end.detail, end.moved, end.stayed, end.error);
    check_eq!(outcome, (true, 0, PAGES as u64, 0, 0), "outcome in {end:?}");
    check!(begin.time_ns <= end.time_ns && begin.mirror == end.mirror, "{begin:?} {end:?}");

    if !ctx.coherent() {
        map.check_pages(1, 5, 1).what("CPU read")?;
        let back = PAGES - resident(&device, &map, 0, PAGES)?;
        let fault = one(&records(&device)?, Type::CpuFault)?;
        check_eq!(fault.addr, map.page_addr(5) as u64, "address of {fault:?}");
        check_eq!((fault.moved, fault.error), (back as u64, 0), "outcome of {fault:?}");
    }
    device_sees(&device, &map, 1, "again")?;
    records(&device)?;
    map.protect_pages(hmm::Prot::Read, 0, 8).what("mprotect")?;
    map.unmap_pages(8, 8).what("munmap")?;
    let invalidations = of(&records(&device)?, Type::Invalidate);
    for (cause, first) in [(2, 0), (0, 8)] {
        let at = map.page_addr(first) as u64;
        let found = invalidations.iter().find(|record| record.detail == cause && record.addr == at);
        let Some(found) = found else {
            return Err(Stop::Fail(format!("no cause {cause} at {at:#x}: {invalidations:?}")));
        };
        check_eq!((found.npages, found.moved), (8, 8), "pages of {found:?}");
    }
    device.discard(map.page_addr(16), 4).what("discard")?;
    inject::set_point("retry", "1").what("set the point")?;
    let seen = device_sees_pages(&device, &map, 1, 16, 4, "with a retry");
    inject::clear_points().what("clear the points")?;
    seen?;
    let retry = one(&records(&device)?, Type::Retry)?;
    check_eq!(retry.detail, 0, "reason of {retry:?}");
    Ok(())
}

fn failures_are_reported(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon_in_block(PAGES)?;
    map.unmap_pages(4, 1).what("munmap")?;
    listen(&device, all_types())?;
    let mut data = vec![0; PAGE_SIZE];
    check!(device.read(map.page_addr(4), &mut data).is_err(), "a device read of nothing");
    check!(device.migrate(map.page_addr(4), 1, Way::ToDevice).is_err(), "a migration of nothing");
    let all = records(&device)?;
    check_eq!(one(&all, Type::FaultEnd)?.error, -14, "error of the fault");
    check_eq!(one(&all, Type::MigrateEnd)?.error, -22, "error of the migration");
    Ok(())
}

fn mask_chooses(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon_in_block(PAGES)?;
    map.fill(1);
    let first = device.events(Type::MigrateEnd.bit(), false).what("ask")?;
    check_eq!((first.old, first.waiting, first.lost), (0, 0, 0), "at first");
    let round = || -> Outcome {
        device_sees(&device, &map, 1, "by faults")?;
        device.migrate(map.addr(), PAGES, Way::ToDevice).what("migrate")?;
        device.migrate(map.addr(), PAGES, Way::ToSystem).what("migrate back")?;
        Ok(())
    };
    round()?;
    let wanted = mask(&[Type::MigrateBegin, Type::FaultEnd]);
    let then = device.events(wanted, false).what("request events of other processes")?;
    check_eq!((then.old, then.waiting), (Type::MigrateEnd.bit(), 2), "mask and records");
    let all = records(&device)?;
    let kinds: Vec<Type> = all.iter().map(|record| record.kind).collect();
    check_eq!(kinds, [Type::MigrateEnd, Type::MigrateEnd], "types");
    check_eq!((all[0].to_device, all[1].to_device), (true, false), "directions");
    device.discard(map.addr(), PAGES).what("discard")?;
    round()?;
    let all = records(&device)?;
    check_eq!(of(&all, Type::MigrateBegin).len(), 2, "begins in {all:?}");
    check!(!of(&all, Type::FaultEnd).is_empty(), "no faults in {all:?}");
    check!(all.iter().all(|record| wanted & record.kind.bit() != 0), "others in {all:?}");
    // An empty mask selects no events.
    listen(&device, 0)?;
    round()?;
    check_eq!(records(&device)?, [], "records without a mask");
    Ok(())
}

fn poll_wakes(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon_in_block(PAGES)?;
    map.fill(1);
    let none = device.poll(Duration::ZERO).what("poll without events")?;
    check_eq!(none, libc::POLLERR, "poll before events were asked for");
    listen(&device, mask(&[Type::MigrateEnd]))?;
    let start = Instant::now();
    check_eq!(device.poll(Duration::from_millis(100)).what("poll")?, 0, "poll of nothing");
    check!(start.elapsed() >= Duration::from_millis(90), "it does not wait");
    let fd = device.fd();
    let (begun, began) = mpsc::channel();
    let poller = std::thread::spawn(move || {
        let start = Instant::now();
        let _ = begun.send(procfs::thread_id());
        (poll_fd(fd, Duration::from_secs(60)), start.elapsed())
    });
    sleeps_in(&began, SYS_POLL)?;
    device.migrate(map.addr(), PAGES, Way::ToDevice).what("migrate")?;
    let (events, waited) = poller.join().map_err(|_| Stop::Fail("a thread has panicked".into()))?;
    check_eq!(events.what("poll")?, libc::POLLIN, "what poll says");
    check!(waited < Duration::from_secs(30), "not woken within {waited:?}");
    check_eq!(device.poll(Duration::ZERO).what("poll")?, libc::POLLIN, "until it is read");
    check_eq!(records(&device)?.len(), 1, "records");
    check_eq!(device.poll(Duration::ZERO).what("poll")?, 0, "when it is read");
    Ok(())
}

fn read_waits(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon_in_block(PAGES)?;
    map.fill(1);
    listen(&device, mask(&[Type::MigrateEnd]))?;
    let (begun, began) = mpsc::channel();
    let read = std::thread::scope(|scope| -> Result<_, Stop> {
        let device = &device;
        let reader = scope.spawn(move || {
            let mut buffer = [0; RECORD * 2];
            let _ = begun.send(procfs::thread_id());
            device.read_stream(&mut buffer).map(|read| (read, buffer))
        });
        let sleeps = sleeps_in(&began, libc::SYS_read);
        // Migrate in any case, because this ends the reader.
        device.migrate(map.addr(), PAGES, Way::ToDevice).what("migrate")?;
        sleeps?;
        reader.join().map_err(|_| Stop::Fail("a thread has panicked".into()))
    })?;
    let (read, buffer) = read.what("read")?;
    check_eq!(read, RECORD, "bytes");
    let record = buffer[..RECORD].try_into().ok().and_then(Record::parse);
    check_eq!(record.map(|record| record.moved), Some(PAGES as u64), "pages that moved");
    // A reader that waits without a time limit can be killed.
    let index = ctx.device;
    let ready = Gate::new().what("gate")?;
    let mut child = Child::spawn(|| -> Result<(), Errno> {
        let device = Device::open(index)?;
        device.events(Type::Thrash.bit(), false)?;
        let _ = ready.open();
        device.read_stream(&mut [0; RECORD]).map(|_| ())
    })
    .what("fork")?;
    ready.wait().what("wait")?;
    child_sleeps_in(&child, libc::SYS_read)?;
    check_eq!(child.try_wait(), None, "the reader's end");
    child.signal(libc::SIGKILL);
    let ended = child.wait_timeout(Duration::from_secs(20));
    check!(ended.is_some(), "a reader that cannot be killed");
    Ok(())
}

fn lost(ctx: &Ctx) -> Outcome {
    const MORE: usize = 76;
    let device = ctx.open()?;
    let map = Mapping::anon(1)?;
    map.fill(1);
    listen(&device, mask(&[Type::FaultEnd]))?;
    let fault = || -> Outcome {
        device.discard(map.addr(), 1).what("discard")?;
        device_sees(&device, &map, 1, "once more")?;
        Ok(())
    };
    for _ in 0..ROOM + MORE {
        fault()?;
    }
    let state = device.events(mask(&[Type::FaultEnd]), false).what("ask again")?;
    check_eq!((state.waiting, state.lost), (ROOM as u64, MORE as u64), "waiting and lost");
    let all = records(&device)?;
    check_eq!(all.len(), ROOM, "records");
    in_order(&all)?;
    check!(all.iter().all(|record| record.lost == 0), "lost before they were");
    fault()?;
    let after = one(&records(&device)?, Type::FaultEnd)?;
    check_eq!((after.sequence, after.lost), ((ROOM + MORE) as u64, MORE as u64), "the next");
    Ok(())
}

/// Activity of another process on the same device. The test's own stream must not report it.
fn other(index: u32) -> Result<(), String> {
    let device = Device::open(index).map_err(|error| error.to_string())?;
    let map = Mapping::anon_in_block(PAGES).map_err(|error| error.to_string())?;
    map.fill(7);
    let mut data = vec![0; map.len()];
    let text = |error: Errno| error.to_string();
    device.read(map.addr(), &mut data).map_err(text)?;
    device.migrate(map.addr(), PAGES, Way::ToDevice).map_err(text)?;
    map.check(7).map_err(|error| error.to_string())?;
    device.migrate(map.addr(), PAGES, Way::ToDevice).map_err(text)?;
    map.unmap_pages(0, PAGES).map_err(text)
}

fn own_only(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let again = ctx.open()?;
    listen(&device, all_types())?;
    listen(&again, all_types())?;
    let index = ctx.device;
    // Fork before the device is opened, because a later fork would be an event of our own memory.
    let child = Child::spawn(|| other(index)).what("fork")?;
    child.join().map_err(Stop::Fail)?;
    let foreign = [
        Type::FaultBegin,
        Type::FaultEnd,
        Type::CpuFault,
        Type::MigrateBegin,
        Type::MigrateEnd,
        Type::Evict,
    ];
    for device in [&device, &again] {
        let all = records(device)?;
        let heard = all.iter().find(|record| foreign.contains(&record.kind));
        check_eq!(heard, None, "what another process did");
        // A fork invalidates our own memory.
        check!(all.iter().all(|record| record.kind == Type::Invalidate), "{all:?}");
    }
    // Each of two mirrors of a process reports its own events.
    let map = Mapping::anon_in_block(PAGES)?;
    map.fill(1);
    device_sees(&device, &map, 1, "by one mirror")?;
    check!(!of(&records(&device)?, Type::FaultEnd).is_empty(), "nothing of its own");
    check_eq!(of(&records(&again)?, Type::FaultEnd), [], "events of the other mirror");
    Ok(())
}

fn privileged(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    device.events(all_types(), true).what("ask for all as root")?;
    let index = ctx.device;
    let child = Child::spawn(|| other(index)).what("fork")?;
    child.join().map_err(Stop::Fail)?;
    let all = records(&device)?;
    let moved = of(&all, Type::MigrateEnd).iter().any(|record| record.moved == PAGES as u64);
    check!(moved, "nothing of the other process: {all:?}");
    // Without the capability the call is refused and changes nothing.
    let fd = device.fd();
    let child = Child::spawn(|| -> Result<(), String> {
        // SAFETY: `setgid` takes a number and accesses no memory of the process.
        unsafe { libc::setgid(65534) };
        // SAFETY: `setuid` takes a number and accesses no memory of the process.
        unsafe { libc::setuid(65534) };
        let pid = std::process::id() as i32;
        let own = Device::of_process(pid, fd).map_err(|error| error.to_string())?;
        match own.events(all_types(), true) {
            Err(Errno::EPERM) => {}
            other => return Err(format!("all events without the right: {other:?}")),
        }
        own.events(all_types(), false).map(|_| ()).map_err(|error| error.to_string())
    });
    child.what("fork")?.join().map_err(Stop::Fail)?;
    records(&device)?;
    let child = Child::spawn(|| other(index)).what("fork")?;
    child.join().map_err(Stop::Fail)?;
    check_eq!(
        of(&records(&device)?, Type::MigrateEnd),
        [],
        "events of other processes while only own ones are requested"
    );
    Ok(())
}

fn closed_while_polled(ctx: &Ctx) -> Outcome {
    const LONG: Duration = Duration::from_secs(20);
    let map = Mapping::anon_in_block(PAGES)?;
    map.fill(1);
    // Leave out invalidations: starting a thread causes some, which would end the poll immediately.
    let types = all_types() & !Type::Invalidate.bit();
    let mut late = 0;
    for round in 0..20 {
        // In every fourth round an event ends the poll before the close. In the other rounds an
        // event may end it, the close itself may cause the last event, or there is none.
        let is_woken = round % 2 == 0;
        let is_first = round % 4 == 0;
        let device = ctx.open()?;
        listen(&device, types)?;
        let fd = device.fd();
        let (begun, began) = mpsc::channel();
        let poller = std::thread::spawn(move || {
            let _ = begun.send(procfs::thread_id());
            poll_fd(fd, if is_first { LONG } else { Duration::from_millis(500) })
        });
        let polls = sleeps_in(&began, SYS_POLL);
        if polls.is_err() && poller.is_finished() {
            // On a busy machine the poll may time out before this thread checks.
            late += 1;
            continue;
        }
        polls?;
        if is_woken {
            device_sees(&device, &map, 1, "before the close")?;
        }
        let end = || poller.join().map_err(|_| Stop::Fail("a thread has panicked".into()));
        let polled = if is_first {
            // A poll that times out would report the event, too, without having been woken.
            let since = Instant::now();
            let polled = end()?;
            check!(since.elapsed() < LONG / 2, "the event has not ended the poll");
            device.close().what("close")?;
            polled
        } else {
            device.close().what("close")?;
            end()?
        };
        let polled = polled.what("poll")?;
        match polled {
            libc::POLLIN if is_woken => {}
            // When the poll is woken or times out, it looks up the descriptor again, which is
            // closed.
            libc::POLLNVAL if !is_first => {}
            0 if !is_first => late += 1,
            _ => return Err(Stop::Fail(format!("poll says {polled:#x}, round {round}"))),
        }
    }
    check!(late <= 4, "{late} of 20 polls were over before the close");
    // A new file receives events afterwards.
    let device = ctx.open()?;
    listen(&device, all_types())?;
    device_sees(&device, &map, 1, "afterwards")?;
    check!(!records(&device)?.is_empty(), "no events afterwards");
    Ok(())
}

fn bad_calls(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(2)?;
    map.fill(1);
    fails(
        device.read_stream(&mut [0; RECORD]),
        Errno::EINVAL,
        "read before events were asked for",
    )?;
    fails(device.events(1 << Type::ALL.len(), false), Errno::EINVAL, "a type that there is not")?;
    let mut words = [40 | (2 << 32), 0, 0, 0, 0];
    fails(device.probe_extension(0x7a, &mut words), Errno::EINVAL, "an unknown flag")?;
    let mut words = [39, 0, 0, 0, 0];
    fails(device.probe_extension(0x7a, &mut words), Errno::EINVAL, "too small")?;
    listen(&device, all_types())?;
    device.set_nonblocking(true).what("fcntl")?;
    fails(device.read_stream(&mut [0; RECORD]), Errno::EAGAIN, "read of nothing")?;
    device_sees(&device, &map, 1, "for events")?;
    fails(device.read_stream(&mut [0; RECORD - 1]), Errno::EINVAL, "read of a part of a record")?;
    fails(device.read_stream(&mut []), Errno::EINVAL, "read of nothing at all")?;
    // A record that cannot be copied to user space is not lost.
    records(&device)?;
    let mut left = 0;
    // A fault that an invalidation interrupts emits more than one record.
    for _ in 0..8 {
        listen(&device, mask(&[Type::FaultEnd]))?;
        device.discard(map.addr(), 2).what("discard")?;
        device_sees(&device, &map, 1, "for an event")?;
        // SAFETY: The buffer is a guard page, so the kernel writes no memory of the process.
        let read = unsafe { libc::read(device.fd(), map.guard() as *mut libc::c_void, RECORD) };
        fails(Errno::check(read as i64), Errno::EFAULT, "read to nowhere")?;
        left = records(&device)?.len();
        check!(left > 0, "the record was lost");
        if left == 1 {
            break;
        }
    }
    check_eq!(left, 1, "records after a read to nowhere");
    // Records of a mirror that is destroyed are discarded without harm.
    let index = ctx.device;
    let child = Child::spawn(|| -> Result<(), String> {
        let device = Device::open(index).map_err(|error| error.to_string())?;
        device.events(all_types(), false).map_err(|error| error.to_string())?;
        let map = Mapping::anon(8).map_err(|error| error.to_string())?;
        map.fill(1);
        let mut data = vec![0; map.len()];
        device.read(map.addr(), &mut data).map_err(|error| error.to_string())?;
        // The exit closes the device, with records that were not read.
        std::mem::forget(device);
        Ok(())
    });
    child.what("fork")?.join().map_err(Stop::Fail)
}

/// An eviction for space is reported to the processes whose memory was evicted, with the number of
/// pages.
fn evictions(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &vram(2))?;
    let device = ctx.open()?;
    listen(&device, mask(&[Type::Evict]))?;
    let maps = [Mapping::anon_aligned(1)?, Mapping::anon_aligned(1)?, Mapping::anon_aligned(1)?];
    crowd(&device, &maps)?;
    let evict = one(&records(&device)?, Type::Evict)?;
    check_eq!((evict.detail, evict.moved), (1, BLOCK_PAGES), "need and pages of {evict:?}");
    device.release().what("release")?;
    let evict = one(&records(&device)?, Type::Evict)?;
    check_eq!((evict.detail, evict.moved), (0, 2 * BLOCK_PAGES), "need and pages of {evict:?}");
    // A process without memory on the device gets no eviction event.
    let index = ctx.device;
    let child = Child::spawn(|| other(index)).what("fork")?;
    child.join().map_err(Stop::Fail)?;
    let second = ctx.open()?;
    listen(&second, mask(&[Type::Evict]))?;
    let map = &maps[0];
    device.migrate(map.addr(), map.pages(), Way::ToDevice).what("migrate")?;
    device.release().what("release")?;
    check_eq!(one(&records(&device)?, Type::Evict)?.moved, BLOCK_PAGES, "pages of the one");
    check_eq!(records(&second)?, [], "events of the other");
    drop((device, second));
    unload(ctx)
}

/// Memory that CPU and device access in turns: the device waits, and then the memory stays in
/// place.
fn thrashing(ctx: &Ctx) -> Outcome {
    let _restore =
        with(ctx, "thrash_count=2 thrash_lapse_ms=60000 thrash_pin_ms=60000 thrash_delay_ms=3")?;
    let device = ctx.open()?;
    device.set_policy(Policy::Default)?;
    let map = Mapping::anon(1)?;
    listen(&device, mask(&[Type::Thrash, Type::MigrateBegin]))?;
    by_turns(&device, &map)?;
    let all = records(&device)?;
    let begins = of(&all, Type::MigrateBegin);
    check!(!begins.is_empty(), "nothing has moved: {all:?}");
    // All migrations are triggered by faults.
    check!(begins.iter().all(|begin| begin.detail == 2), "another trigger: {begins:?}");
    let thrash = of(&all, Type::Thrash);
    for record in &thrash {
        range(record, &map, 0, 1)?;
    }
    let (stays, waits): (Vec<&Record>, Vec<&Record>) =
        thrash.iter().partition(|record| record.detail == 1);
    check!(!stays.is_empty() && stays.iter().all(|record| record.stayed == 0), "{thrash:?}");
    check!(!waits.is_empty() && waits.iter().all(|record| record.stayed == 3), "{thrash:?}");
    drop(device);
    unload(ctx)
}

// SPDX-License-Identifier: GPL-2.0
//! Devices that access memory in place, and while it is pulled.

use super::{
    pair,
    Pair, //
};
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::{
    pattern,
    Command,
    Connection,
    Device,
    EngineOp,
    Errno,
    Mapping,
    Setting,
    PAGE_SIZE, //
};
use std::sync::atomic::{
    AtomicBool,
    Ordering, //
};
use std::time::{
    Duration,
    Instant, //
};

/// A device reads pages that another device migrates to coherent memory. If the connection allows
/// access in place, it continues without a fault. Otherwise its PTEs are invalidated, and one fault
/// installs them again.
pub(super) fn in_place(ctx: &Ctx) -> Outcome {
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

pub(super) fn readers(ctx: &Ctx) -> Outcome {
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
pub(super) fn source_first(ctx: &Ctx) -> Outcome {
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
pub(super) fn readers_on_both(ctx: &Ctx) -> Outcome {
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

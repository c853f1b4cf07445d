// SPDX-License-Identifier: GPL-2.0
//! Waits for events, by `poll()` and by a read.

use super::{
    all_types,
    listen,
    mask,
    records,
    PAGES, //
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
use hmm::engine::Way;
use hmm::events::{
    poll_fd,
    Record,
    Type,
    RECORD, //
};
use hmm::{
    procfs,
    Child,
    Device,
    Errno,
    Gate,
    Mapping, //
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

pub(super) fn poll_wakes(ctx: &Ctx) -> Outcome {
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

pub(super) fn read_waits(ctx: &Ctx) -> Outcome {
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

pub(super) fn closed_while_polled(ctx: &Ctx) -> Outcome {
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

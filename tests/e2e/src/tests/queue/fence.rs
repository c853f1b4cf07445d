// SPDX-License-Identifier: GPL-2.0
//! Fences by themselves, and their notifications.

use crate::blit::{
    Locked,
    SLOW, //
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
    procfs,
    ptrace,
    Child,
    EngineOp,
    Errno,
    Event,
    Gate,
    ManagedFlags,
    Mapping,
    QueueOp,
    Setting,
    State,
    PAGE_SIZE, //
};
use std::os::fd::AsRawFd;
use std::time::{
    Duration,
    Instant, //
};

pub(super) const LONG: Duration = Duration::from_secs(60);
const WHILE: Duration = Duration::from_millis(50);

pub fn life(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let fence = device.host_fence().what("make a fence")?;
    check_eq!(fence.check()?.state, State::NotDone, "state of a new fence");
    let since = Instant::now();
    fails(fence.sync(Some(Duration::from_millis(50))), Errno::ETIMEDOUT, "wait with a timeout")?;
    check!(since.elapsed() >= Duration::from_millis(50), "the wait ended too early");
    fails(fence.sync(Some(Duration::ZERO)), Errno::ETIMEDOUT, "wait without time")?;
    fence.signal(Ok(())).what("signal")?;
    check_eq!(fence.check()?.state, State::Done, "state of a signalled fence");
    check_eq!(fence.sync(None)?.state, State::Done, "end of a signalled fence");
    fails(fence.signal(Ok(())), Errno::EINVAL, "a second signal")?;
    let failed = device.host_fence().what("make a fence")?;
    failed.signal(Err(Errno::EIO)).what("signal an error")?;
    check_eq!(failed.sync(None)?.state, State::Failed(Errno::EIO), "state of a failed fence");
    // The signal ends a wait, not its timeout.
    let late = device.host_fence().what("make a fence")?;
    std::thread::scope(|scope| -> Outcome {
        let since = Instant::now();
        let waiter = procfs::thread_id();
        let late = &late;
        let signaller = scope.spawn(move || -> Outcome {
            let pid = std::process::id() as i32;
            let waits = procfs::wait_for_call(pid, waiter, libc::SYS_ioctl);
            late.signal(Err(Errno::EBUSY)).what("signal while a thread waits")?;
            waits.what("wait for the waiter")
        });
        let checked = late.sync(Some(LONG)).what("wait for the other thread")?;
        check_eq!(checked.state, State::Failed(Errno::EBUSY), "how it ended");
        check!(since.elapsed() < LONG, "the wait was not woken");
        signaller.join().map_err(|_| Stop::Fail("a thread panicked".into()))?
    })?;
    let gone = late.id();
    late.release().what("release")?;
    let mut words = [80, gone, 0, 0, 0, 0, 0, 0, 0, 0];
    fails(device.probe_extension(0x68, &mut words), Errno::ENOENT, "check of a released fence")
}

pub fn dropped(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let other = ctx.open()?;
    let host = device.host_fence().what("make a fence")?;
    let again = other.share(&host).what("share")?;
    let event = again.event().what("an eventfd")?;
    host.release().what("release")?;
    check_eq!(again.sync(None)?.state, State::Failed(Errno::ECANCELED), "fence that was dropped");
    check_eq!(event.take()?, 1, "signals of its eventfd");
    Ok(())
}

pub fn killed(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let ready = Gate::new()?;
    let fence = device.host_fence().what("make a fence")?;
    let mut child = Child::spawn(|| {
        ready.open()?;
        fence.sync(None).map(|_| ()).map_err(std::io::Error::other)
    })?;
    ready.wait()?;
    child_sleeps_in(&child, libc::SYS_ioctl)?;
    check!(child.try_wait().is_none(), "the wait ended by itself");
    child.signal(libc::SIGKILL);
    check!(child.wait_timeout(Duration::from_secs(20)).is_some(), "the wait cannot be killed");
    Ok(())
}

/// A signal is pending when the wait begins, but does not terminate the process. It must neither
/// end the wait nor keep it from sleeping. The wait must stay killable.
pub fn signal_pending(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let go = Gate::new()?;
    let fence = device.host_fence().what("make a fence")?;
    let mut child = Child::spawn(|| -> std::io::Result<()> {
        ptrace::handle(libc::SIGUSR1)?;
        go.wait()?;
        fence.sync(None).map(|_| ()).map_err(std::io::Error::other)
    })?;
    ptrace::signal_at_ioctl(&child, (b'H', 0x69), libc::SIGUSR1, || go.open())
        .what("have a signal pending at the wait")?;
    child_sleeps_in(&child, libc::SYS_ioctl)?;
    let before = procfs::cpu_time(child.pid()).what("time of the child")?;
    // Nothing happens in this time. A wait that does not sleep would use most of it.
    std::thread::sleep(Duration::from_millis(300));
    check!(child.try_wait().is_none(), "the wait ended by itself");
    let used = procfs::cpu_time(child.pid()).what("time of the child")? - before;
    child.signal(libc::SIGKILL);
    let ended = child.wait_timeout(Duration::from_secs(20));
    check!(ended.is_some(), "the wait cannot be killed; within 300 ms it used {used:?}");
    // The wait uses no time. The kernel counts in ticks of up to 10 ms.
    check!(used <= Duration::from_millis(20), "within 300 ms the wait used {used:?}");
    Ok(())
}

pub fn observed(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(16)?;
    map.fill(3);
    let queue = device.queue().what("make a queue")?;
    let gate = device.host_fence().what("make a fence")?;
    let done = queue.submit(QueueOp::migrate(map.addr(), map.len()), &[&gate]).what("submit")?;
    let event = done.event().what("an eventfd")?;
    done.by_poll().what("report it by poll")?;
    check!(!event.poll(WHILE)?, "the eventfd is ready before the operation could begin");
    check!(!device.poll_fences(Duration::ZERO)?, "poll reports the end before the beginning");
    gate.signal(Ok(())).what("signal")?;
    check!(device.poll_fences(LONG)?, "poll does not report the end");
    check!(event.poll(LONG)?, "the eventfd is not ready");
    check_eq!(event.take()?, 1, "signals of the eventfd");
    check!(
        device.poll_fences(Duration::ZERO)?,
        "poll reports the end only once, although it was not read"
    );
    let checked = done.check()?;
    check_eq!((checked.state, checked.moved), (State::Done, 16), "the operation");
    check!(!device.poll_fences(Duration::ZERO)?, "poll reports the end after it was read");
    check_eq!(resident(&device, &map, 0, 16)?, 16, "pages on the device");
    // A fence that is signalled already is reported immediately, until its number is released.
    let late = done.event().what("an eventfd of a fence that has ended")?;
    check_eq!(late.take()?, 1, "signals of that");
    done.by_poll().what("report it again")?;
    check!(device.poll_fences(Duration::ZERO)?, "poll does not report an ended operation");
    done.release().what("release")?;
    check!(!device.poll_fences(Duration::ZERO)?, "poll reports a fence that was released");
    // A failure is an end, too.
    let failed = device.host_fence().what("make a fence")?;
    let event = failed.event().what("an eventfd")?;
    failed.signal(Err(Errno::EIO)).what("signal")?;
    check_eq!(event.take()?, 1, "signals for a failure");
    device_sees(&device, &map, 3, "after the migration").map(|_| ())
}

/// The signal calls a few watchers directly. A worker calls the others.
pub fn watched(ctx: &Ctx) -> Outcome {
    const EACH: usize = 1000;
    let owner = ctx.open()?;
    let files = [ctx.open()?, ctx.open()?, ctx.open()?];
    let host = owner.host_fence().what("make a fence")?;
    let mut shares = Vec::new();
    for file in &files {
        for _ in 0..EACH {
            let share = file.share(&host).what("share")?;
            share.by_poll().what("report it by poll")?;
            shares.push(share);
        }
        check!(!file.poll_fences(Duration::ZERO)?, "poll reports the end before the signal");
    }
    host.signal(Ok(())).what("signal")?;
    for file in &files {
        check!(file.poll_fences(LONG)?, "poll does not report the end");
    }
    for share in &shares {
        check_eq!(share.check()?.state, State::Done, "state of a share");
    }
    for file in &files {
        check!(!file.poll_fences(Duration::ZERO)?, "poll reports the end after it was read");
    }
    Ok(())
}

pub fn eventfds(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let fence = device.host_fence().what("make a fence")?;
    let null = std::fs::File::open("/dev/null")?;
    fails(fence.notify(&null), Errno::EINVAL, "a file that is no eventfd")?;
    let closed = {
        let event = Event::new().what("an eventfd")?;
        event.as_raw_fd()
    };
    let mut words = [80, fence.id(), 0, (closed as u64) << 32, 0, 0, 0, 0, 0, 0];
    fails(device.probe_extension(0x6d, &mut words), Errno(libc::EBADF), "a closed descriptor")?;
    let events = (0..4).map(|_| fence.event()).collect::<Result<Vec<_>, _>>().what("eventfds")?;
    let more = Event::new().what("an eventfd")?;
    fails(fence.notify(&more), Errno::EBUSY, "one eventfd too many")?;
    fence.signal(Ok(())).what("signal")?;
    for (event, index) in events.iter().zip(0..) {
        check_eq!(event.take()?, 1, "signals of eventfd {index}");
    }
    check_eq!(more.take()?, 0, "signals of the one that was refused");
    Ok(())
}

pub fn numbered(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(1)?;
    map.fill(1);
    let queue = device.queue().what("make a queue")?;
    let mut all = Vec::new();
    let full = loop {
        match device.host_fence() {
            Ok(fence) => all.push(fence),
            Err(error) => break error,
        }
    };
    check_eq!((full, all.len()), (Errno(libc::EMFILE), 4096), "fences that a file can have");
    let write = |value| QueueOp::engine(EngineOp::Fill, map.addr(), 8).value(value);
    let refused = queue.submit(write(7), &[]).map(|_| ());
    fails(refused, Errno(libc::EMFILE), "an operation whose fence has no number")?;
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").what("read the maps");
        maps.map(|maps| maps.lines().filter(|line| line.contains("hmm_dmirror")).count())
    };
    let before = mapped()?;
    let flags = ManagedFlags { populate: true, ..ManagedFlags::default() };
    let refused = device.alloc_later(PAGE_SIZE, flags, &queue).map(|_| ());
    fails(refused, Errno(libc::EMFILE), "an allocation whose fence has no number")?;
    check_eq!(mapped()?, before, "mappings of the device");
    drop(all.pop());
    // Refused operations are not in the queue.
    let last = queue.submit(write(8), &[]).what("submit when there is room")?;
    last.done().what("operations in the queue")?;
    drop(all);
    queue.record().what("record")?.done().what("all of it")?;
    check_eq!(map.get(0, 0), 8, "words written");
    Ok(())
}

pub fn outlives(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let other = ctx.open()?;
    let map = Mapping::anon(1)?;
    map.fill(1);
    let queue = other.queue().what("make a queue")?;
    let host = device.host_fence().what("make a fence")?;
    let there = other.share(&host).what("share")?;
    let read = QueueOp::engine(EngineOp::Read, map.addr(), 8);
    let done = queue.submit(read, &[&there]).what("submit")?;
    let before = device.set(Setting::CopyDelay, SLOW).what("set the delay")?;
    let from = Locked::new(ctx, &device, 2, 5)?;
    let to = Locked::new(ctx, &device, 2, 6)?;
    let file = from.copy(&to, &[]).what("blit")?.export().what("export")?;
    let after = other.import(&file).what("import")?;
    let copied = other.queue().what("make a queue")?;
    let copied = copied.submit(read, &[&after]).what("submit")?;
    device.detach().what("close")?;
    check_eq!(done.sync(None)?.state, State::Failed(Errno::ECANCELED), "who depends on the host");
    // Blits that are in flight complete.
    check!(file.poll(LONG)?, "the fence of a closed file does not signal");
    check_eq!(file.state()?, State::Done, "the copy of a closed file");
    check_eq!(copied.sync(None)?.state, State::Done, "who depends on the copy");
    other.set(Setting::CopyDelay, before).what("set the delay back")?;
    to.map.check(5).what("words copied")?;
    Ok(())
}

pub fn bad_input(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(4)?;
    let queue = device.queue().what("make a queue")?;
    let good = QueueOp::migrate(map.addr(), map.len());
    let bad =
        |op: QueueOp, what: &str| fails(queue.submit(op, &[]).map(|_| ()), Errno::EINVAL, what);
    bad(QueueOp::migrate(map.addr() + 8, PAGE_SIZE), "half a page")?;
    bad(QueueOp::migrate(map.addr(), 0), "no pages")?;
    bad(QueueOp::evict(map.addr(), 100), "part of a page")?;
    bad(good.value(1), "an unused value")?;
    bad(good.numbered(4), "no such operation")?;
    bad(good.numbered(24), "no such command of an engine")?;
    bad(QueueOp::copy(map.addr(), map.addr() + PAGE_SIZE, 2 * PAGE_SIZE), "copy onto itself")?;
    let host = device.host_fence().what("make a fence")?;
    let many: Vec<_> = (0..65).map(|_| &host).collect();
    fails(queue.submit(good, &many).map(|_| ()), Errno::EINVAL, "too many fences")?;
    let null = std::fs::File::open("/dev/null")?;
    fails(device.import(&null), Errno(libc::EBADF), "import of a descriptor that is no sync file")?;
    for (number, size) in
        [(0x60u8, 96u64), (0x62, 96), (0x66, 80), (0x68, 80), (0x6d, 80), (0x6e, 96)]
    {
        let mut words = vec![0u64; 40];
        words[0] = size - 1;
        fails(device.probe_extension(number, &mut words), Errno::EINVAL, "a small structure")?;
        words[0] = 320;
        words[39] = 1;
        fails(device.probe_extension(number, &mut words), Errno::E2BIG, "an unknown field")?;
        words = vec![0u64; 40];
        words[0] = size | (1 << 32);
        fails(device.probe_extension(number, &mut words), Errno::EINVAL, "an unknown flag")?;
    }
    let mut words = [96, 77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for number in [0x61, 0x63, 0x65] {
        fails(device.probe_extension(number, &mut words), Errno::ENOENT, "no such queue")?;
    }
    let more: Vec<_> = (0..15).map(|_| device.queue()).collect::<Result<_, _>>().what("queues")?;
    fails(device.queue().map(|_| ()), Errno(libc::EMFILE), "one queue too many")?;
    drop(more);
    device.queue().map(|_| ()).what("a queue after the others were closed")
}

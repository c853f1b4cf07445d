// SPDX-License-Identifier: GPL-2.0
//! Fences alone, and as sync files.

use crate::harness::{Ctx, Outcome, What};
use crate::support::*;
use crate::{check, check_eq};
use hmm::{
    procfs, ptrace, Child, EngineOp, Errno, Gate, ManagedFlags, Mapping, QueueOp, State, PAGE_SIZE,
};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

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
    // A wait ends with the signal, not with its time.
    let late = device.host_fence().what("make a fence")?;
    std::thread::scope(|scope| {
        let since = Instant::now();
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            late.signal(Err(Errno::EBUSY))
        });
        let checked = late.sync(Some(LONG)).what("wait for the other thread")?;
        check_eq!(checked.state, State::Failed(Errno::EBUSY), "how it ended");
        check!(since.elapsed() < LONG, "the wait was not woken");
        Ok(())
    })?;
    let gone = late.id();
    late.release().what("release")?;
    let mut words = [80, gone, 0, 0, 0, 0, 0, 0, 0, 0];
    fails(device.probe_extension(0x68, &mut words), Errno::ENOENT, "check of a released fence")
}

pub fn dropped(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let host = device.host_fence().what("make a fence")?;
    let file = host.export(LONG).what("export")?;
    let again = device.import(&file).what("import")?;
    host.release().what("release")?;
    check_eq!(again.sync(None)?.state, State::Failed(Errno::ECANCELED), "fence that was dropped");
    check!(file.poll(LONG)?, "its file is not ready");
    check_eq!(file.state()?, State::Failed(Errno::ECANCELED), "what its file says");
    Ok(())
}

pub fn killed(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let (ready, fence) = (Gate::new()?, device.host_fence().what("make a fence")?);
    let mut child = Child::spawn(|| {
        ready.open()?;
        fence.sync(None).map(|_| ()).map_err(std::io::Error::other)
    })?;
    ready.wait()?;
    std::thread::sleep(Duration::from_millis(50));
    check!(child.try_wait().is_none(), "the wait ended by itself");
    child.signal(libc::SIGKILL);
    check!(child.wait_timeout(Duration::from_secs(20)).is_some(), "the wait cannot be killed");
    Ok(())
}

/// A signal that is pending when the wait begins, but does not end the process, neither ends the wait nor keeps it
/// from sleeping, nor from being killed.
pub fn signal_pending(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let (go, fence) = (Gate::new()?, device.host_fence().what("make a fence")?);
    let mut child = Child::spawn(|| -> std::io::Result<()> {
        ptrace::handle(libc::SIGUSR1)?;
        go.wait()?;
        fence.sync(None).map(|_| ()).map_err(std::io::Error::other)
    })?;
    ptrace::signal_at_ioctl(&child, (b'H', 0x69), libc::SIGUSR1, || go.open())
        .what("have a signal pending at the wait")?;
    std::thread::sleep(Duration::from_millis(100));
    let before = procfs::cpu_time(child.pid()).what("time of the child")?;
    std::thread::sleep(Duration::from_secs(1));
    check!(child.try_wait().is_none(), "the wait ended by itself");
    let used = procfs::cpu_time(child.pid()).what("time of the child")? - before;
    child.signal(libc::SIGKILL);
    let ended = child.wait_timeout(Duration::from_secs(20));
    check!(ended.is_some(), "the wait cannot be killed; within a second it used {used:?}");
    check!(used <= Duration::from_millis(100), "within a second the wait used {used:?}");
    Ok(())
}

pub fn poll(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(16)?;
    map.fill(3);
    let queue = device.queue().what("make a queue")?;
    let gate = device.host_fence().what("make a fence")?;
    let done = queue.submit(QueueOp::migrate(map.addr(), map.len()), &[&gate]).what("submit")?;
    let file = done.export(LONG).what("export")?;
    check!(!file.poll(Duration::from_millis(50))?, "ready before its operation could begin");
    check_eq!(file.state()?, State::NotDone, "what the file says before");
    gate.signal(Ok(())).what("signal")?;
    check!(file.poll(LONG)?, "not ready though the operation should be done");
    check_eq!(file.state()?, State::Done, "what the file says after");
    check_eq!(done.check()?.moved, 16, "pages moved");
    check_eq!(resident(&device, &map, 0, 16)?, 16, "pages on the device");
    device_sees(&device, &map, 3, "after the migration").map(|_| ())
}

pub fn bounded(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let host = device.host_fence().what("make a fence")?;
    let since = Instant::now();
    let file = host.export(Duration::from_millis(200)).what("export")?;
    check!(file.poll(LONG)?, "the file never becomes ready");
    check!(since.elapsed() >= Duration::from_millis(200), "the limit came too early");
    check_eq!(file.state()?, State::Failed(Errno::ETIMEDOUT), "what the file says");
    // The fence itself has no limit, neither has it through a file.
    check_eq!(host.check()?.state, State::NotDone, "the fence itself");
    // A machine under load may let the limit pass before the import: that tells nothing.
    let mut limit = Duration::from_millis(300);
    let (file, again) = loop {
        let since = Instant::now();
        let file = host.export(limit).what("export")?;
        let again = device.import(&file).what("import")?;
        if since.elapsed() < limit / 2 {
            break (file, again);
        }
        limit *= 2;
        check!(limit < LONG, "an import takes {:?}", since.elapsed());
    };
    check!(file.poll(LONG)?, "the second file never becomes ready");
    check_eq!(again.check()?.state, State::NotDone, "the fence that was imported in time");
    host.signal(Ok(())).what("signal")?;
    check_eq!(again.check()?.state, State::Done, "the fence that was imported in time");
    for limit in [Duration::ZERO, Duration::from_secs(101)] {
        fails(host.export(limit), Errno::EINVAL, "export without a limit, or with a long one")?;
    }
    Ok(())
}

pub fn foreign(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(2)?;
    map.fill(1);
    for error in [None, Some(Errno::EIO)] {
        let queue = device.queue().what("make a queue")?;
        let gates =
            [device.host_fence().what("make a fence")?, device.host_fence().what("and another")?];
        let files = [gates[0].export(LONG).what("export")?, gates[1].export(LONG).what("export")?];
        // An array of fences, which is the kernel's own kind.
        let both = files[0].merge(&files[1]).what("merge")?;
        let fence = device.import(&both).what("import")?;
        let write = QueueOp::engine(EngineOp::Fill, map.addr(), 8).value(7);
        let done = queue.submit(write, &[&fence]).what("submit")?;
        gates[0].signal(Ok(())).what("signal the first")?;
        let patience = Instant::now();
        while queue.waits()?.sleeps == 0 {
            check!(patience.elapsed() < LONG, "the queue does not wait for it");
            std::thread::sleep(Duration::from_millis(5));
        }
        check_eq!(done.check()?.state, State::NotDone, "when one of two is signalled");
        check_eq!(queue.waits()?.on_device, 0, "waits that nobody looks at");
        gates[1].signal(error.map_or(Ok(()), Err)).what("signal the second")?;
        let end = error.map_or(State::Done, State::Failed);
        check_eq!(done.sync(Some(LONG))?.state, end, "when both are signalled");
        check_eq!(fence.check()?.state, end, "the fence of both");
        check_eq!(map.get(0, 0) == 7, error.is_none(), "whether it ran");
        map.fill(1);
    }
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
    // What was refused is not in the queue.
    let last = queue.submit(write(8), &[]).what("submit when there is room")?;
    last.done().what("what is in the queue")?;
    drop(all);
    queue.record().what("record")?.done().what("all of it")?;
    check_eq!(map.get(0, 0), 8, "what was written");
    Ok(())
}

pub fn outlives(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let file = device.host_fence().what("make a fence")?.export(LONG).what("export")?;
    let other = ctx.open()?;
    let map = Mapping::anon(1)?;
    map.fill(1);
    let queue = other.queue().what("make a queue")?;
    let there = other.import(&file).what("import")?;
    let done =
        queue.submit(QueueOp::engine(EngineOp::Read, map.addr(), 8), &[&there]).what("submit")?;
    device.detach().what("close")?;
    check!(file.poll(LONG)?, "the fence of a closed file does not signal");
    check_eq!(done.sync(None)?.state, State::Failed(Errno::ECANCELED), "who depends on it");
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
    bad(good.value(1), "a value that nobody uses")?;
    bad(good.numbered(4), "no such operation")?;
    bad(good.numbered(24), "no such command of an engine")?;
    bad(QueueOp::copy(map.addr(), map.addr() + PAGE_SIZE, 2 * PAGE_SIZE), "copy onto itself")?;
    let host = device.host_fence().what("make a fence")?;
    let many: Vec<_> = (0..65).map(|_| &host).collect();
    fails(queue.submit(good, &many).map(|_| ()), Errno::EINVAL, "too many fences")?;
    let null = std::fs::File::open("/dev/null")?;
    fails(device.import(&null), Errno(libc::EBADF), "import of what is no sync file")?;
    for (number, size) in [(0x60u8, 96u64), (0x62, 96), (0x66, 80), (0x68, 80)] {
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
    device.queue().map(|_| ()).what("a queue after others are gone")
}

// SPDX-License-Identifier: GPL-2.0
//! Order and results of operations.

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
    Child,
    EngineOp,
    Errno,
    Gate,
    Mapping,
    QueueOp,
    Setting,
    State,
    HUGE_PAGES, //
};
use std::time::{
    Duration,
    Instant, //
};

const WHILE: Duration = Duration::from_millis(60);

fn write(map: &Mapping, page: usize, value: u64) -> QueueOp {
    QueueOp::engine(EngineOp::Fill, map.page_addr(page), 8).value(value)
}

pub fn after(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(4)?;
    map.fill(1);
    let one = device.queue().what("a queue")?;
    let two = device.queue().what("a queue")?;
    let gate = device.host_fence().what("make a fence")?;
    let first = one.submit(write(&map, 0, 10), &[&gate]).what("submit")?;
    // In the same queue, after the previous operation.
    let second = one.submit(write(&map, 0, 11), &[]).what("submit")?;
    // In another queue, after the fence of the first one.
    let third = two.submit(write(&map, 1, 12), &[&first]).what("submit")?;
    two.wait(&second).what("wait")?;
    let fourth = two.submit(write(&map, 0, 13), &[]).what("submit")?;
    let all = two.record().what("record")?;
    // An operation without dependencies is not delayed.
    let free = device.queue().what("a queue")?;
    free.submit(write(&map, 2, 14), &[]).what("submit")?.done().what("what depends on nothing")?;
    std::thread::sleep(WHILE);
    for (name, fence) in [("first", &first), ("third", &third), ("last", &fourth), ("all", &all)] {
        check_eq!(fence.check()?.state, State::NotDone, "{name} before the gate");
    }
    check_eq!(map.get(2, 0), 14, "words written by the independent operation");
    check!(map.get(0, 0) != 10 && map.get(1, 0) != 12, "something ran before the gate opened");
    gate.signal(Ok(())).what("signal")?;
    all.done().what("all of it")?;
    check_eq!((map.get(0, 0), map.get(1, 0)), (13, 12), "words after all of it");
    let ends: Vec<_> = [&first, &second, &third, &fourth]
        .iter()
        .map(|fence| fence.check().map(|checked| (checked.began_ns, checked.ended_ns)))
        .collect::<Result<_, _>>()
        .what("times")?;
    check!(ends[0].1 <= ends[1].0, "the second began before the first had ended: {ends:?}");
    check!(ends[0].1 <= ends[2].0, "the third began before the first had ended: {ends:?}");
    check!(ends[1].1 <= ends[3].0, "the last began before the second had ended: {ends:?}");
    Ok(())
}

pub fn failure(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(4)?;
    map.fill(1);
    let one = device.queue().what("a queue")?;
    let two = device.queue().what("a queue")?;
    let bad = one
        .submit(QueueOp::engine(EngineOp::Read, map.guard(), 8), &[])
        .what("submit what will fail")?;
    let same_queue = one.submit(write(&map, 0, 2), &[]).what("submit")?;
    let depends = two.submit(write(&map, 1, 3), &[&bad]).what("submit")?;
    let indirectly = two.submit(write(&map, 1, 4), &[&depends]).what("submit")?;
    let beside = two.submit(write(&map, 2, 5), &[&same_queue]).what("submit")?;
    let failed = State::Failed(Errno::EFAULT);
    check_eq!(bad.sync(None)?.state, failed, "what fails");
    check_eq!(same_queue.sync(None)?.state, State::Done, "the next operation of the queue");
    check_eq!(depends.sync(None)?.state, failed, "what depends on it");
    check_eq!(depends.check()?.began_ns, 0, "begin of what depends on it");
    check_eq!(indirectly.sync(None)?.state, failed, "what depends on it indirectly");
    check_eq!(beside.sync(None)?.state, State::Done, "an operation without the dependency");
    check_eq!(one.record().what("record")?.sync(None)?.state, failed, "the record");
    check_eq!(one.record().what("record")?.sync(None)?.state, State::Done, "the next record");
    // A wait affects all following operations up to the next record.
    one.wait(&bad).what("wait")?;
    let follows = one.submit(write(&map, 3, 6), &[]).what("submit")?;
    check_eq!(follows.sync(None)?.state, failed, "the operation after the wait");
    check_eq!(one.record().what("record")?.sync(None)?.state, failed, "the record after it");
    one.submit(write(&map, 0, 7), &[])
        .what("submit")?
        .done()
        .what("the operation after the record")?;
    let words = [map.get(0, 0), map.get(2, 0)];
    check_eq!(words, [7, 5], "words that were written");
    check!(map.check_pages(1, 1, 1).is_ok() && map.check_pages(1, 3, 1).is_ok(), "others");
    Ok(())
}

pub fn waits(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let second = hmm::Device::open(ctx.second).what("open the second device")?;
    let map = Mapping::anon(4)?;
    map.fill(1);
    let here = device.queue().what("a queue")?;
    let there = second.queue().what("a queue")?;
    let host = second.host_fence().what("make a fence")?;
    let slow = there.submit(write(&map, 0, 1), &[&host]).what("submit")?;
    let imported = device.share(&slow).what("share")?;
    here.wait(&imported).what("wait")?;
    let end = here.submit(write(&map, 1, 2), &[]).what("submit")?;
    let waited = Instant::now();
    while here.waits()?.on_device == 0 || there.waits()?.sleeps == 0 {
        check!(waited.elapsed() < Duration::from_secs(60), "the queues do not wait");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(WHILE);
    host.signal(Ok(())).what("signal")?;
    end.done().what("the end")?;
    let device_side = here.waits()?;
    let host_side = there.waits()?;
    check_eq!(
        (device_side.on_device, device_side.on_host, device_side.looks),
        (1, 0, 0),
        "a wait for the same type of device"
    );
    check_eq!(
        (host_side.on_device, host_side.on_host, host_side.sleeps),
        (0, 1, 1),
        "a wait for the host"
    );
    check!((1..=8).contains(&host_side.looks), "{} looks at the host's fence", host_side.looks);
    Ok(())
}

pub fn memory(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let from = Mapping::anon(1100)?;
    let to = Mapping::anon(1100)?;
    from.fill(5);
    let queue = device.queue().what("a queue")?;
    let go = queue.submit(QueueOp::migrate(from.addr(), from.len()), &[]).what("migrate")?;
    let other = queue.submit(QueueOp::prefetch(to.addr(), to.len()), &[]).what("prefetch")?;
    let copy = queue
        .submit(QueueOp::copy(to.addr(), from.addr(), to.len()), &[&go, &other])
        .what("copy")?;
    let done = go.done().what("migration")?;
    check_eq!((done.moved, done.stayed), (1100, 0), "pages that moved and that stayed");
    check_eq!(other.done().what("prefetch")?.moved, 1100, "pages that were prefetched");
    let delta = Delta::start(ctx, &device)?;
    copy.done().what("copy")?;
    device_sees(&device, &to, 5, "after the copy")?;
    check_eq!(resident(&device, &to, 0, to.pages())?, 1100, "pages of the copy on the device");
    delta.exactly("cpu_faults", 0, "during the copy")?;
    let back = queue.submit(QueueOp::evict(to.addr(), to.len()), &[&copy]).what("evict")?;
    check_eq!(back.done().what("evict")?.moved, 1100, "pages that came back");
    check_eq!(resident(&device, &to, 0, to.pages())?, 0, "pages on the device at the end");
    delta.exactly("cpu_faults", 0, "at the end")?;
    cpu_sees(&to, 5, "of the copy")?;
    cpu_sees(&from, 5, "of the source")
}

pub fn closing(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(4)?;
    map.fill(1);
    let watch = ctx.open()?;
    let queue = device.queue().what("a queue")?;
    let gate = device.host_fence().what("make a fence")?;
    let first = queue.submit(write(&map, 0, 2), &[&gate]).what("submit")?;
    let second = queue.submit(write(&map, 1, 3), &[]).what("submit")?;
    let limit = Duration::from_secs(60);
    let shared = [watch.share(&first).what("share")?, watch.share(&second).what("share")?];
    queue.destroy().what("destroy")?;
    check_eq!(first.check()?.state, State::Failed(Errno::ECANCELED), "first, after destroy");
    // A running operation is cancelled. An operation of so many rounds does not complete.
    let queue = device.queue().what("a queue")?;
    let long = queue
        .submit(QueueOp::engine(EngineOp::Read, map.addr(), map.len()).rounds(1 << 40), &[])
        .what("submit")?;
    let waited = Instant::now();
    while long.check()?.began_ns == 0 {
        check!(waited.elapsed() < limit, "it does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    let late = watch.share(&long).what("share")?;
    let event = late.event().what("an eventfd")?;
    device.detach().what("close")?;
    for (fence, name) in shared.iter().chain([&late]).zip(["first", "second", "running"]) {
        let end = fence.sync(Some(limit)).what(name)?;
        check_eq!(end.state, State::Failed(Errno::ECANCELED), "{name}, after the close");
    }
    // A fence reports the signalled state shortly before its eventfds are signalled.
    check!(event.poll(limit)?, "the eventfd is not ready");
    check_eq!(event.take()?, 1, "signals of the eventfd");
    check!(map.check(1).is_ok(), "a cancelled operation ran");
    Ok(())
}

pub fn killed(ctx: &Ctx) -> Outcome {
    let watch = ctx.open()?;
    // A block of copies of a second each.
    let before = watch.set(Setting::CopyDelay, 1_000_000_000).what("set the delay")?;
    let begun = Gate::new()?;
    let mut child = Child::spawn(|| -> Result<(), Stop> {
        let device = ctx.open()?;
        let map = Mapping::anon(HUGE_PAGES)?;
        map.fill(1);
        let queue = device.queue().what("a queue")?;
        let fence = queue.submit(QueueOp::migrate(map.addr(), map.len()), &[]).what("migrate")?;
        while fence.check()?.began_ns == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        begun.open().what("tell")?;
        fence.sync(None).map(|_| ()).what("wait")
    })?;
    begun.wait()?;
    std::thread::sleep(WHILE);
    let since = Instant::now();
    child.signal(libc::SIGKILL);
    let ended = child.wait_timeout(Duration::from_secs(60));
    watch.set(Setting::CopyDelay, before).what("set the delay back")?;
    check!(ended.is_some(), "it is still there after {:?}", since.elapsed());
    check!(since.elapsed() < Duration::from_secs(30), "that took {:?}", since.elapsed());
    check_eq!(watch.counters().what("counters")?.device_pages_used, 0, "pages in use");
    Ok(())
}

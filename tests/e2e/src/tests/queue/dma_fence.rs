// SPDX-License-Identifier: GPL-2.0
//! DMA fences: of blits, exported and imported as sync files.

use super::fence::LONG;
use crate::blit::{
    Locked,
    SLOW, //
};
use crate::harness::{
    Ctx,
    Outcome,
    What, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::{
    EngineOp,
    Errno,
    Mapping,
    QueueOp,
    Setting,
    State,
    PAGE_SIZE, //
};
use std::time::{
    Duration,
    Instant, //
};

pub fn dma_fences(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let from = Locked::new(ctx, &device, 32, 5)?;
    let to = Locked::new(ctx, &device, 32, 6)?;
    let before = device.set(Setting::CopyDelay, SLOW).what("set the delay")?;
    let first = from.copy(&to, &[]).what("blit")?;
    let file = first.export().what("export")?;
    check_eq!(file.state()?, State::NotDone, "the file while the copy is under way");
    check!(!file.poll(Duration::ZERO)?, "the file is ready before the copy is done");
    // Its pages stay pinned until the blit has ended.
    let third = Locked::new(ctx, &device, 32, 7)?;
    let second = to.copy(&third, &[&first]).what("blit after the first")?;
    device.unlock(third.address).what("unlock under a blit")?;
    check!(file.poll(LONG)?, "the file is not ready though the copy should be done");
    check_eq!(file.state()?, State::Done, "the file after the copy");
    let end = second.sync(Some(LONG)).what("wait for the second")?;
    check_eq!(end.state, State::Done, "the second");
    device.set(Setting::CopyDelay, before).what("set the delay back")?;
    to.map.check(5).what("words copied")?;
    third.map.check(5).what("words copied by the second operation")?;
    // The device's own fence can be imported, and gets a new number.
    let known = device.import(&file).what("import")?;
    check_eq!(known.check()?.state, State::Done, "the imported fence");
    known.export().what("export an imported fence")?;
    // A failure is reported by the file and by all operations that depend on it.
    device.set(Setting::CopyFail, 0).what("have a copy fail")?;
    let failed = from.copy(&to, &[]).what("blit that fails")?;
    let file = failed.export().what("export")?;
    let depends = from.copy(&to, &[&failed]).what("blit after it")?;
    check!(file.poll(LONG)?, "the file of a failure is not ready");
    check_eq!(file.state()?, State::Failed(Errno::EIO), "the file of a failure");
    check_eq!(depends.sync(Some(LONG))?.state, State::Failed(Errno::EIO), "what depends on it");
    Ok(())
}

/// A fence whose export fails for lack of a descriptor stays unchanged.
pub fn no_descriptor(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let from = Locked::new(ctx, &device, 2, 5)?;
    let to = Locked::new(ctx, &device, 2, 6)?;
    let fence = from.copy(&to, &[]).what("blit")?;
    let mut files = Vec::new();
    let full = loop {
        match std::fs::File::open("/dev/null") {
            Ok(file) => files.push(file),
            Err(error) => break error.raw_os_error(),
        }
    };
    check_eq!(full, Some(libc::EMFILE), "what ends the opening of files");
    check_eq!(fence.export().err(), Some(Errno::EMFILE), "an export without descriptors");
    files.pop();
    let file = fence.export().what("export with one descriptor")?;
    check!(file.poll(LONG)?, "the file is not ready though the copy should be done");
    check_eq!(file.state()?, State::Done, "the file after the copy");
    to.map.check(5).what("words copied")?;
    Ok(())
}

pub fn not_exported(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(16)?;
    map.fill(3);
    let queue = device.queue().what("make a queue")?;
    let gate = device.host_fence().what("make a fence")?;
    let queued = queue.submit(QueueOp::migrate(map.addr(), map.len()), &[&gate]).what("submit")?;
    let record = queue.record().what("record")?;
    let shared = device.share(&queued).what("share")?;
    let from = Locked::new(ctx, &device, 2, 5)?;
    let to = Locked::new(ctx, &device, 2, 6)?;
    let all = [
        (&gate, "a fence of the host"),
        (&queued, "an operation of a queue"),
        (&record, "a record"),
        (&shared, "an operation of another file"),
    ];
    // None of them becomes a DMA fence: neither by an export nor as a dependency of a blit, nor
    // after its end.
    for ended in [false, true] {
        for (fence, what) in all {
            fails(fence.export(), Errno(libc::EOPNOTSUPP), what)?;
            fails(from.copy(&to, &[fence]), Errno(libc::EOPNOTSUPP), what)?;
        }
        if !ended {
            gate.signal(Ok(())).what("signal")?;
            record.done().what("all of it")?;
        }
    }
    to.map.check(6).what("memory that no blit was to write")?;
    // An export takes no timeout.
    let blit = from.copy(&to, &[]).what("blit")?;
    let mut words = [80, blit.id(), 1_000_000, 0, 0, 0, 0, 0, 0, 0];
    fails(device.probe_extension(0x6b, &mut words), Errno::EINVAL, "an export with a limit")
}

pub fn bad_blits(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let from = Locked::new(ctx, &device, 4, 5)?;
    let to = Locked::new(ctx, &device, 4, 6)?;
    let bad = |to: usize, from: usize, bytes: usize, error: Errno, what: &str| {
        fails(device.blit(to, from, bytes, &[]), error, what)
    };
    bad(to.address + 8, from.address, PAGE_SIZE, Errno::EINVAL, "an address within a page")?;
    bad(to.address, from.address, 100, Errno::EINVAL, "a part of a page")?;
    bad(to.address, from.address, 0, Errno::EINVAL, "nothing")?;
    bad(to.address, from.address, 5 * PAGE_SIZE, Errno::EFAULT, "more than is locked")?;
    bad(to.address, from.address, usize::MAX & !(PAGE_SIZE - 1), Errno::EINVAL, "an overflow")?;
    bad(to.map.addr(), from.address, PAGE_SIZE, Errno::EFAULT, "an address of the process")?;
    bad(to.address, to.address + PAGE_SIZE, 2 * PAGE_SIZE, Errno::EINVAL, "a copy onto itself")?;
    let coarse = Mapping::anon(1)?;
    let locked = device.lock(coarse.addr(), coarse.len(), 1 << ctx.device, false).what("lock")?;
    let refused = Errno(libc::EOPNOTSUPP);
    bad(locked.device_addr, from.address, PAGE_SIZE, refused, "memory that is locked coarse")?;
    let other = Mapping::anon(1)?;
    let locked = device.lock(other.addr(), other.len(), 1 << ctx.second, true).what("lock")?;
    bad(locked.device_addr, from.address, PAGE_SIZE, Errno::EFAULT, "another device's memory")?;
    let before = device.set(Setting::CopyDelay, SLOW).what("set the delay")?;
    let mut under_way = Vec::new();
    let full = loop {
        match from.copy(&to, &[]) {
            Ok(fence) => under_way.push(fence),
            Err(error) => break error,
        }
        check!(under_way.len() <= 64, "there is no end of blits");
    };
    check_eq!(full, Errno::EBUSY, "one blit too many");
    device.set(Setting::CopyDelay, before).what("set the delay back")?;
    for fence in &under_way {
        fence.done().what("a blit")?;
    }
    to.map.check(5).what("words copied")?;
    Ok(())
}

pub fn foreign(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let from = Locked::new(ctx, &device, 2, 5)?;
    let to = Locked::new(ctx, &device, 2, 6)?;
    let map = Mapping::anon(2)?;
    map.fill(1);
    for error in [None, Some(Errno::EIO)] {
        let queue = device.queue().what("make a queue")?;
        let before = device.set(Setting::CopyDelay, SLOW).what("set the delay")?;
        if error.is_some() {
            device.set(Setting::CopyFail, 1).what("have the second copy fail")?;
        }
        let first = from.copy(&to, &[]).what("blit")?;
        let second = from.copy(&to, &[&first]).what("blit after the first")?;
        let files = [first.export().what("export")?, second.export().what("export")?];
        // An array of fences, of the kernel's own type.
        let both = files[0].merge(&files[1]).what("merge")?;
        let fence = device.import(&both).what("import")?;
        let write = QueueOp::engine(EngineOp::Fill, map.addr(), 8).value(7);
        let done = queue.submit(write, &[&fence]).what("submit")?;
        let waited = Instant::now();
        while queue.waits()?.sleeps == 0 {
            check!(waited.elapsed() < LONG, "the queue does not wait for it");
            std::thread::sleep(Duration::from_millis(5));
        }
        check_eq!(queue.waits()?.on_device, 0, "waits on the device");
        check_eq!(done.check()?.state, State::NotDone, "while copies are under way");
        let end = error.map_or(State::Done, State::Failed);
        check_eq!(done.sync(Some(LONG))?.state, end, "when both are done");
        check_eq!(fence.check()?.state, end, "the fence of both");
        check_eq!(map.get(0, 0) == 7, error.is_none(), "whether it ran");
        device.set(Setting::CopyDelay, before).what("set the delay back")?;
        map.fill(1);
    }
    Ok(())
}

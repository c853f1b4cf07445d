// SPDX-License-Identifier: GPL-2.0
//! The queue: fences of other drivers, failures, and cancellation.

use super::super::mirror_only::Loaded;
use super::{
    to_device,
    NAME,
    PAGES, //
};
use crate::blit::{
    slow_file,
    Locked, //
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
    module,
    pattern,
    CMirror,
    Errno,
    Mapping,
    Setting,
    State,
    SyncFile, //
};
use std::time::Duration;

pub(super) fn fences(ctx: &Ctx) -> Outcome {
    let _loaded = Loaded::new(ctx, NAME)?;
    let other = ctx.open()?;
    let device = CMirror::open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(10);
    to_device(&device, &map)?;
    let from = Locked::new(ctx, &other, 1, 1)?;
    let to = Locked::new(ctx, &other, 1, 2)?;
    let held = slow_file(&from, to.address, false)?;
    let none: Option<&SyncFile> = None;
    let addr = map.addr();
    let first = device.fill_after(addr, PAGES, 1, Some(&held)).what("queue the first")?;
    let second = device.fill_after(addr, PAGES / 2, 2, none).what("queue the second")?;
    if held.state()? == State::NotDone {
        // On a busy machine the fence may be signalled by now.
        let early = [first.poll(Duration::ZERO)?, second.poll(Duration::ZERO)?];
        check!(
            held.state()? != State::NotDone || early == [false; 2],
            "before the fence: {early:?}"
        );
    }
    for (event, which) in [(&first, "the first"), (&second, "the second")] {
        check!(event.poll(Duration::from_secs(20))?, "{which} does not end");
        check_eq!(event.take()?, 1, "signals of {which}");
    }
    check_eq!(held.state()?, State::Done, "end of the first operation's dependency");
    device.sum(addr, 1).what("all of it")?;
    let words = (PAGES * pattern::WORDS) as u64;
    let sum =
        device.simple().sum(addr, PAGES, Some(&held)).what("sum after a fence that has ended")?;
    check_eq!(sum, words / 2 * 3, "the sum of 2 in the first half and 1 in the other");
    check_eq!(device.resident(&map)?, PAGES, "pages that stayed on the device");
    check_eq!(map.get(0, 0), 2, "first word");
    check_eq!(map.get(PAGES - 1, 0), 1, "word of the last page");
    Ok(())
}

pub(super) fn failed_fence(ctx: &Ctx) -> Outcome {
    let _loaded = Loaded::new(ctx, NAME)?;
    let other = ctx.open()?;
    let device = CMirror::open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(11);
    let from = Locked::new(ctx, &other, 1, 1)?;
    let to = Locked::new(ctx, &other, 1, 2)?;
    let held = slow_file(&from, to.address, true)?;
    let none: Option<&SyncFile> = None;
    let first = device.fill_after(map.addr(), PAGES, 1, Some(&held)).what("queue")?;
    fails(device.sum(map.addr(), 1), Errno::EIO, "end of the operation that the fence fails")?;
    // A fence reports the signalled state shortly before its eventfd is signalled.
    check!(first.poll(Duration::from_secs(20))?, "no signal of the first");
    check_eq!(first.take()?, 1, "signals of the first");
    // The second operation depends on no fence.
    let second = device.fill_after(map.page_addr(PAGES - 1), 1, 5, none).what("queue")?;
    device.sum(map.addr(), 1).what("the second")?;
    check!(second.poll(Duration::from_secs(20))?, "no signal of the second");
    check_eq!(second.take()?, 1, "signals of the second");
    check_eq!(held.state()?, State::Failed(Errno::EIO), "dependency of the first operation");
    let sum = device.simple().sum(map.addr(), PAGES, Some(&held));
    fails(sum, Errno::EIO, "sum after the failed operation")?;
    map.check_pages(11, 0, PAGES - 1).what("range that the first operation would have written")?;
    check_eq!(map.get(PAGES - 1, 0), 5, "range that the second operation wrote");
    Ok(())
}

pub(super) fn cancels(ctx: &Ctx) -> Outcome {
    let loaded = Loaded::new(ctx, NAME)?;
    let other = ctx.open()?;
    let device = CMirror::open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(12);
    // The blits run one after the other, a second each.
    other.set(Setting::CopyDelay, 1_000_000_000).what("set the delay")?;
    let from = Locked::new(ctx, &other, 1, 1)?;
    let to = Locked::new(ctx, &other, 1, 2)?;
    let blits = (0..8).map(|_| from.copy(&to, &[])).collect::<Result<Vec<_>, _>>().what("blits")?;
    let held = blits[7].export().what("export")?;
    let queued = device.fill_after(map.addr(), PAGES, 1, Some(&held)).what("queue")?;
    drop(device);
    check!(queued.poll(Duration::from_secs(20))?, "closing signals no fence");
    check_eq!(held.state()?, State::NotDone, "dependency of the operation");
    drop(loaded);
    check!(!module::is_loaded(NAME), "the sample cannot be unloaded");
    check_eq!(queued.take()?, 1, "signals of the operation");
    cpu_sees(&map, 12, "at the end")
}

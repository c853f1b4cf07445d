// SPDX-License-Identifier: GPL-2.0
//! Which events are reported, with which contents, and how many are lost.

use super::{
    all_types,
    in_order,
    listen,
    mask,
    of,
    one,
    other,
    range,
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
use crate::tests::memory::with;
use crate::tests::module_reload::unload;
use crate::{
    check,
    check_eq, //
};
use hmm::engine::Way;
use hmm::events::{
    Record,
    Type, //
};
use hmm::placement::Policy;
use hmm::{
    inject,
    Child,
    Mapping,
    PAGE_SIZE, //
};

/// Capacity of a ring in records.
const ROOM: usize = 1024;

pub(super) fn faults_and_migrations_are_reported(ctx: &Ctx) -> Outcome {
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

pub(super) fn failures_are_reported(ctx: &Ctx) -> Outcome {
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

pub(super) fn mask_chooses(ctx: &Ctx) -> Outcome {
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

pub(super) fn lost(ctx: &Ctx) -> Outcome {
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

/// An eviction for space is reported to the processes whose memory was evicted, with the number of
/// pages.
pub(super) fn evictions(ctx: &Ctx) -> Outcome {
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
pub(super) fn thrashing(ctx: &Ctx) -> Outcome {
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

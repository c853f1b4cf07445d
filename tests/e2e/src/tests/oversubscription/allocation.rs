// SPDX-License-Identifier: GPL-2.0
//! Pages of device memory: taken out of use, chosen by the driver, and charged to their owner.

use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::support::*;
use crate::tests::memory::{
    block,
    engine_reads,
    to_device,
    with, //
};
use crate::tests::module_reload::unload;
use crate::{
    check,
    check_eq, //
};
use hmm::engine::Way;
use hmm::hostile::Group;
use hmm::{
    inject,
    Child,
    Errno,
    Gate,
    Mapping,
    HUGE_PAGES,
    HUGE_SIZE, //
};

pub(super) fn offlined_pages_are_not_allocated(ctx: &Ctx) -> Outcome {
    const HALF: usize = HUGE_PAGES / 2;
    const LEFT: u64 = 3 * HALF as u64;
    let _restore = with(ctx, &vram(4))?;
    let device = ctx.open()?;
    let maps = (0..4).map(block).collect::<Result<Vec<_>, _>>()?;
    for map in &maps {
        to_device(&device, map)?;
    }
    check_eq!(device.counters()?.device_pages_used, 4 * BLOCK_PAGES, "pages in use");
    // Half a block and two blocks. Their contents are evicted first.
    check_eq!(device.resize(HALF, 5 * HALF, false)?, 0, "pages left");
    let counters = device.counters()?;
    check_eq!(counters.device_pages_total, LEFT, "pages that there are");
    check!(counters.device_pages_used <= LEFT, "{} in use", counters.device_pages_used);
    for (seed, map) in maps.iter().enumerate() {
        let _ = to_device(&device, map)?;
        engine_reads(&device, map, seed as u64)?;
        check!(device.counters()?.device_pages_used <= LEFT, "pages out of use are used");
    }
    device.resize(0, 4 * HUGE_PAGES, true)?;
    check_eq!(device.counters()?.device_pages_total, 4 * BLOCK_PAGES, "pages that there are again");
    device.release()?;
    for map in &maps {
        check_eq!(to_device(&device, map)?.moved, BLOCK_PAGES, "pages that moved again");
    }
    fails(
        device.resize(4 * HUGE_PAGES - 48, 49, false),
        Errno::EINVAL,
        "pages that there are not",
    )?;
    fails(device.resize(0, 0, false), Errno::EINVAL, "no pages")?;
    fails(device.resize(usize::MAX, 2, false), Errno::EINVAL, "pages beyond all numbers")?;
    fails(device.resize(usize::MAX, 2, true), Errno::EINVAL, "these, back into use")?;
    for (seed, map) in maps.iter().enumerate() {
        cpu_sees(map, seed as u64, "after all")?;
    }
    device.close().what("close")?;
    unload(ctx)
}

pub(super) fn busy_pages_are_offlined_when_freed(ctx: &Ctx) -> Outcome {
    const HALF: usize = HUGE_PAGES / 2;
    let _restore = with(ctx, &vram(4))?;
    let device = ctx.open()?;
    let map = block(1)?;
    let moved = device.migrate(map.addr(), 300, Way::ToDevice).what("migrate")?.moved;
    check_eq!(moved, 300, "pages that moved");
    // The eviction cannot allocate system memory.
    inject::set_point("system_folio", "1 every").what("set the point")?;
    let parts = [(0, 100), (100, HALF - 100), (HALF, 3 * HALF), (4 * HALF, 4 * HALF)];
    let left = parts.map(|(first, count)| device.resize(first, count, false));
    inject::clear_points().what("clear the points")?;
    let mut sum = 0;
    for (left, (_, count)) in left.into_iter().zip(parts) {
        let left = left.what("take pages out of use")?;
        check!(left <= count as u64, "{left} of {count} pages are left");
        sum += left;
    }
    check_eq!(sum, 300, "pages left");
    device_sees_pages(&device, &map, 1, 0, 300, "before they go")?;
    // The pages are taken out of use when they are freed.
    check_eq!(device.counters()?.device_pages_used, 300, "pages in use");
    check_eq!(device.counters()?.device_pages_total, 300, "pages that there are");
    cpu_sees(&map, 1, "when they go")?;
    check_eq!(device.counters()?.device_pages_total, 0, "pages that there are then");
    check_eq!(device.migrate(map.addr(), 1, Way::ToDevice).what("migrate")?.moved, 0, "moved");
    device.resize(0, 4 * HUGE_PAGES, true)?;
    check_eq!(to_device(&device, &map)?.moved, BLOCK_PAGES, "pages that moved again");
    device.close().what("close")?;
    unload(ctx)
}

pub(super) fn driver_allocator_suggests_pages(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &format!("{} own_alloc=1", vram(4)))?;
    let device = ctx.open()?;
    for round in 0..6 {
        let map = block(round)?;
        check_eq!(to_device(&device, &map)?.moved, BLOCK_PAGES, "pages that moved");
        engine_reads(&device, &map, round)?;
        device.release()?;
        cpu_sees(&map, round, "after its release")?;
    }
    // Each page was allocated where the device suggested, because that block was empty each time.
    check_eq!(device.placement()?.chosen, 6 * BLOCK_PAGES, "pages where the device chose");
    device.close().what("close")?;
    unload(ctx)
}

pub(super) fn device_pages_are_charged_to_their_owner(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &vram(2))?;
    let Some(group) = Group::new("hmm-owner")? else {
        return Err(Stop::Skip("this kernel has no groups with memory control".to_string()));
    };
    let keep = ctx.open()?;
    let ready = Gate::new()?;
    let go = Gate::new()?;
    let child = Child::spawn(|| -> Outcome {
        group.enter()?;
        let device = ctx.open()?;
        let maps = [block(1)?, block(2)?];
        for map in &maps {
            to_device(&device, map)?;
        }
        ready.open()?;
        go.wait()?;
        maps.iter().zip(1..).try_for_each(|(map, seed)| cpu_sees(map, seed, "in the group"))
    })?;
    ready.wait()?;
    let before = group.bytes()?;
    check!(
        before >= 2 * HUGE_SIZE as u64,
        "{before} bytes are charged while they are on the device"
    );
    // This process belongs to another control group, and causes their eviction.
    let mine = Mapping::anon_aligned(2)?;
    mine.fill(3);
    to_device(&keep, &mine)?;
    check_eq!(keep.placement()?.evicted_for_room, 2 * BLOCK_PAGES, "pages evicted for room");
    let after = group.bytes()?;
    let change = after.abs_diff(before);
    check!(
        change < HUGE_SIZE as u64 / 2,
        "{before} bytes were charged, {after} are when the pages came back"
    );
    go.open()?;
    child.join().map_err(Stop::Fail)?;
    keep.close().what("close")?;
    unload(ctx)
}

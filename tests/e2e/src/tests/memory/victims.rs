// SPDX-License-Identifier: GPL-2.0
//! Which pages are evicted, and which are not.

use super::super::module_reload::unload;
use super::{
    block,
    engine_reads,
    on_device,
    to_device,
    unload_soon,
    with, //
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
use hmm::{
    procfs,
    Child,
    Device,
    Gate,
    Mapping,
    Prot,
    Setting,
    HUGE_PAGES, //
};

pub(super) fn least_recently_used_block_is_evicted(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &vram(4))?;
    let device = ctx.open()?;
    let maps = (0..4).map(block).collect::<Result<Vec<_>, _>>()?;
    for map in &maps {
        check_eq!(to_device(&device, map)?.moved, BLOCK_PAGES, "pages that moved");
    }
    // Use the blocks in another order than that of their migration.
    for seed in [0u64, 3, 1] {
        engine_reads(&device, &maps[seed as usize], seed)?;
    }
    let new = block(7)?;
    let newer = block(8)?;
    check_eq!(to_device(&device, &new)?.moved, BLOCK_PAGES, "pages that moved when it was full");
    let there = |device: &Device| {
        maps.iter().map(|map| on_device(device, map)).collect::<Result<Vec<_>, _>>()
    };
    check_eq!(
        there(&device)?,
        [HUGE_PAGES, HUGE_PAGES, 0, HUGE_PAGES],
        "resident pages: the third was not used"
    );
    // Evicted pages are read in place, which does not count as a use of device memory.
    engine_reads(&device, &maps[2], 2)?;
    check_eq!(to_device(&device, &newer)?.moved, BLOCK_PAGES, "pages that moved then");
    check_eq!(
        there(&device)?,
        [0, HUGE_PAGES, 0, HUGE_PAGES],
        "resident pages: the first was least recently used"
    );
    check_eq!(device.placement()?.evicted_for_room, 2 * BLOCK_PAGES, "pages evicted for room");
    for (seed, map) in maps.iter().enumerate() {
        engine_reads(&device, map, seed as u64)?;
        cpu_sees(map, seed as u64, "after evictions")?;
    }
    cpu_sees(&new, 7, "after evictions")?;
    cpu_sees(&newer, 8, "after evictions")?;
    device.close().what("close")?;
    unload(ctx)
}

pub(super) fn memory_of_exited_and_forked_processes_is_evicted(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &vram(2))?;
    let keep = ctx.open()?;
    let ready = Gate::new()?;
    let go = Gate::new()?;
    let done = Gate::new()?;
    // A process migrates memory to the device, forks, and exits. Its child has the pages and no
    // mirror.
    let child = Child::spawn(|| -> Outcome {
        let device = ctx.open()?;
        let maps = [block(1)?, block(2)?];
        for map in &maps {
            check_eq!(to_device(&device, map)?.moved, BLOCK_PAGES, "pages that moved");
        }
        // SAFETY: This process has one thread, so the child inherits no lock that is held.
        if unsafe { libc::fork() } == 0 {
            let good = ready.open().is_ok() && go.wait().is_ok();
            let same = maps.iter().zip(1..).all(|(map, seed)| map.check(seed).is_ok());
            let _ = done.send(u64::from(good && same) + 1);
            // SAFETY: `_exit` takes a number, and the process uses nothing afterwards.
            unsafe { libc::_exit(0) }
        }
        Ok(())
    })?;
    child.join().map_err(Stop::Fail)?;
    ready.wait()?;
    check!(
        keep.counters()?.device_pages_used >= 2 * BLOCK_PAGES,
        "the pages were freed with the process"
    );
    let mine = block(3)?;
    check_eq!(
        to_device(&keep, &mine)?.moved,
        BLOCK_PAGES,
        "pages that moved when the dead had all"
    );
    check_eq!(keep.placement()?.evicted_for_room, BLOCK_PAGES, "pages evicted for room");
    go.open()?;
    check_eq!(done.receive()?, 2, "CPU read by the child of the killed process");
    cpu_sees(&mine, 3, "of the living")?;
    keep.close().what("close")?;
    unload_soon(ctx)
}

/// A process that holds its mmap lock for long does not delay others that need device memory. Its
/// pages stay, though they are the least recently used. It holds the lock for writing while its
/// second device takes seconds for a flush.
pub(super) fn stalled(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &vram(2))?;
    let device = ctx.open()?;
    let other = Device::open(ctx.second).what("open the second device")?;
    let ready = Gate::new()?;
    let go = Gate::new()?;
    let over = Mapping::shared(1).what("map")?;
    let child = Child::spawn(|| -> Outcome {
        let device = ctx.open()?;
        let other = Device::open(ctx.second).what("open the second device")?;
        let map = block(1)?;
        let mapped = Mapping::anon(8).what("map")?;
        check_eq!(to_device(&device, &map)?.moved, BLOCK_PAGES, "pages that moved");
        mapped.fill(2);
        device_sees(&other, &mapped, 2, "of memory in place")?;
        ready.open()?;
        go.wait()?;
        mapped.protect(Prot::Read).what("protect")?;
        over.set(0, 0, 1);
        check_eq!(
            on_device(&device, &map)?,
            HUGE_PAGES,
            "pages of the stalled process that stayed"
        );
        cpu_sees(&map, 1, "of pages that stayed")
    })?;
    ready.wait()?;
    let maps = [block(3)?, block(4)?];
    check_eq!(to_device(&device, &maps[0])?.moved, BLOCK_PAGES, "pages that moved");
    other.set(Setting::FlushDelay, 5_000_000_000).what("set the delay")?;
    go.open()?;
    procfs::wait_for_call(child.pid(), child.pid(), libc::SYS_mprotect)
        .what("wait for the lock")?;
    let moved = to_device(&device, &maps[1])?.moved;
    check_eq!(over.get(0, 0), 0, "whether the process continued before memory was available");
    check_eq!(moved, BLOCK_PAGES, "pages that moved while it was stalled");
    check_eq!(
        on_device(&device, &maps[0])?,
        0,
        "pages that stayed of a process that was not stalled"
    );
    other.set(Setting::FlushDelay, 0).what("set the delay back")?;
    child.join().map_err(Stop::Fail)?;
    cpu_sees(&maps[0], 3, "at the end")?;
    cpu_sees(&maps[1], 4, "at the end")?;
    device.close().what("close")?;
    other.close().what("close the second device")?;
    unload_soon(ctx)
}

/// A huge page that is mapped only by a process without a mirror, while no huge page of system
/// memory can be allocated.
pub(super) fn huge_without_mirror(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &vram(2))?;
    let keep = ctx.open()?;
    let ready = Gate::new()?;
    let go = Gate::new()?;
    let done = Gate::new()?;
    let child = Child::spawn(|| -> Outcome {
        let device = ctx.open()?;
        let map = huge(1, 1)?;
        migrate(&device, &map, 1)?;
        check!(device.snapshot(map.addr(), 1)?[0].is_huge(), "it is not huge on the device");
        // SAFETY: This process has one thread, so the child inherits no lock that is held.
        if unsafe { libc::fork() } == 0 {
            let good = ready.open().is_ok() && go.wait().is_ok();
            let huge = hmm::smaps::field(map.addr(), map.len(), "AnonHugePages").unwrap_or(1);
            let same = map.check(1).is_ok();
            let _ = done.send(huge * 2 + u64::from(good && same));
            // SAFETY: `_exit` takes a number, and the process uses nothing afterwards.
            unsafe { libc::_exit(0) }
        }
        Ok(())
    })?;
    child.join().map_err(Stop::Fail)?;
    ready.wait()?;
    keep.set_flags(hmm::abi::FLAG_FAIL_ALLOC)?;
    keep.release().what("release")?;
    check_eq!(keep.counters()?.device_pages_used, 0, "pages on the device");
    go.open()?;
    check_eq!(
        done.receive()?,
        1,
        "KiB in huge pages times two, and whether the contents are right"
    );
    keep.close().what("close")?;
    unload_soon(ctx)
}

pub(super) fn migration_does_not_evict_its_own_pages(ctx: &Ctx) -> Outcome {
    /// Pages of the device, half of those of the mapping.
    const HALF: u64 = 2 * BLOCK_PAGES;
    let _restore = with(ctx, &vram(2))?;
    let device = ctx.open()?;
    let map = Mapping::anon_aligned(4)?;
    map.forbid_huge()?;
    map.fill(1);
    let done = to_device(&device, &map)?;
    check_eq!((done.moved, done.no_memory), (HALF, HALF), "moved, no memory");
    check_eq!(device.placement()?.evicted_for_room, 0, "pages evicted for room");
    check_eq!(on_device(&device, &map)? as u64, HALF, "pages on the device");
    engine_reads(&device, &map, 1)?;
    // The next call evicts.
    let rest = device.migrate(map.page_addr(HALF as usize), HALF as usize, Way::ToDevice)?;
    check_eq!((rest.moved, device.placement()?.evicted_for_room), (HALF, HALF), "then");
    cpu_sees(&map, 1, "after all")?;
    device.close().what("close")?;
    unload(ctx)
}

// SPDX-License-Identifier: GPL-2.0
//! Device memory that is smaller than the working set.

use super::module_reload::{
    load,
    unload,
    Restore, //
};
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    Test,
    What, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::engine::{
    checksum_of_pattern,
    checksum_of_write,
    Way, //
};
use hmm::placement::{
    Attributes,
    Policy, //
};
use hmm::{
    pattern,
    procfs,
    Child,
    Command,
    Device,
    EngineOp,
    Gate,
    Mapping,
    Prot,
    Setting,
    HUGE_PAGES,
    HUGE_SIZE,
    PAGE_SIZE, //
};
use std::time::Duration;

const OURS: &str = "test_hmm has no limit of its memory";

pub const TESTS: &[Test] = &[
    Test::new(
        "memory",
        "least_recently_used_block_is_evicted",
        least_recently_used_block_is_evicted,
    )
    .only_rust(OURS),
    Test::new(
        "memory",
        "eightfold_oversubscription_keeps_contents",
        eightfold_oversubscription_keeps_contents,
    )
    .only_rust(OURS)
    .seconds(240),
    Test::new(
        "memory",
        "memory_of_exited_and_forked_processes_is_evicted",
        memory_of_exited_and_forked_processes_is_evicted,
    )
    .only_rust(OURS),
    Test::new("memory", "huge_pages_are_split_when_ram_is_fragmented", huge_when_fragmented)
        .only_rust(OURS),
    Test::new("memory", "huge_page_without_a_mirror_is_evicted", huge_without_mirror)
        .only_rust(OURS),
    Test::new("memory", "accessed_by_pages_are_mapped_after_eviction", accessed_by).only_rust(OURS),
    Test::new(
        "memory",
        "migration_does_not_evict_its_own_pages",
        migration_does_not_evict_its_own_pages,
    )
    .only_rust(OURS),
    Test::new("memory", "stalled_process_is_skipped_by_eviction", stalled).only_rust(OURS),
    Test::new("memory", "cpu_fault_window_follows_the_pattern", cpu_window)
        .only_rust(OURS)
        .private(),
];

/// Reloads the modules with parameters, for tests of private memory.
pub fn with<'a>(ctx: &'a Ctx, params: &str) -> Result<Restore<'a>, Stop> {
    if ctx.coherent() {
        return Err(Stop::Skip("the size of coherent memory is no parameter".to_string()));
    }
    let restore = Restore(ctx);
    load(ctx, "")?;
    unload(ctx)?;
    load(ctx, params)?;
    Ok(restore)
}

/// Unloads the modules as soon as processes that have exited have closed their files.
pub(super) fn unload_soon(ctx: &Ctx) -> Outcome {
    for _ in 0..100 {
        if unload(ctx).is_ok() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(Stop::Fail("the modules cannot be unloaded".to_string()))
}

/// Maps a block of device memory, in small pages with the pattern `seed`.
pub(super) fn block(seed: u64) -> Result<Mapping, Stop> {
    let map = Mapping::anon_aligned(1).what("map")?;
    map.forbid_huge()?;
    map.fill(seed);
    Ok(map)
}

pub(super) fn on_device(device: &Device, map: &Mapping) -> Result<usize, Stop> {
    resident(device, map, 0, map.pages())
}

pub(super) fn to_device(device: &Device, map: &Mapping) -> Result<hmm::Migration, Stop> {
    device.migrate(map.addr(), map.pages(), Way::ToDevice).what("migrate")
}

pub(super) fn engine_reads(device: &Device, map: &Mapping, seed: u64) -> Outcome {
    let read = Command::new(EngineOp::Checksum, map.addr(), map.len())
        .verify(checksum_of_pattern(seed, map.pages()));
    check_eq!(device.run(read).what("engine")?.error, None, "an engine's read");
    Ok(())
}

fn least_recently_used_block_is_evicted(ctx: &Ctx) -> Outcome {
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

fn eightfold_oversubscription_keeps_contents(ctx: &Ctx) -> Outcome {
    let _restore = Restore(ctx);
    // A smaller device memory if each page migrates by itself, which takes long.
    for (policy, huge_pages, size) in
        [(Policy::Default, false, 2), (Policy::OnePage, false, 1), (Policy::Default, true, 2)]
    {
        load(ctx, "")?;
        unload(ctx)?;
        load(ctx, &vram(size))?;
        let device = ctx.open()?;
        device.set_policy(policy)?;
        let blocks = 8 * size;
        let map = if huge_pages { huge(blocks, 1)? } else { Mapping::anon_aligned(blocks)? };
        map.fill(1);
        // One page at a time takes long, so a single pass over all pages is enough there.
        let thorough = policy != Policy::OnePage;
        if thorough {
            engine_reads(&device, &map, 1)?;
        }
        let write = Command::new(EngineOp::Write, map.addr(), map.len()).value(5);
        check_eq!(device.run(write)?.error, None, "an engine's write");
        if thorough {
            let words = checksum_of_write(5, map.len() / 8);
            let read = Command::new(EngineOp::Checksum, map.addr(), map.len()).verify(words);
            check_eq!(device.run(read)?.error, None, "an engine's read of its own words");
        }
        let counters = device.counters()?;
        let most = size as u64 * BLOCK_PAGES;
        check!(counters.device_pages_used <= most, "{} pages", counters.device_pages_used);
        check_eq!(counters.stale_hits, 0, "stale hits");
        for page in 0..map.pages() {
            check_eq!(map.get(page, 3), (page * pattern::WORDS + 3 + 5) as u64, "CPU read");
        }
        if policy == Policy::OnePage {
            check!(device.placement()?.evicted_for_room > 0, "nothing was evicted");
        }
        device.close().what("close")?;
        unload(ctx)?;
    }
    Ok(())
}

fn memory_of_exited_and_forked_processes_is_evicted(ctx: &Ctx) -> Outcome {
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

/// No huge page of system memory can be allocated, so an eviction must split huge device pages.
/// This includes a page that mremap() has moved to an address that is not aligned.
fn huge_when_fragmented(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &vram(2))?;
    let device = ctx.open()?;
    let map = huge(1, 1)?;
    migrate(&device, &map, 1)?;
    check!(device.snapshot(map.addr(), 1)?[0].is_huge(), "it is not huge on the device");
    // The allocation of a huge page fails, so the pages must migrate back as small pages.
    device.set_flags(hmm::abi::FLAG_FAIL_ALLOC)?;
    device.release().what("release")?;
    check_eq!(device.counters()?.device_pages_used, 0, "pages on the device");
    let states = device.snapshot(map.addr(), HUGE_PAGES)?;
    check!(states.iter().all(|state| state.is_ram() && !state.is_huge()), "{:?}", states[0]);
    cpu_sees(&map, 1, "after it was split")?;
    // mremap() moves it to an address that is not aligned. Eviction must find it nevertheless.
    let map = huge(1, 2)?;
    migrate(&device, &map, 2)?;
    let target = Mapping::anon(HUGE_PAGES + 3)?;
    map.move_pages(0, HUGE_PAGES, &target, 3)?;
    device.set_flags(hmm::abi::FLAG_FAIL_ALLOC)?;
    device.release().what("release")?;
    check_eq!(device.counters()?.device_pages_used, 0, "pages on the device after mremap");
    for page in 0..HUGE_PAGES {
        check_eq!(target.get(page + 3, 9), pattern::word(2, page, 9), "contents after mremap");
    }
    device.close().what("close")?;
    unload(ctx)
}

/// A process that holds its mmap lock for long does not delay others that need device memory. Its
/// pages stay, though they are the least recently used. It holds the lock for writing while its
/// second device takes seconds for a flush.
fn stalled(ctx: &Ctx) -> Outcome {
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

/// Pages with the attribute ACCESSED_BY are mapped by the device also after an eviction.
fn accessed_by(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &vram(2))?;
    let device = ctx.open()?;
    let map = block(1)?;
    let plain = block(2)?;
    let always = Attributes::NONE.flag(Attributes::ACCESSED_BY, true);
    device.set_attributes(map.page_addr(16), 256, always).what("set attributes")?;
    let check = |when: &str| -> Outcome {
        let done = device_sees_pages(&device, &map, 1, 16, 256, when)?;
        check_eq!(done.faults, 0, "faults on memory that is always mapped {when}");
        Ok(())
    };
    for round in 0..2u64 {
        check_eq!(to_device(&device, &map)?.moved, BLOCK_PAGES, "pages that moved");
        if round == 0 {
            check_eq!(to_device(&device, &plain)?.moved, BLOCK_PAGES, "pages that moved");
            // Other blocks need the space.
            for seed in 3..5 {
                check_eq!(
                    to_device(&device, &block(seed)?)?.moved,
                    BLOCK_PAGES,
                    "pages that moved"
                );
            }
        } else {
            device.release().what("release")?;
        }
        check_eq!(on_device(&device, &map)?, 0, "pages that stayed");
        check("after an eviction")?;
        // These pages have no such attribute.
        let others = device_sees_pages(&device, &map, 1, 272, 240, "of other pages")?;
        check!(others.faults > 0, "pages without a fault are mapped");
    }
    device.close().what("close")?;
    unload(ctx)
}

/// A huge page that is mapped only by a process without a mirror, while no huge page of system
/// memory can be allocated.
fn huge_without_mirror(ctx: &Ctx) -> Outcome {
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

fn migration_does_not_evict_its_own_pages(ctx: &Ctx) -> Outcome {
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

fn cpu_window(ctx: &Ctx) -> Outcome {
    const SIZE: usize = 32 << 20;
    /// Pages of the largest window, 2 MiB.
    const WINDOW: u64 = (2 << 20) / PAGE_SIZE as u64;
    let _restore = with(ctx, "vram_mib=64")?;
    let device = ctx.open()?;
    let map = Mapping::anon_aligned(SIZE / HUGE_SIZE)?;
    map.forbid_huge()?;
    map.fill(1);
    let faults = |pages: &mut dyn Iterator<Item = usize>| -> Result<(u64, u64), Stop> {
        to_device(&device, &map)?;
        let before = device.counters()?;
        for page in pages {
            check_eq!(map.get(page, 0), pattern::word(1, page, 0), "a word");
        }
        let after = device.counters()?;
        let count = after.cpu_faults - before.cpu_faults;
        Ok((count, after.cpu_fault_pages - before.cpu_fault_pages))
    };
    let pages = map.pages();
    let (in_order, back) = faults(&mut (0..pages))?;
    check_eq!(back, pages as u64, "pages that came back in order");
    // The expected value is 21.
    check!(in_order <= 25, "{in_order} faults for 32 MiB in order");
    // Far jumps shrink the window of pages that a fault migrates.
    let mut places = (0..14).map(|jump| (jump * 1031 * 3 * 4096) % SIZE / PAGE_SIZE);
    let (jumps, back) = faults(&mut places)?;
    // The expected value is a window and a few pages in 13 faults, 515 pages of 4 KiB.
    check!(back <= (WINDOW + 3) * 6 / 5, "{jumps} jumps brought {back} pages");
    check!(jumps >= 11, "{jumps} faults for 14 jumps");
    // Accesses at random soon bring back all of a block. Pages that are back divide the windows.
    let mut random = (0..pages).map(|page| (page * 1_664_525 + 101) % pages);
    let (at_random, back) = faults(&mut random)?;
    check_eq!(back, pages as u64, "pages that came back at random");
    // The expected value is 11 faults for each 2 MiB.
    check!(at_random <= 13 * pages as u64 / WINDOW, "{at_random} faults for 32 MiB at random");
    cpu_sees(&map, 1, "after all")?;
    device.close().what("close")?;
    unload(ctx)
}

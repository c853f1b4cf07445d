// SPDX-License-Identifier: GPL-2.0
//! Device memory: reservation, allocation, charging to control groups, and reclaim.

use super::memory::{
    block,
    engine_reads,
    on_device,
    to_device,
    with, //
};
use super::module_reload::{
    load,
    unload, //
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
use hmm::engine::Way;
use hmm::hostile::Group;
use hmm::{
    inject,
    procfs,
    Child,
    Device,
    Errno,
    Gate,
    Mapping,
    Prot,
    HUGE_PAGES,
    HUGE_SIZE,
    PAGE_SIZE, //
};
use std::time::{
    Duration,
    Instant, //
};

const OURS: &str = "test_hmm has no limit of its memory";

/// Tests in the group that unloads modules.
pub const TESTS: &[Test] = &[
    Test::new("memory", "offlined_pages_are_not_allocated", offlined_pages_are_not_allocated)
        .only_rust(OURS),
    Test::new("memory", "busy_pages_are_offlined_when_freed", busy_pages_are_offlined_when_freed)
        .only_rust(OURS),
    Test::new("memory", "driver_allocator_suggests_pages", driver_allocator_suggests_pages)
        .only_rust(OURS),
    Test::new(
        "memory",
        "device_pages_are_charged_to_their_owner",
        device_pages_are_charged_to_their_owner,
    )
    .only_rust(OURS),
    Test::new("memory", "idle_chunks_are_removed", idle_chunks_are_removed)
        .only_rust(OURS)
        .private(),
    Test::new("memory", "small_memory_is_filled_to_its_end", small_memory_is_filled_to_its_end)
        .only_rust(OURS)
        .private(),
    Test::new("memory", "device_of_16_tib_works", device_of_16_tib_works).only_rust(OURS),
    Test::new(
        "memory",
        "bookkeeping_of_16_tib_is_small_beside_used_memory",
        bookkeeping_of_16_tib_is_small,
    )
    .only_rust(OURS)
    .private(),
    Test::new("memory", "shrinker_frees_unused_tables", free_tables).only_rust(OURS).private(),
    Test::new("memory", "cgroup_reclaim_frees_its_own_tables_only", free_tables_of_a_group)
        .only_rust(OURS)
        .private(),
    Test::new("memory", "cgroup_reclaim_frees_cold_tables", cold_tables).only_rust(OURS).private(),
    Test::new(
        "memory",
        "table_reclaim_lets_a_busy_device_progress",
        table_reclaim_lets_a_busy_device_progress,
    )
    .only_rust(OURS)
    .private(),
];

fn offlined_pages_are_not_allocated(ctx: &Ctx) -> Outcome {
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

fn busy_pages_are_offlined_when_freed(ctx: &Ctx) -> Outcome {
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

fn driver_allocator_suggests_pages(ctx: &Ctx) -> Outcome {
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

fn device_pages_are_charged_to_their_owner(ctx: &Ctx) -> Outcome {
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

/// Most of the device memory has no backing. The machine has RAM for a small part of it.
fn device_of_16_tib_works(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, "vram_mib=16777216")?;
    let device = ctx.open()?;
    let maps = [block(1)?, block(2)?];
    for map in &maps {
        to_device(&device, map)?;
    }
    check_eq!(device.placement()?.pieces, 1, "pieces of 256 MiB that were added");
    engine_reads(&device, &maps[0], 1)?;
    engine_reads(&device, &maps[1], 2)?;
    // A CPU fault migrates pages of one mapping back, and a release all others.
    cpu_sees(&maps[0], 1, "after the way back")?;
    engine_reads(&device, &maps[0], 1)?;
    device.release()?;
    cpu_sees(&maps[1], 2, "after the eviction")?;
    to_device(&device, &maps[1])?;
    engine_reads(&device, &maps[1], 2)?;
    device.close().what("close")?;
    unload(ctx)
}

/// Returns the bytes that the kernel has allocated for itself, without page frames and without the
/// `struct page`s of device memory.
fn kernel_bytes() -> Result<u64, Stop> {
    let table = procfs::meminfo()?;
    let kib = ["Slab", "VmallocUsed", "PageTables", "Percpu"].map(|name| table.get(name).copied());
    let kib: Option<Vec<u64>> = kib.into_iter().collect();
    let kib = kib.ok_or(Stop::Fail("/proc/meminfo lacks a row".to_string()))?;
    Ok(kib.iter().sum::<u64>() << 10)
}

/// The library and the kernel allocate at most 1/256 of the size of a chunk for it, without its
/// `struct page`s. The memory is declared with 16 TiB, and the tables for these are counted. The
/// contents of two huge pages are not: the mock keeps them in memory of the kernel, and a device in
/// its own.
fn bookkeeping_of_16_tib_is_small(ctx: &Ctx) -> Outcome {
    const CHUNKS: usize = 32;
    const BYTES: usize = CHUNKS * (256 << 20);
    /// Share of the memory that may be allocated.
    const SHARE: u64 = 256;
    let _restore = with(ctx, "vram_mib=1")?;
    let device = ctx.open()?;
    let before = kernel_bytes()?;
    device.close().what("close")?;
    unload(ctx)?;
    load(ctx, "vram_mib=16777216")?;
    let device = ctx.open()?;
    let declared = kernel_bytes()?;
    let maps = [block(1)?, block(2)?];
    to_device(&device, &maps[0])?;
    // Taking pages out of use creates their chunks.
    device.resize(HUGE_PAGES, BYTES / PAGE_SIZE - HUGE_PAGES, false)?;
    device.resize(HUGE_PAGES, BYTES / PAGE_SIZE - HUGE_PAGES, true)?;
    to_device(&device, &maps[1])?;
    let used = kernel_bytes()?;
    check_eq!(device.placement()?.pieces, CHUNKS as u64, "pieces of 256 MiB");
    let contents = (maps.len() * HUGE_SIZE) as u64;
    check!(used >= declared + contents, "{used} bytes with contents, {declared} bytes before");
    let bytes = used.saturating_sub(before + contents);
    println!(
        "# {} KiB for 16 TiB declared, {} KiB with {CHUNKS} chunks, {} KiB a chunk",
        declared.saturating_sub(before) >> 10,
        bytes >> 10,
        ((used - declared - contents) / CHUNKS as u64) >> 10
    );
    check!(bytes <= BYTES as u64 / SHARE, "{bytes} bytes for {BYTES} bytes of device memory");
    engine_reads(&device, &maps[0], 1)?;
    engine_reads(&device, &maps[1], 2)?;
    device.close().what("close")?;
    unload(ctx)
}

/// The memory ends within a huge page, whose pages are used as small ones.
fn small_memory_is_filled_to_its_end(ctx: &Ctx) -> Outcome {
    const BYTES: usize = 3 << 20;
    const PAGES: u64 = (BYTES / PAGE_SIZE) as u64;
    let _restore = with(ctx, "vram_mib=3")?;
    let device = ctx.open()?;
    check_eq!(device.info()?.vram_bytes, BYTES as u64, "bytes of device memory");
    let map = Mapping::anon_aligned(BYTES.div_ceil(HUGE_SIZE))?;
    map.fill(1);
    let done = to_device(&device, &map)?;
    let rest = map.pages() as u64 - PAGES;
    check_eq!((done.moved, done.no_memory, done.copy_failed), (PAGES, rest, 0), "moved, left");
    check_eq!(device.counters()?.device_pages_total, PAGES, "pages that the device has");
    check_eq!(on_device(&device, &map)? as u64, PAGES, "pages on the device");
    engine_reads(&device, &map, 1)?;
    cpu_sees(&map, 1, "after the way back")?;
    device.close().what("close")?;
    unload(ctx)
}

fn idle_chunks_are_removed(ctx: &Ctx) -> Outcome {
    const TWO_CHUNKS: usize = (512 << 20) / PAGE_SIZE;
    let _restore = with(ctx, "vram_mib=1024")?;
    let device = ctx.open()?;
    check_eq!(device.placement()?.pieces, 0, "pieces before any use");
    let maps = [block(1)?, block(2)?];
    // Taking pages of the first two chunks out of use creates both chunks.
    to_device(&device, &maps[0])?;
    check_eq!(device.resize(HUGE_PAGES, TWO_CHUNKS - HUGE_PAGES, false)?, 0, "pages left");
    let first = device.placement()?.pieces;
    let second = maps[1].page_addr(0);
    check_eq!(first, 2, "pieces that were made");
    device.resize(HUGE_PAGES, TWO_CHUNKS - HUGE_PAGES, true)?;
    // Dropping caches calls all shrinkers. Idle chunks are removed, and chunks in use stay.
    let shrunk = |expected: u64, what: &str| -> Outcome {
        let begin = Instant::now();
        while device.placement()?.pieces != expected {
            check!(begin.elapsed() < Duration::from_secs(30), "{what}: {:?}", device.placement()?);
            std::fs::write("/proc/sys/vm/drop_caches", "2")?;
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    };
    shrunk(1, "a piece is in use, another is not")?;
    engine_reads(&device, &maps[0], 1)?;
    device.release()?;
    shrunk(0, "nothing is in use")?;
    check_eq!(
        device.migrate(second, HUGE_PAGES, Way::ToDevice)?.moved,
        BLOCK_PAGES,
        "pages that moved then"
    );
    engine_reads(&device, &maps[1], 2)?;
    cpu_sees(&maps[0], 1, "after all")?;
    device.close().what("close")?;
    unload(ctx)
}

/// Returns the number of table pages of all mirrors.
fn table_pages() -> Result<u64, Stop> {
    let text = std::fs::read_to_string("/sys/kernel/debug/rust_hmm/tables")?;
    let pages = text.lines().find_map(|line| line.strip_prefix("pages "));
    pages.and_then(|pages| pages.trim().parse().ok()).ok_or(Stop::Fail(format!("tables: {text}")))
}

/// The shrinker frees pages of device page tables that are not in use. Tables in use stay.
fn free_tables(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let stays = Mapping::anon(4)?;
    stays.fill(7);
    device_sees(&device, &stays, 7, "at first")?;
    let before = table_pages()?;
    // A page in each of 300 blocks, each of which needs a table.
    let map = Mapping::reserve(300 * HUGE_SIZE, Prot::ReadWrite)?;
    for block in 0..300 {
        map.fill_pages(1, block * HUGE_PAGES, 1);
        device_sees_pages(&device, &map, 1, block * HUGE_PAGES, 1, "of a block")?;
    }
    let most = table_pages()?;
    check!(most >= before + 256, "{most} table pages, {before} before");
    std::fs::write("/proc/sys/vm/drop_caches", "2")?;
    for block in 0..300 {
        device_sees_pages(&device, &map, 1, block * HUGE_PAGES, 1, "after a shrink in use")?;
    }
    check!(table_pages()? >= before + 256, "tables in use were freed");
    map.unmap_pages(0, map.pages())?;
    let begin = Instant::now();
    while table_pages()? > before + 64 {
        let now = table_pages()?;
        check!(begin.elapsed() < Duration::from_secs(30), "{now} of {most} tables stay");
        std::fs::write("/proc/sys/vm/drop_caches", "2")?;
    }
    device_sees(&device, &stays, 7, "of pages that stayed")?;
    Ok(())
}

/// Reads a page in each of 300 blocks, each of which needs a table. Then unmaps the pages,
/// so that the tables become free.
fn make_free_tables(device: &Device) -> Outcome {
    let map = Mapping::reserve(300 * HUGE_SIZE, Prot::ReadWrite)?;
    for block in 0..300 {
        map.fill_pages(1, block * HUGE_PAGES, 1);
        device_sees_pages(device, &map, 1, block * HUGE_PAGES, 1, "of a block")?;
    }
    map.unmap_pages(0, map.pages())?;
    Ok(())
}

/// Has `group` reclaim until few of its table pages are left. `ours` is the number outside of the
/// group.
fn reclaim_tables(group: &Group, ours: u64) -> Outcome {
    let most = table_pages()?;
    check!(most >= ours + 256, "{most} table pages with the group's, {ours} before");
    let begin = Instant::now();
    while table_pages()? > ours + 64 {
        let now = table_pages()?;
        check!(begin.elapsed() < Duration::from_secs(30), "{now} of {most} tables stay");
        group.reclaim()?;
    }
    Ok(())
}

/// Reclaim of a control group frees page tables that are charged to it, and no others.
fn free_tables_of_a_group(ctx: &Ctx) -> Outcome {
    let Some(group) = Group::new("hmm-tables")? else {
        return Err(Stop::Skip("this kernel has no groups with memory control".to_string()));
    };
    let device = ctx.open()?;
    let before = table_pages()?;
    make_free_tables(&device)?;
    let ours = table_pages()?;
    check!(ours >= before + 256, "{ours} table pages outside, {before} before");
    let ready = Gate::new()?;
    let go = Gate::new()?;
    let child = Child::spawn(|| -> Outcome {
        group.enter()?;
        let device = ctx.open()?;
        let stays = Mapping::anon(4)?;
        stays.fill(7);
        device_sees(&device, &stays, 7, "at first")?;
        make_free_tables(&device)?;
        ready.open()?;
        go.wait()?;
        device_sees(&device, &stays, 7, "after the reclaim")?;
        Ok(())
    })?;
    ready.wait()?;
    reclaim_tables(&group, ours)?;
    // The free tables of the group are freed. The group still has its root and the tables in use.
    let now = table_pages()?;
    check!(now > ours, "{now} table pages are left, {ours} were outside of the group");
    go.open()?;
    child.join().map_err(Stop::Fail)?;
    Ok(())
}

/// Number of blocks of which the device reads one page each.
const COLD: usize = 300;

/// Maps [`COLD`] blocks with a page each, and reads the pages by the device. Reclaim cannot unmap
/// these pages.
fn sparse(device: &Device, seed: u64) -> Result<Mapping, Stop> {
    let map = Mapping::reserve(COLD * HUGE_SIZE, Prot::ReadWrite)?;
    for block in 0..COLD {
        map.fill_pages(seed, block * HUGE_PAGES, 1);
        map.lock_pages(true, block * HUGE_PAGES, 1)?;
    }
    sparse_is_seen(device, &map, seed, "at first")?;
    Ok(map)
}

fn sparse_is_seen(device: &Device, map: &Mapping, seed: u64, when: &str) -> Outcome {
    for block in 0..COLD {
        device_sees_pages(device, map, seed, block * HUGE_PAGES, 1, when)?;
    }
    Ok(())
}

/// Reclaim of a control group frees tables that the device has not used for long. The device
/// installs them again on access. Tables of another group stay.
fn cold_tables(ctx: &Ctx) -> Outcome {
    let Some(group) = Group::new("hmm-cold")? else {
        return Err(Stop::Skip("this kernel has no groups with memory control".to_string()));
    };
    let device = ctx.open()?;
    let outside = sparse(&device, 1)?;
    let mapped = device.counters()?.pages_mapped;
    let ours = table_pages()?;
    let ready = Gate::new()?;
    let go = Gate::new()?;
    let child = Child::spawn(|| -> Outcome {
        group.enter()?;
        let device = ctx.open()?;
        let map = sparse(&device, 2)?;
        let before = device.counters()?;
        ready.open()?;
        go.wait()?;
        let after = device.counters()?;
        let removed = after.invalidated_pages - before.invalidated_pages;
        check!(removed >= 200, "{removed} entries of {COLD} were removed");
        let events = after.invalidations - before.invalidations;
        check!(events < 50, "the pages were unmapped: {events} callbacks");
        sparse_is_seen(&device, &map, 2, "after the reclaim")?;
        let again = device.counters()?.pages_mapped - after.pages_mapped;
        check!(again >= removed, "{removed} entries were removed, {again} came again");
        Ok(())
    })?;
    ready.wait()?;
    reclaim_tables(&group, ours)?;
    go.open()?;
    child.join().map_err(Stop::Fail)?;
    sparse_is_seen(&device, &outside, 1, "outside of the group")?;
    check_eq!(device.counters()?.pages_mapped, mapped, "entries that came again outside");
    Ok(())
}

/// While reclaim frees tables as fast as it can, the device makes progress and reads the latest CPU
/// writes.
fn table_reclaim_lets_a_busy_device_progress(ctx: &Ctx) -> Outcome {
    let Some(group) = Group::new("hmm-cold-busy")? else {
        return Err(Stop::Skip("this kernel has no groups with memory control".to_string()));
    };
    let time = Duration::from_secs(3);
    let ready = Gate::new()?;
    let child = Child::spawn(|| -> Outcome {
        group.enter()?;
        let device = ctx.open()?;
        let map = sparse(&device, 0)?;
        let before = device.counters()?;
        ready.open()?;
        let begin = Instant::now();
        let mut rounds = 0;
        while rounds < 3 || begin.elapsed() < time {
            rounds += 1;
            for block in 0..COLD {
                map.fill_pages(rounds, block * HUGE_PAGES, 1);
            }
            sparse_is_seen(&device, &map, rounds, "during the reclaim")?;
        }
        let after = device.counters()?;
        let removed = after.invalidated_pages - before.invalidated_pages;
        let events = after.invalidations - before.invalidations;
        check!(removed >= 100, "{removed} entries were removed in {rounds} rounds");
        check!(events < 50, "the pages were unmapped: {events} callbacks");
        Ok(())
    })?;
    ready.wait()?;
    let begin = Instant::now();
    while begin.elapsed() < time {
        group.reclaim()?;
    }
    child.join().map_err(Stop::Fail)?;
    Ok(())
}

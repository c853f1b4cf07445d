// SPDX-License-Identifier: GPL-2.0
//! Sizes of device memory from 3 MiB to 16 TiB, its bookkeeping, and chunks that are idle.

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
    on_device,
    to_device,
    with, //
};
use crate::tests::module_reload::{
    load,
    unload, //
};
use crate::{
    check,
    check_eq, //
};
use hmm::engine::Way;
use hmm::{
    procfs,
    Mapping,
    HUGE_PAGES,
    HUGE_SIZE,
    PAGE_SIZE, //
};
use std::time::{
    Duration,
    Instant, //
};

/// Most of the device memory has no backing. The machine has RAM for a small part of it.
pub(super) fn device_of_16_tib_works(ctx: &Ctx) -> Outcome {
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
pub(super) fn bookkeeping_of_16_tib_is_small(ctx: &Ctx) -> Outcome {
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
pub(super) fn small_memory_is_filled_to_its_end(ctx: &Ctx) -> Outcome {
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

pub(super) fn idle_chunks_are_removed(ctx: &Ctx) -> Outcome {
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

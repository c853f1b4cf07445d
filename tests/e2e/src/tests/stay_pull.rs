// SPDX-License-Identifier: GPL-2.0
//! Pulls of memory that is at its destination already or cannot migrate. No page is protected,
//! unmapped, copied or evicted for it.

use super::memory::{
    block,
    to_device,
    with, //
};
use super::module_reload::unload;
use super::p2p::{
    pair,
    Pair, //
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
use hmm::{
    files,
    Command,
    Connection,
    Counters,
    Device,
    EngineOp,
    Mapping,
    Setting,
    HUGE_PAGES,
    PAGE_SIZE, //
};
use std::time::{
    Duration,
    Instant, //
};

const OURS: &str = "the C driver has no connections";

pub const TESTS: &[Test] = &[
    Test::new("p2p", "pull_of_resident_memory_has_no_effect", resident_and_written)
        .only_rust(OURS)
        .private(),
    Test::new("p2p", "pull_keeps_entries_of_the_resident_half", half_resident)
        .only_rust(OURS)
        .private(),
    Test::new("p2p", "unconnected_pull_migrates_source_pages_only", through)
        .only_rust(OURS)
        .private(),
];

/// Tests in the group that unloads modules.
pub const WITH_LITTLE_MEMORY: &[Test] =
    &[Test::new("memory", "pull_of_immovable_pages_evicts_nothing", cannot_move).only_rust(OURS)];

/// Checks that no engine of `device` has faulted and that the device has lost no entry and no
/// access right between `before` and `after`.
fn undisturbed(before: &Counters, after: &Counters, who: &str) -> Outcome {
    let faults = |all: &Counters| all.engine_faults_read + all.engine_faults_write;
    check_eq!(faults(after), faults(before), "faults of {who}");
    let lost = after.invalidated_pages - before.invalidated_pages;
    check_eq!(lost, 0, "entries that {who} lost, or rights to them");
    let events = after.invalidations - before.invalidations;
    check!(events < 5, "{events} invalidations of {who}");
    Ok(())
}

/// Starts an engine of `device` that writes `npages` pages of `map` repeatedly. The first write
/// faults have ended.
fn writer<'a>(device: &'a Device, map: &Mapping, npages: usize) -> Result<hmm::Job<'a>, Stop> {
    let fill = Command::new(EngineOp::Fill, map.addr(), npages * PAGE_SIZE).rounds(1);
    check_eq!(device.run(fill).what("fill")?.error, None, "end of the first round");
    device.submit(fill.rounds(0)).what("submit")
}

/// Opens another mirror of the second device, and reads the first `npages` pages of `map` with it.
fn other_reader(ctx: &Ctx, map: &Mapping, npages: usize) -> Result<Device, Stop> {
    let device = Device::open(ctx.second).what("open the second device again")?;
    let mut data = vec![0; npages * PAGE_SIZE];
    device.read(map.addr(), &mut data).what("read")?;
    Ok(device)
}

fn resident_and_written(ctx: &Ctx) -> Outcome {
    let Pair { one, two } = pair(ctx, Connection::Migratable)?;
    let map = Mapping::anon_aligned(2)?;
    map.forbid_huge()?;
    map.fill(1);
    to_device(&two, &map)?;
    let job = writer(&two, &map, map.pages())?;
    let third = other_reader(ctx, &map, map.pages())?;
    let before = two.counters()?;
    let theirs = third.counters()?;
    for _ in 0..200 {
        let pulled = two.pull(map.addr(), map.pages(), &one).what("pull")?;
        check_eq!((pulled.moved, pulled.no_memory), (0, 0), "pages that moved, or had no room");
    }
    let after = two.counters()?;
    let now = third.counters()?;
    job.stop().what("stop")?;
    check_eq!(job.wait().what("wait")?.error, None, "end of the engine");
    undisturbed(&before, &after, "the destination")?;
    undisturbed(&theirs, &now, "another mirror of it")
}

fn half_resident(ctx: &Ctx) -> Outcome {
    const COPY: u64 = 2_000_000;
    const HALF: usize = HUGE_PAGES / 2;
    let Pair { one, two } = pair(ctx, Connection::Migratable)?;
    let map = block(1)?;
    let other_half = map.page_addr(HALF);
    check_eq!(two.migrate(map.addr(), HALF, Way::ToDevice)?.moved, HALF as u64, "pages there");
    check_eq!(one.migrate(other_half, HALF, Way::ToDevice)?.moved, HALF as u64, "pages here");
    let job = writer(&two, &map, HALF)?;
    let third = other_reader(ctx, &map, HALF)?;
    one.set(Setting::CopyDelay, COPY).what("slow copies")?;
    let before = two.counters()?;
    let theirs = third.counters()?;
    let start = Instant::now();
    let pulled = two.pull(map.addr(), HUGE_PAGES, &one);
    let took = start.elapsed();
    one.set(Setting::CopyDelay, 0).what("fast copies")?;
    let after = two.counters()?;
    let now = third.counters()?;
    job.stop().what("stop")?;
    check_eq!(job.wait().what("wait")?.error, None, "end of the engine");
    check_eq!(pulled.what("pull")?.moved, HALF as u64, "pages of the other half that moved");
    check!(took > Duration::from_millis(2), "the copies took {took:?}");
    check!(after.bytes_written > before.bytes_written, "the engine did not write meanwhile");
    undisturbed(&before, &after, "the half that was there")?;
    undisturbed(&theirs, &now, "another mirror of it")?;
    check_eq!(resident(&two, &map, 0, HUGE_PAGES)?, HUGE_PAGES, "pages on the destination");
    map.check_pages(1, HALF, HALF).what("CPU read of the other half")
}

/// Devices without a connection. Half of the memory is in system memory.
fn through(ctx: &Ctx) -> Outcome {
    const HALF: usize = HUGE_PAGES / 2;
    let Pair { one, two } = pair(ctx, Connection::None)?;
    let map = block(1)?;
    check_eq!(one.migrate(map.page_addr(HALF), HALF, Way::ToDevice)?.moved, HALF as u64, "pages");
    let third = other_reader(ctx, &map, HALF)?;
    let before = third.counters()?;
    let pulled = two.pull(map.addr(), HUGE_PAGES, &one).what("pull")?;
    check_eq!((pulled.connection, pulled.moved), (Connection::None, HALF as u64), "pages pulled");
    undisturbed(&before, &third.counters()?, "a mirror of the half in system memory")?;
    check_eq!(resident(&two, &map, 0, HALF)?, 0, "pages of system memory on the destination");
    check_eq!(resident(&two, &map, HALF, HALF)?, HALF, "pages of the source on the destination");
    cpu_sees(&map, 1, "at the end")
}

/// The device memory is full of memory that could be evicted, except for some free pages.
fn cannot_move(ctx: &Ctx) -> Outcome {
    const PAGES: usize = 2 * HUGE_PAGES;
    let _restore = with(ctx, &vram(4))?;
    let pair = pair(ctx, Connection::Migratable)?;
    let Pair { one, two } = &pair;
    let full = (0..4).map(block).collect::<Result<Vec<_>, _>>()?;
    for map in &full {
        check_eq!(to_device(two, map)?.moved, BLOCK_PAGES, "pages that moved");
    }
    check_eq!(full[0].get(0, 0), hmm::pattern::word(0, 0, 0), "CPU read");
    let free = 4 * BLOCK_PAGES - two.counters()?.device_pages_used;
    check!(free > 0 && free < 64, "{free} pages are free");
    let memfd = files::memfd(2, PAGES)?;
    let shared = Mapping::file_shared(&memfd, PAGES)?;
    shared.check_pages(2, 0, PAGES).what("CPU read")?;
    let system = block(5)?;
    for (map, what) in [(&shared, "a shared memfd"), (&system, "system memory")] {
        let before = [one.counters()?, two.counters()?];
        for _ in 0..10 {
            let pulled = two.pull(map.addr(), map.pages(), one).what("pull")?;
            check_eq!((pulled.moved, pulled.no_memory), (0, 0), "moved, or had no room, of {what}");
        }
        for (before, device) in before.iter().zip([one, two]) {
            let after = device.counters()?;
            check_eq!(after.evicted_pages, before.evicted_pages, "pages evicted for {what}");
            check_eq!(after.bytes_copied, before.bytes_copied, "bytes copied for {what}");
            check_eq!(after.device_pages_used, before.device_pages_used, "pages in use");
        }
    }
    // Pages on the source get device memory, even if that needs an eviction.
    let mut pulled_maps = Vec::new();
    for seed in [6, 7] {
        let map = block(seed)?;
        let before = two.counters()?;
        let pages = if seed == 6 { free as usize } else { 16 };
        let done = one.migrate(map.addr(), pages, Way::ToDevice).what("migrate")?;
        check_eq!(done.moved, pages as u64, "pages on the source");
        let pulled = two.pull(map.addr(), HUGE_PAGES, one).what("pull")?;
        check_eq!((pulled.moved, pulled.no_memory), (pages as u64, 0), "moved, or had no room");
        let evicted = two.counters()?.evicted_pages - before.evicted_pages;
        check_eq!(evicted != 0, seed == 7, "whether pages were evicted for {pages}: {evicted}");
        pulled_maps.push((seed, map));
    }
    for (seed, map) in &pulled_maps {
        cpu_sees(map, *seed, "after all")?;
    }
    for (seed, map) in full.iter().enumerate() {
        cpu_sees(map, seed as u64, "after all")?;
    }
    let Pair { one, two } = pair;
    one.close().what("close")?;
    two.close().what("close")?;
    unload(ctx)
}

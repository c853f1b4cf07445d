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
    Command,
    Device,
    EngineOp,
    Mapping,
    HUGE_PAGES,
    HUGE_SIZE,
    PAGE_SIZE, //
};
use std::time::Duration;

mod victims;

const OURS: &str = "test_hmm has no limit of its memory";

pub const TESTS: &[Test] = &[
    Test::new(
        "memory",
        "least_recently_used_block_is_evicted",
        victims::least_recently_used_block_is_evicted,
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
        victims::memory_of_exited_and_forked_processes_is_evicted,
    )
    .only_rust(OURS),
    Test::new("memory", "huge_pages_are_split_when_ram_is_fragmented", huge_when_fragmented)
        .only_rust(OURS),
    Test::new("memory", "huge_page_without_a_mirror_is_evicted", victims::huge_without_mirror)
        .only_rust(OURS),
    Test::new("memory", "accessed_by_pages_are_mapped_after_eviction", accessed_by).only_rust(OURS),
    Test::new(
        "memory",
        "migration_does_not_evict_its_own_pages",
        victims::migration_does_not_evict_its_own_pages,
    )
    .only_rust(OURS),
    Test::new("memory", "stalled_process_is_skipped_by_eviction", victims::stalled).only_rust(OURS),
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

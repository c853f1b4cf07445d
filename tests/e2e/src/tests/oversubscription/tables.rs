// SPDX-License-Identifier: GPL-2.0
//! Reclaim of device page tables, by the shrinker and by control groups.

use crate::harness::{
    Ctx,
    Outcome,
    Stop, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::hostile::Group;
use hmm::{
    Child,
    Device,
    Gate,
    Mapping,
    Prot,
    HUGE_PAGES,
    HUGE_SIZE, //
};
use std::time::{
    Duration,
    Instant, //
};

/// Returns the number of table pages of all mirrors.
fn table_pages() -> Result<u64, Stop> {
    let text = std::fs::read_to_string("/sys/kernel/debug/rust_hmm/tables")?;
    let pages = text.lines().find_map(|line| line.strip_prefix("pages "));
    pages.and_then(|pages| pages.trim().parse().ok()).ok_or(Stop::Fail(format!("tables: {text}")))
}

/// The shrinker frees pages of device page tables that are not in use. Tables in use stay.
pub(super) fn free_tables(ctx: &Ctx) -> Outcome {
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
pub(super) fn free_tables_of_a_group(ctx: &Ctx) -> Outcome {
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
pub(super) fn cold_tables(ctx: &Ctx) -> Outcome {
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
pub(super) fn table_reclaim_lets_a_busy_device_progress(ctx: &Ctx) -> Outcome {
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

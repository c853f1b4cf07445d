// SPDX-License-Identifier: GPL-2.0
//! The sample whose device walks a page table of the kernel's own: ARM64 LPAE.

use super::mirror_only::{reads, Loaded};
use crate::harness::{Ctx, Outcome, Stop, Test, What};
use crate::support::huge;
use crate::{check, check_eq};
use hmm::inject::{self, Kernel, Kind, Source};
use hmm::mirror_only::TableCalls;
use hmm::{pagemap, pattern, Errno, Mapping, MirrorOnly, Prot, SyncFile, PAGE_SIZE};

const OURS: &str = "needs our library";
const NAME: &str = "rust_lpae";
const NODE: &str = "hmm_lpae";
/// The kernel's code for it, where the kernel itself has none.
const FORMAT: &str = "hmm_io_pgtable";
const PAGES: usize = 700;
/// So often pages fail in the queue's thread, and so many of a hundred.
const TRIES: usize = 40;
const PERCENT: u32 = 20;

pub const TESTS: &[Test] = &[
    Test::new("lpae", "reads_memory_after_fences_of_another_driver", |ctx| {
        let _format = format(ctx)?;
        reads(ctx, NAME, NODE)
    })
    .only_rust(OURS),
    Test::new("lpae", "its_entries_follow_the_process", follows).only_rust(OURS),
    Test::new("lpae", "pages_in_a_row_are_one_call", runs).only_rust(OURS),
    Test::new("lpae", "scattered_pages_share_a_lock", batches).only_rust(OURS),
    Test::new("lpae", "without_memory_it_fails_and_the_next_time_it_works", no_memory)
        .only_rust(OURS)
        .seconds(120),
];

/// The format as a module, unless the kernel has it.
fn format(ctx: &Ctx) -> Result<Option<Loaded>, Stop> {
    let built = ctx.modules.join(format!("{FORMAT}.ko")).exists();
    built.then(|| Loaded::new(ctx, FORMAT)).transpose()
}

/// Opens the device, and has it add up the words of a mapping.
fn open_and_sum(map: &Mapping) -> Result<u64, Errno> {
    let none: Option<&SyncFile> = None;
    MirrorOnly::open_node(NODE)?.sum(map.addr(), map.pages(), none)
}

/// Each allocation fails once: of the page table, of what is in it, and of all else.
fn no_memory(ctx: &Ctx) -> Outcome {
    let _format = format(ctx)?;
    let _loaded = Loaded::new(ctx, NAME)?;
    let map = Mapping::anon(PAGES)?;
    map.fill(4);
    let sum = sum_of(&map);
    for kind in [Kind::Slab, Kind::Pages] {
        if !kind.is_there() {
            return Err(Stop::Skip("allocations cannot fail on this kernel".into()));
        }
        let _kernel = Kernel::prepare(&[kind], 0).what("prepare failing allocations")?;
        let (mut failures, mut told) = (0, 0);
        loop {
            let armed = inject::arm(&Source::Kernel(kind), failures + 1).what("have one fail")?;
            let result = open_and_sum(&map);
            let failed = armed.disarm().what("ask whether it failed")?;
            match result {
                Ok(found) => check_eq!(found, sum, "the sum, {kind:?} {}", failures + 1),
                Err(Errno::ENOMEM) if failed => told += 1,
                Err(error) => {
                    return Err(Stop::Fail(format!("{kind:?} {}: {error}", failures + 1)))
                }
            }
            check_eq!(open_and_sum(&map), Ok(sum), "the sum after it");
            if !failed {
                break;
            }
            failures += 1;
        }
        println!("# {kind:?}: {failures} failures, {told} told as errors");
        check!(told != 0, "none of {failures} failures of {kind:?} was told");
    }
    no_tables(&map, sum)
}

/// The tables of the format are allocated by the queue's thread, in which no single failure can be asked for.
fn no_tables(map: &Mapping, sum: u64) -> Outcome {
    let none: Option<&SyncFile> = None;
    let (mut told, mut read) = (0, 0);
    for round in 0..TRIES {
        let device = MirrorOnly::open_node(NODE).what("open the device")?;
        let kernel = Kernel::prepare(&[Kind::Pages], PERCENT).what("prepare failing pages")?;
        let result = device.sum(map.addr(), map.pages(), none);
        drop(kernel);
        match result {
            Ok(found) => {
                check_eq!(found, sum, "the sum, try {round}");
                read += 1;
            }
            Err(Errno::ENOMEM) => told += 1,
            Err(error) => return Err(Stop::Fail(format!("try {round}: {error}"))),
        }
        check_eq!(device.sum(map.addr(), map.pages(), none), Ok(sum), "the sum after try {round}");
    }
    println!("# {TRIES} tries, {PERCENT} % of the pages fail: {told} told as errors");
    check!(told != 0 && read != 0, "{told} failed, {read} did not");
    Ok(())
}

/// The words of a mapping, added up.
fn sum_of(map: &Mapping) -> u64 {
    (0..map.pages())
        .flat_map(|page| (0..pattern::WORDS).map(move |word| map.get(page, word)))
        .fold(0, u64::wrapping_add)
}

fn follows(ctx: &Ctx) -> Outcome {
    let _format = format(ctx)?;
    let _loaded = Loaded::new(ctx, NAME)?;
    let device = MirrorOnly::open_node(NODE).what("open the sample")?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    let none: Option<&SyncFile> = None;
    let sum = || device.sum(map.addr(), PAGES, none).what("sum");
    let walk = |page: usize| device.walk(map.page_addr(page)).what("walk");
    let mapped = || -> Result<usize, Stop> {
        let mut count = 0;
        for page in 0..PAGES {
            count += usize::from(walk(page)? != 0);
        }
        Ok(count)
    };
    check_eq!(mapped()?, 0, "entries before an access");
    check_eq!(sum()?, sum_of(&map), "the sum");
    check_eq!(mapped()?, PAGES, "entries after it");
    for page in [0, 1, 511, 512, PAGES - 1] {
        let entries = pagemap::read(map.page_addr(page), 1).what("page frame")?;
        let frame = entries.first().and_then(|entry| entry.pfn()).unwrap_or(0);
        check_eq!(walk(page)?, frame * PAGE_SIZE as u64, "where the walk of page {page} ends");
    }
    // What goes away there, goes away here. More may go: the kernel announces all of the 2 MiB where it splits a mapping.
    map.protect_pages(Prot::None, 100, 50)?;
    for page in 100..150 {
        check_eq!(walk(page)?, 0, "where the walk of page {page} ends, which is not readable");
    }
    let refused = device.sum(map.addr(), PAGES, none);
    check_eq!(refused, Err(Errno::EFAULT), "a sum over what is not readable");
    map.protect_pages(Prot::ReadWrite, 100, 50)?;
    // The child writes, and so gets pages of its own; what the device reads are the parent's.
    let before = sum_of(&map);
    let child = hmm::Child::spawn(|| {
        map.fill(2);
        Ok::<(), Stop>(())
    })?;
    child.join().map_err(Stop::Fail)?;
    check_eq!(sum()?, before, "the sum after a child has written");
    map.fill(3);
    check_eq!(sum()?, sum_of(&map), "the sum after the parent has written");
    map.advise_pages(libc::MADV_DONTNEED, 0, 300)?;
    check!(mapped()? <= PAGES - 300, "entries of pages that were given up");
    check_eq!(sum()?, sum_of(&map), "the sum with zeros");
    Ok(())
}

/// What the table of `device` is asked while `f` runs.
fn calls_of(device: &MirrorOnly, f: impl FnOnce() -> Outcome) -> Result<TableCalls, Stop> {
    let before = device.table_calls().what("count")?;
    f()?;
    let after = device.table_calls().what("count")?;
    Ok(TableCalls {
        // Counting takes it, too.
        locks: after.locks - before.locks - 1,
        maps: after.maps - before.maps,
        unmaps: after.unmaps - before.unmaps,
    })
}

/// Has the device read `map`, and says what that took.
fn calls_of_sum(device: &MirrorOnly, map: &Mapping) -> Result<TableCalls, Stop> {
    let expected = sum_of(map);
    let none: Option<&SyncFile> = None;
    calls_of(device, || {
        check_eq!(device.sum(map.addr(), map.pages(), none).what("sum")?, expected, "the sum");
        Ok(())
    })
}

fn runs(ctx: &Ctx) -> Outcome {
    let _format = format(ctx)?;
    let _loaded = Loaded::new(ctx, NAME)?;
    let device = MirrorOnly::open_node(NODE).what("open the sample")?;
    const HUGE: usize = 4;
    let map = huge(HUGE, 5)?;
    let mapping = calls_of_sum(&device, &map)?;
    // Each table of the format is filled by a call, and each 2 MiB is a device fault. The locks are 64 walks each.
    check_eq!(mapping.maps, HUGE as u64, "calls to map {HUGE} huge pages");
    check!(mapping.locks < 20 * HUGE as u64, "locks: {mapping:?}");
    let removing = calls_of(&device, || {
        map.advise_pages(libc::MADV_DONTNEED, 0, map.pages()).map_err(Stop::from)
    })?;
    check_eq!(removing.unmaps, HUGE as u64, "calls to take them out");
    check!(removing.locks <= 2 * HUGE as u64, "locks: {removing:?}");
    check_eq!(device.walk(map.page_addr(700)).what("walk")?, 0, "a page that has gone");
    Ok(())
}

fn batches(ctx: &Ctx) -> Outcome {
    let _format = format(ctx)?;
    let _loaded = Loaded::new(ctx, NAME)?;
    let device = MirrorOnly::open_node(NODE).what("open the sample")?;
    // Page after page of two mappings in turn, so that hardly any two are in a row.
    let (map, other) = (Mapping::anon(PAGES)?, Mapping::anon(PAGES)?);
    for map in [&map, &other] {
        map.forbid_huge()?;
    }
    for page in 0..PAGES {
        map.set(page, 0, page as u64);
        other.set(page, 0, 0);
    }
    let mapping = calls_of_sum(&device, &map)?;
    let entries = pagemap::read(map.addr(), PAGES).what("page frames")?;
    let frames: Vec<_> = entries.iter().map(|entry| entry.pfn().unwrap_or(0)).collect();
    let breaks = frames.windows(2).filter(|pair| pair[1] != pair[0] + 1).count() as u64;
    let tables = 4;
    check!(breaks > PAGES as u64 / 8, "the memory is not scattered: {breaks} breaks");
    check!(mapping.maps <= breaks + 1 + 2 * tables, "{mapping:?} for {breaks} breaks");
    // 32 runs share a lock, and so do 64 walks.
    let (runs, walks) = (mapping.maps / 32, 2 * PAGES as u64 / 64);
    check!(mapping.locks <= runs + walks + 4 * tables, "{mapping:?}");
    let removing =
        calls_of(&device, || map.advise_pages(libc::MADV_DONTNEED, 0, PAGES).map_err(Stop::from))?;
    check!(removing.unmaps <= tables, "scattered pages that go: {removing:?}");
    check!(removing.locks <= 2 * tables, "scattered pages that go: {removing:?}");
    Ok(())
}

// SPDX-License-Identifier: GPL-2.0
//! Migration of base pages: back and forth, holes, madvise(), exhausted memory.

use crate::{
    check,
    check_eq,
    harness::{
        Ctx,
        Outcome,
        Stop,
        Test,
        What, //
    },
    mover::rounds,
    support::*, //
};
use hmm::{
    abi::FLAG_FAIL_ALLOC,
    mapping,
    pattern,
    Errno,
    Mapping,
    Prot,
    Setting,
    HUGE_PAGES,
    PAGE_SIZE, //
};
use std::time::Duration;

const PAGES: usize = 64;
const OOPS: &str = "a refault of its own device page: oops";

pub const TESTS: &[Test] = &[
    Test::new("migrate", "cpu_access_migrates_back", cpu_access_migrates_back).private(),
    Test::new("migrate", "request_migrates_back", request_migrates_back),
    Test::new("migrate", "second_migration_keeps_resident_entries", part_is_resident),
    Test::new("migrate", "resident_pages_without_entries_stay", resident_without_entries)
        .only_rust("entries for pages that are present already"),
    Test::new(
        "migrate",
        "holes_and_zero_pages_migrate_as_zero",
        holes_and_zero_pages_migrate_as_zero,
    )
    .defect(OOPS),
    Test::new("migrate", "lone_pages_in_an_empty_huge_range_migrate", lone_pages),
    Test::new("migrate", "device_writes_are_migrated_back", device_writes_are_migrated_back),
    Test::new("migrate", "release_migrates_back", release_evicts),
    Test::new("migrate", "cpu_reads_zero_after_dontneed", cpu_reads_zero_after_dontneed)
        .defect(OOPS),
    Test::new("migrate", "device_reads_zero_after_dontneed", device_reads_zero_after_dontneed)
        .defect(OOPS),
    Test::new("migrate", "dontneed_during_a_cpu_fault_reads_zero", dontneed_beside_a_cpu_fault)
        .only_rust("the C driver flushes at once")
        .private(),
    Test::new(
        "migrate",
        "device_write_after_madv_free_is_kept",
        device_write_after_madv_free_is_kept,
    )
    .defect(OOPS),
    Test::new("migrate", "failed_allocation_leaves_one_page_in_place", failed_allocation)
        .defect(OOPS),
    Test::new("migrate", "one_call_migrates_several_mappings", several_mappings).defect(OOPS),
    Test::new("migrate", "exclusive_access_ends_on_a_cpu_write", exclusive_access),
];

fn cpu_access_migrates_back(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    for round in 0..5 {
        map.fill(round);
        let delta = Delta::start(ctx, &device)?;
        migrate(&device, &map, round)?;
        delta.exactly("migrated_to_device", PAGES as i64, "after the migration")?;
        delta.exactly("device_pages_used", PAGES as i64, "after the migration")?;
        cpu_sees(&map, round, "of device pages")?;
        check_eq!(resident(&device, &map, 0, PAGES)?, 0, "device pages after the CPU read");
        delta.exactly("cpu_fault_pages", PAGES as i64, "after the CPU read")?;
        delta.at_least("cpu_faults", 1, "after the CPU read")?;
        delta.exactly("device_pages_used", 0, "after the CPU read")?;
    }
    Ok(())
}

fn request_migrates_back(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    migrate(&device, &map, 1)?;
    let delta = Delta::start(ctx, &device)?;
    let done = device.migrate_to_system(map.addr(), PAGES).what("migrate to the system")?;
    check_eq!(done.cpages, PAGES as u64, "cpages of the migration back");
    check_eq!(resident(&device, &map, 0, PAGES)?, 0, "device pages after the migration back");
    delta.exactly("migrated_to_system", PAGES as i64, "after the migration back")?;
    delta.exactly("device_pages_used", -(PAGES as i64), "after the migration back")?;
    cpu_sees(&map, 1, "after the migration back")?;
    delta.exactly("cpu_faults", 0, "when the CPU read pages migrated back by request")?;
    let none = device.migrate_to_system(map.addr(), PAGES).what("migrate nothing")?;
    check_eq!(none.cpages, 0, "cpages of a migration of nothing");
    Ok(())
}

/// Device PTEs of pages that are on the device already survive a second migration.
fn part_is_resident(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    migrate(&device, &map, 1)?;
    if !ctx.coherent() {
        for page in (0..PAGES).step_by(3) {
            map.check_pages(1, page, 1).what("CPU read of every third page")?;
        }
    }
    migrate(&device, &map, 1)?;
    device_fills(&device, &map, 2, "after the second migration")?;
    cpu_sees(&map, 2, "after the second migration")
}

/// Changing the protection leaves the pages in place and removes the device PTEs.
fn resident_without_entries(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let small = Mapping::anon(PAGES)?;
    let huge = huge(1, 2)?;
    small.fill(1);
    for (map, seed) in [(&small, 1), (&huge, 2)] {
        migrate(&device, map, seed)?;
        map.protect(Prot::Read)?;
        map.protect(Prot::ReadWrite)?;
        check_eq!(resident(&device, map, 0, map.pages())?, map.pages(), "pages on the device");
        let delta = Delta::start(ctx, &device)?;
        migrate(&device, map, seed)?;
        delta.exactly("migrate_skipped", 0, "after the second migration")?;
        delta.exactly("device_pages_used", 0, "after the second migration")?;
        delta.exactly("faults_read", 0, "after the second migration")?;
        cpu_sees(map, seed, "after the second migration")?;
    }
    Ok(())
}

fn holes_and_zero_pages_migrate_as_zero(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    // In turns: a hole, the zero page, data.
    for page in 0..PAGES {
        match page % 3 {
            0 => {}
            1 => check_eq!(map.get(page, 0), 0, "memory that was never written"),
            _ => map.fill_pages(1, page, 1),
        }
    }
    let seed = |page: usize| (page % 3 == 2).then_some(1);
    let mut data = vec![0xaa; map.len()];
    let done = device.migrate_to_device(map.addr(), &mut data).what("migrate")?;
    check_eq!(done.cpages, PAGES as u64, "cpages");
    pattern::compare(&data, 0, &seed).what("data that the migration returns")?;
    check_eq!(resident(&device, &map, 0, PAGES)?, PAGES, "pages on the device");
    device_fills_pages(&device, &map, 7, 0, 2, "of pages that were a hole and a zero page")?;
    map.check_pages(7, 0, 2).what("CPU read of words that the device wrote")?;
    let mut data = vec![0xaa; map.len() - 2 * PAGE_SIZE];
    device.read(map.page_addr(2), &mut data).what("device read")?;
    pattern::compare(&data, 2, &seed).what("device read of the rest")?;
    for page in 2..PAGES {
        let expected = seed(page).map_or(0, |seed| pattern::word(seed, page, 5));
        check_eq!(map.get(page, 5), expected, "CPU read of page {page}");
    }
    Ok(())
}

/// A few pages in an otherwise empty range of a huge page, followed by an empty range.
fn lone_pages(ctx: &Ctx) -> Outcome {
    const LONE: [usize; 3] = [0, 100, HUGE_PAGES - 1];
    let device = ctx.open()?;
    let map = Mapping::anon_aligned(2)?;
    for page in LONE {
        map.fill_pages(1, page, 1);
    }
    let seed = |page: usize| LONE.contains(&page).then_some(1);
    let mut data = vec![0xaa; map.len()];
    let done = device.migrate_to_device(map.addr(), &mut data).what("migrate")?;
    check_eq!(done.cpages, map.pages() as u64, "cpages");
    pattern::compare(&data, 0, &seed).what("data that the migration returns")?;
    for page in 0..map.pages() {
        let expected = seed(page).map_or(0, |seed| pattern::word(seed, page, 9));
        check_eq!(map.get(page, 9), expected, "CPU read of page {page}");
    }
    device.read(map.addr(), &mut data).what("device read")?;
    pattern::compare(&data, 0, &seed).what("device read at the end")
}

/// Data that the device has written migrates back: every second page by a CPU fault, the others by
/// request.
fn device_writes_are_migrated_back(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    migrate(&device, &map, 1)?;
    let delta = Delta::start(ctx, &device)?;
    let done = device_fills(&device, &map, 2, "of device pages")?;
    check_eq!(done.faults, 0, "fault rounds of a write to the device's own pages");
    delta.exactly("faults_write", 0, "of a write to the device's own pages")?;
    for page in (0..PAGES).step_by(2) {
        map.check_pages(2, page, 1).what("CPU read of every second page")?;
    }
    device.migrate_to_system(map.addr(), PAGES).what("migrate to the system")?;
    check_eq!(resident(&device, &map, 0, PAGES)?, 0, "device pages at the end");
    cpu_sees(&map, 2, "at the end")
}

fn release_evicts(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    migrate(&device, &map, 1)?;
    device_fills(&device, &map, 2, "of device pages")?;
    let delta = Delta::start(ctx, &device)?;
    device.release().what("release")?;
    check_eq!(resident(&device, &map, 0, PAGES)?, 0, "device pages after the release");
    delta.exactly("evicted_pages", PAGES as i64, "after the release")?;
    delta.exactly("device_pages_used", -(PAGES as i64), "after the release")?;
    cpu_sees(&map, 2, "after the release")?;
    device_sees(&device, &map, 2, "after the release")?;
    // The device gets memory again as soon as it needs some.
    migrate(&device, &map, 2)
}

fn dontneed(ctx: &Ctx, device_first: bool) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    let delta = Delta::start(ctx, &device)?;
    migrate(&device, &map, 1)?;
    map.advise_pages(mapping::MADV_DONTNEED, 0, PAGES / 2)?;
    delta.exactly("device_pages_used", (PAGES / 2) as i64, "after MADV_DONTNEED of half")?;
    if device_first {
        device_sees_zero(&device, &map, 0, PAGES / 2, "after MADV_DONTNEED")?;
    }
    map.check_zero(0, PAGES / 2).what("CPU read after MADV_DONTNEED")?;
    let half = PAGES / 2;
    device_sees_zero(&device, &map, 0, half, "after MADV_DONTNEED and a CPU read")?;
    device_sees_pages(&device, &map, 1, half, half, "of the other half")?;
    map.fill_pages(2, 0, half);
    device_sees_pages(&device, &map, 2, 0, half, "after the CPU wrote")?;
    map.check_pages(1, half, half).what("CPU read of the other half")
}

fn cpu_reads_zero_after_dontneed(ctx: &Ctx) -> Outcome {
    dontneed(ctx, false)
}

fn device_reads_zero_after_dontneed(ctx: &Ctx) -> Outcome {
    dontneed(ctx, true)
}

/// A CPU fault has found its page on the device, and waits for the device's flush before it
/// isolates the page. If the page is dropped meanwhile, the CPU reads zero, and no device page is
/// leaked.
fn dontneed_beside_a_cpu_fault(ctx: &Ctx) -> Outcome {
    const SLOW: u64 = 300_000_000;
    let device = ctx.open()?;
    let map = Mapping::anon(1)?;
    let mut dropped = 0;
    rounds(3, |round| {
        map.fill(round);
        migrate(&device, &map, round)?;
        device_fills_pages(&device, &map, round + 100, 0, 1, "before the drop")?;
        let before = device.counters()?;
        device.set(Setting::FlushDelay, SLOW)?;
        let word = std::thread::scope(|scope| -> Result<u64, Stop> {
            let toucher = scope.spawn(|| map.get(0, 7));
            std::thread::sleep(Duration::from_nanos(SLOW / 6));
            device.set(Setting::FlushDelay, 0)?;
            map.advise(mapping::MADV_DONTNEED)?;
            toucher.join().map_err(|_| Stop::Fail("the toucher panicked".into()))
        })?;
        let after = device.counters()?;
        // On a busy machine the page may have migrated back before it is dropped.
        let known = [0, pattern::word(round + 100, 0, 7)];
        check!(known.contains(&word), "the CPU read {word:#x}");
        let in_time = after.cpu_fault_pages == before.cpu_fault_pages;
        if in_time {
            check_eq!(word, 0, "the word that the CPU read of dropped pages");
            dropped += 1;
        }
        // The Rust runtime hides the first SIGBUS, but a fault that ended with SIGBUS is not
        // counted.
        check_eq!(after.cpu_faults, before.cpu_faults + 1, "CPU faults, round {round}");
        check_eq!(after.device_pages_used, before.device_pages_used - 1, "device pages in use");
        Ok(in_time)
    })?;
    println!("# dropped {dropped} times before it was isolated");
    check!(dropped > 0, "the page was never dropped in time");
    Ok(())
}

/// After MADV_FREE a page has its old contents or is zero. Data that is written later stays.
fn device_write_after_madv_free_is_kept(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    migrate(&device, &map, 1)?;
    map.advise(mapping::MADV_FREE)?;
    device_fills_pages(&device, &map, 2, 0, PAGES / 2, "after MADV_FREE")?;
    map.check_pages(2, 0, PAGES / 2).what("CPU read of words that the device wrote")?;
    for page in PAGES / 2..PAGES {
        let found = map.get(page, 3);
        let old = pattern::word(1, page, 3);
        check!(found == 0 || found == old, "page {page} is neither old nor zero: {found:#x}");
    }
    Ok(())
}

/// One failed allocation leaves one page in place, which stays usable.
fn failed_allocation(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    device.set_flags(FLAG_FAIL_ALLOC).what("set the flag")?;
    fails(try_migrate(&device, &map), Errno::ENOENT, "migration with a failed allocation")?;
    check_eq!(resident(&device, &map, 0, PAGES)?, PAGES - 1, "pages on the device");
    device_sees(&device, &map, 1, "after the failed allocation")?;
    cpu_sees(&map, 1, "after the failed allocation")?;
    migrate(&device, &map, 1)
}

/// One command over several mappings with different protection.
fn several_mappings(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    for page in (0..PAGES).step_by(4) {
        map.protect_pages(hmm::Prot::Read, page, 2)?;
    }
    migrate(&device, &map, 1)?;
    device_sees(&device, &map, 1, "of several mappings")?;
    fails(
        device.write(map.page_addr(4), &pattern::buffer(9, 4, 1)),
        Errno::EPERM,
        "device write of a read-only device page",
    )?;
    device_fills_pages(&device, &map, 2, 2, 2, "of a writable part")?;
    map.check_pages(2, 2, 2).what("CPU read of the writable part")?;
    map.check_pages(1, 4, 60).what("CPU read of the rest")
}

fn exclusive_access(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    let mut data = vec![0xaa; map.len()];
    let done = device.exclusive(map.addr(), &mut data).what("exclusive access")?;
    check_eq!(done.cpages, PAGES as u64, "cpages of exclusive access");
    pattern::check(1, 0, &data).what("data of exclusive access")?;
    fails(device.check_exclusive(map.addr(), PAGES), Errno::EPERM, "check of exclusive access")?;
    map.fill(2);
    device.check_exclusive(map.addr(), PAGES).what("check after the CPU wrote")?;
    device_sees(&device, &map, 2, "after exclusive access")?;
    Ok(())
}

// SPDX-License-Identifier: GPL-2.0
//! Effect of a migration on a running reader, and the outcome of each page.

use super::*;
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    Test, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::abi::HUGE_PAGES;
use hmm::engine::Way;
use hmm::PAGE_SIZE;
use hmm::{
    Command,
    Device,
    EngineOp,
    Mapping,
    PageOutcome,
    Setting, //
};
use std::time::{
    Duration,
    Instant, //
};

pub const TESTS: &[Test] = &[
    Test::new("faultless", "reads_never_fault", reads_never_fault).only_rust(OURS),
    Test::new("faultless", "thp_reads_never_fault", thp_reads_never_fault).only_rust(OURS),
    Test::new("faultless", "ordinary_migration_faults_readers", ordinary_migration_faults_readers)
        .only_rust(OURS),
    Test::new("faultless", "outcome_of_each_page_is_reported", outcome_of_each_page_is_reported)
        .only_rust(OURS),
    Test::new("faultless", "failed_copies_keep_contents", failed_copies).only_rust(OURS),
    Test::new("faultless", "run_migrates_without_its_immovable_page", some_of_a_run_stay)
        .only_rust(OURS),
    Test::new("faultless", "kept_write_access_loses_writes", kept_write).only_rust(OURS),
    Test::new("faultless", "skipped_flush_is_detected", skipped_flush)
        .only_rust(OURS)
        .skips_flushes(),
];

/// The device maps consecutive small pages by one large entry. If one of them is not migrated, the
/// others must migrate nevertheless.
fn some_of_a_run_stay(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    for stays in [0, 1, 100, HUGE_PAGES - 1] {
        let map = Mapping::anon_aligned(1)?;
        map.fill(1);
        let (done, _) = device.migrate_pages(map.addr(), map.pages(), Way::ToDevice)?;
        check_eq!(done.moved, map.pages() as u64, "pages moved to the device");
        device_sees(&device, &map, 1, "on the device")?;
        device.set(Setting::CopyFail, stays as u64)?;
        let (done, pages) = device.migrate_pages(map.addr(), map.pages(), Way::ToSystem)?;
        check_eq!((done.moved, done.copy_failed), (map.pages() as u64 - 1, 1), "sums");
        check_eq!(pages[stays], PageOutcome::CopyFailed, "page {stays}");
        let behind = HUGE_PAGES - stays - 1;
        map.fill_pages(2, 0, stays);
        map.fill_pages(2, stays + 1, behind);
        for (first, npages) in [(0, stays), (stays + 1, behind)] {
            if npages > 0 {
                device_sees_pages(&device, &map, 2, first, npages, "beside pages that stay")?;
            }
        }
        device_sees_pages(&device, &map, 1, stays, 1, "of pages that stay")?;
        map.check_pages(1, stays, 1).what("CPU read of pages that stayed")?;
    }
    no_stale_hits(&device)
}

/// Reads during round trips. Returns the numbers of pages moved, pages switched, faults and stalls.
fn trips(device: &Device, map: &Mapping, faultless: bool) -> Result<(u64, u64, u64, u64), Stop> {
    map.fill(1);
    let job = watch(device, map, 1)?;
    let before = device.counters()?;
    let mut moved = 0;
    let mut switched = 0;
    for _ in 0..3 {
        for way in [Way::ToDevice, Way::ToSystem] {
            let done = device.migrate(map.addr(), map.pages(), way.faultless(faultless))?;
            moved += done.moved;
            switched += done.switched;
        }
    }
    let after = device.counters()?;
    watched(&job, "during migrations")?;
    no_stale_hits(device)?;
    cpu_sees(map, 1, "at the end")?;
    let faults = after.engine_faults_read - before.engine_faults_read;
    Ok((moved, switched, faults, after.stalls_read - before.stalls_read))
}

fn reads_never_fault(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon_aligned(2)?;
    let pages = map.pages() as u64;
    let found = trips(&device, &map, true)?;
    check_eq!(found, (6 * pages, 6 * pages, 0, 0), "moved, switched, faults, stalls");
    Ok(())
}

fn thp_reads_never_fault(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = huge(2, 1)?;
    let pages = map.pages() as u64;
    let (moved, switched, faults, stalls) = trips(&device, &map, true)?;
    check_eq!(moved, 6 * pages, "pages moved");
    if !ctx.coherent() {
        // Coherent folios are small. Splitting the huge page causes a foreign event.
        check_eq!((switched, faults, stalls), (6 * pages, 0, 0), "switched, faults, stalls");
    }
    Ok(())
}

fn ordinary_migration_faults_readers(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon_aligned(2)?;
    let (moved, switched, faults, stalls) = trips(&device, &map, false)?;
    check!(moved > 0 && switched == 0, "{moved} moved, {switched} switched");
    check!(faults > 0 && stalls > 0, "{faults} faults, {stalls} stalls: the counter is dead");
    Ok(())
}

fn outcome_of_each_page_is_reported(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon(8)?;
    map.fill(1);
    // The device has PTEs of the first four pages.
    let read = Command::new(EngineOp::Read, map.addr(), 4 * PAGE_SIZE);
    check_eq!(device.run(read)?.error, None, "READ");
    let (done, pages) = device.migrate_pages(map.addr(), 8, Way::ToDevice)?;
    let expected = [[PageOutcome::Switched; 4], [PageOutcome::Moved; 4]].concat();
    check_eq!(pages, expected, "outcomes of the way there");
    check_eq!((done.moved, done.switched, done.skipped), (8, 4, 0), "sums of the way there");
    let (_, pages) = device.migrate_pages(map.addr(), 8, Way::ToDevice)?;
    check_eq!(pages, [PageOutcome::None; 8], "outcomes of pages that are there");
    device.set(Setting::CopyFail, 2)?;
    let (done, pages) = device.migrate_pages(map.addr(), 8, Way::ToSystem)?;
    check_eq!((done.moved, done.copy_failed), (7, 1), "sums with a failed copy");
    let failed = pages.iter().filter(|page| **page == PageOutcome::CopyFailed).count();
    let switched = pages.iter().filter(|page| **page == PageOutcome::Switched).count();
    check_eq!((failed, switched), (1, 7), "outcomes with a failed copy: {pages:?}");
    check_eq!(resident(&device, &map, 0, 8)?, 1, "pages that stay");
    let (_, pages) = device.migrate_pages(map.addr(), 8, Way::ToSystem)?;
    let moved = pages.iter().filter(|page| page == &&PageOutcome::Switched).count();
    let none = pages.iter().filter(|page| page == &&PageOutcome::None).count();
    check_eq!((moved, none), (1, 7), "outcomes of the rest: {pages:?}");
    cpu_sees(&map, 1, "at the end")
}

fn failed_copies(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    for (map, is_huge) in [(Mapping::anon_aligned(1)?, false), (huge(1, 1)?, true)] {
        map.fill(1);
        let job = watch(&device, &map, 1)?;
        let mut failed = 0;
        let before = device.counters()?.engine_faults_read;
        repeat(|round| {
            device.set(Setting::CopyFail, round % 7)?;
            for way in [Way::ToDevice, Way::ToSystem] {
                failed += device.migrate(map.addr(), map.pages(), way)?.copy_failed;
            }
            Ok(())
        })?;
        device.set(Setting::CopyFail, u64::MAX)?;
        let faults = device.counters()?.engine_faults_read - before;
        // A huge page of coherent memory is split during the migration, by events that invalidate
        // its entries (H8).
        let may_fault = ctx.coherent() && is_huge;
        check!(faults == 0 || may_fault, "{faults} read faults of pages that stay, or move");
        watched(&job, "while copies fail")?;
        check!(failed > 0, "no copy failed");
        cpu_sees(&map, 1, "after failed copies")?;
        device_sees(&device, &map, 1, "after failed copies")?;
    }
    check!(device.counters()?.copy_failures > 0, "no failure was counted");
    no_stale_hits(&device)
}

/// Proves that the test of H1 can fail: if write access is kept, writes are lost.
fn kept_write(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    for keep in [0, 1] {
        device.set(Setting::KeepWrite, keep)?;
        let map = Mapping::anon_aligned(1)?;
        map.set(3, 0, 0);
        let add = Command::new(EngineOp::AtomicAdd, map.addr() + 3 * PAGE_SIZE, 8).stride(8);
        let job = device.submit(add.value(1).rounds(0))?;
        let begin = Instant::now();
        let mut lost = 0;
        for round in 0.. {
            let way = if round % 2 == 0 { Way::ToDevice } else { Way::ToSystem };
            check!(device.migrate(map.addr(), map.pages(), way)?.moved > 0, "nothing moved");
            if round >= 8 || begin.elapsed() > Duration::from_secs(20) {
                break;
            }
        }
        let ended = job.finish()?;
        check_eq!(ended.error, None, "end of the writer");
        lost += ended.status.rounds - map.get(3, 0);
        check!(ended.status.rounds > 0, "no addition");
        check_eq!(lost > 0, keep == 1, "whether one of {lost} additions was lost");
    }
    Ok(())
}

/// Proves that stale translations after a commit would be detected.
fn skipped_flush(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon(16)?;
    map.fill(1);
    let job = watch(&device, &map, 1)?;
    // Translations that the reader drops while a flush is pending do not count as stale. On a busy
    // machine these can be all of them, so try again.
    for (skip, tries) in [(0, 1), (2, 50)] {
        let mut stale = 0;
        for _ in 0..tries {
            device.set(Setting::SkipFlush, skip)?;
            for way in [Way::ToDevice, Way::ToSystem] {
                device.migrate(map.addr(), map.pages(), way)?;
                let rounds = job.poll(Duration::ZERO)?.1.rounds;
                let begin = Instant::now();
                while job.poll(Duration::from_millis(2))?.1.rounds < rounds + 2 {
                    check!(begin.elapsed() < Duration::from_secs(30), "the reader stands still");
                }
            }
            stale = device.counters()?.stale_hits;
            if stale > 0 {
                break;
            }
        }
        check_eq!(stale > 0, skip > 0, "whether {stale} stale hits were counted");
    }
    // The mock device detects stale translations and does not use them, so the checksums are right.
    watched(&job, "with skipped flushes")?;
    cpu_sees(&map, 1, "at the end")
}

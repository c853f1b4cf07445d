// SPDX-License-Identifier: GPL-2.0
//! Blocks of a migration that are isolated while the previous ones are copied.

use super::memory::with;
use super::module_reload::unload;
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
use hmm::child::{
    self,
    Gate, //
};
use hmm::engine::{
    Migration,
    Way, //
};
use hmm::{
    pattern,
    Child,
    Command,
    Device,
    EngineOp,
    Errno,
    Mapping,
    Setting,
    HUGE_PAGES, //
};
use std::time::{
    Duration,
    Instant, //
};

const OURS: &str = "the C driver migrates in one step";

pub const TESTS: &[Test] = &[
    Test::new("migrate", "isolation_overlaps_with_copies", time).only_rust(OURS).private().timed(),
    Test::new("migrate", "only_pmd_mapped_huge_pages_overlap", huge_pages)
        .only_rust(OURS)
        .private(),
    Test::new("migrate", "holes_end_an_overlap_if_large_folios_are_possible", holes)
        .only_rust(OURS)
        .private(),
    Test::new("migrate", "dontneed_of_two_blocks_in_flight", dontneed).only_rust(OURS).private(),
    Test::new("migrate", "munmap_of_two_blocks_in_flight", unmapped).only_rust(OURS).private(),
    Test::new("migrate", "cpu_faults_on_two_blocks_in_flight", cpu_faults)
        .only_rust(OURS)
        .private(),
    Test::new("migrate", "killed_with_two_blocks_in_flight", killed).only_rust(OURS).private(),
];

/// Tests in the group that unloads modules.
pub const UNPLUGGED: &[Test] =
    &[Test::new("memory", "unplug_with_two_blocks_in_flight", unplugged)
        .only_rust(OURS)
        .private()
        .seconds(120)];

/// Copy delay of each page, with which a block takes at least half a second.
const SLOW: u64 = 1_000_000;

/// Returns how often overlaps ended for the reason `name`, or how many blocks were `isolated`.
fn overlaps(name: &str) -> Result<u64, Stop> {
    let text = std::fs::read_to_string("/sys/kernel/debug/rust_hmm/overlaps").what("read")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let count = line.and_then(|count| count.trim().parse().ok());
    count.ok_or_else(|| Stop::Fail(format!("no {name} in {text:?}")))
}

/// Fills small pages of which the device has no PTEs, and migrates another page, so that the
/// library has measured that copies take `delay`.
fn slow(device: &Device, map: &Mapping, delay: u64) -> Outcome {
    map.fill(1);
    settle()?;
    let first = Mapping::anon(1)?;
    first.fill(1);
    settle()?;
    device.set(Setting::CopyDelay, delay).what("set the delay")?;
    check_eq!(device.migrate(first.addr(), 1, Way::ToDevice)?.moved, 1, "the first page");
    Ok(())
}

/// Migrates `map`, and calls `during` when the second block was isolated while the first one was
/// copied.
fn with_two_in_flight<T>(
    device: &Device,
    map: &Mapping,
    during: impl FnOnce() -> Result<T, Stop>,
) -> Result<(Result<Migration, Errno>, T), Stop> {
    slow(device, map, SLOW)?;
    let before = overlaps("isolated")?;
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| device.migrate(map.addr(), map.pages(), Way::ToDevice));
        let result = until("an overlap", || {
            check!(!mover.is_finished(), "it ended without an overlap");
            Ok(overlaps("isolated")? > before)
        });
        let result = result.and_then(|()| during());
        // This fails if the device was unplugged.
        let _ = device.set(Setting::CopyDelay, 0);
        let done = mover.join().map_err(|_| Stop::Fail("a thread panicked".into()))?;
        Ok((done, result?))
    })
}

/// One call that migrates eight blocks takes less time than eight calls, each of which waits for
/// its copies.
fn time(ctx: &Ctx) -> Outcome {
    const BLOCKS: usize = 8;
    let device = ctx.open()?;
    let map = Mapping::anon_aligned(BLOCKS)?;
    slow(&device, &map, 20_000)?;
    let mut one = Duration::MAX;
    let mut each = Duration::MAX;
    for _ in 0..3 {
        for by_one in [true, false] {
            let before = overlaps("isolated")?;
            let start = Instant::now();
            let calls = if by_one { 1 } else { BLOCKS };
            let pages = map.pages() / calls;
            for call in 0..calls {
                let done = device.migrate(map.page_addr(call * pages), pages, Way::ToDevice)?;
                check_eq!(done.moved, pages as u64, "pages that moved");
            }
            let took = start.elapsed();
            let overlapped = overlaps("isolated")? - before;
            if by_one {
                check!(overlapped > 0, "no block overlapped");
                one = one.min(took);
            } else {
                check_eq!(overlapped, 0, "blocks of calls for one that overlapped");
                each = each.min(took);
            }
            device_sees(&device, &map, 1, "of device memory")?;
            device.migrate(map.addr(), map.pages(), Way::ToSystem)?;
            settle()?;
        }
    }
    device.set(Setting::CopyDelay, 0).what("set the delay back")?;
    check!(one < each, "one call took {one:?}, eight calls {each:?}");
    cpu_sees(&map, 1, "afterwards")
}

/// A huge page that is mapped by a huge PMD overlaps. One that is mapped by PTEs does not.
fn huge_pages(ctx: &Ctx) -> Outcome {
    const LONG: u64 = 300_000_000;
    let device = ctx.open()?;
    for parts in [false, true] {
        let map = huge(3, 1)?;
        if parts {
            // Punch a hole of one page into the second block, and fill it with a small page.
            map.advise_pages(libc::MADV_DONTNEED, HUGE_PAGES + 7, 1).what("advise")?;
            map.fill_pages(1, HUGE_PAGES + 7, 1);
        }
        settle()?;
        let first = Mapping::anon(1)?;
        first.fill(1);
        settle()?;
        device.set(Setting::CopyDelay, LONG).what("set the delay")?;
        check_eq!(device.migrate(first.addr(), 1, Way::ToDevice)?.moved, 1, "the first page");
        let before = (overlaps("isolated")?, overlaps("pages")?);
        let done = std::thread::scope(|scope| {
            let mover = scope.spawn(|| device.migrate(map.addr(), map.pages(), Way::ToDevice));
            let looked = until("a look at the second block", || {
                check!(!mover.is_finished(), "it ended without a look");
                Ok(overlaps("isolated")? > before.0 || overlaps("pages")? > before.1)
            });
            // The delay of each copy. Small pages are copied one by one.
            let delay = if parts { SLOW } else { LONG };
            let set = device.set(Setting::CopyDelay, delay).what("set another delay");
            let done = mover.join().map_err(|_| Stop::Fail("a thread panicked".into()));
            looked.and(set).and(done)
        })?;
        device.set(Setting::CopyDelay, 0).what("set the delay back")?;
        check_eq!(done.what("migrate")?.moved, map.pages() as u64, "pages that moved");
        let after = (overlaps("isolated")?, overlaps("pages")?);
        let ends = (after.0 - before.0, after.1 - before.1);
        check_eq!(ends.1, u64::from(parts), "blocks that may have to be split (parts: {parts})");
        check_eq!(ends.0, 2 - u64::from(parts), "blocks that overlapped (parts: {parts})");
        device_sees(&device, &map, 1, "of device memory")?;
        cpu_sees(&map, 1, "afterwards")?;
    }
    Ok(())
}

/// A hole may be filled by a large folio before it is isolated, but not where huge pages are
/// disabled.
fn holes(ctx: &Ctx) -> Outcome {
    const ATTEMPTS: usize = 5;
    let device = ctx.open()?;
    for forbidden in [true, false] {
        if !forbidden {
            needs_huge_pages()?;
        }
        let mut ends = (0, 0);
        for _ in 0..ATTEMPTS {
            ends = migrate_with_hole(&device, forbidden)?;
            // On a loaded machine the copy may end before the look at the second block.
            if ends != (0, 0) {
                break;
            }
        }
        let expected = if forbidden { (1, 0) } else { (0, 1) };
        check_eq!(ends, expected, "ends of the overlap (forbidden: {forbidden})");
    }
    Ok(())
}

/// Migrates two blocks, with a hole in the second one. Returns how often the second block was
/// isolated during the copy of the first, and how often it could not be because of its pages.
fn migrate_with_hole(device: &Device, forbidden: bool) -> Result<(u64, u64), Stop> {
    const HOLE: usize = HUGE_PAGES + 9;
    let map = Mapping::anon_aligned(2)?;
    slow(device, &map, SLOW / 4)?;
    map.advise_pages(libc::MADV_DONTNEED, HOLE, 1).what("advise")?;
    if !forbidden {
        map.allow_huge().what("allow huge pages")?;
    }
    let before = (overlaps("isolated")?, overlaps("pages")?);
    let done = device.migrate(map.addr(), map.pages(), Way::ToDevice);
    device.set(Setting::CopyDelay, 0).what("set the delay back")?;
    check_eq!(done.what("migrate")?.moved, map.pages() as u64, "pages that moved");
    let after = (overlaps("isolated")?, overlaps("pages")?);
    device_sees_zero(device, &map, HOLE, 1, "of the hole")?;
    map.check_pages(1, 0, HOLE).what("CPU read before the hole")?;
    map.check_pages(1, HOLE + 1, map.pages() - HOLE - 1).what("CPU read behind the hole")?;
    Ok((after.0 - before.0, after.1 - before.1))
}

/// Pages of both blocks are dropped. They must not reappear, and the other pages migrate.
fn dontneed(ctx: &Ctx) -> Outcome {
    const DROPPED: [usize; 2] = [3, HUGE_PAGES + 40];
    const COUNT: usize = 5;
    let device = ctx.open()?;
    let map = Mapping::anon_aligned(3)?;
    let before = device.counters()?.device_pages_used;
    let (done, ()) = with_two_in_flight(&device, &map, || {
        for first in DROPPED {
            map.advise_pages(libc::MADV_DONTNEED, first, COUNT).what("advise")?;
        }
        Ok(())
    })?;
    done.what("migrate")?;
    for first in DROPPED {
        device_sees_zero(&device, &map, first, COUNT, "of dropped pages")?;
    }
    let mut rest = 0;
    for (first, end) in [(0, DROPPED[0]), (DROPPED[0] + COUNT, DROPPED[1])] {
        device_sees_pages(&device, &map, 1, first, end - first, "of the others")?;
        rest += end - first;
    }
    let last = DROPPED[1] + COUNT;
    device_sees_pages(&device, &map, 1, last, map.pages() - last, "of the last ones")?;
    rest += map.pages() - last;
    check_eq!(resident(&device, &map, last, map.pages() - last)?, map.pages() - last, "there");
    map.check_pages(1, last, map.pages() - last).what("CPU read")?;
    check_eq!(rest + 2 * COUNT, map.pages(), "pages that were looked at");
    drop(map);
    until("the end of the pages", || Ok(device.counters()?.device_pages_used <= before + 1))
}

/// Another thread unmaps pages of both blocks and waits for the mmap lock. No third block may be
/// isolated meanwhile.
fn unmapped(ctx: &Ctx) -> Outcome {
    const COUNT: usize = 8;
    const FIRST: usize = HUGE_PAGES - COUNT / 2;
    let device = ctx.open()?;
    let map = Mapping::anon_aligned(4)?;
    let before = overlaps("contended")?;
    let (done, ()) =
        with_two_in_flight(&device, &map, || map.unmap_pages(FIRST, COUNT).what("unmap"))?;
    // The pages behind the hole are in another mapping, and migrate, too.
    done.what("migrate")?;
    check!(overlaps("contended")? > before, "the overlap continued while a writer waited");
    let behind = FIRST + COUNT;
    let rest = map.pages() - behind;
    device_sees_pages(&device, &map, 1, 0, FIRST, "before the hole")?;
    device_sees_pages(&device, &map, 1, behind, rest, "behind the hole")?;
    map.check_pages(1, 0, FIRST).what("CPU read before the hole")?;
    map.check_pages(1, behind, rest).what("CPU read behind the hole")
}

/// An engine reads both blocks without a fault. Then a CPU touches them.
fn cpu_faults(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon_aligned(3)?;
    map.fill(1);
    device_sees(&device, &map, 1, "of system memory")?;
    let read = Command::new(EngineOp::Read, map.addr(), map.len()).rounds(0);
    let job = device.submit(read).what("submit")?;
    until("the first round", || Ok(job.poll(Duration::ZERO)?.1.rounds > 0))?;
    let before = device.counters()?;
    let result = with_two_in_flight(&device, &map, || {
        let during = device.counters()?;
        for page in [5, HUGE_PAGES + 5] {
            let word = map.get(page, 0);
            check_eq!(word, pattern::word(1, page, 0), "page {page} as the CPU sees it");
        }
        Ok(during)
    });
    job.stop().what("stop")?;
    check_eq!(job.wait().what("wait")?.error, None, "end of the engine");
    let (done, during) = result?;
    done.what("migrate")?;
    let faults = during.engine_faults_read - before.engine_faults_read;
    check_eq!(faults, 0, "read faults before the CPU touched a page");
    cpu_sees(&map, 1, "afterwards")
}

/// A device is unplugged, which waits for both blocks. Their pages stay in system memory.
fn unplugged(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &vram(32))?;
    let device = ctx.open()?;
    let map = Mapping::anon_aligned(3)?;
    let (done, used) = with_two_in_flight(&device, &map, || {
        device.unplug(0, 0).what("unplug")?;
        Ok(device.counters()?.device_pages_used)
    })?;
    check_eq!(done.map(|done| done.moved), Err(Errno::ENODEV), "end of the migration");
    check_eq!(used, 0, "pages in use when unplug has returned");
    check_eq!(device.counters()?.device_pages_used, 0, "pages that came later");
    cpu_sees(&map, 1, "after the device was unplugged")?;
    drop(map);
    device.close().what("close")?;
    unload(ctx)
}

/// A killed task does not wait for the copies of both blocks.
fn killed(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let used = device.counters()?.device_pages_used;
    let gate = Gate::new()?;
    let before = overlaps("isolated")?;
    let mut child = Child::spawn(|| -> Outcome {
        let own = ctx.open()?;
        let mine = Mapping::anon_aligned(3)?;
        slow(&own, &mine, 1_000_000_000)?;
        gate.open()?;
        own.migrate(mine.addr(), mine.pages(), Way::ToDevice)?;
        Ok(())
    })?;
    gate.wait().what("wait for the child")?;
    let overlapped = until("an overlap", || Ok(overlaps("isolated")? > before));
    child.signal(child::SIGKILL);
    let ended = child.wait_timeout(Duration::from_secs(10));
    device.set(Setting::CopyDelay, 0).what("set the delay back")?;
    overlapped?;
    check_eq!(ended, Some(child::Ended::Signal(9)), "10 s after it was killed");
    until("the end of its pages", || Ok(device.counters()?.device_pages_used <= used))?;
    // The copy engine still serves other processes.
    let map = Mapping::anon_aligned(2)?;
    map.fill(1);
    settle()?;
    let moved = device.migrate(map.addr(), map.pages(), Way::ToDevice)?;
    check_eq!(moved.moved, map.pages() as u64, "pages moved afterwards");
    cpu_sees(&map, 1, "afterwards")
}

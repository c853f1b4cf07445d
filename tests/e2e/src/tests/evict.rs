// SPDX-License-Identifier: GPL-2.0
//! Eviction finds pages by their reverse mapping. Tests with concurrent unmapping, and with pages
//! of which only a part is mapped.

use super::faultless::no_stale_hits;
use super::memory::{
    block,
    to_device,
    with, //
};
use super::module_reload::unload;
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    Test,
    What, //
};
use crate::mover::{
    self,
    rounds, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::engine::{
    Setting,
    Way, //
};
use hmm::{
    inject,
    mapping,
    Child,
    Gate,
    Mapping,
    HUGE_PAGES, //
};
use std::ops::Range;
use std::time::{
    Duration,
    Instant, //
};

const OURS: &str = "the C driver evicts by physical page";

pub const TESTS: &[Test] = &[
    Test::new("memory", "munmap_waits_for_eviction", munmap_waits_for_eviction)
        .only_rust(OURS)
        .private(),
    Test::new("memory", "partially_mapped_huge_pages_are_evicted", parts).only_rust(OURS),
    Test::new("memory", "huge_page_parts_of_two_processes_are_evicted", parts_of_two_processes)
        .only_rust(OURS),
    Test::new("memory", "pages_mapped_only_by_a_child_are_evicted", of_a_child).only_rust(OURS),
    Test::new("memory", "munmap_during_the_rmap_walk_is_safe", munmap_during_rmap_walk)
        .only_rust(OURS)
        .private(),
    Test::new("memory", "eviction_tries_a_bounded_number_of_mappings", bounded_users)
        .only_rust(OURS),
    Test::new("memory", "eviction_time_is_independent_of_other_mappings", pieces)
        .only_rust(OURS)
        .private(),
    Test::new("memory", "small_mappings_while_oversubscribed", small_mappings)
        .only_rust(OURS)
        .private()
        .seconds(200),
];

/// The anon_vma of isolated pages is needed to restore them, and lives only as long as their
/// mapping. So an unmap must wait for the eviction. Otherwise KASAN reports a use after free.
fn munmap_waits_for_eviction(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    // All pages in one block, which is isolated in one call. The unmap waits for isolated pages
    // only, so between two blocks it would not wait.
    let map = Mapping::anon_aligned(1)?;
    map.forbid_huge()?;
    map.fill_pages(1, 0, 64);
    let done = device.migrate(map.addr(), 64, Way::ToDevice).what("migrate")?;
    check_eq!(done.moved, 64, "pages that moved");
    let old = device.set(Setting::CopyDelay, 15_000_000)?;
    let begin = Instant::now();
    let copied = device.counters()?.bytes_copied;
    std::thread::scope(|scope| -> Outcome {
        let evictor = scope.spawn(|| device.release());
        until("the first copy", || Ok(device.counters()?.bytes_copied > copied))?;
        check!(!evictor.is_finished(), "the copy is not slow");
        map.unmap_pages(0, 64)?;
        let waited = begin.elapsed();
        let done = evictor.join().map_err(|_| Stop::Fail("the evictor panicked".to_string()))?;
        done.what("release")?;
        check!(
            waited >= Duration::from_millis(700),
            "ended after {waited:?}, before its pages were migrated"
        );
        Ok(())
    })?;
    device.set(Setting::CopyDelay, old)?;
    check_eq!(device.counters()?.device_pages_used, 0, "pages on the device");
    no_stale_hits(&device)
}

fn nothing_left(device: &hmm::Device, what: &str) -> Outcome {
    device.release().what(&format!("release, {what}"))?;
    check_eq!(device.counters()?.device_pages_used, 0, "pages on the device, {what}");
    Ok(())
}

/// A part of a huge page was unmapped, dropped or moved elsewhere.
fn parts(ctx: &Ctx) -> Outcome {
    let half = HUGE_PAGES / 2;
    for gone in [0..half, 0..1, 1..HUGE_PAGES, half..HUGE_PAGES, 7..8] {
        for how in ["unmapped", "dropped", "moved"] {
            let what = format!("pages {gone:?} {how}");
            let Range { start, end } = gone;
            let device = ctx.open()?;
            let map = huge(1, 1)?;
            let target = Mapping::anon(HUGE_PAGES + 3)?;
            migrate(&device, &map, 1)?;
            match how {
                "unmapped" => map.unmap_pages(start, end - start)?,
                "dropped" => map.advise_pages(mapping::MADV_DONTNEED, start, end - start)?,
                _ => map.move_pages(start, end - start, &target, start + 3)?,
            }
            nothing_left(&device, &what)?;
            map.check_pages(1, 0, start).what(&what)?;
            map.check_pages(1, end, HUGE_PAGES - end).what(&what)?;
            if how == "moved" {
                for page in start..end {
                    let expected = hmm::pattern::word(1, page, 5);
                    check_eq!(target.get(page + 3, 5), expected, "page {page}, {what}");
                }
            }
        }
    }
    Ok(())
}

/// The parent maps the second half of a huge page, and the child the first half.
fn parts_of_two_processes(ctx: &Ctx) -> Outcome {
    let half = HUGE_PAGES / 2;
    let device = ctx.open()?;
    let map = huge(1, 1)?;
    migrate(&device, &map, 1)?;
    let ready = Gate::new()?;
    let go = Gate::new()?;
    let child = Child::spawn(|| -> Outcome {
        map.unmap_pages(half, half)?;
        ready.open()?;
        go.wait()?;
        map.check_pages(1, 0, half).what("by the child")
    })?;
    ready.wait()?;
    map.unmap_pages(0, half)?;
    nothing_left(&device, "half of it in each process")?;
    go.open()?;
    child.join().map_err(Stop::Fail)?;
    map.check_pages(1, half, half).what("by the parent")
}

/// The parent still has the mapping, but no PTEs.
fn of_a_child(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    for map in [Mapping::anon(32)?, huge(1, 1)?] {
        map.fill(1);
        migrate(&device, &map, 1)?;
        let ready = Gate::new()?;
        let go = Gate::new()?;
        let child = Child::spawn(|| -> Outcome {
            ready.open()?;
            go.wait()?;
            map.check(1).what("by the child")
        })?;
        ready.wait()?;
        map.advise(mapping::MADV_DONTNEED)?;
        nothing_left(&device, "with the child alone")?;
        go.open()?;
        child.join().map_err(Stop::Fail)?;
        map.check_zero(0, map.pages()).what("by the parent")?;
    }
    Ok(())
}

/// Maps two pages with an anon_vma of their own, fills them, and migrates them to the device.
fn small_mapping(device: &hmm::Device, seed: u64) -> Result<Mapping, Stop> {
    let map = Mapping::anon(2)?;
    map.fill(seed);
    device.migrate(map.addr(), 2, Way::ToDevice).what("migrate a small mapping")?;
    Ok(map)
}

/// The anon_vma of a page is freed between the moment at which an eviction reads it and the moment
/// at which the eviction takes its lock. KASAN would report a use after free. Without KASAN the
/// memory stays in its slab cache, so the test only runs the race.
fn munmap_during_rmap_walk(ctx: &Ctx) -> Outcome {
    const POINT: &str = "window";
    const OTHERS: usize = 1000;
    let device = ctx.open()?;
    let mut in_time = 0;
    rounds(4, |round| {
        // Leave a mapping without an anon_vma between two mappings, so that none shares that of its
        // neighbour.
        let map = Mapping::anon_prot(2 * OTHERS, hmm::Prot::None)?;
        for page in (0..2 * OTHERS).step_by(2) {
            map.protect_pages(hmm::Prot::ReadWrite, page, 1)?;
            map.fill_pages(round, page, 1);
        }
        let done = device.migrate(map.page_addr(OTHERS), 1, Way::ToDevice).what("migrate")?;
        check_eq!(done.moved, 1, "pages that moved");
        let before = inject::point_state(POINT)?.failures;
        inject::set_point(POINT, "1").what("set the point")?;
        let looked_up = std::thread::scope(|scope| -> Result<bool, Stop> {
            let evictor = scope.spawn(|| device.release());
            let begin = Instant::now();
            while inject::point_state(POINT)?.failures == before {
                check!(begin.elapsed() < Duration::from_secs(20), "no page was evicted");
            }
            map.unmap_pages(OTHERS - 4, 8)?;
            let in_time = !evictor.is_finished();
            map.unmap_pages(0, OTHERS - 4)?;
            map.unmap_pages(OTHERS + 4, OTHERS - 4)?;
            let done = evictor.join().map_err(|_| Stop::Fail("the evictor panicked".into()))?;
            done.what("release")?;
            Ok(in_time)
        });
        inject::clear_points().what("clear the points")?;
        // On a busy machine the eviction may end before the pages are unmapped.
        in_time += u64::from(looked_up?);
        check_eq!(device.counters()?.device_pages_used, 0, "pages on the device");
        Ok(in_time >= 2)
    })?;
    check!(in_time >= 2, "pages were unmapped in time in {in_time} rounds");
    Ok(())
}

/// Threads map, migrate and unmap small mappings, while other threads need more device memory than
/// there is. Runs for `--cycles` times the time of a race (`--race`): 300 s with 100 and 3 s, as
/// `make release` has them.
fn small_mappings(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &vram(2))?;
    let device = ctx.open()?;
    let end = Instant::now() + mover::race_time() * ctx.cycles;
    // Continue until at least one page was evicted.
    let evicted = || device.placement().is_ok_and(|placement| placement.evicted_for_room > 0);
    let late = end + Duration::from_secs(20);
    let goes_on = || Instant::now() < end || (Instant::now() < late && !evicted());
    let evictor = |seed: u64| -> Outcome {
        let maps = (0..3).map(|index| block(seed + index)).collect::<Result<Vec<_>, _>>()?;
        while goes_on() {
            for (map, seed) in maps.iter().zip(seed..) {
                to_device(&device, map)?;
                map.check_pages(seed, 0, 1).what("by the CPU")?;
            }
        }
        maps.iter().zip(seed..).try_for_each(|(map, seed)| cpu_sees(map, seed, "at the end"))
    };
    let mapper = |seed: u64| -> Outcome {
        let mut round = seed;
        while goes_on() {
            let map = small_mapping(&device, round)?;
            let other = small_mapping(&device, round + 1)?;
            if round % 3 == 0 {
                cpu_sees(&map, round, "of a small mapping")?;
            }
            drop(map);
            cpu_sees(&other, round + 1, "of another small mapping")?;
            round += 2;
        }
        Ok(())
    };
    std::thread::scope(|scope| -> Outcome {
        let evictors = [100, 200].map(|seed| scope.spawn(move || evictor(seed)));
        let mappers = [1_000_000, 2_000_000].map(|seed| scope.spawn(move || mapper(seed)));
        let mut all = evictors.into_iter().chain(mappers);
        all.try_for_each(|thread| {
            thread.join().map_err(|_| Stop::Fail("a thread panicked".into()))?
        })
    })?;
    check!(device.placement()?.evicted_for_room > 0, "nothing was evicted");
    no_stale_hits(&device)?;
    nothing_left(&device, "at the end")?;
    device.close().what("close")?;
    unload(ctx)
}

/// Runs `run` while `count` child processes share the mappings of this process.
fn with_children(count: usize, run: impl FnOnce() -> Outcome) -> Outcome {
    let gates = (0..count).map(|_| Gate::new()).collect::<Result<Vec<_>, _>>()?;
    let children = gates
        .iter()
        .map(|gate| Child::spawn(|| gate.wait().what("wait for the parent")))
        .collect::<Result<Vec<_>, _>>()?;
    let ran = run();
    gates.iter().try_for_each(|gate| gate.open())?;
    children.into_iter().try_for_each(|child| child.join().map_err(Stop::Fail))?;
    ran
}

/// If a page that many processes map cannot be isolated, an eviction tries only a few of its
/// mappings.
fn bounded_users(ctx: &Ctx) -> Outcome {
    /// The limits of the library, see `memory/evict.rs` and `mm/device_pages/mapped.rs`.
    const PASSES: u64 = 50;
    const USERS: u64 = 16;
    const POINT: &str = "isolate";
    let device = ctx.open()?;
    let map = small_mapping(&device, 1)?;
    with_children(USERS as usize + 8, || {
        let before = inject::point_state(POINT)?.failures;
        inject::set_point(POINT, "1 every").what("set the point")?;
        let released = device.release();
        inject::clear_points().what("clear the points")?;
        fails(released, hmm::Errno::EBUSY, "a release that leaves pages")?;
        let tries = inject::point_state(POINT)?.failures - before;
        // Both pages are isolated in one call.
        let most = PASSES * USERS;
        check!(tries > 0 && tries <= most, "{tries} tries, at most {most} expected");
        check_eq!(device.counters()?.device_pages_used, 2, "pages on the device");
        nothing_left(&device, "at the end")
    })?;
    cpu_sees(&map, 1, "at the end")
}

/// The time of an eviction does not depend on the number of mappings of other pages. Evicting the
/// last pages of many small mappings, which child processes share, takes no longer than evicting
/// the first ones.
fn pieces(ctx: &Ctx) -> Outcome {
    const PIECES: usize = 4096;
    const PAGES: usize = 64;
    const CHILDREN: usize = 6;
    let device = ctx.open()?;
    let map = Mapping::anon(PIECES)?;
    let ends = [0, PIECES - PAGES];
    ends.iter().for_each(|first| map.fill_pages(1, *first, PAGES));
    for page in (1..PIECES).step_by(2) {
        map.protect_pages(hmm::Prot::Read, page, 1)?;
    }
    // Other work on the machine only lengthens evictions, so compare the shortest ones.
    let mut shortest = [Duration::MAX; 2];
    let are_alike = |[first, last]: [Duration; 2]| last * 5 <= first * 6;
    with_children(CHILDREN, || {
        for round in 0..64 {
            if round >= 16 && are_alike(shortest) {
                break;
            }
            for (first, shortest) in ends.iter().zip(&mut shortest) {
                let addr = map.page_addr(*first);
                let done = device.migrate(addr, PAGES, Way::ToDevice).what("migrate")?;
                check_eq!(done.moved as usize, PAGES, "pages that moved");
                let begin = Instant::now();
                device.release().what("release")?;
                *shortest = begin.elapsed().min(*shortest);
                check_eq!(device.counters()?.device_pages_used, 0, "pages on the device");
            }
        }
        Ok(())
    })?;
    check!(are_alike(shortest), "the first and the last pages: {shortest:?}");
    ends.iter().try_for_each(|first| map.check_pages(1, *first, PAGES).what("by the CPU"))
}

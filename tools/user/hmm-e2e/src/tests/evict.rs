// SPDX-License-Identifier: GPL-2.0
//! What is evicted is found by who maps it: while that changes, and when it is a part.

use super::faultless::no_stale_hits;
use crate::harness::{Ctx, Outcome, Stop, Test, What};
use crate::support::*;
use crate::{check, check_eq};
use hmm::engine::{Setting, Way};
use hmm::{mapping, Child, Gate, Mapping, HUGE_PAGES};
use std::ops::Range;
use std::time::{Duration, Instant};

const OURS: &str = "the C driver evicts by physical page";

pub const TESTS: &[Test] = &[
    Test::new("memory", "unmapped_while_evicted", unmapped_while_evicted).only_rust(OURS).private(),
    Test::new("memory", "parts_of_huge_pages_are_evicted", parts).only_rust(OURS),
    Test::new("memory", "parts_that_others_have_are_evicted", parts_of_others).only_rust(OURS),
    Test::new("memory", "what_only_a_child_has_is_evicted", of_a_child).only_rust(OURS),
];

fn unmapped_while_evicted(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    // All in one piece, so that all of it is isolated at once: between two pieces nobody waits.
    let map = Mapping::anon_aligned(1)?;
    map.advise(libc::MADV_NOHUGEPAGE)?;
    map.fill_pages(1, 0, 64);
    let done = device.migrate(map.addr(), 64, Way::ToDevice).what("migrate")?;
    check_eq!(done.moved, 64, "pages that moved");
    let old = device.set(Setting::CopyDelay, 15_000_000)?;
    let begin = Instant::now();
    std::thread::scope(|scope| -> Outcome {
        let evictor = scope.spawn(|| device.release());
        std::thread::sleep(Duration::from_millis(200));
        check!(!evictor.is_finished(), "the copy is not slow");
        map.unmap_pages(0, 64)?;
        let waited = begin.elapsed();
        let done = evictor.join().map_err(|_| Stop::Fail("the evictor panicked".to_string()))?;
        done.what("release")?;
        check!(
            waited >= Duration::from_millis(700),
            "it went after {waited:?}, before its pages came"
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

/// Of a huge page a part has gone, or is elsewhere.
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

/// Of a huge page the parent has the second half, and the child the first one.
fn parts_of_others(ctx: &Ctx) -> Outcome {
    let half = HUGE_PAGES / 2;
    let device = ctx.open()?;
    let map = huge(1, 1)?;
    migrate(&device, &map, 1)?;
    let (ready, go) = (Gate::new()?, Gate::new()?);
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

/// The parent still has the mapping, but nothing in it.
fn of_a_child(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    for map in [Mapping::anon(32)?, huge(1, 1)?] {
        map.fill(1);
        migrate(&device, &map, 1)?;
        let (ready, go) = (Gate::new()?, Gate::new()?);
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

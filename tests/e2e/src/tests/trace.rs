// SPDX-License-Identifier: GPL-2.0
//! Tracepoints report events with their process and reason.

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
use hmm::engine::Way;
use hmm::placement::Policy;
use hmm::tracing::{
    Event,
    Tracing, //
};
use hmm::{
    inject,
    Connection,
    Device,
    Mapping,
    Setting,
    HUGE_PAGES,
    PAGE_SIZE, //
};

const OURS: &str = "tracepoints are of our library";
const PAGES: usize = 24;

pub const TESTS: &[Test] = &[
    Test::new("trace", "faults_and_migrations_are_traced", faults_and_migrations_are_traced)
        .only_rust(OURS),
    Test::new("trace", "failures_are_traced_with_their_error", errors).only_rust(OURS),
    Test::new("trace", "invalidations_are_traced_with_their_event", invalidations).only_rust(OURS),
    Test::new("trace", "retries_are_traced_with_their_reason", retries).only_rust(OURS),
    Test::new("trace", "evictions_are_traced", evictions).only_rust(OURS),
    Test::new("trace", "evictions_for_space_are_traced", for_space).only_rust(OURS),
    Test::new("trace", "thrashing_is_traced", thrashing).only_rust(OURS).private(),
    Test::new("trace", "pulls_are_traced", pulls).only_rust(OURS),
];

/// Returns the events called `name` of this process, or without a process.
fn named(tracing: &Tracing, name: &str) -> Result<Vec<Event>, Stop> {
    let own = i64::from(std::process::id());
    let events = tracing.events().what("read the trace")?.into_iter();
    let ours = |event: &Event| event.number("pid").is_none_or(|pid| pid == own);
    Ok(events.filter(|event| event.name == name && ours(event)).collect())
}

/// Returns the only event called `name`.
fn one(tracing: &Tracing, name: &str) -> Result<Event, Stop> {
    let mut events = named(tracing, name)?;
    check_eq!(events.len(), 1, "number of {name} events: {events:?}");
    events.pop().ok_or_else(|| Stop::Fail(format!("no {name} event")))
}

fn field(event: &Event, name: &str, value: usize) -> Outcome {
    check_eq!(event.number(name), Some(value as i64), "field {name} of {event:?}");
    Ok(())
}

fn faults_and_migrations_are_traced(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon_in_block(PAGES)?;
    map.fill(1);
    let tracing = Tracing::start("hmm-e2e").what("start tracing")?;
    device_sees(&device, &map, 1, "with tracing")?;
    let faults = named(&tracing, "device_fault")?;
    check!(!faults.is_empty(), "a device fault that is not traced");
    let first = &faults[0];
    check_eq!(first.text("access"), "read", "access of {first:?}");
    field(first, "start", map.addr())?;
    field(first, "result", 0)?;
    let pages: i64 = faults.iter().filter_map(|fault| fault.number("pages")).sum();
    check!(pages >= PAGES as i64, "faults of {pages} pages, {PAGES} were read");

    device.migrate(map.addr(), PAGES, Way::ToDevice).what("migrate")?;
    let begin = one(&tracing, "migrate_begin")?;
    field(&begin, "start", map.addr())?;
    field(&begin, "pages", PAGES)?;
    check_eq!(begin.words, ["to-device"], "direction of {begin:?}");
    check_eq!(begin.text("trigger"), "request", "trigger of {begin:?}");
    check_eq!(begin.number("mirror"), first.number("mirror"), "mirror of {begin:?}");
    let end = one(&tracing, "migrate_end")?;
    field(&end, "moved", PAGES)?;
    field(&end, "switched", PAGES)?;
    field(&end, "stayed", 0)?;
    field(&end, "result", 0)?;
    let took = end.time - begin.time;
    check!((0.0..60.0).contains(&took), "it takes {took} s");

    if !ctx.coherent() {
        map.check_pages(1, 5, 1).what("CPU read")?;
        let fault = one(&tracing, "cpu_fault")?;
        field(&fault, "address", map.page_addr(5))?;
        field(&fault, "result", 0)?;
        let left = resident(&device, &map, 0, PAGES)?;
        field(&fault, "moved", PAGES - left)?;
    }
    // A new trace instance contains no earlier events.
    drop(tracing);
    let tracing = Tracing::start("hmm-e2e").what("start tracing again")?;
    check_eq!(named(&tracing, "migrate_begin")?.len(), 0, "events of before");
    Ok(())
}

fn errors(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon_in_block(PAGES)?;
    let hole = map.page_addr(4);
    map.unmap_pages(4, 1).what("munmap")?;
    let tracing = Tracing::start("hmm-e2e").what("start tracing")?;
    let mut data = vec![0; PAGE_SIZE];
    check!(device.read(hole, &mut data).is_err(), "a device read of nothing");
    let fault = one(&tracing, "device_fault")?;
    check_eq!(fault.number("result"), Some(-14), "result of {fault:?}");
    check!(device.migrate(hole, 1, Way::ToDevice).is_err(), "a migration of nothing");
    let end = one(&tracing, "migrate_end")?;
    check_eq!(end.number("result"), Some(-22), "result of {end:?}");
    Ok(())
}

fn invalidations(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon_in_block(PAGES)?;
    map.fill(1);
    device_sees(&device, &map, 1, "at first")?;
    let tracing = Tracing::start("hmm-e2e").what("start tracing")?;
    map.protect_pages(hmm::Prot::Read, 0, 8).what("mprotect")?;
    map.unmap_pages(8, 8).what("munmap")?;
    map.advise_pages(libc::MADV_DONTNEED, 16, 8).what("madvise")?;
    let events = named(&tracing, "invalidate")?;
    for (name, first) in [("protection-vma", 0), ("unmap", 8), ("clear", 16)] {
        let start = map.page_addr(first) as i64;
        // The program's own allocator may unmap memory, too.
        let found = events
            .iter()
            .find(|event| event.text("event") == name && event.number("start") == Some(start));
        let Some(found) = found else {
            return Err(Stop::Fail(format!("no event {name} at {start:#x}: {events:?}")));
        };
        field(found, "pages", 8)?;
        field(found, "changed", 8)?;
    }
    Ok(())
}

fn retries(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon_in_block(PAGES)?;
    map.fill(1);
    let tracing = Tracing::start("hmm-e2e").what("start tracing")?;
    inject::set_point("retry", "1").what("set the point")?;
    let seen = device_sees(&device, &map, 1, "with a retry");
    inject::clear_points().what("clear the points")?;
    seen?;
    let retry = one(&tracing, "retry")?;
    check_eq!(retry.text("reason"), "invalidated", "reason of {retry:?}");
    field(&retry, "start", map.addr())
}

fn evictions(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon_in_block(PAGES)?;
    map.fill(1);
    migrate(&device, &map, 1)?;
    let tracing = Tracing::start("hmm-e2e").what("start tracing")?;
    device.release().what("release")?;
    let evict = one(&tracing, "evict")?;
    field(&evict, "moved", PAGES)?;
    field(&evict, "left", 0)
}

/// An eviction for space is reported with its reason, and a fault that migrates memory is its
/// trigger.
fn for_space(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &vram(2))?;
    let device = ctx.open()?;
    let maps = [Mapping::anon_aligned(1)?, Mapping::anon_aligned(1)?, Mapping::anon_aligned(1)?];
    let tracing = Tracing::start("hmm-e2e").what("start tracing")?;
    crowd(&device, &maps)?;
    let event = one(&tracing, "evict")?;
    check_eq!(event.text("need"), "room", "need of {event:?}");
    field(&event, "moved", HUGE_PAGES)?;
    field(&event, "left", HUGE_PAGES)?;
    drop(tracing);
    drop(device);
    unload(ctx)
}

/// A page that CPU and device access in turns: faults of the device migrate it, then it waits, and
/// then it stays.
fn thrashing(ctx: &Ctx) -> Outcome {
    let _restore =
        with(ctx, "thrash_count=2 thrash_lapse_ms=60000 thrash_pin_ms=60000 thrash_delay_ms=3")?;
    let device = ctx.open()?;
    device.set_policy(Policy::Default)?;
    let map = Mapping::anon(1)?;
    let tracing = Tracing::start("hmm-e2e").what("start tracing")?;
    by_turns(&device, &map)?;
    let moves = named(&tracing, "migrate_end")?;
    let moved: i64 = moves.iter().filter_map(|event| event.number("moved")).sum();
    check_eq!(moved, 2, "pages that moved: {moves:?}");
    check!(
        moves.iter().all(|event| event.text("trigger") == "fault"),
        "moves by something else than a fault: {moves:?}"
    );
    let thrash = named(&tracing, "thrash")?;
    let waits = thrash.iter().filter(|event| event.text("verdict") == "waits");
    check!(waits.clone().count() > 0, "no wait is counted: {thrash:?}");
    check!(waits.clone().all(|event| event.number("ms") == Some(3)), "not 3 ms: {thrash:?}");
    let stays = thrash.iter().filter(|event| event.text("verdict") == "stays");
    check!(stays.clone().count() > 0, "nothing stays: {thrash:?}");
    for event in thrash.iter() {
        field(event, "start", map.addr())?;
        field(event, "pages", 1)?;
    }
    drop(tracing);
    drop(device);
    unload(ctx)
}

/// Pulls from one device to another, directly and through system memory.
fn pulls(ctx: &Ctx) -> Outcome {
    let one = ctx.open()?;
    let two = Device::open(ctx.second).what("open the second device")?;
    for connection in [Connection::Migratable, Connection::None] {
        for device in [&one, &two] {
            device.set(Setting::Connection, connection as u64).what("set the connection")?;
        }
        let map = Mapping::anon_in_block(PAGES)?;
        map.fill(1);
        migrate(&one, &map, 1)?;
        let tracing = Tracing::start("hmm-e2e").what("start tracing")?;
        two.pull(map.addr(), PAGES, &one).what("pull")?;
        let ends = named(&tracing, "migrate_end")?;
        let expected = if connection == Connection::None { 2 } else { 1 };
        check_eq!(ends.len(), expected, "migrations: {ends:?}");
        check_eq!(named(&tracing, "migrate_begin")?.len(), expected, "begins of {connection:?}");
        for event in &ends {
            check_eq!(event.text("trigger"), "pull", "trigger of {event:?}");
            field(event, "moved", PAGES)?;
            field(event, "result", 0)?;
        }
        check_eq!(resident(&two, &map, 0, PAGES)?, PAGES, "pages on the other device");
    }
    Ok(())
}

// SPDX-License-Identifier: GPL-2.0
//! The event stream: a process receives the events of its own memory, and no others.

mod access;
mod contents;
mod waits;

use crate::harness::{
    Outcome,
    Stop,
    Test,
    What, //
};
use crate::{
    check,
    check_eq, //
};
use hmm::engine::Way;
use hmm::events::{
    Record,
    Type, //
};
use hmm::{
    Device,
    Errno,
    Mapping, //
};

const OURS: &str = "test_hmm has no event stream";
const PAGES: usize = 24;

pub const TESTS: &[Test] = &[
    Test::new(
        "events",
        "faults_and_migrations_are_reported",
        contents::faults_and_migrations_are_reported,
    )
    .only_rust(OURS),
    Test::new("events", "failures_are_reported", contents::failures_are_reported).only_rust(OURS),
    Test::new("events", "mask_selects_event_types", contents::mask_chooses).only_rust(OURS),
    Test::new("events", "poll_wakes_on_an_event", waits::poll_wakes).only_rust(OURS),
    Test::new("events", "read_blocks_until_an_event_or_signal", waits::read_waits).only_rust(OURS),
    Test::new("events", "lost_events_are_counted", contents::lost).only_rust(OURS),
    Test::new("events", "stream_has_events_of_its_mirror_only", access::own_only).only_rust(OURS),
    Test::new("events", "events_of_all_mirrors_need_privileges", access::privileged)
        .only_rust(OURS),
    Test::new("events", "close_during_poll_is_safe", waits::closed_while_polled).only_rust(OURS),
    Test::new("events", "bad_calls_are_refused", access::bad_calls).only_rust(OURS),
];

/// Tests in the group that loads the modules with parameters.
pub const WITH_PARAMETERS: &[Test] = &[
    Test::new("memory", "evictions_are_reported_to_evicted_processes", contents::evictions)
        .only_rust(OURS),
    Test::new("memory", "thrashing_is_reported", contents::thrashing).only_rust(OURS).private(),
];

fn all_types() -> u64 {
    Type::ALL.iter().map(|kind| kind.bit()).sum()
}

fn mask(types: &[Type]) -> u64 {
    types.iter().map(|kind| kind.bit()).sum()
}

fn listen(device: &Device, types: u64) -> Outcome {
    device.events(types, false).what("ask for events").map(|_| ())
}

fn records(device: &Device) -> Result<Vec<Record>, Stop> {
    device.records().what("read the events")
}

/// Returns the records of one type.
fn of(all: &[Record], kind: Type) -> Vec<Record> {
    all.iter().filter(|record| record.kind == kind).copied().collect()
}

fn one(all: &[Record], kind: Type) -> Result<Record, Stop> {
    let found = of(all, kind);
    check_eq!(found.len(), 1, "number of {kind:?} in {all:?}");
    Ok(found[0])
}

fn range(record: &Record, map: &Mapping, first: usize, pages: usize) -> Outcome {
    check_eq!(record.addr, map.page_addr(first) as u64, "address of {record:?}");
    check_eq!(record.npages, pages as u64, "pages of {record:?}");
    Ok(())
}

/// Checks that the records are in order, without a gap that no loss explains, and that their times
/// do not decrease.
fn in_order(all: &[Record]) -> Outcome {
    for pair in all.windows(2) {
        check_eq!(
            pair[1].sequence,
            pair[0].sequence + 1 + (pair[1].lost - pair[0].lost),
            "sequence"
        );
        check!(pair[1].time_ns >= pair[0].time_ns, "time runs back: {pair:?}");
    }
    Ok(())
}

/// Activity of another process on the same device. The test's own stream must not report it.
fn other(index: u32) -> Result<(), String> {
    let device = Device::open(index).map_err(|error| error.to_string())?;
    let map = Mapping::anon_in_block(PAGES).map_err(|error| error.to_string())?;
    map.fill(7);
    let mut data = vec![0; map.len()];
    let text = |error: Errno| error.to_string();
    device.read(map.addr(), &mut data).map_err(text)?;
    device.migrate(map.addr(), PAGES, Way::ToDevice).map_err(text)?;
    map.check(7).map_err(|error| error.to_string())?;
    device.migrate(map.addr(), PAGES, Way::ToDevice).map_err(text)?;
    map.unmap_pages(0, PAGES).map_err(text)
}

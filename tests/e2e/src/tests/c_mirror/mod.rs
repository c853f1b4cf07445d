// SPDX-License-Identifier: GPL-2.0
//! The sample driver in C: the functions of the smaller sample, and its own device memory,
//! attributes and queue.

use super::mirror_only::{
    reads,
    Loaded, //
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
use hmm::c_mirror::{
    Counter,
    RangeAttributes, //
};
use hmm::child::Gate;
use hmm::{
    module,
    pattern,
    CMirror,
    Child,
    Errno,
    Mapping,
    Prot,
    HUGE_PAGES, //
};
use std::time::{
    Duration,
    Instant, //
};

mod queue;

const OURS: &str = "needs our library";
const NAME: &str = "c_mirror";
const PAGES: usize = 300;

const fn test(name: &'static str, run: fn(&Ctx) -> Outcome) -> Test {
    Test::new("c_mirror", name, run).only_rust(OURS)
}

pub const TESTS: &[Test] = &[
    test("reads_wait_for_fences_of_another_driver", |ctx| reads(ctx, NAME, CMirror::NODE)),
    test("cpu_access_migrates_back", moves),
    test("request_migrates_back", back),
    test("huge_pages_migrate_unsplit", moves_huge),
    test("holes_read_zero", holes),
    test("device_writes_are_hidden_from_a_child", forks),
    test("memory_outlives_the_mirror", closes),
    test("killed_process_leaks_nothing", killed),
    test("open_file_pins_the_module", keeps_module),
    test("attributes_control_fault_migration", attributes),
    test("fault_completes_with_concurrent_invalidations", concurrent_invalidations),
    test("queued_work_runs_in_fence_order", queue::fences),
    test("failed_fence_fails_dependants", queue::failed_fence),
    test("close_cancels_queued_work", queue::cancels),
    test("misuse_returns_errors", misuse),
];

/// Returns the sum of the words of a mapping filled with the pattern `seed`.
fn sum_of(map: &Mapping, seed: u64) -> u64 {
    (0..map.pages())
        .flat_map(|page| (0..pattern::WORDS).map(move |word| pattern::word(seed, page, word)))
        .fold(0, u64::wrapping_add)
}

/// Checks that the device reads the pattern `seed`.
fn device_reads(device: &CMirror, map: &Mapping, seed: u64, when: &str) -> Outcome {
    let sum = device.sum(map.addr(), map.pages()).what(&format!("sum {when}"))?;
    check_eq!(sum, sum_of(map, seed), "sum {when}");
    Ok(())
}

/// Migrates all pages of a mapping to the device, and checks that all have moved.
fn to_device(device: &CMirror, map: &Mapping) -> Outcome {
    let outcome = device.migrate(map.addr(), map.pages(), 0).what("migrate to the device")?;
    check_eq!(outcome.moved, map.pages() as u64, "pages that moved");
    let stayed = outcome.skipped + outcome.no_memory + outcome.copy_failed;
    check_eq!(stayed, 0, "pages that stayed");
    check_eq!(device.resident(map).what("snapshot")?, map.pages(), "pages on the device");
    Ok(())
}

/// Waits until no page of the device is in use.
fn unused(device: &CMirror, when: &str) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(20);
    while device.used().what("usage")? != 0 {
        check!(Instant::now() < deadline, "{} pages in use {when}", device.used()?);
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn moves(ctx: &Ctx) -> Outcome {
    let _loaded = Loaded::new(ctx, NAME)?;
    let device = CMirror::open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    device_reads(&device, &map, 1, "in system memory")?;
    check!(device.count(Counter::MappedPages)? >= PAGES as u64, "no entries were counted");
    to_device(&device, &map)?;
    check_eq!(device.used()?, PAGES as u64, "pages in use");
    check_eq!(device.count(Counter::ToDevice)?, PAGES as u64, "pages to the device");
    check_eq!(device.count(Counter::Switched)?, PAGES as u64, "entries that were switched");
    device_reads(&device, &map, 1, "on the device")?;
    check_eq!(device.used()?, PAGES as u64, "pages in use after a device read");
    // The CPU reads the data that the device has written.
    device.fill(map.page_addr(100), 3, 0xabcd).what("device write")?;
    check_eq!(device.resident(&map)?, PAGES, "pages on the device after a device write");
    map.check_pages(1, 0, 100).what("CPU read before")?;
    for page in 100..103 {
        let wrong = (0..pattern::WORDS).find(|word| map.get(page, *word) != 0xabcd);
        check_eq!(wrong, None, "a word of page {page} that the device wrote");
    }
    map.check_pages(1, 103, PAGES - 103).what("CPU read behind")?;
    let (faults, brought) =
        (device.count(Counter::CpuFaults)?, device.count(Counter::CpuFaultPages)?);
    check!(faults > 0 && faults <= PAGES as u64, "{faults} CPU faults");
    check_eq!(brought, PAGES as u64, "pages that CPU faults brought back");
    check_eq!(device.resident(&map)?, 0, "pages on the device at the end");
    unused(&device, "at the end")
}

fn back(ctx: &Ctx) -> Outcome {
    let _loaded = Loaded::new(ctx, NAME)?;
    let device = CMirror::open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(2);
    to_device(&device, &map)?;
    let half = PAGES / 2;
    let outcome = device.migrate(map.addr(), half, 1).what("migrate to the system")?;
    check_eq!(outcome.moved, half as u64, "pages that came back");
    check_eq!(device.count(Counter::ToSystem)?, half as u64, "pages to the system");
    check_eq!(device.resident(&map)?, PAGES - half, "pages on the device");
    device_reads(&device, &map, 2, "of both")?;
    check_eq!(device.evict().what("evict")?, 0, "pages that cannot be evicted");
    check_eq!(device.count(Counter::Evicted)?, (PAGES - half) as u64, "evicted pages");
    check_eq!(device.count(Counter::CpuFaults)?, 0, "CPU faults");
    unused(&device, "after the eviction")?;
    cpu_sees(&map, 2, "after all came back")
}

fn moves_huge(ctx: &Ctx) -> Outcome {
    let map = huge(2, 3)?;
    let _loaded = Loaded::new(ctx, NAME)?;
    let device = CMirror::open()?;
    let outcome = device.migrate(map.addr(), map.pages(), 0).what("migrate")?;
    check_eq!(outcome.moved, map.pages() as u64, "pages that moved");
    check_eq!(outcome.entries, 2, "huge pages that moved");
    let order = device.page(map.addr())?.order;
    check_eq!(u32::from(order), HUGE_PAGES.ilog2(), "order of the mapping");
    device_reads(&device, &map, 3, "on the device")?;
    cpu_sees(&map, 3, "after the move")?;
    unused(&device, "after CPU reads")
}

fn holes(ctx: &Ctx) -> Outcome {
    let _loaded = Loaded::new(ctx, NAME)?;
    let device = CMirror::open()?;
    // Old contents of device memory, which must not be visible later.
    let dirty = Mapping::anon(PAGES)?;
    dirty.fill(4);
    to_device(&device, &dirty)?;
    device.evict().what("evict")?;
    let map = Mapping::anon(PAGES)?;
    to_device(&device, &map)?;
    check_eq!(device.sum(map.addr(), PAGES).what("sum")?, 0, "sum of holes");
    map.check_zero(0, PAGES).what("CPU read of holes")
}

fn forks(ctx: &Ctx) -> Outcome {
    let _loaded = Loaded::new(ctx, NAME)?;
    let device = CMirror::open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(5);
    to_device(&device, &map)?;
    let go = Gate::new()?;
    let seen = Gate::new()?;
    let child = Child::spawn(|| {
        go.wait().what("gate")?;
        cpu_sees(&map, 5, "by the child, of memory from before the fork")?;
        seen.open().what("gate")
    })?;
    device.fill(map.addr(), PAGES, 7).what("device write after the fork")?;
    go.open().what("gate")?;
    seen.wait().what("the child's look")?;
    child.join().map_err(Stop::Fail)?;
    check_eq!(map.get(0, 0), 7, "first word by the parent");
    check_eq!(map.get(PAGES - 1, pattern::WORDS - 1), 7, "last word by the parent");
    unused(&device, "at the end")
}

fn closes(ctx: &Ctx) -> Outcome {
    let loaded = Loaded::new(ctx, NAME)?;
    let device = CMirror::open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(6);
    to_device(&device, &map)?;
    drop(device);
    // A second mirror uses the pages that the first one has migrated.
    let device = CMirror::open()?;
    check_eq!(device.resident(&map)?, PAGES, "pages on the device after the close");
    device_reads(&device, &map, 6, "by the second mirror")?;
    map.check_pages(6, 0, 10).what("CPU read")?;
    drop(device);
    // Unloading the module migrates the remaining pages back.
    drop(loaded);
    check!(!module::is_loaded(NAME), "the sample cannot be unloaded");
    cpu_sees(&map, 6, "after the module was unloaded")
}

fn killed(ctx: &Ctx) -> Outcome {
    let loaded = Loaded::new(ctx, NAME)?;
    let ready = Gate::new()?;
    let mut child = Child::spawn(|| -> Outcome {
        let device = CMirror::open()?;
        let map = Mapping::anon(PAGES)?;
        map.fill(7);
        to_device(&device, &map)?;
        ready.open().what("gate")?;
        // The child migrates when it is killed. Only the kill or an error ends the loop.
        loop {
            device.migrate(map.addr(), PAGES, 1).what("back")?;
            device.migrate(map.addr(), PAGES, 0).what("to the device")?;
        }
    })?;
    ready.wait().what("the child's migration")?;
    std::thread::sleep(Duration::from_millis(100));
    child.signal(libc::SIGKILL);
    check!(child.wait_timeout(Duration::from_secs(20)).is_some(), "the child does not end");
    let device = CMirror::open()?;
    unused(&device, "after the process was killed")?;
    drop(device);
    drop(loaded);
    check!(!module::is_loaded(NAME), "the sample cannot be unloaded");
    Ok(())
}

fn keeps_module(ctx: &Ctx) -> Outcome {
    let loaded = Loaded::new(ctx, NAME)?;
    let device = CMirror::open()?;
    fails(module::unload(NAME), Errno::EAGAIN, "unload with an open file")?;
    fails(module::unload("rust_hmm"), Errno::EAGAIN, "unload the library")?;
    check_eq!(device.used()?, 0, "pages in use");
    drop(device);
    drop(loaded);
    check!(!module::is_loaded(NAME), "the sample cannot be unloaded");
    Ok(())
}

fn attributes(ctx: &Ctx) -> Outcome {
    let _loaded = Loaded::new(ctx, NAME)?;
    let device = CMirror::open()?;
    let plain = Mapping::anon(PAGES)?;
    plain.fill(8);
    device_reads(&device, &plain, 8, "with no attributes")?;
    check_eq!(device.resident(&plain)?, 0, "pages that moved with no attributes");
    let map = Mapping::anon(PAGES)?;
    let addr = map.addr();
    let half = PAGES / 2;
    let none = device.attributes(addr, PAGES).what("attributes")?;
    check_eq!(
        none,
        RangeAttributes { valid: 31, granularity: -1, ..RangeAttributes::default() },
        "at first"
    );
    let wanted = RangeAttributes {
        valid: RangeAttributes::PREFERRED,
        preferred: 1,
        ..RangeAttributes::default()
    };
    device.set_attributes(addr, half, wanted).what("prefer the device")?;
    let common = device.attributes(addr, PAGES).what("attributes")?;
    check_eq!(
        common.valid,
        31 & !RangeAttributes::PREFERRED,
        "fields that are the same for all devices"
    );
    check_eq!(device.attributes(addr, half)?.preferred, 1, "of the first half");
    map.fill(9);
    device_reads(&device, &map, 9, "with attributes")?;
    check_eq!(device.resident(&map)?, half, "pages that came to the device");
    let never = RangeAttributes {
        valid: RangeAttributes::NEVER_MIGRATE,
        never_migrate: 1,
        ..RangeAttributes::default()
    };
    device.set_attributes(map.page_addr(half), PAGES - half, never).what("never migrate")?;
    let outcome = device.migrate(addr, PAGES, 0).what("migrate")?;
    check_eq!(outcome.moved, 0, "pages that moved against their attribute");
    device.set_attributes(addr, PAGES, RangeAttributes::default()).what("clear")?;
    check_eq!(device.attributes(addr, PAGES)?, none, "after they were cleared");
    let outcome = device.migrate(addr, PAGES, 0).what("migrate")?;
    check_eq!(outcome.moved, (PAGES - half) as u64, "pages that moved");
    cpu_sees(&map, 9, "at the end")
}

/// The same as the test of that name with the mock device.
fn concurrent_invalidations(ctx: &Ctx) -> Outcome {
    let _loaded = Loaded::new(ctx, NAME)?;
    let map = Mapping::anon_aligned(1)?;
    map.forbid_huge()?;
    map.fill(18);
    comes_to_an_end(|| {
        let device = CMirror::open()?;
        let wanted = RangeAttributes {
            valid: RangeAttributes::PREFERRED,
            preferred: 1,
            ..RangeAttributes::default()
        };
        for page in (0..map.pages()).step_by(2) {
            device.set_attributes(map.page_addr(page), 1, wanted).what("prefer the device")?;
        }
        while_taken(&map, || device_reads(&device, &map, 18, "while a page is taken away"))
    })
}

fn misuse(ctx: &Ctx) -> Outcome {
    let _loaded = Loaded::new(ctx, NAME)?;
    let device = CMirror::open()?;
    let map = Mapping::anon(4)?;
    map.fill(13);
    let addr = map.addr();
    fails(device.fault(addr + 8, 1, 0), Errno::EINVAL, "an address within a page")?;
    fails(device.fault(addr, 0, 0), Errno::EINVAL, "no pages")?;
    fails(device.fault(addr, 1 << 52, 0), Errno::EINVAL, "pages beyond all addresses")?;
    fails(device.fault(addr, 4, 2), Errno::EINVAL, "a flag that is none")?;
    fails(device.migrate(addr, 4, 2), Errno::EINVAL, "a target that is none")?;
    fails(device.migrate(addr, 4, 4 << 32), Errno::EINVAL, "another flag that is none")?;
    let twice = RangeAttributes { valid: 1, preferred: 3, ..RangeAttributes::default() };
    fails(device.set_attributes(addr, 4, twice), Errno::EINVAL, "a preference that is none")?;
    let large = RangeAttributes {
        valid: 16,
        granularity: HUGE_PAGES.ilog2() as i8 + 1,
        ..RangeAttributes::default()
    };
    fails(device.set_attributes(addr, 4, large), Errno::EINVAL, "an order that is none")?;
    let unknown = RangeAttributes { valid: 32, ..RangeAttributes::default() };
    fails(device.set_attributes(addr, 4, unknown), Errno::EINVAL, "an attribute that is none")?;
    let file = std::fs::File::open("/proc/self/exe")?;
    let after = device.simple().sum(addr, 4, Some(&file));
    fails(after, Errno(libc::EBADF), "a file that is no sync file")?;
    map.protect(Prot::Read)?;
    fails(device.fault(addr, 4, 1), Errno::EPERM, "a write to a read-only mapping")?;
    device.fault(addr, 4, 0).what("a read of the same")?;
    fails(device.fill(addr, 4, 1), Errno::EPERM, "the device's write to it")?;
    map.protect(Prot::None)?;
    fails(device.fault(addr, 4, 0), Errno::EFAULT, "read of a mapping without read permission")?;
    map.protect(Prot::ReadWrite)?;
    map.unmap_pages(1, 1)?;
    fails(device.sum(addr, 4), Errno::EFAULT, "read of an unmapped address")?;
    map.check_pages(13, 0, 1).what("read of the remaining mapping")
}

// SPDX-License-Identifier: GPL-2.0
//! Attributes of ranges, and their effect on device faults of engines.

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
use hmm::engine::{
    checksum_of_pattern,
    Way, //
};
use hmm::placement::{
    Attributes,
    Policy,
    Preferred, //
};
use hmm::{
    Child,
    Command,
    Device,
    EngineOp,
    Errno,
    Mapping,
    Prot,
    HUGE_PAGES,
    PAGE_SIZE, //
};

pub(super) const OURS: &str = "test_hmm knows no attributes";

pub const TESTS: &[Test] = &[
    Test::new(
        "attributes",
        "common_attributes_of_a_range_are_reported",
        common_attributes_of_a_range_are_reported,
    )
    .only_rust(OURS),
    Test::new("attributes", "invalid_arguments_are_refused", errors).only_rust(OURS),
    Test::new("attributes", "munmap_clears_attributes", unmapped).only_rust(OURS),
    Test::new("attributes", "mremap_moves_attributes", moved).only_rust(OURS),
    Test::new("attributes", "munmap_after_distant_mremap_clears_attributes", moved_far)
        .only_rust(OURS),
    Test::new("attributes", "child_inherits_no_attributes", child_inherits_no_attributes)
        .only_rust(OURS),
    Test::new(
        "attributes",
        "mprotect_migration_and_fork_keep_attributes",
        mprotect_migration_and_fork_keep_attributes,
    )
    .only_rust(OURS),
    Test::new("attributes", "preferred_location_controls_migration", preferred_location)
        .only_rust(OURS),
    Test::new("attributes", "never_migrate_maps_in_place", never_migrate).only_rust(OURS),
    Test::new("attributes", "accessed_by_maps_without_a_fault", accessed_by).only_rust(OURS),
    Test::new("attributes", "read_mostly_is_mapped_in_place", read_mostly).only_rust(OURS),
    Test::new(
        "attributes",
        "read_mostly_writes_after_fork_are_private",
        read_mostly_writes_after_fork_are_private,
    )
    .only_rust(OURS),
    Test::new("attributes", "read_mostly_pages_are_mapped_by_two_devices", read_mostly_on_two)
        .only_rust(OURS),
    Test::new("attributes", "read_mostly_write_fault_migrates", read_mostly_write).only_rust(OURS),
    Test::new("attributes", "granularity_bounds_fault_migration", granularity).only_rust(OURS),
    Test::new(
        "attributes",
        "attributes_apply_without_a_fault_policy",
        attributes_apply_without_a_fault_policy,
    )
    .only_rust(OURS),
    Test::new(
        "attributes",
        "fault_completes_with_concurrent_invalidations",
        concurrent_invalidations,
    )
    .only_rust(OURS),
];

pub(super) const DEVICE: Attributes =
    Attributes { what: Attributes::PREFERRED, preferred: Preferred::Device as u32, ..none() };

pub(super) const fn none() -> Attributes {
    Attributes::NONE
}

pub(super) fn set(
    device: &Device,
    map: &Mapping,
    first: usize,
    pages: usize,
    new: Attributes,
) -> Outcome {
    device.set_attributes(map.page_addr(first), pages, new).what("set attributes")
}

pub(super) fn get(
    device: &Device,
    map: &Mapping,
    first: usize,
    pages: usize,
) -> Result<Attributes, Stop> {
    device.attributes(map.page_addr(first), pages).what("get attributes")
}

/// Checks that the range has the default attributes.
pub(super) fn has_none(
    device: &Device,
    map: &Mapping,
    first: usize,
    pages: usize,
    when: &str,
) -> Outcome {
    let expected = Attributes { what: Attributes::ALL, ..none() };
    check_eq!(get(device, map, first, pages)?, expected, "attributes {when}");
    Ok(())
}

pub(super) fn has_device(
    device: &Device,
    map: &Mapping,
    first: usize,
    pages: usize,
    when: &str,
) -> Outcome {
    let expected = Attributes { what: Attributes::ALL, ..DEVICE };
    check_eq!(get(device, map, first, pages)?, expected, "attributes {when}");
    Ok(())
}

fn common_attributes_of_a_range_are_reported(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(64)?;
    has_none(&device, &map, 0, 64, "at first")?;
    set(&device, &map, 8, 16, DEVICE.flag(Attributes::READ_MOSTLY, true))?;
    set(&device, &map, 16, 32, none().flag(Attributes::NEVER_MIGRATE, true).order(Some(4)))?;
    set(&device, &map, 20, 1, none().prefer(Preferred::System))?;
    let all = Attributes { what: Attributes::ALL, ..none() };
    let first = all.prefer(Preferred::Device).flag(Attributes::READ_MOSTLY, true);
    check_eq!(get(&device, &map, 8, 8)?, first, "of the first part");
    let both = first.flag(Attributes::NEVER_MIGRATE, true).order(Some(4));
    check_eq!(get(&device, &map, 16, 4)?, both, "where both hold");
    check_eq!(get(&device, &map, 20, 1)?, both.prefer(Preferred::System), "of one page");
    // Attributes that differ within the range are left out and read as 0.
    let part = both.what & !Attributes::PREFERRED;
    let expected = Attributes { what: part, preferred: 0, ..both };
    check_eq!(get(&device, &map, 16, 8)?, expected, "of a range in which the place differs");
    let found = get(&device, &map, 0, 64)?;
    check_eq!(found, none().flag(Attributes::ACCESSED_BY, false), "of everything");
    // Back to the defaults.
    let clear = Attributes { what: Attributes::ALL, ..none() };
    set(&device, &map, 0, 64, clear)?;
    has_none(&device, &map, 0, 64, "when they were taken back")
}

fn errors(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(8)?;
    let bad = |new: Attributes, what: &str| {
        fails(device.set_attributes(map.addr(), 8, new), Errno::EINVAL, what)
    };
    bad(Attributes { what: 32, ..none() }, "an unknown attribute")?;
    bad(Attributes { what: 2, values: 1, ..none() }, "an unknown value")?;
    bad(Attributes { what: 1, preferred: 3, ..none() }, "an unknown place")?;
    bad(none().order(Some(HUGE_PAGES.ilog2() + 1)), "an order that is too large")?;
    fails(device.set_attributes(map.addr() + 1, 1, DEVICE), Errno::EINVAL, "no page")?;
    fails(device.set_attributes(map.addr(), 0, DEVICE), Errno::EINVAL, "no pages")?;
    map.unmap_pages(4, 1)?;
    let hole = device.set_attributes(map.addr(), 8, DEVICE);
    fails(hole, Errno::EFAULT, "a range with a hole")?;
    has_device(&device, &map, 0, 4, "of the part before the hole")?;
    has_none(&device, &map, 4, 4, "of the hole and the part after it")
}

fn unmapped(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(64)?;
    for touched in [false, true] {
        if touched {
            map.fill(1);
        }
        set(&device, &map, 0, 64, DEVICE)?;
        map.unmap_pages(16, 16)?;
        has_device(&device, &map, 0, 16, "before the unmapped range")?;
        has_none(&device, &map, 16, 16, "of the unmapped range")?;
        has_device(&device, &map, 32, 32, "behind the unmapped range")?;
        map.map_again(16, 16, None)?;
        has_none(&device, &map, 16, 16, "of the range mapped again")?;
    }
    // Unmap and map again immediately, with no query in between.
    set(&device, &map, 0, 64, DEVICE)?;
    map.unmap_pages(0, 32)?;
    map.map_again(0, 32, None)?;
    map.fill_pages(2, 0, 32);
    has_none(&device, &map, 0, 32, "of new memory at an old place")?;
    has_device(&device, &map, 32, 32, "of the old memory")
}

fn moved(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    for touched in [false, true] {
        let map = Mapping::anon(64)?;
        let target = Mapping::anon(64)?;
        if touched {
            map.fill(1);
        }
        set(&device, &map, 8, 32, DEVICE)?;
        set(&device, &target, 0, 64, none().prefer(Preferred::System))?;
        map.move_pages(0, 32, &target, 32)?;
        let when = format!("when it was moved (touched: {touched})");
        has_none(&device, &map, 0, 32, &when)?;
        has_device(&device, &map, 32, 8, &when)?;
        has_none(&device, &target, 32, 8, &when)?;
        has_device(&device, &target, 40, 24, &when)?;
        let system = get(&device, &target, 0, 32)?;
        check_eq!(system.preferred, Preferred::System as u32, "of the ranges not replaced {when}");
        // Move a part of it again.
        let third = Mapping::anon(16)?;
        target.move_pages(44, 8, &third, 4)?;
        has_device(&device, &third, 4, 8, &when)?;
        has_none(&device, &third, 0, 4, &when)?;
        has_device(&device, &target, 52, 12, &when)?;
    }
    Ok(())
}

/// Attributes follow memory that is moved to a place far from all attributes, and are removed when
/// the memory is unmapped there.
fn moved_far(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(6 * 16)?;
    let to = Mapping::anon(6 << 15)?;
    map.fill(1);
    set(&device, &map, 0, map.pages(), DEVICE)?;
    // The notifier covers 64 MiB around attributes. The last destination is the nearest one and is
    // found first.
    let at = |n: usize| if to.addr() < map.addr() { n << 15 } else { ((6 - n) << 15) - 16 };
    for (part, first) in (0..6).map(at).enumerate() {
        check!(to.page_addr(first).abs_diff(map.addr()) > 100 << 20, "the target is near");
        map.move_pages(16 * part, 16, &to, first)?;
    }
    for first in (0..6).map(at) {
        has_device(&device, &to, first, 16, "where it was moved")?;
        to.unmap_pages(first, 16)?;
        has_none(&device, &to, first, 16, "of the unmapped range")?;
        to.map_again(first, 16, None)?;
        has_none(&device, &to, first, 16, "of the range mapped again")?;
    }
    Ok(())
}

fn child_inherits_no_attributes(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(16)?;
    map.fill(1);
    set(&device, &map, 0, 16, DEVICE)?;
    let child = Child::spawn(|| -> Outcome {
        let own = ctx.open()?;
        has_none(&own, &map, 0, 16, "of the child")?;
        set(&own, &map, 0, 16, none().prefer(Preferred::System))?;
        // The mirror of the inherited file is that of the parent's memory.
        has_device(&device, &map, 0, 16, "of the parent, asked by the child")
    })?;
    child.join().map_err(Stop::Fail)?;
    has_device(&device, &map, 0, 16, "of the parent")
}

fn mprotect_migration_and_fork_keep_attributes(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(64)?;
    map.fill(1);
    set(&device, &map, 0, 64, DEVICE)?;
    map.advise(libc::MADV_DONTNEED)?;
    has_device(&device, &map, 0, 64, "after MADV_DONTNEED")?;
    map.protect(Prot::Read)?;
    has_device(&device, &map, 0, 64, "after mprotect")?;
    map.protect(Prot::ReadWrite)?;
    map.fill(2);
    migrate(&device, &map, 2)?;
    cpu_sees(&map, 2, "after a migration")?;
    has_device(&device, &map, 0, 64, "after a migration")?;
    let child = Child::spawn(|| -> Outcome { cpu_sees(&map, 2, "in a child") })?;
    child.join().map_err(Stop::Fail)?;
    has_device(&device, &map, 0, 64, "after fork")
}

/// Reads a page by an engine. Returns the number of pages of the mapping that are on the device
/// afterwards.
pub(super) fn engine_reads(device: &Device, map: &Mapping, page: usize) -> Result<usize, Stop> {
    let read = Command::new(EngineOp::Read, map.page_addr(page), PAGE_SIZE);
    check_eq!(device.run(read).what("engine")?.error, None, "an engine's read");
    resident(device, map, 0, map.pages())
}

fn preferred_location(ctx: &Ctx) -> Outcome {
    const HALF: usize = HUGE_PAGES / 2;
    /// Pages of 64 KiB, which the policy migrates at least.
    const LEAF: usize = (64 << 10) / PAGE_SIZE;
    let device = ctx.open()?;
    device.set_policy(Policy::Default)?;
    let map = Mapping::anon_aligned(1)?;
    map.forbid_huge()?;
    map.fill(1);
    set(&device, &map, 0, HUGE_PAGES, none().prefer(Preferred::System))?;
    check_eq!(engine_reads(&device, &map, 5)?, 0, "pages that moved though they should not");
    device_sees(&device, &map, 1, "of memory in the system")?;
    check_eq!(device.placement()?.in_place, 1, "faults that left it where it is");
    set(&device, &map, HALF, HALF, none().prefer(Preferred::Device))?;
    device.discard(map.addr(), HUGE_PAGES)?;
    check!(engine_reads(&device, &map, HALF + 44)? >= LEAF, "what prefers the device did not move");
    check_eq!(resident(&device, &map, 0, HALF)?, 0, "pages of the other half");
    cpu_sees(&map, 1, "in both places")
}

fn never_migrate(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(64)?;
    map.fill(1);
    set(&device, &map, 16, 16, none().flag(Attributes::NEVER_MIGRATE, true))?;
    let done = device.migrate(map.addr(), 64, Way::ToDevice)?;
    check_eq!((done.moved, done.skipped), (48, 16), "moved, skipped");
    check_eq!(resident(&device, &map, 16, 16)?, 0, "pages that moved though they must not");
    device.set_policy(Policy::OnePage)?;
    engine_reads(&device, &map, 20)?;
    check_eq!(resident(&device, &map, 16, 16)?, 0, "pages that a fault moved");
    // Memory without read access is refused, with the attribute as well as without it.
    map.protect_pages(Prot::None, 20, 4)?;
    for (first, pages) in [(20, 1), (20, 4), (18, 4), (23, 2)] {
        let refused = device.migrate(map.page_addr(first), pages, Way::ToDevice);
        check_eq!(refused.err(), Some(Errno::EINVAL), "{pages} pages from {first} on");
    }
    check_eq!(device.migrate(map.page_addr(16), 4, Way::ToDevice)?.skipped, 4, "before them");
    map.protect_pages(Prot::ReadWrite, 20, 4)?;
    set(&device, &map, 16, 16, none().flag(Attributes::NEVER_MIGRATE, false))?;
    check_eq!(device.migrate(map.addr(), 64, Way::ToDevice)?.moved, 16, "moved then");
    cpu_sees(&map, 1, "after all")
}

fn accessed_by(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(64)?;
    map.fill(1);
    set(&device, &map, 0, 64, none().flag(Attributes::ACCESSED_BY, true))?;
    let done = device_sees(&device, &map, 1, "of memory that is always mapped")?;
    check_eq!(done.faults, 0, "faults on memory that is always mapped");
    Ok(())
}

const READ_MOSTLY: Attributes =
    Attributes { what: Attributes::READ_MOSTLY, values: Attributes::READ_MOSTLY, ..none() };

/// Checks that an engine reads the pattern and that no page has moved to the device.
fn reads_in_place(device: &Device, map: &Mapping, seed: u64, when: &str) -> Outcome {
    let moved = device.placement()?.moved;
    let used = device.counters()?.device_pages_used;
    let read = Command::new(EngineOp::Checksum, map.addr(), map.len())
        .verify(checksum_of_pattern(seed, map.pages()));
    check_eq!(device.run(read).what("engine")?.error, None, "an engine's read {when}");
    device_sees(device, map, seed, when)?;
    check_eq!(device.placement()?.moved, moved, "pages that moved {when}");
    check_eq!(resident(device, map, 0, map.pages())?, 0, "pages on the device {when}");
    check_eq!(device.counters()?.device_pages_used, used, "device pages {when}");
    Ok(())
}

fn read_mostly(ctx: &Ctx) -> Outcome {
    for policy in [Policy::OnePage, Policy::Default] {
        let device = ctx.open()?;
        device.set_policy(policy)?;
        let map = Mapping::anon(64)?;
        map.fill(1);
        set(&device, &map, 0, 64, READ_MOSTLY)?;
        let before = device.counters()?;
        reads_in_place(&device, &map, 1, "of writable memory")?;
        // A write by the CPU is visible immediately.
        map.fill(2);
        reads_in_place(&device, &map, 2, "after the CPU has written")?;
        let faults = device.counters()?.engine_faults_read;
        reads_in_place(&device, &map, 2, "again")?;
        check_eq!(device.counters()?.engine_faults_read, faults, "faults on mapped pages");
        map.protect(Prot::Read)?;
        reads_in_place(&device, &map, 2, "of memory that is not writable")?;
        cpu_sees(&map, 2, "of memory that is not writable")?;
        map.protect(Prot::ReadWrite)?;
        map.fill(3);
        reads_in_place(&device, &map, 3, "after it was made writable and written")?;
        let after = device.counters()?;
        check_eq!(after.cpu_faults, before.cpu_faults, "CPU faults");
        check_eq!(after.stale_hits, before.stale_hits, "stale hits");
    }
    Ok(())
}

/// After a fork, a write on either side gives the writer a page of its own.
fn read_mostly_writes_after_fork_are_private(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    device.set_policy(Policy::Default)?;
    let map = Mapping::anon(64)?;
    map.fill(1);
    set(&device, &map, 0, 64, READ_MOSTLY)?;
    reads_in_place(&device, &map, 1, "before the fork")?;
    let child = Child::spawn(|| -> Outcome {
        map.fill(2);
        cpu_sees(&map, 2, "in the child that wrote")
    })?;
    child.join().map_err(Stop::Fail)?;
    reads_in_place(&device, &map, 1, "after the child wrote its own")?;
    map.fill(3);
    reads_in_place(&device, &map, 3, "after the parent wrote")
}

fn read_mostly_on_two(ctx: &Ctx) -> Outcome {
    let devices = [ctx.open()?, Device::open(ctx.second).what("open the second device")?];
    let map = Mapping::anon(64)?;
    map.fill(1);
    for device in &devices {
        device.set_policy(Policy::Default)?;
        set(device, &map, 0, 64, READ_MOSTLY)?;
        reads_in_place(device, &map, 1, "by each device")?;
    }
    map.fill(2);
    for device in &devices {
        reads_in_place(device, &map, 2, "by each device, after a write of the CPU")?;
    }
    Ok(())
}

/// A write fault migrates the page as with other memory. If a read has mapped the page writable,
/// the write is done in place.
fn read_mostly_write(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    device.set_policy(Policy::OnePage)?;
    let map = Mapping::anon(64)?;
    map.fill(1);
    set(&device, &map, 0, 64, READ_MOSTLY)?;
    let fill = |page: usize, value: u64| -> Outcome {
        let fill = Command::new(EngineOp::Fill, map.page_addr(page), PAGE_SIZE).value(value);
        check_eq!(device.run(fill).what("engine")?.error, None, "an engine's write");
        Ok(())
    };
    fill(5, 7)?;
    check_eq!(device.placement()?.moved, 1, "pages that moved");
    check_eq!(resident(&device, &map, 0, 64)?, 1, "pages that the write moved");
    device_sees_pages(&device, &map, 1, 0, 5, "of the pages before")?;
    device_sees_pages(&device, &map, 1, 6, 58, "of the pages behind")?;
    check_eq!(resident(&device, &map, 0, 64)?, 1, "pages on the device after reads");
    fill(9, 8)?;
    check_eq!(device.placement()?.moved, 1, "pages that moved when one was written in place");
    for (page, value) in [(5, 7), (9, 8)] {
        for word in 0..PAGE_SIZE / 8 {
            check_eq!(map.get(page, word), value, "word {word} of page {page}");
        }
    }
    map.check_pages(1, 0, 5).what("the pages before")?;
    map.check_pages(1, 6, 3).what("the pages between")?;
    map.check_pages(1, 10, 54).what("the pages behind")
}

fn granularity(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    device.set_policy(Policy::Default)?;
    let map = Mapping::anon_aligned(1)?;
    map.forbid_huge()?;
    map.fill(1);
    for (order, page) in [(0, 3), (3, 70), (6, 200)] {
        device.migrate(map.addr(), HUGE_PAGES, Way::ToSystem)?;
        set(&device, &map, 0, HUGE_PAGES, none().order(Some(order)))?;
        check_eq!(engine_reads(&device, &map, page)?, 1 << order, "pages of order {order}");
    }
    cpu_sees(&map, 1, "after all")
}

/// Attributes also apply without a fault policy, for engines and for commands.
fn attributes_apply_without_a_fault_policy(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon_aligned(1)?;
    map.forbid_huge()?;
    map.fill(1);
    set(&device, &map, 64, 64, DEVICE.order(Some(3)))?;
    check_eq!(engine_reads(&device, &map, 3)?, 0, "pages of which nothing was said");
    check_eq!(engine_reads(&device, &map, 65)?, 8, "pages that prefer the device");
    // A command on the whole range: each part is placed by its attributes.
    device_sees(&device, &map, 1, "of both parts")?;
    check_eq!(resident(&device, &map, 64, 64)?, 64, "pages of that part");
    check_eq!(resident(&device, &map, 0, HUGE_PAGES)?, 64, "pages of all");
    cpu_sees(&map, 1, "after all")
}

/// If each page has other attributes, a device fault handles the pages one after the other. Another
/// thread invalidates the first page again and again, faster than the fault handles all. The fault
/// must complete nevertheless.
fn concurrent_invalidations(ctx: &Ctx) -> Outcome {
    let map = Mapping::anon_aligned(1)?;
    map.forbid_huge()?;
    map.fill(1);
    comes_to_an_end(|| {
        let device = ctx.open()?;
        device.set_policy(Policy::OnePage)?;
        for page in (0..map.pages()).step_by(2) {
            set(&device, &map, page, 1, none().order(Some(0)))?;
        }
        while_taken(&map, || {
            device_sees(&device, &map, 1, "while a page is taken away").map(|_| ())
        })
    })
}

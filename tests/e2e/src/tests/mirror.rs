// SPDX-License-Identifier: GPL-2.0
//! One mirror, two mirrors of one process, and two devices.

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
use hmm::abi::PAGE_SIZE;
use hmm::mapping::{
    Prot,
    MADV_DONTNEED, //
};
use hmm::{
    Child,
    Device,
    Errno,
    Gate,
    Mapping, //
};

const PAGES: usize = 64;
const STALE: &str = "a second open keeps stale entries: use after free";

pub const TESTS: &[Test] = &[
    Test::new("mirror", "reread_uses_installed_entries", reread_uses_installed_entries),
    Test::new(
        "mirror",
        "remap_at_the_same_address_invalidates",
        remap_at_the_same_address_invalidates,
    ),
    Test::new("mirror", "write_upgrades_a_read_entry", write_upgrades_a_read_entry),
    Test::new("mirror", "unused_memory_invokes_no_callbacks", unused_memory_invokes_no_callbacks),
    Test::new("mirror", "migration_leaves_no_stale_entry_in_another_mirror", two_opens_reuse)
        .defect(STALE),
    Test::new("mirror", "two_mirrors_write_device_memory", two_opens_write).defect(STALE),
    Test::new(
        "mirror",
        "cpu_fault_removes_entries_of_both_mirrors",
        cpu_fault_removes_entries_of_both_mirrors,
    )
    .defect(STALE),
    Test::new("mirror", "closing_one_mirror_keeps_the_other", closing_one_mirror_keeps_the_other)
        .defect(STALE),
    Test::new("mirror", "read_by_another_device_migrates_back", two_devices).private(),
    Test::new("mirror", "last_close_migrates_pages_back", last_close_migrates_pages_back),
];

/// The first access faults and installs device PTEs. The second access uses them.
fn reread_uses_installed_entries(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    let delta = Delta::start(ctx, &device)?;
    let first = device_sees(&device, &map, 1, "of populated memory")?;
    check_eq!(first.faults, 1, "fault rounds of the first read");
    let again = device_sees(&device, &map, 1, "again")?;
    check_eq!(again.faults, 0, "fault rounds of the second read");
    delta.exactly("faults_read", 1, "after two reads")?;
    delta.exactly("pages_mapped", PAGES as i64, "after two reads")?;
    delta.exactly("faults_write", 0, "after two reads")?;
    device_fills(&device, &map, 2, "of mapped memory")?;
    cpu_sees(&map, 2, "after a device write")?;
    map.fill(3);
    let third = device_sees(&device, &map, 3, "after a CPU write")?;
    check_eq!(third.faults, 0, "fault rounds after a CPU write in place");
    Ok(())
}

/// munmap() must invalidate, because new memory at the same address has other contents.
fn remap_at_the_same_address_invalidates(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    let source = Mapping::anon(PAGES)?;
    map.fill(1);
    device_sees(&device, &map, 1, "before")?;
    source.fill(2);
    let delta = Delta::start(ctx, &device)?;
    source.move_pages(0, PAGES, &map, 0)?;
    delta.at_least("invalidations", 1, "after the old memory was replaced")?;
    let done = device_sees(&device, &map, 2, "after the memory was replaced")?;
    check_eq!(done.faults, 1, "fault rounds after the memory was replaced");
    cpu_sees(&map, 2, "after the memory was replaced")
}

/// Maps memory that shares no page table, and hence no window of an mm, with other memory.
fn apart() -> Result<Mapping, Stop> {
    let map = Mapping::reserve(PAGES * PAGE_SIZE, Prot::ReadWrite).what("map")?;
    map.fill(1);
    Ok(map)
}

/// Changes of memory that the device does not use must not invoke callbacks of the mirror, whether
/// the device uses other memory or none. The same holds for COW faults after a fork.
fn unused_memory_invokes_no_callbacks(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let used = apart()?;
    for in_use in [false, true] {
        let when = if in_use { "beside memory in use" } else { "of a mirror that is only open" };
        let map = apart()?;
        let shared = apart()?;
        let ready = Gate::new()?;
        let gate = Gate::new()?;
        let mut delta = Delta::start(ctx, &device)?;
        let child = Child::spawn(|| {
            ready.open().what("gate")?;
            gate.wait().what("gate")
        })?;
        ready.wait().what("the child's start")?;
        if in_use {
            // The fork has invalidated the entries, because it changes all memory of the process.
            device_sees(&device, &used, 1, "after a fork")?;
            delta = Delta::start(ctx, &device)?;
        }
        shared.fill(2);
        map.protect(Prot::Read).what("mprotect")?;
        map.protect(Prot::ReadWrite).what("mprotect")?;
        map.advise(MADV_DONTNEED).what("madvise")?;
        map.fill(3);
        map.unmap_pages(0, PAGES).what("munmap")?;
        delta.exactly("invalidations", 0, when)?;
        gate.open().what("gate")?;
        child.join().map_err(Stop::Fail)?;
        cpu_sees(&shared, 2, "after the COW faults")?;
        device_sees(&device, &used, 1, "at the end")?;
    }
    Ok(())
}

/// A read-only entry must not permit writes.
fn write_upgrades_a_read_entry(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    // The memory was never written, so the read maps the zero page read-only.
    device_sees_zero(&device, &map, 0, PAGES, "of unpopulated memory")?;
    let delta = Delta::start(ctx, &device)?;
    let done = device_fills(&device, &map, 1, "after a read")?;
    check!(done.faults >= 1, "a write used an entry for reading: no fault round");
    delta.at_least("faults_write", 1, "of the write")?;
    cpu_sees(&map, 1, "after the write")?;
    // The zero page itself must still be zero.
    let other = Mapping::anon(1)?;
    other.check_zero(0, 1).what("another use of the zero page")
}

/// A migration through one mirror must not leave a stale entry in the other mirror. The other
/// mirror need not fault either.
fn two_opens_reuse(ctx: &Ctx) -> Outcome {
    let reader = ctx.open()?;
    let mover = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    device_sees(&reader, &map, 1, "before the migration")?;
    migrate(&mover, &map, 1)?;
    // The pages that held the data are free. Ensure that their contents change.
    let _reused = reuse_freed_pages(4096)?;
    let done = device_sees(&reader, &map, 1, "after the other mirror migrated")?;
    check_eq!(done.faults, 0, "fault rounds of the other mirror after the migration");
    // The same on the way back: freed device pages are reused.
    map.fill(2);
    let other = Mapping::anon(PAGES)?;
    other.fill(3);
    migrate(&mover, &other, 3)?;
    device_sees(&reader, &map, 2, "after the CPU took the pages back")?;
    device_sees(&mover, &map, 2, "through the mover after the CPU took the pages back")?;
    device_sees(&reader, &other, 3, "of pages that the other mirror migrated")?;
    cpu_sees(&other, 3, "at the end")
}

/// Both mirrors write to pages in device memory. Each reads the data of the other.
fn two_opens_write(ctx: &Ctx) -> Outcome {
    let a = ctx.open()?;
    let b = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    device_sees(&a, &map, 1, "before the migration")?;
    migrate(&b, &map, 1)?;
    device_sees(&a, &map, 1, "of the other mirror's device pages")?;
    device_fills(&b, &map, 2, "through B")?;
    device_sees(&a, &map, 2, "through A after B wrote")?;
    device_fills(&a, &map, 3, "through A")?;
    device_sees(&b, &map, 3, "through B after A wrote")?;
    cpu_sees(&map, 3, "after both wrote")?;
    device_sees(&a, &map, 3, "through A after the CPU read")?;
    device_sees(&b, &map, 3, "through B after the CPU read")?;
    Ok(())
}

/// A CPU fault removes the page from both mirrors.
fn cpu_fault_removes_entries_of_both_mirrors(ctx: &Ctx) -> Outcome {
    let a = ctx.open()?;
    let b = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    migrate(&a, &map, 1)?;
    device_sees(&b, &map, 1, "through B")?;
    let delta = Delta::start(ctx, &a)?;
    map.fill_pages(2, 0, PAGES / 2);
    if !ctx.coherent() {
        delta.at_least("cpu_fault_pages", (PAGES / 2) as i64, "after a CPU touch")?;
    }
    let _reused = reuse_freed_pages(2048)?;
    for (device, name) in [(&a, "A"), (&b, "B")] {
        let when = format!("through {name} after the CPU wrote half");
        device_sees_pages(device, &map, 2, 0, PAGES / 2, &when)?;
        device_sees_pages(device, &map, 1, PAGES / 2, PAGES / 2, &when)?;
    }
    Ok(())
}

/// Closing one mirror evicts device memory. The other mirror keeps working.
fn closing_one_mirror_keeps_the_other(ctx: &Ctx) -> Outcome {
    let a = ctx.open()?;
    let b = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    migrate(&b, &map, 1)?;
    device_sees(&a, &map, 1, "before the close")?;
    b.close().what("close B")?;
    let _reused = reuse_freed_pages(2048)?;
    device_sees(&a, &map, 1, "after B was closed")?;
    device_fills(&a, &map, 2, "after B was closed")?;
    cpu_sees(&map, 2, "after B was closed")
}

/// Pages in private memory of one device migrate back when another device reads them.
fn two_devices(ctx: &Ctx) -> Outcome {
    let one = ctx.open()?;
    let two = Device::open(ctx.second).what("open the second device")?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    migrate(&one, &map, 1)?;
    // A page of another device does not migrate. No page gets an entry, so the call returns ENOENT.
    fails(try_migrate(&two, &map), Errno::ENOENT, "migration from device to device")?;
    check_eq!(resident(&one, &map, 0, PAGES)?, PAGES, "pages still on the first device");
    let delta = Delta::start(ctx, &one)?;
    device_sees(&two, &map, 1, "by the second device")?;
    check_eq!(resident(&one, &map, 0, PAGES)?, 0, "pages left on the first device");
    delta.at_least("cpu_fault_pages", PAGES as i64, "when the second device read")?;
    device_sees(&one, &map, 1, "by the first device afterwards")?;
    migrate(&two, &map, 1)?;
    device_fills(&two, &map, 2, "by the second device")?;
    device_sees(&one, &map, 2, "by the first device after the second wrote")?;
    cpu_sees(&map, 2, "at the end")
}

/// The last close of a device migrates all of its pages back to the process.
fn last_close_migrates_pages_back(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    migrate(&device, &map, 1)?;
    device_fills(&device, &map, 2, "of device pages")?;
    device.close().what("close")?;
    let device = ctx.open()?;
    check_eq!(resident(&device, &map, 0, PAGES)?, 0, "pages on the device after its close");
    cpu_sees(&map, 2, "after the close")?;
    device_sees(&device, &map, 2, "after a new open")?;
    Ok(())
}

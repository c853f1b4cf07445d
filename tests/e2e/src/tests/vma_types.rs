// SPDX-License-Identifier: GPL-2.0
//! The device accesses every type of memory in place, and pins none.
//!
//! Memory that can migrate does. For other memory a migration returns the error of the C driver,
//! and the memory stays usable in place.

use crate::harness::{
    Ctx,
    Driver,
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
use hmm::abi::{
    HUGE_PAGES,
    PAGE_SIZE, //
};
use hmm::engine::Way;
use hmm::mapping::Prot;
use hmm::placement::Attributes;
use hmm::{
    files,
    pattern,
    procfs,
    Errno,
    Mapping,
    Settings,
    View, //
};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

const PAGES: usize = 15;
const OURS: &str = "test_hmm only migrates all of a range";

pub const TESTS: &[Test] = &[
    Test::new("vma_types", "anonymous", anonymous),
    Test::new("vma_types", "anonymous_huge", anonymous_huge),
    Test::new("vma_types", "shared_anonymous", shared_anonymous),
    Test::new("vma_types", "file_shared", file_shared),
    Test::new("vma_types", "file_private", file_private),
    Test::new("vma_types", "file_private_device_write_makes_a_copy", file_private_device_first),
    Test::new("vma_types", "file_private_copies_are_evicted", file_private_copies_are_evicted)
        .only_rust(OURS),
    Test::new("vma_types", "memfd_shared", memfd_shared),
    Test::new("vma_types", "memfd_private", memfd_private),
    Test::new("vma_types", "hugetlb", hugetlb),
    Test::new("vma_types", "stack", stack),
    Test::new("vma_types", "heap", heap),
    Test::new("vma_types", "data_segment", data_segment),
    Test::new("vma_types", "device_file", device_file),
];

/// Expected result of a migration.
enum Migration {
    Moves,
    Refused(Errno),
}

fn pins() -> Result<(u64, u64), Stop> {
    // If the kernel does not count pins, the comparison is trivial.
    Ok(procfs::pins()?.unwrap_or_default())
}

/// Reads and writes the memory by the device, tries to migrate it, and uses it again.
fn in_place(ctx: &Ctx, map: &Mapping, migration: Migration) -> Outcome {
    let pages = map.pages();
    let before = pins()?;
    map.fill(11);
    let device = ctx.open()?;
    let done = device_sees(&device, map, 11, "in place")?;
    check_eq!(done.faults, 1, "fault rounds of the read");
    device_fills(&device, map, 12, "in place")?;
    cpu_sees(map, 12, "after the device write")?;
    check_eq!(pins()?, before, "pages pinned so far and now, after device use");
    // A new open has no device PTEs, so a page that cannot migrate has none afterwards.
    drop(device);
    let device = ctx.open()?;
    match migration {
        Migration::Moves => {
            migrate(&device, map, 12)?;
            device_fills(&device, map, 13, "on the device")?;
        }
        Migration::Refused(errno) => {
            let delta = Delta::start(ctx, &device)?;
            fails(try_migrate(&device, map), errno, "migration of memory that cannot migrate")?;
            check_eq!(resident(&device, map, 0, pages)?, 0, "pages on the device");
            delta.exactly("migrated_to_device", 0, "of a refused migration")?;
            delta.exactly("device_pages_used", 0, "of a refused migration")?;
            device_sees(&device, map, 12, "after the refused migration")?;
            device_fills(&device, map, 13, "after the refused migration")?;
        }
    }
    cpu_sees(map, 13, "after the migration and a device write")?;
    map.fill(14);
    device_sees(&device, map, 14, "at the end")?;
    check_eq!(pins()?, before, "pages pinned so far and now, at the end");
    Ok(())
}

fn anonymous(ctx: &Ctx) -> Outcome {
    let map = Mapping::anon(PAGES)?;
    in_place(ctx, &map, Migration::Moves)?;
    // Device accesses must leave no reference that prevents a later migration.
    let device = ctx.open()?;
    device_sees(&device, &map, 14, "before the last migration")?;
    migrate(&device, &map, 14)
}

fn anonymous_huge(ctx: &Ctx) -> Outcome {
    in_place(ctx, &huge(1, 1)?, Migration::Moves)
}

fn shared_anonymous(ctx: &Ctx) -> Outcome {
    in_place(ctx, &Mapping::shared(PAGES)?, Migration::Refused(Errno::ENOENT))
}

fn file_contents(file: &File) -> Result<Vec<u8>, Stop> {
    let mut data = vec![0; PAGES * PAGE_SIZE];
    file.read_exact_at(&mut data, 0).what("read the file")?;
    Ok(data)
}

fn file_shared(ctx: &Ctx) -> Outcome {
    let file = files::temp_file("/tmp", 1, PAGES)?;
    let map = Mapping::file_shared(&file, PAGES)?;
    in_place(ctx, &map, Migration::Refused(Errno::ENOENT))?;
    let device = ctx.open()?;
    device_fills(&device, &map, 20, "of a shared file")?;
    pattern::check(20, 0, &file_contents(&file)?).what("file after a device write")
}

fn file_private(ctx: &Ctx) -> Outcome {
    let file = files::temp_file("/tmp", 1, PAGES)?;
    let map = Mapping::file_private(&file, PAGES)?;
    // The CPU's write has made private copies, which are anonymous memory.
    in_place(ctx, &map, Migration::Moves)?;
    pattern::check(1, 0, &file_contents(&file)?).what("file behind private copies")
}

/// A device write to a private file mapping makes a private copy, as a CPU write would.
fn file_private_device_first(ctx: &Ctx) -> Outcome {
    let file = files::temp_file("/tmp", 1, PAGES)?;
    let map = Mapping::file_private(&file, PAGES)?;
    let device = ctx.open()?;
    device_sees(&device, &map, 1, "of the file's own pages")?;
    fails(try_migrate(&ctx.open()?, &map), Errno::ENOENT, "migration of the file's own pages")?;
    cpu_sees(&map, 1, "after the refused migration")?;
    device_sees(&device, &map, 1, "after the refused migration")?;
    device_fills(&device, &map, 2, "of a private file")?;
    cpu_sees(&map, 2, "after the device write")?;
    pattern::check(1, 0, &file_contents(&file)?).what("file after a private device write")
}

/// Eviction finds private copies of a file's pages by their file offset, in each part of the
/// mapping and at any address to which they were moved.
fn file_private_copies_are_evicted(ctx: &Ctx) -> Outcome {
    let file = files::temp_file("/tmp", 1, PAGES)?;
    let map = Mapping::file_private(&file, PAGES)?;
    let target = Mapping::anon(PAGES)?;
    map.fill_pages(2, 2, PAGES - 2);
    map.protect_pages(Prot::Read, 4, 3)?;
    map.move_pages(8, 4, &target, 8)?;
    let parts = [(&map, 2, 6), (&map, 12, PAGES - 12), (&target, 8, 4)];
    let device = ctx.open()?;
    for (map, first, pages) in parts {
        let done = device.migrate(map.page_addr(first), pages, Way::ToDevice).what("migrate")?;
        check_eq!(done.moved, pages as u64, "pages that moved");
    }
    let delta = Delta::start(ctx, &device)?;
    device.release().what("release")?;
    delta.exactly("evicted_pages", PAGES as i64 - 2, "of an eviction")?;
    check_eq!(device.counters()?.device_pages_used, 0, "pages on the device");
    for (map, first, pages) in parts {
        map.check_pages(2, first, pages).what("after the eviction")?;
    }
    map.check_pages(1, 0, 2).what("the file's own pages")?;
    pattern::check(1, 0, &file_contents(&file)?).what("file behind private copies")
}

fn memfd_shared(ctx: &Ctx) -> Outcome {
    let file = files::memfd(1, PAGES)?;
    let map = Mapping::file_shared(&file, PAGES)?;
    in_place(ctx, &map, Migration::Refused(Errno::ENOENT))?;
    let other = Mapping::file_shared(&file, PAGES)?;
    cpu_sees(&other, 14, "through a second mapping")
}

fn memfd_private(ctx: &Ctx) -> Outcome {
    let file = files::memfd(1, PAGES)?;
    in_place(ctx, &Mapping::file_private(&file, PAGES)?, Migration::Moves)?;
    pattern::check(1, 0, &file_contents(&file)?).what("memfd behind private copies")
}

fn hugetlb(ctx: &Ctx) -> Outcome {
    let mut settings = Settings::new();
    if !settings.set("/proc/sys/vm/nr_hugepages", "8")? {
        return Err(Stop::Skip("this kernel has no hugetlb".to_string()));
    }
    let map = Mapping::hugetlb(1).what("map a hugetlb page")?;
    check_eq!(map.pages(), HUGE_PAGES, "pages of a hugetlb page");
    in_place(ctx, &map, Migration::Refused(Errno::EINVAL))?;
    // Nor is it searched for device pages.
    let back = ctx.open()?.migrate_to_system(map.addr(), HUGE_PAGES);
    fails(back, Errno::EINVAL, "migration of hugetlb memory to the system")?;
    if ctx.driver != Driver::Rust {
        return Ok(());
    }
    // The same with an attribute that prevents its migration.
    let device = ctx.open()?;
    let never = Attributes::default().flag(Attributes::NEVER_MIGRATE, true);
    device.set_attributes(map.addr(), HUGE_PAGES, never).what("set attributes")?;
    let there = device.migrate(map.addr(), HUGE_PAGES, Way::ToDevice);
    fails(there, Errno::EINVAL, "migration of hugetlb memory that never migrates")
}

fn stack(ctx: &Ctx) -> Outcome {
    let mut array = [0u8; (PAGES + 1) * PAGE_SIZE];
    let view = View::of(&mut array).ok_or_else(|| Stop::Fail("no whole page".to_string()))?;
    in_place(ctx, &view, Migration::Moves)
}

fn heap(ctx: &Ctx) -> Outcome {
    // SAFETY: `mallopt` takes numbers. From this size on, malloc() maps memory of its own.
    let set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, (2 * PAGES * PAGE_SIZE) as i32) };
    check_eq!(set, 1, "mallopt");
    let mut memory = vec![0u8; (PAGES + 1) * PAGE_SIZE];
    let heap = hmm::smaps::read()?.into_iter().find(|vma| vma.name == "[heap]");
    let heap = heap.ok_or_else(|| Stop::Fail("there is no heap".to_string()))?;
    let addr = memory.as_ptr() as usize;
    check!(heap.start <= addr && addr < heap.end, "malloc gave no heap memory");
    let view = View::of(&mut memory).ok_or_else(|| Stop::Fail("no whole page".to_string()))?;
    in_place(ctx, &view, Migration::Moves)
}

#[repr(align(16384))]
struct Aligned([u8; PAGES * PAGE_SIZE]);

/// Aligned to the largest pages of a guest. Not zero, so that it is placed in .data and not in
/// .bss.
static DATA: Mutex<Aligned> = Mutex::new(Aligned([1; PAGES * PAGE_SIZE]));

fn data_segment(ctx: &Ctx) -> Outcome {
    let mut data = DATA.lock()?;
    let view = View::of(&mut data.0).ok_or_else(|| Stop::Fail("no whole page".to_string()))?;
    in_place(ctx, &view, Migration::Moves)
}

/// Pages that a driver has inserted into a mapping (`VM_MIXEDMAP`).
fn device_file(ctx: &Ctx) -> Outcome {
    let owner = ctx.open()?;
    let map = owner.map_file(PAGES).what("map the device file")?;
    let device = ctx.open()?;
    device_sees_zero(&device, &map, 0, PAGES, "of the device file")?;
    fails(try_migrate(&device, &map), Errno::EINVAL, "migration of the device file")?;
    map.check_zero(0, PAGES).what("CPU read of the device file")?;
    // In a private mapping a write makes anonymous copies.
    device_fills(&device, &map, 2, "of the device file")?;
    cpu_sees(&map, 2, "after the device write")
}

// SPDX-License-Identifier: GPL-2.0
//! Migration of whole huge pages and of their parts, there and back.

use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::abi::{
    PageState,
    HUGE_PAGES, //
};
use hmm::{
    mapping,
    pagemap,
    pattern,
    Child,
    Device,
    Errno,
    Gate,
    Mapping,
    Prot,
    Setting,
    PAGE_SIZE, //
};

pub(super) fn migrates_back_on_cpu_access(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = huge(1, 1)?;
    let delta = Delta::start(ctx, &device)?;
    migrate(&device, &map, 1)?;
    check_eq!(resident_huge(&device, &map)?, HUGE_PAGES, "pages in a huge device page");
    delta.exactly("device_pages_used", HUGE_PAGES as i64, "after the migration")?;
    check_eq!(map.get(77, 7), pattern::word(1, 77, 7), "CPU read of one word");
    check_eq!(resident(&device, &map, 0, HUGE_PAGES)?, 0, "device pages after one CPU read");
    delta.exactly("cpu_faults", 1, "after one CPU read")?;
    delta.exactly("cpu_fault_pages", HUGE_PAGES as i64, "after one CPU read")?;
    delta.exactly("device_pages_used", 0, "after one CPU read")?;
    cpu_sees(&map, 1, "afterwards")?;
    let huge = hmm::smaps::field(map.addr(), map.len(), "AnonHugePages")?;
    check_eq!(huge, HUGE_KIB, "KiB in huge pages after the way back");
    Ok(())
}

pub(super) fn back_by_request(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = huge(2, 1)?;
    migrate(&device, &map, 1)?;
    device_fills(&device, &map, 2, "of huge device pages")?;
    device.migrate_to_system(map.addr(), map.pages()).what("migrate to the system")?;
    if !ctx.coherent() {
        // migrate_vma_setup() does not collect coherent huge pages.
        check_eq!(resident(&device, &map, 0, map.pages())?, 0, "device pages afterwards");
    }
    cpu_sees(&map, 2, "afterwards")
}

pub(super) fn several(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = huge(3, 1)?;
    let done = device_fills(&device, &map, 2, "of huge pages in RAM")?;
    check_eq!(done.faults, 1, "fault rounds of the write");
    migrate(&device, &map, 2)?;
    device_fills(&device, &map, 3, "of huge device pages")?;
    cpu_sees(&map, 3, "after the device writes")?;
    device_sees(&device, &map, 3, "at the end")?;
    Ok(())
}

/// After a CPU read of unpopulated memory the kernel maps the huge zero page, which all processes
/// share.
pub(super) fn huge_zero_page(ctx: &Ctx) -> Outcome {
    needs_huge_pages()?;
    let device = ctx.open()?;
    let map = Mapping::anon_huge(1).what("map memory for a huge page")?;
    check_eq!(map.get(77, 7), 0, "CPU read of memory that was never written");
    let frames = pagemap::pfns(map.addr(), map.pages()).what("page frames")?;
    check!(pagemap::is_zero(frames[0]).what("flags")?, "a read brought in another page");
    check!(
        frames.iter().zip(frames[0]..).all(|(frame, expected)| *frame == expected),
        "the zero page is not mapped huge"
    );
    let mut data = vec![0xaa; map.len()];
    device.migrate_to_device(map.addr(), &mut data).what("migrate to the device")?;
    pattern::check_zero(&data).what("data that the migration returns")?;
    check_eq!(resident(&device, &map, 0, map.pages())?, map.pages(), "pages on the device");
    device_sees_zero(&device, &map, 0, map.pages(), "after the migration")?;
    device_fills(&device, &map, 5, "of pages that were not written before")?;
    cpu_sees(&map, 5, "after the device wrote")
}

/// A range that begins and ends within huge pages.
pub(super) fn parts_of_huge_pages_migrate(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = huge(2, 1)?;
    let first = HUGE_PAGES - 16;
    let npages = 32;
    let mut data = vec![0xaa; npages * hmm::PAGE_SIZE];
    device.migrate_to_device(map.page_addr(first), &mut data).what("migrate")?;
    pattern::check(1, first, &data).what("data that the migration returns")?;
    check_eq!(resident(&device, &map, first, npages)?, npages, "pages on the device");
    check_eq!(resident(&device, &map, 0, first)?, 0, "pages on the device that were not asked");
    device_sees(&device, &map, 1, "of everything")?;
    cpu_sees(&map, 1, "of everything")
}

/// A fault that begins within a huge device page. The kernel's hmm_range_fault() (7.2, 7.3) returns
/// entries as if the range began at the first page of the huge page.
pub(super) fn read_from_the_middle_of_a_huge_page(ctx: &Ctx) -> Outcome {
    const HALF: usize = HUGE_PAGES / 2;
    let owner = ctx.open()?;
    let map = huge(1, 1)?;
    migrate(&owner, &map, 1)?;
    for (first, npages) in [(100, 10), (HUGE_PAGES - 1, 1), (1, 1), (HALF, HALF)] {
        let other = ctx.open()?;
        device_sees_pages(&other, &map, 1, first, npages, "from the middle")?;
        if !ctx.coherent() {
            // Coherent memory has only small pages.
            check_eq!(resident_huge(&owner, &map)?, HUGE_PAGES, "pages in a huge device page");
        }
        drop_without_eviction(other);
    }
    let other = ctx.open()?;
    device_fills_pages(&other, &map, 2, 300, 100, "to the middle")?;
    device_sees_pages(&other, &map, 1, 0, 300, "in front")?;
    map.check_pages(1, 0, 300).what("CPU read in front")?;
    map.check_pages(2, 300, 100).what("CPU read of words that the device wrote")?;
    map.check_pages(1, 400, HUGE_PAGES - 400).what("CPU read behind")
}

/// Keeps the file open until the end of the process, because a close would evict the huge page.
fn drop_without_eviction(device: hmm::Device) {
    std::mem::forget(device);
}

/// A snapshot by another device reports a huge page as not present, as it does for small pages, and
/// not as an error.
pub(super) fn snapshot_of_remote(ctx: &Ctx) -> Outcome {
    let owner = ctx.open()?;
    let other = Device::open(ctx.second).what("open the second device")?;
    let map = huge(1, 4)?;
    migrate(&owner, &map, 4)?;
    check_eq!(resident_huge(&owner, &map)?, HUGE_PAGES, "pages in a huge device page");
    for (page, pages) in [(0, HUGE_PAGES), (100, 3)] {
        let states = other.snapshot(map.page_addr(page), pages).what("snapshot")?;
        let nothing = states.iter().filter(|state| **state == PageState::NONE).count();
        check_eq!(nothing, pages, "pages from {page} on that are not there");
    }
    map.protect(Prot::None)?;
    let states = other.snapshot(map.page_addr(100), 3).what("snapshot")?;
    check_eq!(states, [PageState::ERROR; 3], "pages without rights");
    map.protect(Prot::ReadWrite)?;
    device_sees(&other, &map, 4, "of the other one's page").map(|_| ())
}

/// A shared huge device page may migrate back or stay. No contents are lost.
pub(super) fn page_shared_by_fork_keeps_contents(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = huge(1, 1)?;
    let go = Gate::new()?;
    let child = Child::spawn(|| {
        go.wait().what("gate")?;
        cpu_sees(&map, 1, "by the child")?;
        map.fill(2);
        cpu_sees(&map, 2, "by the child of its own words")
    })?;
    match try_migrate(&device, &map) {
        Ok(_) | Err(Errno::ENOENT) => {}
        Err(error) => return Err(Stop::Fail(format!("migration: {error}"))),
    }
    go.open().what("gate")?;
    child.join().map_err(Stop::Fail)?;
    device_sees(&device, &map, 1, "after the child wrote")?;
    cpu_sees(&map, 1, "by the parent")
}

pub(super) fn dontneed_of_a_part_reads_zero(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = huge(1, 1)?;
    migrate(&device, &map, 1)?;
    map.advise_pages(mapping::MADV_DONTNEED, 100, 200)?;
    map.check_zero(100, 200).what("CPU read of the part")?;
    map.check_pages(1, 0, 100).what("CPU read in front of the part")?;
    map.check_pages(1, 300, HUGE_PAGES - 300).what("CPU read behind the part")?;
    device_sees_zero(&device, &map, 100, 200, "of the part")?;
    device_sees_pages(&device, &map, 1, 0, 100, "in front of the part")?;
    device_sees_pages(&device, &map, 1, 300, HUGE_PAGES - 300, "behind the part")?;
    Ok(())
}

/// A huge device page that is mapped by PTEs. The core splits it for the fault, and then takes its
/// first page for the one that the fault holds locked. If the first page is not migrated, it must
/// not stay locked.
pub(super) fn cpu_fault_on_a_pte_mapped_huge_page(ctx: &Ctx) -> Outcome {
    /// Pages of the smallest window, 64 KiB.
    const WINDOW: usize = (64 << 10) / PAGE_SIZE;
    for touched in [1, 5, WINDOW - 1, WINDOW, HUGE_PAGES - 1, 0] {
        let device = ctx.open()?;
        let map = huge(1, 1)?;
        migrate(&device, &map, 1)?;
        map.protect_pages(Prot::Read, 200, 1)?;
        map.protect_pages(Prot::ReadWrite, 200, 1)?;
        check_eq!(resident(&device, &map, 0, HUGE_PAGES)?, HUGE_PAGES, "device pages");
        // A fault elsewhere, so that the next window has the minimal size.
        let elsewhere = mapping::Mapping::anon(1).what("map memory")?;
        elsewhere.fill(2);
        migrate(&device, &elsewhere, 2)?;
        cpu_sees(&elsewhere, 2, "elsewhere")?;
        device.set(Setting::CopyFail, 0)?;
        let delta = Delta::start(ctx, &device)?;
        let first = touched / WINDOW * WINDOW;
        if touched % WINDOW != 0 {
            // The copy of the first page in its window fails.
            check_eq!(map.get(touched, 3), pattern::word(1, touched, 3), "page {touched}");
            delta.exactly("copy_failures", 1, "after the touch")?;
            check_eq!(resident(&device, &map, touched, 1)?, 0, "page {touched} on the device");
            check_eq!(resident(&device, &map, first, 1)?, 1, "page {first} on the device");
        }
        device.set(Setting::CopyFail, u64::MAX)?;
        check_eq!(map.get(first, 0), pattern::word(1, first, 0), "page {first}");
        cpu_sees(&map, 1, "at the end")?;
        delta.exactly("device_pages_used", -(HUGE_PAGES as i64), "at the end")?;
    }
    Ok(())
}

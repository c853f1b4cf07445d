// SPDX-License-Identifier: GPL-2.0
//! A device read must not break sharing. The page stays the one that is in the page cache, the zero
//! page, or shared with another process or by KSM.

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
use hmm::{
    files,
    mapping,
    pagemap,
    smaps,
    Child,
    Errno,
    Gate,
    Mapping,
    Prot,
    PAGE_SIZE, //
};
use std::path::Path;
use std::time::{
    Duration,
    Instant, //
};

const PAGES: usize = 16;
const HANGS: &str = "migrates KSM pages: CPU reads of them then spin for ever";

pub const TESTS: &[Test] = &[
    Test::new("sharing", "read_of_file_pages", read_of_file_pages),
    Test::new("sharing", "read_of_zero_pages", read_of_zero_pages),
    Test::new(
        "sharing",
        "read_of_unpopulated_memory_maps_the_zero_page",
        read_of_unpopulated_memory_maps_the_zero_page,
    ),
    Test::new("sharing", "read_of_cow_pages", read_of_cow_pages),
    Test::new("sharing", "read_of_ksm_pages", read_of_ksm_pages).seconds(120),
    Test::new("sharing", "write_to_ksm_pages_makes_copies", write_to_ksm_pages_makes_copies)
        .seconds(120),
    Test::new("sharing", "migration_of_ksm_pages", migration_of_ksm_pages)
        .defect(HANGS)
        .seconds(120),
    Test::new("sharing", "migration_of_ksm_and_own_pages", migration_of_mixed_pages)
        .defect(HANGS)
        .seconds(120),
    Test::new("sharing", "migration_of_pages_that_ksm_merged_in_a_child", merged_in_a_child)
        .defect(HANGS)
        .seconds(120),
    Test::new("sharing", "migration_of_pages_that_were_merged_and_swapped_out", merged_and_swapped)
        .defect(HANGS)
        .seconds(120),
];

/// State that must not change: the page frames and the size of private memory.
#[derive(Debug, PartialEq)]
struct Shared {
    pfns: Vec<u64>,
    anonymous_kib: u64,
}

fn shared(map: &Mapping) -> Result<Shared, Stop> {
    let pfns = pagemap::pfns(map.addr(), map.pages()).what("page frames")?;
    let anonymous_kib = smaps::field(map.addr(), map.len(), "Anonymous").what("smaps")?;
    Ok(Shared { pfns, anonymous_kib })
}

fn read_of_file_pages(ctx: &Ctx) -> Outcome {
    let file = files::temp_file("/tmp", 1, PAGES)?;
    let map = Mapping::file_private(&file, PAGES)?;
    let cache = Mapping::file_shared(&file, PAGES)?;
    cpu_sees(&map, 1, "of the private mapping")?;
    cpu_sees(&cache, 1, "of the shared mapping")?;
    let before = shared(&map)?;
    check_eq!(before.anonymous_kib, 0, "KiB of private copies before");
    let device = ctx.open()?;
    device_sees(&device, &map, 1, "of private file pages")?;
    check_eq!(shared(&map)?, before, "page frames and copies after the device read");
    check_eq!(before.pfns, shared(&cache)?.pfns, "page frames of the two mappings");
    // The device must read data that is written to the file, as the CPU does.
    cache.fill(2);
    device_sees(&device, &map, 2, "after the file changed")?;
    check_eq!(shared(&map)?, before, "page frames and copies at the end");
    Ok(())
}

fn read_of_zero_pages(ctx: &Ctx) -> Outcome {
    let map = Mapping::anon_prot(PAGES, Prot::Read)?;
    map.check_zero(0, PAGES)?;
    let before = shared(&map)?;
    check_eq!(before.anonymous_kib, 0, "KiB of memory that was only read");
    check!(before.pfns.iter().all(|pfn| *pfn == before.pfns[0]), "that is no zero page");
    let device = ctx.open()?;
    device_sees_zero(&device, &map, 0, PAGES, "of zero pages")?;
    check_eq!(shared(&map)?, before, "page frames and copies after the device read");
    let states = device.snapshot(map.addr(), PAGES)?;
    check!(states.iter().all(|state| state.is_zero()), "not all are zero pages: {states:?}");
    Ok(())
}

/// A device read of unpopulated memory maps the zero page and allocates no memory.
fn read_of_unpopulated_memory_maps_the_zero_page(ctx: &Ctx) -> Outcome {
    let map = Mapping::anon(PAGES)?;
    let device = ctx.open()?;
    device_sees_zero(&device, &map, 0, PAGES, "of unpopulated memory")?;
    let kib = smaps::field(map.addr(), map.len(), "Anonymous")?;
    check_eq!(kib, 0, "KiB that a device read allocated");
    map.fill(1);
    device_sees(&device, &map, 1, "after the CPU wrote")?;
    Ok(())
}

fn read_of_cow_pages(ctx: &Ctx) -> Outcome {
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    let go = Gate::new()?;
    let sent = Gate::new()?;
    let child = Child::spawn(|| {
        for pfn in pagemap::pfns(map.addr(), PAGES)? {
            sent.send(pfn)?;
        }
        go.wait()?;
        cpu_sees(&map, 1, "by the child")
    })?;
    let before = shared(&map)?;
    let device = ctx.open()?;
    device_sees(&device, &map, 1, "of pages shared with a child")?;
    check_eq!(shared(&map)?, before, "page frames and copies after the device read");
    for (page, pfn) in before.pfns.iter().enumerate() {
        check_eq!(sent.receive().what("gate")?, *pfn, "the child's page frame of page {page}");
    }
    go.open().what("gate")?;
    child.join().map_err(Stop::Fail)
}

const KSM: &str = "/sys/kernel/mm/ksm";

/// Two mappings. KSM merges each page of one with the same page of the other.
struct Merged {
    one: Mapping,
    two: Mapping,
}

/// Maps two ranges whose first `same` pages have the same contents.
fn twins(npages: usize, same: usize) -> Result<Merged, Stop> {
    if !Path::new(KSM).exists() {
        return Err(Stop::Skip("this kernel has no KSM".to_string()));
    }
    let one = Mapping::anon(npages)?;
    let two = Mapping::anon(npages)?;
    one.fill(1);
    two.fill(2);
    two.fill_pages(1, 0, same);
    Ok(Merged { one, two })
}

impl Merged {
    /// Has KSM merge the first `merged` pages of both mappings in this process.
    fn merge(&self, merged: usize) -> Outcome {
        self.one.advise(mapping::MADV_MERGEABLE)?;
        self.two.advise(mapping::MADV_MERGEABLE)?;
        let _busy = files::Ksm::start().what("KSM")?;
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let one = self.one.addr();
            let two = self.two.addr();
            if let (Ok(a), Ok(b)) = (pagemap::pfns(one, merged), pagemap::pfns(two, merged)) {
                if a == b {
                    return Ok(());
                }
            }
            check!(Instant::now() < deadline, "KSM does not merge the pages");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn merge(npages: usize, merged: usize) -> Result<Merged, Stop> {
    let twins = twins(npages, merged)?;
    twins.merge(merged)?;
    Ok(twins)
}

/// Waits until KSM has scanned all memory twice. It then keeps no data on mappings that it no
/// longer merges.
fn ksm_has_looked() -> Outcome {
    let _busy = files::Ksm::start().what("KSM")?;
    let scans = || -> Result<u64, Stop> {
        let text = std::fs::read_to_string(format!("{KSM}/full_scans"))?;
        text.trim().parse().map_err(|_| Stop::Fail(format!("{text}: no number of scans")))
    };
    let first = scans()?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while scans()? < first + 3 {
        check!(Instant::now() < deadline, "KSM does not look");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn read_of_ksm_pages(ctx: &Ctx) -> Outcome {
    let Merged { one, two } = merge(PAGES, PAGES)?;
    let before = shared(&one)?;
    let device = ctx.open()?;
    device_sees(&device, &one, 1, "of merged pages")?;
    device_sees(&device, &two, 1, "of merged pages, the other mapping")?;
    check_eq!(shared(&one)?, before, "page frames and copies after the device read");
    check_eq!(shared(&two)?.pfns, before.pfns, "page frames of the two mappings");
    Ok(())
}

/// A device write to a merged page makes a copy of it.
fn write_to_ksm_pages_makes_copies(ctx: &Ctx) -> Outcome {
    let Merged { one, two } = merge(PAGES, PAGES)?;
    let device = ctx.open()?;
    device_sees(&device, &one, 1, "of merged pages")?;
    device_fills(&device, &one, 3, "of merged pages")?;
    cpu_sees(&one, 3, "of the written mapping")?;
    cpu_sees(&two, 1, "of the mapping that was not written")?;
    device_sees(&device, &two, 1, "of the mapping that was not written")?;
    Ok(())
}

fn not_moved(ctx: &Ctx, one: &Mapping, merged: usize) -> Outcome {
    let device = ctx.open()?;
    let delta = Delta::start(ctx, &device)?;
    // Skipped pages have no device PTE afterwards.
    fails(try_migrate(&device, one), Errno::ENOENT, "migration of merged pages")?;
    check_eq!(resident(&device, one, 0, merged)?, 0, "merged pages on the device");
    // Other pages of the same mapping may be merged at any time, so they are skipped, too.
    delta.exactly("migrated_to_device", 0, "of memory that KSM may merge")?;
    delta.exactly("migrate_skipped", one.pages() as i64, "of memory that KSM may merge")?;
    check_eq!(resident(&device, one, 0, one.pages())?, 0, "pages on the device");
    cpu_sees(one, 1, "after the migration")?;
    device_sees(&device, one, 1, "after the migration")?;
    Ok(())
}

fn migration_of_ksm_pages(ctx: &Ctx) -> Outcome {
    let Merged { one, two } = merge(PAGES, PAGES)?;
    not_moved(ctx, &one, PAGES)?;
    cpu_sees(&two, 1, "of the other mapping")
}

fn migration_of_mixed_pages(ctx: &Ctx) -> Outcome {
    let Merged { one, two } = merge(PAGES, PAGES / 2)?;
    not_moved(ctx, &one, PAGES / 2)?;
    two.check_pages(1, 0, PAGES / 2).what("CPU read of the other mapping")?;
    two.check_pages(2, PAGES / 2, PAGES / 2).what("CPU read of the other mapping")
}

/// Returns the number of pages of `map` that KSM has merged.
fn count_merged(map: &Mapping) -> Result<usize, Stop> {
    let merged = |pfn: u64| pagemap::is_merged(pfn);
    let all = pagemap::pfns(map.addr(), map.pages())?.into_iter().map(merged);
    Ok(all.collect::<Result<Vec<_>, _>>()?.into_iter().filter(|is| *is).count())
}

/// KSM merges pages in place through the mapping of a child that shares them. Their reverse mapping
/// is that of the child.
fn merged_in_a_child(ctx: &Ctx) -> Outcome {
    let twins = twins(PAGES, PAGES)?;
    let go = Gate::new()?;
    let merged = Gate::new()?;
    let child = Child::spawn(|| {
        twins.merge(PAGES)?;
        merged.open()?;
        go.wait()?;
        cpu_sees(&twins.one, 1, "by the child")?;
        cpu_sees(&twins.two, 1, "by the child")
    })?;
    merged.wait().what("gate")?;
    // The mappings were not merged in this process, but one page of each pair is a merged page now.
    let frames = |map: &Mapping| pagemap::pfns(map.addr(), PAGES);
    check!(frames(&twins.one)? != frames(&twins.two)?, "the parent's pages were merged");
    let merged = count_merged(&twins.one)? + count_merged(&twins.two)?;
    check_eq!(merged, PAGES, "pages of the parent that are KSM's");
    not_moved(ctx, &twins.one, PAGES)?;
    not_moved(ctx, &twins.two, PAGES)?;
    go.open().what("gate")?;
    child.join().map_err(Stop::Fail)?;
    // KSM merges no more pages, but merged pages stay so until they are written.
    let device = ctx.open()?;
    for map in [&twins.one, &twins.two] {
        let merged = count_merged(map)?;
        let _some_stay = try_migrate(&device, map);
        let moved = resident(&device, map, 0, PAGES)?;
        check_eq!(moved, PAGES - merged, "pages on the device after the child exited");
        cpu_sees(map, 1, "after the child exited")?;
        device_sees(&device, map, 1, "after the child exited")?;
        map.fill(3);
        migrate(&device, map, 3)?;
        cpu_sees(map, 3, "of pages that are no longer merged")?;
    }
    Ok(())
}

/// A page that is swapped out while it is merged is swapped in as a KSM page, even if its mapping
/// can no longer be merged.
fn merged_and_swapped(ctx: &Ctx) -> Outcome {
    let Merged { one, two } = merge(PAGES, PAGES)?;
    // A page that is mapped twice is not swapped out. One with an additional reference is, but
    // stays in the swap cache.
    two.fill(2);
    let page = |index: usize| files::Pin::of(one.addr() + index * PAGE_SIZE);
    let held = (0..PAGES).map(page).collect::<Result<Vec<_>, _>>()?;
    one.advise(libc::MADV_PAGEOUT)?;
    let out = pagemap::read(one.addr(), PAGES)?;
    if out.iter().any(|entry| entry.is_present()) {
        return Err(Stop::Skip("nothing is swapped out here".to_string()));
    }
    one.advise(libc::MADV_UNMERGEABLE)?;
    cpu_sees(&one, 1, "after it was swapped out")?;
    check_eq!(count_merged(&one)?, PAGES, "pages that came back as KSM's");
    drop(held);
    ksm_has_looked()?;
    // A write gives the mapping a page of its own. Write every second page, so that no two equal
    // pages are adjacent.
    for page in (0..PAGES).step_by(2) {
        one.fill_pages(3, page, 1);
    }
    check_eq!(count_merged(&one)?, PAGES / 2, "pages that are KSM's after others were written");
    let device = ctx.open()?;
    let delta = Delta::start(ctx, &device)?;
    let _some_stay = try_migrate(&device, &one);
    delta.exactly("migrated_to_device", PAGES as i64 / 2, "of memory with merged pages")?;
    delta.exactly("migrate_skipped", PAGES as i64 / 2, "of memory with merged pages")?;
    // An access migrates neighbours back, too, so check all locations first.
    let own = |page: usize| page % 2 == 0;
    for page in 0..PAGES {
        let moved = resident(&device, &one, page, 1)? == 1;
        check_eq!(moved, own(page), "whether page {page} is on the device");
    }
    for page in 0..PAGES {
        let seed = if own(page) { 3 } else { 1 };
        device_sees_pages(&device, &one, seed, page, 1, "after the migration")?;
        one.check_pages(seed, page, 1).what("CPU read after the migration")?;
    }
    one.fill(4);
    migrate(&device, &one, 4)?;
    cpu_sees(&one, 4, "after all was written")
}

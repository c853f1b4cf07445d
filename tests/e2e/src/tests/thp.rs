// SPDX-License-Identifier: GPL-2.0
//! Huge pages migrate as a whole, and in parts if they must.

use crate::{
    check,
    check_eq,
    harness::{
        Ctx,
        Outcome,
        Stop,
        Test,
        What, //
    },
    support::*, //
};
use hmm::{
    abi::{
        PageState,
        FLAG_FAIL_ALLOC,
        HUGE_PAGES, //
    },
    mapping,
    pagemap,
    pattern,
    procfs::SHRINK_UNDERUSED,
    Child,
    Device,
    Errno,
    Gate,
    Mapping,
    Prot,
    Setting,
    Settings,
    PAGE_SIZE, //
};
use std::{
    os::unix::fs::FileExt,
    sync::atomic::{
        AtomicBool,
        Ordering::Relaxed, //
    },
    time::{
        Duration,
        Instant, //
    }, //
};

const SHARED_SPLIT: &str = "gives small pages for a shared huge page: oops in the kernel";

const OOPS: &str = "a refault of its own device page: oops";

pub const TESTS: &[Test] = &[
    Test::new("thp", "cpu_access_migrates_back", migrates_back_on_cpu_access).private(),
    Test::new("thp", "request_migrates_back", back_by_request),
    Test::new("thp", "several_huge_pages_keep_device_writes", several),
    Test::new("thp", "parts_of_huge_pages_migrate", parts_of_huge_pages_migrate).defect(OOPS),
    Test::new("thp", "read_from_the_middle_of_a_huge_page", read_from_the_middle_of_a_huge_page)
        .defect(OOPS),
    Test::new("thp", "huge_zero_page_migrates_as_zero", huge_zero_page),
    Test::new("thp", "failed_allocation_falls_back_to_small_pages", failed_allocation).private(),
    Test::new("thp", "failed_allocation_of_a_migration_back_splits", failed_way_back).private(),
    Test::new("thp", "failed_allocation_of_a_cpu_fault_splits", failed_cpu_fault).private(),
    Test::new("thp", "failed_allocation_for_another_device_splits", failed_for_another)
        .private()
        .only_rust("two devices"),
    Test::new("thp", "snapshot_reports_remote_huge_page_as_absent", snapshot_of_remote)
        .private()
        .only_rust("two devices"),
    Test::new("thp", "failed_allocation_for_a_debugger_splits", failed_for_a_debugger).private(),
    Test::new("thp", "failed_allocation_of_a_shared_page_keeps_contents", shared_and_failed)
        .defect(SHARED_SPLIT),
    Test::new("thp", "page_shared_by_fork_keeps_contents", page_shared_by_fork_keeps_contents)
        .defect(OOPS),
    Test::new("thp", "dontneed_of_a_part_reads_zero", dontneed_of_a_part_reads_zero).defect(OOPS),
    Test::new("thp", "cpu_fault_on_a_pte_mapped_huge_page", cpu_fault_on_a_pte_mapped_huge_page)
        .private()
        .only_rust("failing copies"),
    Test::new("thp", "dontneed_during_a_migration_back", dontneed_during_a_migration_back)
        .private()
        .only_rust("slow copies"),
    Test::new("thp", "exit_of_sharers_during_a_migration_back", exit_of_sharers)
        .private()
        .only_rust("slow copies"),
    Test::new(
        "thp",
        "page_held_by_the_shrinker_migrates_later",
        page_held_by_the_shrinker_migrates_later,
    )
    .only_rust("more tries"),
];

fn migrates_back_on_cpu_access(ctx: &Ctx) -> Outcome {
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

fn back_by_request(ctx: &Ctx) -> Outcome {
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

fn several(ctx: &Ctx) -> Outcome {
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
fn huge_zero_page(ctx: &Ctx) -> Outcome {
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
fn parts_of_huge_pages_migrate(ctx: &Ctx) -> Outcome {
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
fn read_from_the_middle_of_a_huge_page(ctx: &Ctx) -> Outcome {
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

fn failed_allocation(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = huge(1, 1)?;
    device.set_flags(FLAG_FAIL_ALLOC).what("set the flag")?;
    migrate(&device, &map, 1)?;
    check_eq!(resident_huge(&device, &map)?, 0, "pages in huge device pages");
    device_fills_pages(&device, &map, 2, 0, 8, "of small device pages")?;
    map.check_pages(2, 0, 8).what("CPU read of words that the device wrote")?;
    map.check_pages(1, 8, HUGE_PAGES - 8).what("CPU read of the rest")
}

fn failed_way_back(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = huge(1, 1)?;
    migrate(&device, &map, 1)?;
    device.set_flags(FLAG_FAIL_ALLOC).what("set the flag")?;
    device.migrate_to_system(map.addr(), HUGE_PAGES).what("migrate to the system")?;
    cpu_sees(&map, 1, "after the way back without huge page")?;
    device_sees(&device, &map, 1, "after the way back without huge page")?;
    Ok(())
}

fn failed_cpu_fault(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = huge(1, 1)?;
    migrate(&device, &map, 1)?;
    device.set_flags(FLAG_FAIL_ALLOC).what("set the flag")?;
    check_eq!(map.get(77, 7), pattern::word(1, 77, 7), "CPU read of one word");
    check_eq!(resident_huge(&device, &map)?, 0, "pages in a huge device page");
    let huge = hmm::smaps::field(map.addr(), map.len(), "AnonHugePages")?;
    check_eq!(huge, 0, "KiB in huge pages after the way back");
    cpu_sees(&map, 1, "after the way back without huge page")
}

/// A snapshot by another device reports a huge page as not present, as it does for small pages, and
/// not as an error.
fn snapshot_of_remote(ctx: &Ctx) -> Outcome {
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

/// Another device reads a huge page that cannot migrate back as such. Its range fault holds the
/// mmap lock until it has the page. The thread that splits the page needs the lock, too, and other
/// threads wait for it.
fn failed_for_another(ctx: &Ctx) -> Outcome {
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Relaxed) {
                drop(Mapping::anon(1));
            }
        });
        let result = read_by_another(ctx);
        end.store(true, Relaxed);
        result
    })
}

/// Pages that [`read_by_another`] splits, on each architecture.
const SPLIT_PAGES: u64 = 50 * 512;

fn read_by_another(ctx: &Ctx) -> Outcome {
    let owner = ctx.open()?;
    let other = Device::open(ctx.second).what("open the second device")?;
    for round in 1..=SPLIT_PAGES / HUGE_PAGES as u64 {
        let map = huge(1, round)?;
        migrate(&owner, &map, round)?;
        check_eq!(resident_huge(&owner, &map)?, HUGE_PAGES, "pages in a huge device page");
        owner.set_flags(FLAG_FAIL_ALLOC).what("set the flag")?;
        device_sees(&other, &map, round, "without huge page")?;
        check_eq!(resident_huge(&owner, &map)?, 0, "pages in a huge device page");
    }
    Ok(())
}

/// A debugger reads a huge page that cannot migrate back as such. It holds the mmap lock until it
/// has the page.
fn failed_for_a_debugger(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    for round in 1..=20 {
        let map = huge(1, round)?;
        migrate(&device, &map, round)?;
        // In every other round a child maps the page, too, so that no attempt can migrate it back
        // as such.
        let gate = Gate::new()?;
        let _child = match round % 2 {
            0 => Some(Child::spawn(|| gate.wait())?),
            _ => device.set_flags(FLAG_FAIL_ALLOC).what("set the flag").map(|_| None)?,
        };
        let mut found = [0; PAGE_SIZE];
        let memory = std::fs::File::open("/proc/self/mem").what("open /proc/self/mem")?;
        memory.read_exact_at(&mut found, map.page_addr(9) as u64).what("read /proc/self/mem")?;
        pattern::check(round, 9, &found).what("read by a debugger")?;
        cpu_sees(&map, round, "afterwards")?;
    }
    Ok(())
}

/// Small pages must never replace an unmapped huge page that another process maps, too, because the
/// kernel would oops on the split. The page may stay or be split before it is unmapped. No contents
/// may be lost.
fn shared_and_failed(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = huge(1, 1)?;
    let go = Gate::new()?;
    let child = Child::spawn(|| {
        go.wait().what("gate")?;
        cpu_sees(&map, 1, "by the child")
    })?;
    device.set_flags(FLAG_FAIL_ALLOC).what("set the flag")?;
    let expected = match try_migrate(&device, &map) {
        Ok(_) => HUGE_PAGES,
        Err(Errno::ENOENT) => 0,
        Err(error) => return Err(Stop::Fail(format!("migration: {error}"))),
    };
    check_eq!(resident(&device, &map, 0, HUGE_PAGES)?, expected, "pages on the device");
    device_sees(&device, &map, 1, "after the migration")?;
    go.open().what("gate")?;
    child.join().map_err(Stop::Fail)?;
    device_sees(&device, &map, 1, "after the child read")?;
    cpu_sees(&map, 1, "by the parent")
}

/// A shared huge device page may migrate back or stay. No contents are lost.
fn page_shared_by_fork_keeps_contents(ctx: &Ctx) -> Outcome {
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

fn dontneed_of_a_part_reads_zero(ctx: &Ctx) -> Outcome {
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
fn cpu_fault_on_a_pte_mapped_huge_page(ctx: &Ctx) -> Outcome {
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

/// Way on which a huge page migrates back.
#[derive(Clone, Copy, Debug)]
enum Way {
    Eviction,
    Request,
    Touch,
}

/// Returns a counter of /proc/vmstat, in pages.
fn vmstat(name: &str) -> Result<i64, Stop> {
    // Fold the per-CPU counters.
    std::fs::write("/proc/sys/vm/stat_refresh", "1").what("refresh /proc/vmstat")?;
    let all = std::fs::read_to_string("/proc/vmstat").what("read /proc/vmstat")?;
    let mut words = all.lines().filter_map(|line| line.split_once(' '));
    let found = words.find(|word| word.0 == name).and_then(|word| word.1.parse().ok());
    found.ok_or_else(|| Stop::Fail(format!("no {name} in /proc/vmstat")))
}

/// Returns the numbers of anonymous pages and anonymous huge pages that the kernel counts, without
/// those mapped by this process.
fn unaccounted() -> Result<(i64, i64), Stop> {
    let own = std::fs::read_to_string("/proc/self/smaps_rollup").what("read smaps_rollup")?;
    let kib = |name: &str| -> Result<i64, Stop> {
        let line = own.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        kib.ok_or_else(|| Stop::Fail(format!("no {name} in smaps_rollup")))
    };
    let pages = vmstat("nr_anon_pages")? - kib("Anonymous:")? / (PAGE_SIZE as i64 / 1024);
    let own_huge = kib("AnonHugePages:")? / HUGE_KIB as i64;
    Ok((pages, vmstat("nr_anon_transparent_hugepages")? - own_huge))
}

/// Calls `meanwhile` while the huge page `map` is copied to system memory, in `copies` parts.
fn on_its_way(
    device: &Device,
    map: &Mapping,
    way: Way,
    copies: usize,
    meanwhile: impl FnOnce() -> Outcome,
) -> Outcome {
    let slow = Duration::from_millis(900);
    let delay = slow.as_nanos() as u64 / copies as u64;
    device.set(Setting::CopyDelay, delay).what("set the delay")?;
    let result = std::thread::scope(|scope| {
        let mover = scope.spawn(|| match way {
            Way::Eviction => device.release().what("release").map(drop),
            Way::Request => {
                // ENOENT: `meanwhile` has dropped all pages.
                let moved = device.migrate_to_system(map.addr(), HUGE_PAGES);
                moved.map(drop).or_else(|error| match error {
                    Errno::ENOENT => Ok(()),
                    error => Err(error).what("migrate to the system"),
                })
            }
            Way::Touch => {
                let word = map.get(77, 7);
                let known = [0, pattern::word(1, 77, 7)];
                check!(known.contains(&word), "the CPU read {word:#x}");
                Ok(())
            }
        });
        std::thread::sleep(slow / 2);
        let result = meanwhile();
        mover.join().map_err(|_| Stop::Fail("the mover panicked".into()))?.and(result)
    });
    device.set(Setting::CopyDelay, 0).what("set the delay back")?;
    result
}

/// A huge page is dropped while it migrates back. The kernel's zap_huge_pmd_folio() (7.2, 7.3)
/// takes the migration entry of a device-private folio for an entry that maps the folio. It drops a
/// reference and a mapping count that the migration entry does not hold. The library must restore
/// both, so that no counter loses pages.
fn dontneed_during_a_migration_back(ctx: &Ctx) -> Outcome {
    // Without other memory, a counter that lost pages would be shown as 0.
    let ballast = Mapping::anon(8192).what("map memory")?;
    ballast.fill(4);
    for way in [Way::Eviction, Way::Request, Way::Touch] {
        let device = ctx.open()?;
        let map = huge(1, 1)?;
        let before = unaccounted()?;
        migrate(&device, &map, 1)?;
        check_eq!(resident_huge(&device, &map)?, HUGE_PAGES, "pages in a huge device page");
        let delta = Delta::start(ctx, &device)?;
        on_its_way(&device, &map, way, 1, || {
            let begin = Instant::now();
            map.advise_pages(mapping::MADV_DONTNEED, 0, HUGE_PAGES)?;
            let took = begin.elapsed();
            check!(took < Duration::from_millis(350), "{way:?}: dropped after {took:?}");
            map.check_zero(0, HUGE_PAGES).what("CPU read of dropped pages")?;
            // Device memory is in use as long as it is copied.
            delta.exactly("device_pages_used", 0, "while it is copied")
        })?;
        delta.exactly("device_pages_used", -(HUGE_PAGES as i64), "afterwards")?;
        map.check_zero(0, HUGE_PAGES).what("CPU read afterwards")?;
        map.fill(2);
        device_sees(&device, &map, 2, "of pages written since")?;
        migrate(&device, &map, 2)?;
        cpu_sees(&map, 2, "after another way there")?;
        let after = unaccounted()?;
        println!("# {way:?}: shared anonymous and huge pages {before:?}, {after:?}");
        // A loss would be all pages or one huge page. Other processes hardly change meanwhile.
        let lost = before.0 - after.0;
        check!(lost.abs() < HUGE_PAGES as i64 / 4, "{way:?}: {lost} anonymous pages lost");
        check_eq!(after.1, before.1, "{way:?}: shared huge pages");
    }
    Ok(())
}

/// Child processes that map the page exit while it migrates back.
fn exit_of_sharers(ctx: &Ctx) -> Outcome {
    for way in [Way::Eviction, Way::Request, Way::Touch] {
        let device = ctx.open()?;
        let map = huge(1, 1)?;
        migrate(&device, &map, 1)?;
        let go = Gate::new()?;
        let children = (0..3)
            .map(|_| Child::spawn(|| go.wait().what("gate")))
            .collect::<Result<Vec<_>, _>>()?;
        // A page that other processes map, too, migrates back as small pages.
        on_its_way(&device, &map, way, HUGE_PAGES, || {
            for _ in &children {
                go.open().what("gate")?;
            }
            children.into_iter().try_for_each(|child| child.join().map_err(Stop::Fail))
        })?;
        cpu_sees(&map, 1, "after the other processes exited")?;
        let huge = hmm::smaps::field(map.addr(), map.len(), "AnonHugePages")?;
        check_eq!(huge, 0, "KiB in huge pages after {way:?}");
        device_sees(&device, &map, 1, "after the other processes exited")?;
    }
    Ok(())
}

/// A thread that calls the shrinker of underused huge pages continuously, or rests.
struct Shrinker {
    end: AtomicBool,
    rest: AtomicBool,
    /// The thread rests, and no call is in progress.
    rests: AtomicBool,
}

impl Shrinker {
    fn run(&self) -> std::io::Result<()> {
        while !self.end.load(Relaxed) {
            let rest = self.rest.load(Relaxed);
            self.rests.store(rest, Relaxed);
            if rest {
                std::thread::sleep(Duration::from_millis(1));
            } else {
                std::fs::write("/proc/sys/vm/drop_caches", "2")?;
            }
        }
        Ok(())
    }
}

/// Under memory pressure the kernel searches for underused huge pages. It holds a reference on a
/// page while it scans it, so the page does not migrate. No contents are lost, and the page
/// migrates afterwards.
fn page_held_by_the_shrinker_migrates_later(ctx: &Ctx) -> Outcome {
    let mut settings = Settings::new();
    if !settings.set(SHRINK_UNDERUSED, "1")? {
        return Err(Stop::Skip("this kernel does not look for such pages".to_string()));
    }
    let device = ctx.open()?;
    let off = || AtomicBool::new(false);
    let shrinker = Shrinker { end: off(), rest: off(), rests: off() };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| shrinker.run());
        let result =
            (1..=8).try_for_each(|round| migrates_when_released(&device, round, &shrinker));
        shrinker.end.store(true, Relaxed);
        thread.join().expect("it does not panic")?;
        result
    })
}

/// Time in which the page must migrate while the shrinker rests. Others may hold it for a moment:
/// the queue of scanned pages is freed a little later, and khugepaged isolates small pages that it
/// collapses.
const TIME_AT_REST: Duration = Duration::from_secs(10);

/// Time between two attempts while the shrinker rests.
const PAUSE_AT_REST: Duration = Duration::from_millis(1);

/// Numbers of attempts and time after which the shrinker rests. On a slow kernel it may hold the
/// page at each attempt and delay the attempts.
const ATTEMPTS: u32 = 100;
const TIME: Duration = Duration::from_secs(15);

/// Migrates a huge page, at the end without the shrinker.
fn migrates_when_released(device: &Device, round: u64, shrinker: &Shrinker) -> Outcome {
    shrinker.rest.store(false, Relaxed);
    let map = Mapping::anon_huge(1)?;
    map.fill(round);
    // This fails if the shrinker holds the page.
    let _ = map.collapse();
    let begin = Instant::now();
    let mut attempts = 0;
    let mut at_rest = 0;
    let mut rests_since = None;
    loop {
        let rests = shrinker.rest.load(Relaxed) && shrinker.rests.load(Relaxed);
        match try_migrate(device, &map) {
            Ok(_) => break,
            Err(Errno::ENOENT) => map.check(round)?,
            Err(error) => return Err(error).what("migrate to the device"),
        }
        attempts += 1;
        if rests {
            at_rest += 1;
            let rested = rests_since.get_or_insert_with(Instant::now).elapsed();
            check!(
                rested < TIME_AT_REST,
                "not migrated in {at_rest} attempts without the shrinker"
            );
            std::thread::sleep(PAUSE_AT_REST);
        }
        let enough = attempts >= ATTEMPTS || begin.elapsed() >= TIME;
        shrinker.rest.fetch_or(enough, Relaxed);
    }
    let took = begin.elapsed().as_millis();
    println!("# round {round}: {attempts} attempts failed in {took} ms, {at_rest} of them at rest");
    device_sees(device, &map, round, "of migrated pages")?;
    cpu_sees(&map, round, "of migrated pages")
}

// SPDX-License-Identifier: GPL-2.0
//! Huge pages: they migrate whole, and in pieces when they must.

use crate::harness::{Ctx, Outcome, Stop, Test, What};
use crate::mover::rounds;
use crate::support::*;
use crate::{check, check_eq};
use hmm::abi::{PageState, FLAG_FAIL_ALLOC, HUGE_PAGES};
use hmm::procfs::SHRINK_UNDERUSED;
use hmm::{
    inject, mapping, pagemap, pattern, Child, Device, Errno, Gate, Mapping, Prot, Setting,
    Settings, PAGE_SIZE,
};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const SHARED_SPLIT: &str = "gives small pages for a shared huge page: oops in the kernel";

const OOPS: &str = "a refault of its own device page: oops";

pub const TESTS: &[Test] = &[
    Test::new("thp", "there_and_back_by_touch", there_and_back).private(),
    Test::new("thp", "there_and_back_by_request", back_by_request),
    Test::new("thp", "several_and_device_writes", several),
    Test::new("thp", "part_of_a_huge_page", part_of_a_huge_page).defect(OOPS),
    Test::new("thp", "read_from_the_middle", read_from_the_middle).defect(OOPS),
    Test::new("thp", "the_huge_zero_page", huge_zero_page),
    Test::new("thp", "failed_allocation_falls_back", failed_allocation).private(),
    Test::new("thp", "failed_allocation_on_the_way_back", failed_way_back).private(),
    Test::new("thp", "failed_allocation_on_a_touch", failed_touch).private(),
    Test::new("thp", "failed_allocation_for_another_device", failed_for_another)
        .private()
        .only_rust("two devices"),
    Test::new("thp", "as_another_device_sees_it", seen_by_another)
        .private()
        .only_rust("two devices"),
    Test::new("thp", "failed_allocation_for_a_debugger", failed_for_a_debugger).private(),
    Test::new("thp", "shared_and_failed_allocation", shared_and_failed).defect(SHARED_SPLIT),
    Test::new("thp", "shared_by_fork", shared_by_fork).defect(OOPS),
    Test::new("thp", "dontneed_of_a_part", dontneed_of_a_part).defect(OOPS),
    Test::new("thp", "touch_of_a_split_mapping", touch_of_a_split_mapping)
        .private()
        .only_rust("failing copies"),
    Test::new("thp", "dropped_on_the_way_back", dropped_on_the_way_back)
        .private()
        .only_rust("slow copies"),
    Test::new("thp", "unmapped_by_others_on_the_way_back", unmapped_by_others)
        .private()
        .only_rust("slow copies"),
    Test::new("thp", "dropped_while_it_is_split", dropped_while_it_is_split)
        .private()
        .only_rust("injected delays"),
    Test::new("thp", "unmapped_by_a_child_while_it_is_split", unmapped_by_a_child)
        .private()
        .only_rust("injected delays"),
    Test::new("thp", "while_the_shrinker_looks", while_the_shrinker_looks).only_rust("more tries"),
];

fn there_and_back(ctx: &Ctx) -> Outcome {
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
    check_eq!(huge, 2048, "KiB in huge pages after the way back");
    Ok(())
}

fn back_by_request(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = huge(2, 1)?;
    migrate(&device, &map, 1)?;
    device_fills(&device, &map, 2, "of huge device pages")?;
    device.migrate_to_system(map.addr(), map.pages()).what("migrate to the system")?;
    if !ctx.coherent() {
        // The kernel never collects coherent huge pages.
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

/// Where a process has only read, the kernel maps a huge page of zeros that all share.
fn huge_zero_page(ctx: &Ctx) -> Outcome {
    needs_huge_pages()?;
    let device = ctx.open()?;
    let map = Mapping::anon_huge(1).what("map memory for a huge page")?;
    check_eq!(map.get(77, 7), 0, "CPU read of memory that nobody wrote");
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
    device_fills(&device, &map, 5, "of pages that nobody wrote before")?;
    cpu_sees(&map, 5, "after the device wrote")
}

/// A range that begins and ends inside of huge pages.
fn part_of_a_huge_page(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = huge(2, 1)?;
    let (first, npages) = (HUGE_PAGES - 16, 32);
    let mut data = vec![0xaa; npages * hmm::PAGE_SIZE];
    device.migrate_to_device(map.page_addr(first), &mut data).what("migrate")?;
    pattern::check(1, first, &data).what("data that the migration returns")?;
    check_eq!(resident(&device, &map, first, npages)?, npages, "pages on the device");
    check_eq!(resident(&device, &map, 0, first)?, 0, "pages on the device that were not asked");
    device_sees(&device, &map, 1, "of everything")?;
    cpu_sees(&map, 1, "of everything")
}

/// A fault that starts inside of a huge device page: the kernel's range fault
/// (7.2, 7.3) answers as if it started at the huge page's first page.
fn read_from_the_middle(ctx: &Ctx) -> Outcome {
    let owner = ctx.open()?;
    let map = huge(1, 1)?;
    migrate(&owner, &map, 1)?;
    for (first, npages) in [(100, 10), (511, 1), (1, 1), (256, 256)] {
        let other = ctx.open()?;
        device_sees_pages(&other, &map, 1, first, npages, "from the middle")?;
        if !ctx.coherent() {
            // Coherent pages are kept small.
            check_eq!(resident_huge(&owner, &map)?, HUGE_PAGES, "pages in a huge device page");
        }
        drop_without_eviction(other);
    }
    let other = ctx.open()?;
    device_fills_pages(&other, &map, 2, 300, 100, "to the middle")?;
    device_sees_pages(&other, &map, 1, 0, 300, "in front")?;
    map.check_pages(1, 0, 300).what("CPU read in front")?;
    map.check_pages(2, 300, 100).what("CPU read of what the device wrote")?;
    map.check_pages(1, 400, 112).what("CPU read behind")
}

/// A close would evict the huge page, so the file stays open until the end.
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
    map.check_pages(2, 0, 8).what("CPU read of what the device wrote")?;
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

fn failed_touch(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = huge(1, 1)?;
    migrate(&device, &map, 1)?;
    device.set_flags(FLAG_FAIL_ALLOC).what("set the flag")?;
    let delta = Delta::start(ctx, &device)?;
    check_eq!(map.get(77, 7), pattern::word(1, 77, 7), "CPU read of one word");
    comes_back_at_once(&delta, "after one CPU read")?;
    check_eq!(resident(&device, &map, 0, HUGE_PAGES)?, 0, "device pages after one CPU read");
    let huge = hmm::smaps::field(map.addr(), map.len(), "AnonHugePages")?;
    check_eq!(huge, 0, "KiB in huge pages after the way back");
    cpu_sees(&map, 1, "after the way back without huge page")
}

/// One fault has brought all of a huge page back.
fn comes_back_at_once(delta: &Delta<'_>, when: &str) -> Outcome {
    delta.exactly("cpu_faults", 1, when)?;
    delta.exactly("cpu_fault_pages", HUGE_PAGES as i64, when)?;
    delta.exactly("device_pages_used", -(HUGE_PAGES as i64), when)
}

/// A snapshot of another device says nothing of a huge page, as of small ones, and not that it cannot be accessed.
fn seen_by_another(ctx: &Ctx) -> Outcome {
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

/// Another device reads a huge page that cannot come back as such, while other threads wait for the mmap lock, which
/// the range fault holds until it has the page. One fault is enough.
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

fn read_by_another(ctx: &Ctx) -> Outcome {
    let owner = ctx.open()?;
    let other = Device::open(ctx.second).what("open the second device")?;
    for round in 1..=50 {
        let map = huge(1, round)?;
        migrate(&owner, &map, round)?;
        check_eq!(resident_huge(&owner, &map)?, HUGE_PAGES, "pages in a huge device page");
        owner.set_flags(FLAG_FAIL_ALLOC).what("set the flag")?;
        let delta = Delta::start(ctx, &owner)?;
        device_sees(&other, &map, round, "without huge page")?;
        comes_back_at_once(&delta, "after the other device has read")?;
        check_eq!(resident_huge(&owner, &map)?, 0, "pages in a huge device page");
    }
    Ok(())
}

/// A debugger reads a huge page that cannot come back as such. It holds the mmap lock until it has the page, and one
/// fault is enough.
fn failed_for_a_debugger(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    for round in 1..=20 {
        let map = huge(1, round)?;
        migrate(&device, &map, round)?;
        // Every other time a child has it, too, so that it cannot come back as such however often that is tried.
        let gate = Gate::new()?;
        let _child = match round % 2 {
            0 => Some(Child::spawn(|| gate.wait())?),
            _ => device.set_flags(FLAG_FAIL_ALLOC).what("set the flag").map(|_| None)?,
        };
        let mut found = [0; PAGE_SIZE];
        let delta = Delta::start(ctx, &device)?;
        let memory = std::fs::File::open("/proc/self/mem").what("open /proc/self/mem")?;
        memory.read_exact_at(&mut found, map.page_addr(9) as u64).what("read /proc/self/mem")?;
        pattern::check(round, 9, &found).what("what a debugger sees")?;
        comes_back_at_once(&delta, "after the debugger has read")?;
        cpu_sees(&map, round, "afterwards")?;
    }
    Ok(())
}

/// Small pages must never be given for an unmapped huge page that another
/// process maps too: the kernel oopses on the split.  Whether it is left alone
/// or split before it is unmapped, nothing is lost.
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

/// With a huge device page a shared one may go or stay; nothing is lost.
fn shared_by_fork(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = huge(1, 1)?;
    let go = Gate::new()?;
    let child = Child::spawn(|| {
        go.wait().what("gate")?;
        cpu_sees(&map, 1, "by the child")?;
        map.fill(2);
        cpu_sees(&map, 2, "by the child of what it wrote")
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

fn dontneed_of_a_part(ctx: &Ctx) -> Outcome {
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

/// A huge device page that is mapped in small pages. The core splits it for the fault, and then takes
/// its first page for the one that the fault holds locked. If that stays, nobody may find it locked.
fn touch_of_a_split_mapping(ctx: &Ctx) -> Outcome {
    for touched in [1, 5, 15, 16, 511, 0] {
        let device = ctx.open()?;
        let map = huge(1, 1)?;
        migrate(&device, &map, 1)?;
        map.protect_pages(Prot::Read, 200, 1)?;
        map.protect_pages(Prot::ReadWrite, 200, 1)?;
        check_eq!(resident(&device, &map, 0, HUGE_PAGES)?, HUGE_PAGES, "device pages");
        // A touch elsewhere: the next window is the smallest.
        let elsewhere = mapping::Mapping::anon(1).what("map memory")?;
        elsewhere.fill(2);
        migrate(&device, &elsewhere, 2)?;
        cpu_sees(&elsewhere, 2, "elsewhere")?;
        device.set(Setting::CopyFail, 0)?;
        let delta = Delta::start(ctx, &device)?;
        let first = touched / 16 * 16;
        if touched % 16 != 0 {
            // The copy of the first page around it fails.
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

/// How a huge page comes back.
#[derive(Clone, Copy, Debug)]
enum Way {
    Eviction,
    Request,
    Touch,
}

/// What the kernel counts of its memory, in pages.
fn vmstat(name: &str) -> Result<i64, Stop> {
    // Adds what each processor has counted for itself.
    std::fs::write("/proc/sys/vm/stat_refresh", "1").what("refresh /proc/vmstat")?;
    let all = std::fs::read_to_string("/proc/vmstat").what("read /proc/vmstat")?;
    let mut words = all.lines().filter_map(|line| line.split_once(' '));
    let found = words.find(|word| word.0 == name).and_then(|word| word.1.parse().ok());
    found.ok_or_else(|| Stop::Fail(format!("no {name} in /proc/vmstat")))
}

/// Anonymous pages and anonymous huge pages that the kernel counts, without those that this process
/// has mapped.
fn unaccounted() -> Result<(i64, i64), Stop> {
    let own = std::fs::read_to_string("/proc/self/smaps_rollup").what("read smaps_rollup")?;
    let kib = |name: &str| -> Result<i64, Stop> {
        let line = own.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        kib.ok_or_else(|| Stop::Fail(format!("no {name} in smaps_rollup")))
    };
    let pages = vmstat("nr_anon_pages")? - kib("Anonymous:")? / 4;
    Ok((pages, vmstat("nr_anon_transparent_hugepages")? - kib("AnonHugePages:")? / 2048))
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
                // Nothing is left to be brought back.
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

/// Of an entry that a migration has put there, the kernel releases what only that of a device page has.
fn dropped_on_the_way_back(ctx: &Ctx) -> Outcome {
    // A counter that lost pages would not be shown below zero.
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
            map.check_zero(0, HUGE_PAGES).what("CPU read of what was dropped")?;
            // Its memory is in use as long as it is copied.
            delta.exactly("device_pages_used", 0, "while it is copied")
        })?;
        delta.exactly("device_pages_used", -(HUGE_PAGES as i64), "afterwards")?;
        map.check_zero(0, HUGE_PAGES).what("CPU read afterwards")?;
        map.fill(2);
        device_sees(&device, &map, 2, "of what was written since")?;
        migrate(&device, &map, 2)?;
        cpu_sees(&map, 2, "after another way there")?;
        let after = unaccounted()?;
        println!("# {way:?}: anonymous and huge pages of others {before:?}, {after:?}");
        // A loss is one of 512 pages, or of one huge page.  Other processes hardly change meanwhile.
        let lost = before.0 - after.0;
        check!(lost.abs() < HUGE_PAGES as i64 / 4, "{way:?}: {lost} anonymous pages lost");
        check_eq!(after.1, before.1, "{way:?}: huge pages of others");
    }
    Ok(())
}

/// Children that map the page end while it comes back.
fn unmapped_by_others(ctx: &Ctx) -> Outcome {
    for way in [Way::Eviction, Way::Request, Way::Touch] {
        let device = ctx.open()?;
        let map = huge(1, 1)?;
        migrate(&device, &map, 1)?;
        let go = Gate::new()?;
        let children = (0..3)
            .map(|_| Child::spawn(|| go.wait().what("gate")))
            .collect::<Result<Vec<_>, _>>()?;
        // What others map too comes back in small pages.
        on_its_way(&device, &map, way, HUGE_PAGES, || {
            for _ in &children {
                go.open().what("gate")?;
            }
            children.into_iter().try_for_each(|child| child.join().map_err(Stop::Fail))
        })?;
        cpu_sees(&map, 1, "after the others have gone")?;
        let huge = hmm::smaps::field(map.addr(), map.len(), "AnonHugePages")?;
        check_eq!(huge, 0, "KiB in huge pages after {way:?}");
        device_sees(&device, &map, 1, "after the others have gone")?;
    }
    Ok(())
}

/// The point at which a fault that has lent its reference of a huge page waits for 100 ms.
const LENT: &str = "window";

/// Has a thread touch the huge page `map`, for which there is no huge page of system memory, and calls `meanwhile` while
/// the fault has lent its reference. Returns what the thread has read.
fn while_it_is_lent(map: &Mapping, meanwhile: impl FnOnce() -> Outcome) -> Result<u64, Stop> {
    let before = inject::point_state(LENT)?.failures;
    inject::set_point(LENT, "1").what("set the point")?;
    let word = std::thread::scope(|scope| -> Result<u64, Stop> {
        let toucher = scope.spawn(|| map.get(77, 7));
        let begin = Instant::now();
        while inject::point_state(LENT)?.failures == before {
            check!(begin.elapsed() < Duration::from_secs(20), "no reference was lent");
        }
        let result = meanwhile();
        let word = toucher.join().map_err(|_| Stop::Fail("the toucher panicked".into()))?;
        result.map(|()| word)
    });
    inject::clear_points().what("clear the points")?;
    word
}

/// Another thread drops a huge page between the moment at which a fault lends its reference and the moment at which the
/// core has split it. The page stays in use until the fault has its reference back, and is then freed once.
fn dropped_while_it_is_split(ctx: &Ctx) -> Outcome {
    // A counter that lost pages would not be shown below zero.
    let ballast = Mapping::anon(8192).what("map memory")?;
    ballast.fill(4);
    let device = ctx.open()?;
    let before = unaccounted()?;
    let (mut dropped, mut kept_when_lent) = (0, 0);
    rounds(4, |round| {
        let seed = round + 1;
        let map = huge(1, seed)?;
        migrate(&device, &map, seed)?;
        check_eq!(resident_huge(&device, &map)?, HUGE_PAGES, "pages in a huge device page");
        device.set_flags(FLAG_FAIL_ALLOC).what("set the flag")?;
        let (delta, start) = (Delta::start(ctx, &device)?, device.counters()?);
        let mut in_use = 0;
        let word = while_it_is_lent(&map, || {
            map.advise_pages(mapping::MADV_DONTNEED, 0, HUGE_PAGES)?;
            in_use = device.counters()?.device_pages_used;
            Ok(())
        })?;
        let now = device.counters()?;
        // On a busy machine the page may be back before it is dropped.
        if now.cpu_fault_pages == start.cpu_fault_pages {
            dropped += 1;
            check_eq!(word, 0, "the word that the CPU read of what was dropped");
            let kept = [start.device_pages_used, start.device_pages_used - HUGE_PAGES as u64];
            check!(kept.contains(&in_use), "{in_use} device pages in use while one was lent");
            kept_when_lent += u64::from(in_use == start.device_pages_used);
        } else {
            let known = [0, pattern::word(seed, 77, 7)];
            check!(known.contains(&word), "the CPU read {word:#x}");
        }
        delta.exactly("cpu_faults", 1, "after the touch")?;
        delta.exactly("device_pages_used", -(HUGE_PAGES as i64), "after the touch")?;
        map.check_zero(0, HUGE_PAGES).what("CPU read of what was dropped")?;
        // The device page is used anew.
        map.fill(seed);
        device_sees(&device, &map, seed, "of what was written since")?;
        migrate(&device, &map, seed)?;
        cpu_sees(&map, seed, "after another way there")?;
        Ok(dropped >= 2 && kept_when_lent > 0)
    })?;
    check!(dropped >= 2, "the page was dropped in time in {dropped} rounds");
    check!(kept_when_lent > 0, "no page was in use when it was dropped");
    dropped_at_any_time(ctx, &device)?;
    let after = unaccounted()?;
    println!("# {dropped} dropped while lent; pages of others {before:?}, {after:?}");
    let lost = before.0 - after.0;
    check!(lost.abs() < HUGE_PAGES as i64 / 4, "{lost} anonymous pages lost");
    check_eq!(after.1, before.1, "huge pages of others");
    Ok(())
}

/// As above, without a delay: also while the core splits the page, and after that.
fn dropped_at_any_time(ctx: &Ctx, device: &Device) -> Outcome {
    for step in 0..60 {
        let map = huge(1, 5)?;
        migrate(device, &map, 5)?;
        device.set_flags(FLAG_FAIL_ALLOC).what("set the flag")?;
        let delta = Delta::start(ctx, device)?;
        let start = device.counters()?.cpu_faults;
        let word = std::thread::scope(|scope| -> Result<u64, Stop> {
            let toucher = scope.spawn(|| map.get(77, 7));
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_micros(100 * step) {
                std::hint::spin_loop();
            }
            map.advise_pages(mapping::MADV_DONTNEED, 0, HUGE_PAGES)?;
            toucher.join().map_err(|_| Stop::Fail("the toucher panicked".into()))
        })?;
        let known = [0, pattern::word(5, 77, 7)];
        check!(known.contains(&word), "the CPU read {word:#x} in step {step}");
        map.check_zero(0, HUGE_PAGES).what("CPU read of what was dropped")?;
        delta.exactly("device_pages_used", -(HUGE_PAGES as i64), "after the touch")?;
        if device.counters()?.cpu_faults == start {
            // The page was dropped before the touch, so that the flag is still set.
            device.set_flags(0).what("clear the flag")?;
        }
    }
    Ok(())
}

/// A child that maps the huge page too unmaps it while a fault of its parent has lent its reference.
fn unmapped_by_a_child(ctx: &Ctx) -> Outcome {
    for round in 1..=4 {
        let device = ctx.open()?;
        let map = huge(1, round)?;
        migrate(&device, &map, round)?;
        let go = Gate::new()?;
        let child = Child::spawn(|| {
            go.wait().what("gate")?;
            map.unmap_pages(0, HUGE_PAGES).what("unmap")
        })?;
        let delta = Delta::start(ctx, &device)?;
        // What two processes map does not come back as a huge page.
        let word = while_it_is_lent(&map, || {
            go.open().what("gate")?;
            child.join().map_err(Stop::Fail)
        })?;
        check_eq!(word, pattern::word(round, 77, 7), "the word that the CPU read");
        comes_back_at_once(&delta, "after the touch")?;
        cpu_sees(&map, round, "after the child has gone")?;
        let huge = hmm::smaps::field(map.addr(), map.len(), "AnonHugePages")?;
        check_eq!(huge, 0, "KiB in huge pages");
        device_sees(&device, &map, round, "after the child has gone")?;
    }
    Ok(())
}

/// A thread that calls the shrinker of underused huge pages without a pause, or rests.
struct Shrinker {
    end: AtomicBool,
    rest: AtomicBool,
    /// It does rest: no call is under way.
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

/// Under memory pressure the kernel searches for underused huge pages.  It holds a page while it scans
/// it, so that the page does not migrate; nothing is lost, and the page migrates afterwards.
fn while_the_shrinker_looks(ctx: &Ctx) -> Outcome {
    let mut settings = Settings::new();
    if !settings.set(SHRINK_UNDERUSED, "1")? {
        return Err(Stop::Skip("this kernel does not look for such pages".to_string()));
    }
    let device = ctx.open()?;
    let off = || AtomicBool::new(false);
    let shrinker = Shrinker { end: off(), rest: off(), rests: off() };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| shrinker.run());
        let result = (1..=8).try_for_each(|round| moves_when_let_go(&device, round, &shrinker));
        shrinker.end.store(true, Relaxed);
        thread.join().expect("it does not panic")?;
        result
    })
}

/// Attempts in a row that may fail while no call of the shrinker is under way: the queue that holds what
/// it has scanned is freed a little later.
const ATTEMPTS_AT_REST: u32 = 3;

/// Attempts, and time, after which the shrinker rests: on a slow kernel it may hold the page at each of
/// them, and keep the attempts from the processor.
const ATTEMPTS: u32 = 100;
const TIME: Duration = Duration::from_secs(15);

/// Migrates a huge page, in the end without the shrinker.
fn moves_when_let_go(device: &Device, round: u64, shrinker: &Shrinker) -> Outcome {
    shrinker.rest.store(false, Relaxed);
    let map = Mapping::anon_huge(1)?;
    map.fill(round);
    // It may be held, too.
    let _ = map.collapse();
    let begin = Instant::now();
    let (mut attempts, mut at_rest) = (0, 0);
    loop {
        let rests = shrinker.rest.load(Relaxed) && shrinker.rests.load(Relaxed);
        match try_migrate(device, &map) {
            Ok(_) => break,
            Err(Errno::ENOENT) => map.check(round)?,
            Err(error) => return Err(error).what("migrate to the device"),
        }
        attempts += 1;
        at_rest += u32::from(rests);
        check!(at_rest < ATTEMPTS_AT_REST, "it does not move, although nothing holds it");
        let enough = attempts >= ATTEMPTS || begin.elapsed() >= TIME;
        shrinker.rest.fetch_or(enough, Relaxed);
    }
    let took = begin.elapsed().as_millis();
    println!("# round {round}: {attempts} attempts failed in {took} ms, {at_rest} of them at rest");
    device_sees(device, &map, round, "of what moved")?;
    cpu_sees(&map, round, "of what moved")
}

// SPDX-License-Identifier: GPL-2.0
//! Memory is dropped and processes exit while their huge pages migrate back.

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
use hmm::abi::HUGE_PAGES;
use hmm::{
    mapping,
    pattern,
    Child,
    Device,
    Errno,
    Gate,
    Mapping,
    Setting,
    PAGE_SIZE, //
};
use std::time::{
    Duration,
    Instant, //
};

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
pub(super) fn dontneed_during_a_migration_back(ctx: &Ctx) -> Outcome {
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
pub(super) fn exit_of_sharers(ctx: &Ctx) -> Outcome {
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

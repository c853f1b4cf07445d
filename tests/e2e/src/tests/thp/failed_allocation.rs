// SPDX-License-Identifier: GPL-2.0
//! No huge page can be allocated: the migration uses small pages.

use crate::check_eq;
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::support::*;
use hmm::abi::{
    FLAG_FAIL_ALLOC,
    HUGE_PAGES, //
};
use hmm::{
    pattern,
    Child,
    Device,
    Errno,
    Gate,
    Mapping,
    PAGE_SIZE, //
};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{
    AtomicBool,
    Ordering::Relaxed, //
};

pub(super) fn failed_allocation(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = huge(1, 1)?;
    device.set_flags(FLAG_FAIL_ALLOC).what("set the flag")?;
    migrate(&device, &map, 1)?;
    check_eq!(resident_huge(&device, &map)?, 0, "pages in huge device pages");
    device_fills_pages(&device, &map, 2, 0, 8, "of small device pages")?;
    map.check_pages(2, 0, 8).what("CPU read of words that the device wrote")?;
    map.check_pages(1, 8, HUGE_PAGES - 8).what("CPU read of the rest")
}

pub(super) fn failed_way_back(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = huge(1, 1)?;
    migrate(&device, &map, 1)?;
    device.set_flags(FLAG_FAIL_ALLOC).what("set the flag")?;
    device.migrate_to_system(map.addr(), HUGE_PAGES).what("migrate to the system")?;
    cpu_sees(&map, 1, "after the way back without huge page")?;
    device_sees(&device, &map, 1, "after the way back without huge page")?;
    Ok(())
}

pub(super) fn failed_cpu_fault(ctx: &Ctx) -> Outcome {
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

/// Another device reads a huge page that cannot migrate back as such. Its range fault holds the
/// mmap lock until it has the page. The thread that splits the page needs the lock, too, and other
/// threads wait for it.
pub(super) fn failed_for_another(ctx: &Ctx) -> Outcome {
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
pub(super) fn failed_for_a_debugger(ctx: &Ctx) -> Outcome {
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
pub(super) fn shared_and_failed(ctx: &Ctx) -> Outcome {
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

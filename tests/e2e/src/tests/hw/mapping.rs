// SPDX-License-Identifier: GPL-2.0
//! DMA mappings: of device PTEs, of huge pages and of locked memory.

use super::{
    live,
    load_driver,
    PAGES, //
};
use crate::harness::{
    Ctx,
    Outcome,
    What, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::{
    module,
    pattern,
    Errno,
    Mapping,
    HUGE_PAGES,
    PAGE_SIZE, //
};

/// Device PTEs and DMA mappings are created and removed together. At the end no page is mapped.
pub(super) fn mapped(ctx: &Ctx) -> Outcome {
    let before = live()?;
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    device_sees(&device, &map, 1, "of memory")?;
    check_eq!(live()? - before, PAGES as u64, "pages mapped after a read");
    device_fills(&device, &map, 2, "of mapped memory")?;
    check_eq!(live()? - before, PAGES as u64, "pages mapped after a write to the same");
    cpu_sees(&map, 2, "after a write by DMA")?;
    map.unmap_pages(0, PAGES / 2)?;
    check_eq!(live()? - before, PAGES as u64 / 2, "pages mapped after half was unmapped");
    device.close()?;
    check_eq!(live()?, before, "pages mapped when the file is closed");
    Ok(())
}

/// A page that migrates to the device is no longer mapped for DMA when the process can reuse its
/// frame.
pub(super) fn moved(ctx: &Ctx) -> Outcome {
    let before = live()?;
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    device_sees(&device, &map, 1, "before")?;
    check_eq!(live()? - before, PAGES as u64, "pages mapped before");
    migrate(&device, &map, 1)?;
    check_eq!(live()?, before, "system pages mapped when all are on the device");
    device.migrate_to_system(map.addr(), PAGES).what("migrate back")?;
    check_eq!(live()? - before, PAGES as u64, "pages mapped after they came back");
    let done = device_sees(&device, &map, 1, "of migrated pages")?;
    check_eq!(done.faults, 0, "fault rounds of pages migrated back while mapped by the device");
    map.fill(3);
    device_sees(&device, &map, 3, "at the end")?;
    device.close()?;
    check_eq!(live()?, before, "pages mapped when the file is closed");
    Ok(())
}

/// The engine clears pages that have no source.
pub(super) fn hole(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let used = Mapping::anon(2)?;
    used.fill(17);
    // The first page of device memory does not contain zeroes.
    migrate(&device, &used, 17)?;
    cpu_sees(&used, 17, "of pages migrated back")?;
    let map = Mapping::anon(2)?;
    try_migrate(&device, &map).what("migrate untouched memory")?;
    check_eq!(resident(&device, &map, 0, 2)?, 2, "pages on the device");
    device_sees_zero(&device, &map, 0, 2, "of untouched memory")?;
    map.check_zero(0, 2).what("CPU read of pages migrated back")
}

/// A block is mapped in one piece, and in parts after a part was unmapped.
pub(super) fn huge_pages(ctx: &Ctx) -> Outcome {
    let before = live()?;
    let device = ctx.open()?;
    let map = huge(1, 4)?;
    // A fault of one page maps all of them by one entry.
    let read = device_sees_pages(&device, &map, 4, 7, 2, "of a huge page")?;
    check_eq!(read.faults, 1, "faults of a huge page");
    check_eq!(live()? - before, HUGE_PAGES as u64, "pages mapped of a huge page");
    let read = device_sees(&device, &map, 4, "of all of it")?;
    check_eq!(read.faults, 0, "faults of pages that are mapped");
    check_eq!(live()? - before, HUGE_PAGES as u64, "pages mapped of all of it");
    map.unmap_pages(100, 1)?;
    // The kernel splits the huge page and invalidates all of it for that.
    check!(live()? - before < HUGE_PAGES as u64, "all is mapped after a part was unmapped");
    device_sees_pages(&device, &map, 4, 101, 2, "beside the unmapped range")?;
    device.close()?;
    check_eq!(live()?, before, "pages mapped when the file is closed");
    Ok(())
}

/// The engine reads its page table by DMA from coherent memory, the default of a bound device.
pub(super) fn coherent_tables(ctx: &Ctx) -> Outcome {
    module::unload("qemu_gpu").what("unload qemu_gpu")?;
    load_driver(ctx, "coherent_tables=1")?;
    let outcome = walks_coherent_tables(ctx);
    module::unload("qemu_gpu").what("unload it again")?;
    load_driver(ctx, "")?;
    outcome
}

fn walks_coherent_tables(ctx: &Ctx) -> Outcome {
    let before = live()?;
    let device = ctx.open()?;
    let map = Mapping::anon(4)?;
    map.fill(26);
    let reads = device_sees(&device, &map, 26, "of memory")?;
    check!(reads.faults != 0, "no fault of pages without entries");
    let reads = device_sees(&device, &map, 26, "of mapped memory")?;
    check_eq!(reads.faults, 0, "faults of mapped memory");
    device_fills(&device, &map, 27, "of mapped memory")?;
    try_migrate(&device, &map).what("migrate to the device")?;
    let reads = device_sees(&device, &map, 27, "of device memory")?;
    check_eq!(reads.faults, 0, "faults of device memory");
    device.migrate_to_system(map.addr(), 4).what("migrate back")?;
    let reads = device_sees(&device, &map, 27, "of pages that are back")?;
    check_eq!(reads.faults, 0, "faults of pages that are back");
    map.advise_pages(libc::MADV_DONTNEED, 1, 1)?;
    let mut data = vec![1; PAGE_SIZE];
    let read = device.read(map.page_addr(1), &mut data).what("read a page that was discarded")?;
    check_eq!(read.faults, 1, "faults of a page that was discarded");
    check!(data.iter().all(|byte| *byte == 0), "the device reads a page that was discarded");
    device.close()?;
    check_eq!(live()?, before, "pages mapped when the file is closed");
    Ok(())
}

/// Memory that is locked for the device stays in place. The engine reads and writes it by its
/// device address.
pub(super) fn pin(ctx: &Ctx) -> Outcome {
    let before = live()?;
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(8);
    let locked = device.lock(map.addr(), map.len(), 1, true).what("lock")?;
    check_eq!(live()? - before, PAGES as u64, "pages mapped when they are locked");
    let mut data = vec![0; map.len()];
    device.read(locked.device_addr, &mut data).what("read locked memory")?;
    pattern::check(8, 0, &data).what("locked memory")?;
    let new = pattern::buffer(9, 0, PAGES);
    device.write(locked.device_addr, &new).what("write locked memory")?;
    cpu_sees(&map, 9, "after a write by its device address")?;
    let migrated = try_migrate(&device, &map);
    check_eq!(migrated.map(|_| ()), Err(Errno::ENOENT), "a migration of locked pages");
    device.unlock(locked.device_addr).what("unlock")?;
    check_eq!(live()?, before, "pages mapped when they are unlocked");
    let gone = device.read(locked.device_addr, &mut data);
    check_eq!(gone.map(|_| ()), Err(Errno::EFAULT), "a read of unlocked memory");
    Ok(())
}

/// Locked pages do not migrate, and their neighbours do.
pub(super) fn pin_of_a_part(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(14);
    let locked = device.lock(map.page_addr(4), 8 * PAGE_SIZE, 1, true).what("lock")?;
    let moved = try_migrate(&device, &map).map(|_| ());
    check_eq!(moved, Err(Errno::ENOENT), "a migration of which half is locked");
    check_eq!(resident(&device, &map, 4, 8)?, 0, "locked pages on the device");
    check_eq!(resident(&device, &map, 0, 4)?, 4, "pages before them on the device");
    check_eq!(resident(&device, &map, 12, 4)?, 4, "pages behind them on the device");
    device_sees(&device, &map, 14, "of all of it")?;
    device.unlock(locked.device_addr).what("unlock")?;
    try_migrate(&device, &map).what("migrate unlocked memory")?;
    check_eq!(resident(&device, &map, 0, PAGES)?, PAGES, "pages on the device at the end");
    cpu_sees(&map, 14, "at the end")
}

/// Pages on the device migrate back with their contents when they are locked.
pub(super) fn pin_of_device_memory(ctx: &Ctx) -> Outcome {
    let before = live()?;
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(15);
    migrate(&device, &map, 15)?;
    check_eq!(resident(&device, &map, 0, PAGES)?, PAGES, "pages on the device");
    let locked = device.lock(map.addr(), map.len(), 1, true).what("lock")?;
    check_eq!(resident(&device, &map, 0, PAGES)?, 0, "pages on the device when they are locked");
    // One mapping for the device PTE of each page, and one for the lock.
    check_eq!(live()? - before, 2 * PAGES as u64, "pages mapped when they are locked");
    let mut data = vec![0; map.len()];
    device.read(locked.device_addr, &mut data).what("read locked memory")?;
    pattern::check(15, 0, &data).what("CPU read of migrated pages")?;
    device.unlock(locked.device_addr).what("unlock")?;
    check_eq!(live()? - before, PAGES as u64, "pages mapped when they are unlocked");
    device.close()?;
    check_eq!(live()?, before, "pages mapped when the file is closed");
    Ok(())
}

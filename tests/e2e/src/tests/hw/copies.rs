// SPDX-License-Identifier: GPL-2.0
//! Copies by the engine: reads meanwhile, eviction, and copies from another GPU.

use super::{
    live,
    load_driver,
    slot,
    PAGES, //
};
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::mover::rounds;
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::{
    module,
    pattern,
    Connection,
    Device,
    Done,
    Errno,
    Mapping,
    PAGE_SIZE, //
};
use std::fs;
use std::sync::atomic::{
    AtomicBool,
    AtomicU64,
    Ordering::Relaxed, //
};
use std::thread;

/// The engine reads the pages continuously while they migrate back and forth. It must not fault.
pub(super) fn faultless(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(4)?;
    map.fill(5);
    device_sees(&device, &map, 5, "before")?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| -> Result<(u64, u64), Stop> {
            let mut reads = 0;
            let mut faults = 0;
            while !stop.load(Relaxed) {
                let page = (reads % 4) as usize;
                faults += device_sees_pages(&device, &map, 5, page, 1, "while pages move")?.faults;
                reads += 1;
            }
            Ok((reads, faults))
        });
        let moves = || -> Outcome {
            for _ in 0..2 {
                try_migrate(&device, &map).what("migrate to the device")?;
                check_eq!(resident(&device, &map, 0, 4)?, 4, "pages on the device");
                device.migrate_to_system(map.addr(), 4).what("migrate back")?;
            }
            Ok(())
        };
        let moved = moves();
        stop.store(true, Relaxed);
        let reader = reader.join().map_err(|_| Stop::Fail("the reader panicked".into()))?;
        moved?;
        let (reads, faults) = reader?;
        check!(reads >= 8, "only {reads} reads while pages moved");
        check_eq!(faults, 0, "faults of {reads} reads while pages moved");
        cpu_sees(&map, 5, "after the moves")
    })
}

/// Copies take long. Reads of the pages complete during a copy, without a fault.
pub(super) fn slow_copies(ctx: &Ctx) -> Outcome {
    module::unload("qemu_gpu").what("unload qemu_gpu")?;
    load_driver(ctx, "copy_delay_ms=1000")?;
    let outcome = reads_during_copies(ctx);
    module::unload("qemu_gpu").what("unload it again")?;
    load_driver(ctx, "")?;
    outcome
}

fn reads_during_copies(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(1)?;
    map.fill(18);
    device_sees(&device, &map, 18, "before")?;
    let stop = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    thread::scope(|scope| {
        let reader = scope.spawn(|| -> Result<u64, Stop> {
            let mut faults = 0;
            while !stop.load(Relaxed) {
                faults += device_sees(&device, &map, 18, "during a copy")?.faults;
                reads.fetch_add(1, Relaxed);
            }
            Ok(faults)
        });
        let during = |what: &str, migration: &dyn Fn() -> Result<Done, Errno>| -> Outcome {
            let before = reads.load(Relaxed);
            let done = migration().what(what)?;
            check_eq!(done.cpages, 1, "pages of {what}");
            let during = reads.load(Relaxed) - before;
            // A read that began before the copy and one that ended after it do not count.
            check!(during >= 3, "{during} reads during {what}");
            Ok(())
        };
        let moves = || -> Outcome {
            during("the way to the device", &|| try_migrate(&device, &map))?;
            during("the way back", &|| device.migrate_to_system(map.addr(), 1))
        };
        let moved = moves();
        stop.store(true, Relaxed);
        let faults = reader.join().map_err(|_| Stop::Fail("the reader panicked".into()))?;
        moved?;
        check_eq!(faults?, 0, "faults of reads while copies took long");
        Ok(())
    })?;
    device.close()?;
    Ok(())
}

/// Memory is dropped while the engine reads it. The invalidation waits for the engine, and the
/// IOMMU reports no fault.
pub(super) fn during(ctx: &Ctx) -> Outcome {
    let before = live()?;
    let device = ctx.open()?;
    let mut in_time = 0;
    rounds(8, |round| {
        let map = Mapping::anon(1)?;
        map.fill(round + 1);
        let mapped = live()?;
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut data = vec![0; PAGE_SIZE];
                device.read(map.addr(), &mut data).map(|_| data)
            });
            // The page is mapped for the read, whose steps take 100 ms, so this is within the first
            // step.
            until("the page to be mapped", || Ok(live()? > mapped || reader.is_finished()))?;
            let reads = !reader.is_finished();
            map.advise(libc::MADV_DONTNEED).what("discard")?;
            let read = reader.join().map_err(|_| Stop::Fail("the reader panicked".into()))?;
            let data = read.what("read")?;
            match pattern::check(round + 1, 0, &data) {
                Ok(()) => in_time += u64::from(reads),
                // The page was dropped before the step began.
                Err(_) => pattern::check_zero(&data).what("neither the old contents nor zeros")?,
            }
            Ok(in_time >= 6)
        })
    })?;
    check!(in_time >= 6, "memory was unmapped while the engine read it in only {in_time} rounds");
    device.close()?;
    check_eq!(live()?, before, "pages mapped when the file is closed");
    Ok(())
}

/// Migrates twice the size of device memory. The least recently used memory is evicted.
pub(super) fn eviction(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let pages = vram_pages(ctx)?;
    check!(
        pages <= 1024,
        "{pages} pages of memory would take hours: set HMM_VRAM_MIB=4 for the machine"
    );
    let maps = [Mapping::anon(pages)?, Mapping::anon(pages)?];
    for (map, seed) in maps.iter().zip(6..) {
        map.fill(seed);
        try_migrate(&device, map).what("migrate more than there is room for")?;
        check!(resident(&device, map, 0, map.pages())? > 0, "nothing of it is on the device");
    }
    check!(resident(&device, &maps[0], 0, pages)? < pages, "none of the first pages was evicted");
    for (map, seed) in maps.iter().zip(6..) {
        cpu_sees(map, seed, "after evictions")?;
    }
    device.release().what("release")?;
    Ok(())
}

/// Returns the memory size of the device under test in pages: the size of its BAR without the page
/// tables.
fn vram_pages(ctx: &Ctx) -> Result<usize, Stop> {
    let function = slot(ctx.device)?.replace(".1", ".0");
    let path = format!("/sys/bus/pci/devices/{function}/resource2");
    let bytes = fs::metadata(path).what("look at the memory")?.len() as usize;
    Ok((bytes - (bytes / 2).min(8 << 20)) / PAGE_SIZE)
}

/// The bus carries DMA from one GPU to the memory of the other, so pages are copied directly.
pub(super) fn peer(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let second = Device::open(ctx.second).what("open the second GPU")?;
    check_eq!(device.connection(&second)?, Connection::Migratable, "the connection");
    let map = Mapping::anon(PAGES)?;
    map.fill(10);
    migrate(&second, &map, 10)?;
    let pulled = device.pull(map.addr(), PAGES, &second).what("pull")?;
    check_eq!(pulled.moved, PAGES as u64, "pages that moved");
    check_eq!(resident(&device, &map, 0, PAGES)?, PAGES, "pages on the first GPU");
    device_sees(&device, &map, 10, "of pages from the other GPU")?;
    cpu_sees(&map, 10, "of pages from the other GPU")
}

// SPDX-License-Identifier: GPL-2.0
//! Hardware: DMA addresses behind an IOMMU, a copy engine with interrupts, memory on the bus,
//! unplug. The test runner outside the machine counts the faults of the IOMMU.

use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    Test,
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
    HUGE_PAGES,
    PAGE_SIZE, //
};
use std::fs::{
    self,
    OpenOptions, //
};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{
    AtomicBool,
    AtomicU64,
    Ordering::Relaxed, //
};
use std::thread;
use std::time::{
    Duration,
    Instant, //
};

mod bounced;
mod failures;
mod unbound;

const PAGES: usize = 16;

/// I/O port of QEMU's monitor on x86, see tools/vm/run.
const MONITOR_PORT: u64 = 0xea;

/// Name of the port of virtio-serial elsewhere.
const MONITOR_NAME: &str = "line";

pub const TESTS: &[Test] = &[
    Test::new("hw", "dma_mappings_follow_entries", mapped).only_hw(),
    Test::new("hw", "device_pages_have_no_dma_mapping", moved).only_hw(),
    Test::new("hw", "unpopulated_pages_read_zero_after_migration", hole).only_hw(),
    Test::new("hw", "huge_pages_are_mapped_in_one_piece", huge_pages).only_hw(),
    Test::new("hw", "tables_in_coherent_memory_are_walked", coherent_tables).only_hw(),
    Test::new("hw", "reads_never_fault_during_migrations", faultless).only_hw(),
    Test::new("hw", "reads_complete_during_slow_copies", slow_copies).only_hw(),
    Test::new("hw", "dontneed_waits_for_device_accesses", during).only_hw(),
    Test::new("hw", "oversubscription_evicts_lru_memory", eviction).only_hw(),
    Test::new("hw", "locked_memory_is_accessed_in_place", pin).only_hw(),
    Test::new("hw", "locked_pages_do_not_migrate", pin_of_a_part).only_hw(),
    Test::new("hw", "locking_migrates_pages_back", pin_of_device_memory).only_hw(),
    Test::new("hw", "peer_pages_are_copied_directly", peer).only_hw(),
    Test::new("hw", "pages_without_a_dma_address_stay", failures::no_address).only_hw(),
    Test::new("hw", "pages_without_memory_stay", failures::no_memory).only_hw(),
    Test::new("hw", "peer_without_a_dma_address_is_unconnected", failures::no_peer).only_hw(),
    Test::new("hw", "probe_fails_without_a_dma_address_for_vram", failures::no_vram).only_hw(),
    Test::new("hw", "probe_fails_with_a_narrow_dma_mask", narrow).only_hw(),
    Test::new("hw", "unbind_works_in_any_order", unbound::memory_first).only_hw(),
    Test::new("hw", "unbind_without_driver_teardown_unmaps_all", unbound::forgotten).only_hw(),
    Test::new("hw", "objects_dropped_in_callbacks_are_freed", unbound::dropped_in_callbacks)
        .only_hw(),
    Test::new("hw", "unplug_during_migrations_keeps_contents", unplug).only_hw(),
    // Tests of a machine that bounces DMA, which tests/run/hw starts.
    Test::new("swiotlb", "gpu_behind_an_iommu_works", bounced::translated).only_hw(),
    Test::new("swiotlb", "gpu_without_an_iommu_is_refused", bounced::direct).only_hw(),
    Test::new("swiotlb", "locked_memory_is_coarse_grained", bounced::locked).only_hw(),
];

/// Returns the number of pages that are mapped for DMA now, and the number of all mappings so far.
fn dma() -> Result<(u64, u64), Stop> {
    let account = hmm::dma::account().what("read the account of DMA")?;
    Ok((account.live(), account.mapped))
}

fn live() -> Result<u64, Stop> {
    Ok(dma()?.0)
}

/// Device PTEs and DMA mappings are created and removed together. At the end no page is mapped.
fn mapped(ctx: &Ctx) -> Outcome {
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
fn moved(ctx: &Ctx) -> Outcome {
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
fn hole(ctx: &Ctx) -> Outcome {
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
fn huge_pages(ctx: &Ctx) -> Outcome {
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
fn coherent_tables(ctx: &Ctx) -> Outcome {
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

/// The engine reads the pages continuously while they migrate back and forth. It must not fault.
fn faultless(ctx: &Ctx) -> Outcome {
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
fn slow_copies(ctx: &Ctx) -> Outcome {
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
fn during(ctx: &Ctx) -> Outcome {
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
fn eviction(ctx: &Ctx) -> Outcome {
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

/// Returns the PCI address of the copy engine of device `index`.
fn slot(index: u32) -> Result<String, Stop> {
    let bound = fs::read_dir("/sys/bus/pci/drivers/qemu_gpu").what("list the engines")?;
    let mut names: Vec<String> = bound
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("0000:") && name.ends_with(".1"))
        .collect();
    names.sort();
    let name = names.get(index as usize);
    name.cloned().ok_or_else(|| Stop::Fail(format!("no GPU {index} among {names:?}")))
}

/// Returns the memory size of the device under test in pages: the size of its BAR without the page
/// tables.
fn vram_pages(ctx: &Ctx) -> Result<usize, Stop> {
    let function = slot(ctx.device)?.replace(".1", ".0");
    let path = format!("/sys/bus/pci/devices/{function}/resource2");
    let bytes = fs::metadata(path).what("look at the memory")?.len() as usize;
    Ok((bytes - (bytes / 2).min(8 << 20)) / PAGE_SIZE)
}

/// Memory that is locked for the device stays in place. The engine reads and writes it by its
/// device address.
fn pin(ctx: &Ctx) -> Outcome {
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
fn pin_of_a_part(ctx: &Ctx) -> Outcome {
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
fn pin_of_device_memory(ctx: &Ctx) -> Outcome {
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

/// The bus carries DMA from one GPU to the memory of the other, so pages are copied directly.
fn peer(ctx: &Ctx) -> Outcome {
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

/// Returns the kernel log since `mark` was written to it.
fn log_since(mark: &str) -> Result<String, Stop> {
    let size = 1 << 20;
    let mut text = vec![0u8; size];
    // SAFETY: SYSLOG_ACTION_READ_ALL writes at most `size` bytes to the buffer, which has that
    // size.
    let got = unsafe { libc::klogctl(3, text.as_mut_ptr().cast(), size as i32) };
    check!(got >= 0, "cannot read the kernel's log");
    let text = String::from_utf8_lossy(&text[..got as usize]).into_owned();
    Ok(text.rsplit_once(mark).map_or(String::new(), |(_, rest)| rest.to_string()))
}

fn load_driver(ctx: &Ctx, params: &str) -> Outcome {
    module::load(&ctx.modules.join("qemu_gpu.ko"), params).what("load qemu_gpu")
}

/// If the device cannot address all memory, its probe fails and the log has the reason.
fn narrow(ctx: &Ctx) -> Outcome {
    let mark = format!("hw.narrow {:?}", Instant::now());
    module::unload("qemu_gpu").what("unload qemu_gpu")?;
    fs::write("/dev/kmsg", format!("{mark}\n")).what("mark the log")?;
    load_driver(ctx, "dma_bits=28")?;
    let there = Path::new("/dev/hmm_dmirror0").exists();
    let log = log_since(&mark)?;
    module::unload("qemu_gpu").what("unload it again")?;
    load_driver(ctx, "")?;
    check!(!there, "a device with 28 bits is there");
    check!(
        log.contains("refused: the device reaches 28 bits of address, the memory needs 32"),
        "no word in the log: {log}"
    );
    check!(Path::new("/dev/hmm_dmirror0").exists(), "with 32 bits it is not there");
    Ok(())
}

/// Sends `command` to QEMU's monitor.
fn monitor(command: &str) -> Outcome {
    if cfg!(target_arch = "x86_64") {
        let port = OpenOptions::new().write(true).open("/dev/port").what("open the ports")?;
        for byte in command.bytes() {
            port.write_all_at(&[byte], MONITOR_PORT).what("write to QEMU's monitor")?;
        }
        return Ok(());
    }
    for port in fs::read_dir("/sys/class/virtio-ports").what("list the ports")? {
        let port = port.what("list the ports")?;
        let name = fs::read_to_string(port.path().join("name")).unwrap_or_default();
        if name.trim() == MONITOR_NAME {
            let node = Path::new("/dev").join(port.file_name());
            return fs::write(node, command).what("write to QEMU's monitor");
        }
    }
    check!(false, "there is no port named {MONITOR_NAME}");
    Ok(())
}

/// Has QEMU unplug the device with the id `id`.
fn device_del(id: &str) -> Outcome {
    let command = format!(
        "{{\"execute\":\"qmp_capabilities\"}}\n\
         {{\"execute\":\"device_del\",\"arguments\":{{\"id\":\"{id}\"}}}}\n"
    );
    monitor(&command)
}

/// The second GPU is unplugged while pages migrate. No contents are lost, no page stays mapped, and
/// open files return `ENODEV`.
fn unplug(ctx: &Ctx) -> Outcome {
    // The way back takes 12 s of the guest. The kernel waits 5 s between the request and the
    // removal.
    const MANY: usize = 64;
    let before = live()?;
    let device = Device::open(ctx.second).what("open the second GPU")?;
    let place = slot(ctx.second)?;
    let node = Device::path(ctx.second);
    let map = Mapping::anon(MANY)?;
    map.fill(11);
    migrate(&device, &map, 11)?;
    let going = AtomicBool::new(false);
    let back = || -> Result<bool, Stop> {
        let there = node.exists();
        going.store(true, Relaxed);
        let done = device.migrate_to_system(map.addr(), MANY);
        // The node is removed first. From then on a migration returns an error.
        let gone = !node.exists();
        match done {
            Err(error) if !gone => Err(Stop::Fail(format!("a migration back: {error}"))),
            _ => Ok(there && gone),
        }
    };
    let during = thread::scope(|scope| {
        let mover = scope.spawn(|| -> Result<usize, Stop> {
            let mut during = 0;
            loop {
                during += usize::from(back()?);
                match try_migrate(&device, &map) {
                    Err(Errno::ENODEV) => return Ok(during),
                    Err(error) if node.exists() => {
                        return Err(Stop::Fail(format!("a migration there: {error}")));
                    }
                    _ => {}
                }
            }
        });
        while !going.load(Relaxed) {
            thread::yield_now();
        }
        device_del(&format!("engine{}", ctx.second))?;
        mover.join().map_err(|_| Stop::Fail("the mover panicked".into()))?
    })?;
    check_eq!(during, 1, "migrations in flight when the device was removed");
    cpu_sees(&map, 11, "after the device was unplugged while pages moved")?;
    let mut data = vec![0; PAGE_SIZE];
    let gone = device.read(map.addr(), &mut data);
    check_eq!(gone.map(|_| ()), Err(Errno::ENODEV), "a read by a removed device");
    let path = format!("/sys/bus/pci/devices/{place}");
    let since = Instant::now();
    while Path::new(&path).exists() {
        check!(since.elapsed() < Duration::from_secs(120), "{place} is still there");
        thread::sleep(Duration::from_millis(100));
    }
    check!(!node.exists(), "its node is still there");
    check_eq!(live()?, before, "pages mapped after the device was removed");
    device.close()?;
    let first = ctx.open()?;
    device_sees(&first, &map, 11, "of the GPU that is left")?;
    Ok(())
}

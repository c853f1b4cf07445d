// SPDX-License-Identifier: GPL-2.0
//! A GPU is unbound from its driver while files are open.

use super::{
    live,
    load_driver,
    log_since,
    slot,
    PAGES, //
};
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
use hmm::{
    module,
    Connection,
    Device,
    Errno,
    Mapping,
    PAGE_SIZE, //
};
use std::fs;
use std::path::Path;
use std::sync::atomic::{
    AtomicU64,
    Ordering::Relaxed, //
};
use std::thread;
use std::time::{
    Duration,
    Instant, //
};

/// Binds a PCI function to the driver, or unbinds it.
fn driver(action: &str, function: &str) -> std::io::Result<()> {
    fs::write(format!("/sys/bus/pci/drivers/qemu_gpu/{action}"), function)
}

fn is_bound(function: &str) -> bool {
    Path::new(&format!("/sys/bus/pci/devices/{function}/driver")).exists()
}

/// Waits until `condition` holds.
fn until(what: &str, condition: impl Fn() -> bool) -> Outcome {
    let since = Instant::now();
    while !condition() {
        check!(since.elapsed() < Duration::from_secs(60), "after a minute: not {what}");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The function that has the memory is unbound. The kernel removes the GPU first, which saves its
/// pages. The GPU works again when both functions are bound again, in the wrong order.
pub fn memory_first(ctx: &Ctx) -> Outcome {
    let before = live()?;
    let engine = slot(ctx.second)?;
    let memory = engine.replace(".1", ".0");
    let device = Device::open(ctx.second).what("open the second GPU")?;
    let map = Mapping::anon(PAGES)?;
    map.fill(21);
    migrate(&device, &map, 21)?;
    driver("unbind", &memory).what("unbind the memory")?;
    check!(!is_bound(&memory) && !is_bound(&engine), "a function is still bound");
    check!(!Path::new(&Device::path(ctx.second)).exists(), "the node is still there");
    check_eq!(live()?, before, "pages mapped when the GPU is unbound");
    cpu_sees(&map, 21, "of pages on the GPU")?;
    let gone = device.read(map.addr(), &mut [0; PAGE_SIZE]);
    check_eq!(gone.map(|_| ()), Err(Errno::ENODEV), "a read by a GPU that is unbound");
    // The memory of the unbound GPU is no longer a peer.
    let first = ctx.open()?;
    check_eq!(first.connection(&device)?, Connection::None, "a connection to a removed device");
    first.close()?;

    // The engine function finds no memory, so its probe is deferred. The write returns the result
    // of the search for a driver, not that of the probe.
    let _ = fs::write("/sys/bus/pci/drivers_probe", &engine);
    check!(!is_bound(&engine), "an engine without memory is bound");
    let refused = driver("bind", &engine).map_err(|error| error.raw_os_error());
    check_eq!(refused, Err(Some(libc::EAGAIN)), "the bind of an engine without memory");
    driver("bind", &memory).what("bind the memory")?;
    until("bound", || is_bound(&engine) && Path::new(&Device::path(ctx.second)).exists())?;
    device.close()?;
    let device = Device::open(ctx.second).what("open it again")?;
    device_sees(&device, &map, 21, "of the GPU that is bound again")?;
    device.close()?;
    check_eq!(live()?, before, "pages mapped at the end");
    Ok(())
}

/// Checks that all operations fail on an open file whose GPU is unbound.
fn is_useless(ctx: &Ctx, device: &Device, map: &Mapping) -> Outcome {
    let mut data = vec![0; PAGE_SIZE];
    check!(device.read(map.addr(), &mut data).is_err(), "an unbound GPU reads");
    let fresh = Mapping::anon(1)?;
    fresh.fill(23);
    check!(device.read(fresh.addr(), &mut data).is_err(), "an unbound GPU reads something new");
    check!(device.lock(fresh.addr(), PAGE_SIZE, 1, true).is_err(), "memory is locked for it");
    let moved = try_migrate(device, &fresh);
    check!(moved.is_err(), "pages move to an unbound GPU: {moved:?}");
    cpu_sees(&fresh, 23, "of pages that did not migrate")?;
    // It has no connection to another GPU either.
    let other = ctx.open()?;
    check_eq!(device.connection(&other)?, Connection::None, "its connection to another GPU");
    other.close()?;
    Ok(())
}

/// The driver discards all of its resources at unbind: entries of mirrors, locked memory, buffers,
/// the memory of the other GPU, the interrupt, the engine and its thread. None of them is used
/// afterwards.
pub fn forgotten(ctx: &Ctx) -> Outcome {
    let mark = format!("hw.forgotten {:?}", Instant::now());
    module::unload("qemu_gpu").what("unload qemu_gpu")?;
    load_driver(ctx, "forget=1")?;
    fs::write("/dev/kmsg", format!("{mark}\n")).what("mark the log")?;
    let before = live()?;
    let engine = slot(ctx.second)?;
    let device = Device::open(ctx.second).what("open the second GPU")?;
    let map = Mapping::anon(PAGES)?;
    map.fill(22);
    let locked = Mapping::anon(PAGES)?;
    locked.fill(24);
    let lock = device.lock(locked.addr(), locked.len(), 1, true).what("lock")?;
    device_sees(&device, &map, 22, "before")?;
    check_eq!(live()? - before, 2 * PAGES as u64, "pages mapped before");
    let reads = AtomicU64::new(0);
    thread::scope(|scope| {
        // The engine is in the middle of an access.
        let reader = scope.spawn(|| {
            let mut data = vec![0; PAGE_SIZE];
            while device.read(map.addr(), &mut data).is_ok() {
                reads.fetch_add(1, Relaxed);
            }
        });
        let begun = until("reading", || reads.load(Relaxed) >= 2);
        let unbound = driver("unbind", &engine);
        reader.join().map_err(|_| Stop::Fail("the reader panicked".into()))?;
        unbound.what("unbind the engine")?;
        begun
    })?;
    check_eq!(live()?, before, "pages mapped when the GPU is unbound");
    is_useless(ctx, &device, &map)?;
    fs::write(format!("/sys/bus/pci/devices/{engine}/remove"), "1").what("remove the function")?;
    check!(!Path::new(&format!("/sys/bus/pci/devices/{engine}")).exists(), "it is still there");
    is_useless(ctx, &device, &map)?;
    cpu_sees(&map, 22, "of pages that the GPU had mapped")?;
    cpu_sees(&locked, 24, "of memory that was locked for the GPU")?;
    device.unlock(lock.device_addr).what("unlock")?;
    check_eq!(live()?, before, "pages mapped after the GPU was removed");
    device.close()?;
    let log = log_since(&mark)?;
    check!(log.contains("GPU forgotten"), "the driver has not forgotten: {log}");
    module::unload("qemu_gpu").what("unload it again")?;
    fs::write("/sys/bus/pci/rescan", "1").what("look for functions")?;
    load_driver(ctx, "")?;
    let device = Device::open(ctx.second).what("open the second GPU again")?;
    device_sees(&device, &map, 22, "of the GPU that is back")?;
    Ok(())
}

/// Returns the number of interrupts that the driver has registered.
fn interrupts() -> Result<usize, Stop> {
    let all = fs::read_to_string("/proc/interrupts").what("list the interrupts")?;
    Ok(all.lines().filter(|line| line.ends_with("qemu_gpu")).count())
}

/// The driver drops an interrupt in its own handler, and the mapping of a BAR in a copy callback.
/// Neither waits for itself. The kernel reports a mapping that is left when the driver is unbound.
pub fn dropped_in_callbacks(ctx: &Ctx) -> Outcome {
    module::unload("qemu_gpu").what("unload qemu_gpu")?;
    load_driver(ctx, "drop_in_callbacks=1")?;
    let before = interrupts()?;
    let device = ctx.open()?;
    let map = Mapping::anon(1)?;
    map.fill(27);
    // The first transfer causes the interrupt. The copy fails, because the engine stops.
    let moved = try_migrate(&device, &map).map(|_| ());
    check_eq!(moved, Err(Errno::ENOENT), "a migration by an engine that stops");
    until("freed", || interrupts().is_ok_and(|now| now + 1 == before))?;
    cpu_sees(&map, 27, "of a page that did not migrate")?;
    check!(device.read(map.addr(), &mut [0; PAGE_SIZE]).is_err(), "a stopped engine reads");
    device.close()?;
    module::unload("qemu_gpu").what("unload it again")?;
    check_eq!(interrupts()?, 0, "interrupts of an unloaded driver");
    load_driver(ctx, "")
}

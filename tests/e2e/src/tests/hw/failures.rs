// SPDX-License-Identifier: GPL-2.0
//! Failures on hardware: DMA mappings, allocations, and a DMA mask that is too narrow.

use super::{
    live,
    load_driver,
    log_since,
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
use hmm::inject::{
    self,
    Kernel,
    Kind,
    Source, //
};
use hmm::{
    module,
    Connection,
    Device,
    Errno,
    Mapping, //
};
use std::fs;
use std::path::Path;
use std::time::Instant;

/// Makes the `nth` DMA mapping from now on fail.
fn without_address(nth: u64) -> Result<inject::Armed, Stop> {
    inject::arm(&Source::Point("dma".into()), nth).what("set the point")
}

/// An operation on the device that can fail.
type Use = fn(&Ctx, &Device, &Mapping) -> Result<(), Errno>;

fn open_again(ctx: &Ctx, _: &Device, _: &Mapping) -> Result<(), Errno> {
    Device::open(ctx.device)?.close()
}

fn read(_: &Ctx, device: &Device, map: &Mapping) -> Result<(), Errno> {
    let mut data = vec![0; map.len()];
    device.read(map.addr(), &mut data).map(|_| ())
}

fn there(_: &Ctx, device: &Device, map: &Mapping) -> Result<(), Errno> {
    try_migrate(device, map).map(|_| ())
}

fn back(_: &Ctx, device: &Device, map: &Mapping) -> Result<(), Errno> {
    device.migrate_to_system(map.addr(), map.pages()).map(|_| ())
}

fn touch(_: &Ctx, _: &Device, map: &Mapping) -> Result<(), Errno> {
    inject::kernel_reads(map, 0).map(|_| ())
}

fn lock(_: &Ctx, device: &Device, map: &Mapping) -> Result<(), Errno> {
    let locked = device.lock(map.addr(), map.len(), 1, true)?;
    device.unlock(locked.device_addr)
}

/// Name of the operation, the function, whether the pages are on the device first, and the allowed
/// errors.
const USES: [(&str, Use, bool, &[Errno]); 7] = [
    ("an open", open_again, false, &[Errno::ENOMEM]),
    ("a read", read, false, &[Errno::ENOMEM]),
    ("a lock", lock, false, &[Errno::ENOMEM]),
    ("a lock of device memory", lock, true, &[Errno::ENOMEM, Errno::EFAULT]),
    ("a migration there", there, false, &[Errno::ENOMEM, Errno::ENOENT]),
    ("a migration back", back, true, &[Errno::ENOMEM, Errno::ENOENT]),
    ("a touch by the CPU", touch, true, &[Errno::EFAULT]),
];

/// Makes the first, the second, ... use of `source` fail in each operation. No contents may be
/// lost, no page may stay mapped, and the operation must succeed afterwards. Returns the number of
/// failures of each.
fn each_fails(ctx: &Ctx, source: &Source) -> Result<[u64; USES.len()], Stop> {
    const FEW: usize = 2;
    let before = live()?;
    let mut counts = [0; USES.len()];
    for ((seed, (what, operate, on_device, errors)), count) in (20..).zip(USES).zip(&mut counts) {
        let mut reported = 0;
        loop {
            let device = ctx.open()?;
            let map = Mapping::anon(FEW)?;
            map.fill(seed);
            if on_device {
                migrate(&device, &map, seed)?;
            }
            let armed = inject::arm(source, *count + 1).what("have it fail")?;
            let result = operate(ctx, &device, &map);
            let failed = armed.disarm().what("ask whether it failed")?;
            if let Err(error) = result {
                check!(failed, "{what} fails without a failure: {error}");
                check!(errors.contains(&error), "{what}, {source} {}: {error}", *count + 1);
                reported += 1;
            }
            operate(ctx, &device, &map).what("the same again")?;
            device_sees(&device, &map, seed, "after it")?;
            cpu_sees(&map, seed, "after it")?;
            device.close()?;
            check_eq!(live()?, before, "pages mapped after {what}, {source} {}", *count + 1);
            if !failed {
                break;
            }
            *count += 1;
        }
        println!("# {what}: {source} failed {count} times, {reported} reported as errors");
    }
    Ok(counts)
}

pub fn no_address(ctx: &Ctx) -> Outcome {
    let counts = each_fails(ctx, &Source::Point("dma".into()))?;
    check_eq!(counts[0], 0, "addresses of a device that is only opened");
    check!(counts[1..].iter().all(|count| *count >= 2), "addresses of two pages: {counts:?}");
    Ok(())
}

pub fn no_memory(ctx: &Ctx) -> Outcome {
    if !Kind::Slab.is_there() {
        return Err(Stop::Skip("allocations cannot fail on this kernel".into()));
    }
    let _kernel = Kernel::prepare(&[Kind::Slab], 0).what("prepare failing allocations")?;
    let counts = each_fails(ctx, &Source::Kernel(Kind::Slab))?;
    check!(counts[0] >= 10 && counts[1] >= 4, "allocations that failed: {counts:?}");
    Ok(())
}

/// Without a DMA address for the other GPU's memory there is no connection, so pages are copied
/// through system memory.
pub fn no_peer(ctx: &Ctx) -> Outcome {
    // The library caches the connection between two devices. Reload the driver to start without a
    // cached one.
    module::unload("qemu_gpu").what("unload qemu_gpu")?;
    load_driver(ctx, "")?;
    let device = ctx.open()?;
    let second = Device::open(ctx.second).what("open the second GPU")?;
    let armed = without_address(1)?;
    let connection = device.connection(&second)?;
    check!(armed.disarm().what("ask the point")?, "the connection needs no address");
    check_eq!(connection, Connection::None, "the connection without an address");
    let map = Mapping::anon(PAGES)?;
    map.fill(16);
    migrate(&second, &map, 16)?;
    let pulled = device.pull(map.addr(), PAGES, &second).what("pull")?;
    check_eq!(pulled.connection, Connection::None, "the connection of the pull");
    check_eq!(resident(&device, &map, 0, PAGES)?, PAGES, "pages on the first GPU");
    cpu_sees(&map, 16, "of pages copied through system memory")?;
    // After the next reload the drivers are queried again.
    device.close()?;
    second.close()?;
    module::unload("qemu_gpu").what("unload it again")?;
    load_driver(ctx, "")?;
    let device = ctx.open()?;
    let second = Device::open(ctx.second).what("open the second GPU")?;
    check_eq!(device.connection(&second)?, Connection::Migratable, "with an address");
    Ok(())
}

/// The first GPU gets no DMA address for its own memory. Its probe fails, and the other GPU becomes
/// device 0.
pub fn no_vram(ctx: &Ctx) -> Outcome {
    module::unload("qemu_gpu").what("unload qemu_gpu")?;
    let armed = without_address(1)?;
    load_driver(ctx, "")?;
    let failed = armed.disarm().what("ask the point")?;
    let there = [0, 1].map(|index| Device::path(index).exists());
    let map = Mapping::anon(1)?;
    map.fill(13);
    let seen =
        Device::open(0).map(|device| device_sees(&device, &map, 13, "of the one that is there"));
    module::unload("qemu_gpu").what("unload it again")?;
    load_driver(ctx, "")?;
    check!(failed, "a GPU's memory needs no address");
    check_eq!(there, [true, false], "GPUs that are there");
    seen.what("open the GPU that is there")??;
    check!(Device::path(1).exists(), "with all addresses there is no second GPU");
    Ok(())
}

/// If the device cannot address all memory, its probe fails and the log has the reason.
pub fn narrow(ctx: &Ctx) -> Outcome {
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

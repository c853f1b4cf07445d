// SPDX-License-Identifier: GPL-2.0
//! Rows of queues, fences, connections, locks and managed memory. Only `rust_dmirror` supports
//! these.

use crate::bench::{
    timed,
    Bench, //
};
use anyhow::{
    ensure,
    Result, //
};
use hmm::mapping::Mapping;
use hmm::{
    Command,
    Connection,
    Device,
    EngineOp,
    ManagedFlags,
    QueueOp,
    Setting,
    PAGE_SIZE, //
};

/// Number of calls in a round of rows that measure calls.
const CALLS: usize = 100;

/// Maximal number of pages. Two devices hold a copy of them, and the cost of a page does not depend
/// on their number.
const MOST: usize = (64 << 20) / PAGE_SIZE;

/// Opens the device and fills memory by the CPU.
fn filled(bench: &Bench) -> Result<(Device, Mapping)> {
    let device = Device::open(0)?;
    let map = bench.small()?;
    bench.fill(&map, 1);
    Ok((device, map))
}

fn queues(bench: &mut Bench) -> Result<()> {
    let pages = bench.pages();
    bench.row("fence of the host, made, signalled, waited for", "fence", CALLS, |_| {
        let device = Device::open(0)?;
        timed(|| {
            for _ in 0..CALLS {
                let fence = device.host_fence()?;
                fence.signal(Ok(()))?;
                fence.done()?;
            }
            Ok(())
        })
    })?;
    bench.row("queue: record, waited for", "record", CALLS, |_| {
        let device = Device::open(0)?;
        let queue = device.queue()?;
        timed(|| {
            for _ in 0..CALLS {
                queue.record()?.done()?;
            }
            Ok(())
        })
    })?;
    bench.row("queue: operations that depend on each other", "operation", CALLS, |bench| {
        let (device, map) = filled(bench)?;
        let one = device.queue()?;
        let two = device.queue()?;
        let read = QueueOp::engine(EngineOp::Read, map.addr(), 8);
        one.submit(read, &[])?.done()?;
        timed(|| {
            let mut last = one.submit(read, &[])?;
            for call in 1..CALLS {
                let queue = if call % 2 == 0 { &one } else { &two };
                last = queue.submit(read, &[&last])?;
            }
            last.done()?;
            Ok(())
        })
    })?;
    bench.row("queue: RAM to device", "page", pages, |bench| {
        let (device, map) = filled(bench)?;
        let queue = device.queue()?;
        let cost = timed(|| {
            let done = queue.submit(QueueOp::migrate(map.addr(), map.len()), &[])?.done()?;
            ensure!(done.moved == map.pages() as u64, "{} pages moved", done.moved);
            Ok(())
        })?;
        bench.check(&map, 1)?;
        Ok(cost)
    })
}

fn connections(bench: &mut Bench) -> Result<()> {
    let pages = bench.pages();
    let mut pull = |name, connection: Connection| {
        bench.row(name, "page", pages, |bench| {
            let (source, map) = filled(bench)?;
            let other = Device::open(1)?;
            for device in [&source, &other] {
                device.set(Setting::Connection, connection as u64)?;
            }
            source.migrate(map.addr(), map.pages(), hmm::engine::Way::ToDevice)?;
            let cost = timed(|| {
                let pulled = other.pull(map.addr(), map.pages(), &source)?;
                ensure!(pulled.moved == map.pages() as u64, "{} pages moved", pulled.moved);
                Ok(())
            })?;
            bench.check(&map, 1)?;
            Ok(cost)
        })
    };
    pull("device to device, directly", Connection::Migratable)?;
    pull("device to device, through RAM", Connection::None)
}

fn locks(bench: &mut Bench) -> Result<()> {
    let pages = bench.pages();
    bench.row("host memory: lock and unlock", "page", pages, |bench| {
        let (device, map) = filled(bench)?;
        timed(|| {
            let locked = device.lock(map.addr(), map.len(), 1, true)?;
            Ok(device.unlock(locked.device_addr)?)
        })
    })?;
    bench.row("host memory: lock of a page of a locked range", "call", CALLS, |bench| {
        let (device, map) = filled(bench)?;
        device.lock(map.addr(), map.len(), 1, true)?;
        timed(|| {
            for call in 0..CALLS {
                let page = map.page_addr(call % map.pages());
                device.unlock(device.lock(page, PAGE_SIZE, 1, true)?.device_addr)?;
            }
            Ok(())
        })
    })?;
    bench.row("host memory: look whether an address is locked", "look", CALLS * CALLS, |bench| {
        let (device, map) = filled(bench)?;
        device.lock(map.addr(), map.len(), 1, true)?;
        Ok(device.locked(map.page_addr(1), (CALLS * CALLS) as u64)?.ns)
    })
}

fn managed(bench: &mut Bench) -> Result<()> {
    let pages = bench.pages();
    let plain = ManagedFlags::default();
    let populate = ManagedFlags { populate: true, ..plain };
    bench.row("managed memory: allocation, populated", "page", pages, |bench| {
        let device = Device::open(0)?;
        timed(|| {
            drop(device.alloc(bench.pages() * PAGE_SIZE, populate)?);
            Ok(())
        })
    })?;
    bench.row("managed memory: allocation, populated later", "page", pages, |bench| {
        let device = Device::open(0)?;
        let queue = device.queue()?;
        timed(|| {
            let bytes = bench.pages() * PAGE_SIZE;
            let (_memory, fence) = device.alloc_later(bytes, populate, &queue)?;
            fence.done()?;
            Ok(())
        })
    })?;
    bench.row("managed memory: to the device by its faults, and back", "page", pages, |bench| {
        let device = Device::open(0)?;
        let memory = device.map_managed(bench.pages(), plain)?;
        memory.fill(1);
        let read = Command::new(EngineOp::Checksum, memory.addr(), memory.len());
        let cost = timed(|| {
            ensure!(device.run(read)?.error.is_none(), "the engine fails");
            (0..memory.pages()).for_each(|page| memory.set(page, 0, memory.get(page, 0)));
            Ok(())
        })?;
        memory.check(1)?;
        Ok(cost)
    })
}

/// Adds all rows, if the driver has fences and the memory is not too large.
pub fn rows(bench: &mut Bench) -> Result<()> {
    let device = Device::open(0)?;
    let fences = device.host_fence().is_ok();
    device.close()?;
    // No fences: another driver, or an older version of `rust_dmirror`.
    if bench.pages() > MOST || !fences {
        return Ok(());
    }
    queues(bench)?;
    connections(bench)?;
    locks(bench)?;
    managed(bench)
}

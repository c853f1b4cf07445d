// SPDX-License-Identifier: GPL-2.0
//! Rows of `qemu_gpu`, which measure the cost of DMA mappings. The engine takes 200 ms for a page,
//! so the figures come from the library's phase accounting, which does not include that wait.

use crate::{
    bench::{
        Bench,
        Buffer, //
    },
    phases, //
};
use anyhow::Result;
use hmm::{
    Device,
    PAGE_SIZE, //
};

/// Returns the nanoseconds that the library spent in `phases` while `work` ran.
fn spent(phases: &[&str], work: impl FnOnce() -> Result<()>) -> Result<u64> {
    let before = phases::now();
    work()?;
    Ok(phases::now().since(&before, phases) as u64)
}

/// Adds rows of device faults, migrations in both directions, invalidations, and locked memory.
pub fn rows(bench: &mut Bench) -> Result<()> {
    let pages = bench.pages();
    let mut buffer = Buffer::new(bench);
    let fault = ["collect", "switch"];
    let migration = ["collect", "unmap", "allocate", "switch", "finalize"];
    bench.row("DMA: device read fault, without the engine", "page", pages, |bench| {
        let device = Device::open(0)?;
        let map = bench.small()?;
        bench.fill(&map, 1);
        spent(&fault, || Ok(device.read(map.addr(), buffer.pages(pages)).map(drop)?))
    })?;
    bench.row("DMA: munmap of mapped pages", "page", pages, |bench| {
        let device = Device::open(0)?;
        let map = bench.small()?;
        bench.fill(&map, 1);
        device.read(map.addr(), buffer.pages(pages))?;
        let before = hmm::dma::account()?;
        let cost = crate::bench::timed(|| Ok(map.unmap_pages(0, pages)?))?;
        let gone = hmm::dma::account()?.unmapped - before.unmapped;
        anyhow::ensure!(gone == pages as u64, "{gone} of {pages} pages were unmapped");
        Ok(cost)
    })?;
    bench.row("DMA: RAM to device, without the engine", "page", pages, |bench| {
        let device = Device::open(0)?;
        let map = bench.small()?;
        bench.fill(&map, 1);
        device.read(map.addr(), buffer.pages(pages))?;
        spent(&migration, || {
            Ok(device.migrate_to_device(map.addr(), buffer.pages(pages)).map(drop)?)
        })
    })?;
    bench.row("DMA: device to RAM, without the engine", "page", pages, |bench| {
        let map = bench.small()?;
        let device = bench.on_device(&map, &mut buffer)?;
        spent(&migration, || Ok(device.migrate_to_system(map.addr(), pages).map(drop)?))
    })?;
    bench.row("DMA: host memory, lock and unlock", "page", pages, |bench| {
        let device = Device::open(0)?;
        let map = bench.small()?;
        bench.fill(&map, 1);
        crate::bench::timed(|| {
            let locked = device.lock(map.addr(), pages * PAGE_SIZE, 1, false)?;
            Ok(device.unlock(locked.device_addr)?)
        })
    })
}

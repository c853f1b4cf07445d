// SPDX-License-Identifier: GPL-2.0
//! CPU threads touch different windows of device memory and migrate them to the device again, while
//! engines read all windows.

use super::{
    finish,
    reader,
    while_running,
    Besides,
    Row,
    Size,
    SEED, //
};
use anyhow::{
    Context,
    Result, //
};
use hmm::engine::Way;
use hmm::{
    Device,
    Mapping,
    HUGE_PAGES, //
};

/// Size of the window of one thread, in aligned blocks of a huge page.
const BLOCKS: usize = 2;

/// Measures with `threads` CPU threads and `mirrors` mirrors. The first mirror migrates; the others
/// read. A single mirror both migrates and reads.
pub fn measure(size: &Size, name: &'static str, threads: usize, mirrors: usize) -> Result<Row> {
    let map = Mapping::anon_aligned(threads * BLOCKS)?;
    map.fill(SEED);
    let devices = (0..mirrors).map(|_| size.open()).collect::<Result<Vec<Device>>>()?;
    let moving = devices.first().context("no mirror")?;
    let reading = match devices.get(1..) {
        Some(others) if !others.is_empty() => others,
        _ => &devices,
    };
    let memory = moving.counters()?;
    let mut jobs = Vec::new();
    for (engine, device) in reading.iter().enumerate() {
        jobs.push(reader(device, &map, engine as u32)?);
    }
    let before = reading.iter().map(Device::counters).collect::<Result<Vec<_>, _>>()?;
    let besides = Besides { cpu_faults: true, ..Besides::default() };
    let mut row = Row { name, besides, ..Row::default() };
    while_running(size, threads, &jobs, &mut row, |number, done| {
        let first = number * BLOCKS * HUGE_PAGES;
        let pages = BLOCKS * HUGE_PAGES;
        done.migrate(moving, &map, first..first + pages, Way::ToDevice)?;
        map.check_pages(SEED, first, pages).context("CPU read")
    })?;
    for (device, before) in reading.iter().zip(&before) {
        row.count(device, before)?;
    }
    finish(&jobs)?;
    map.check(SEED).context("contents at the end")?;
    row.count_memory(moving, &memory)?;
    Ok(row)
}

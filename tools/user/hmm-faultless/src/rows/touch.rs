// SPDX-License-Identifier: GPL-2.0
//! Threads of the CPU touch different windows of device memory, and migrate them there again, while
//! engines read all of it.

use super::{finish, reader, while_running, Besides, Row, Size, SEED};
use anyhow::{Context, Result};
use hmm::engine::Way;
use hmm::{Device, Mapping, HUGE_PAGES};

/// Aligned blocks of 2 MiB, each a window, of one thread.
const BLOCKS: usize = 2;

/// Measures with so many threads. The first of `mirrors` mirrors migrates; the others read, or it
/// reads itself if there is no other one.
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
        let (first, pages) = (number * BLOCKS * HUGE_PAGES, BLOCKS * HUGE_PAGES);
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

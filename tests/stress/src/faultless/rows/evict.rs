// SPDX-License-Identifier: GPL-2.0
//! Threads cause evictions all the time, while an engine reads other device memory. That memory is
//! in use and must not be evicted.

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
    ensure,
    Context,
    Result, //
};
use hmm::engine::Way;
use hmm::{
    Device,
    Mapping,
    HUGE_PAGES,
    PAGE_SIZE, //
};

/// Sizes in blocks of a huge page: device memory, the memory that the engine reads, the memory of
/// each thread, and the memory that a thread migrates in one call.
const ALL: usize = 8;
const STEADY: usize = 2;
const MOVING: usize = 8;
const AT_ONCE: usize = 2;
const THREADS: usize = 2;

/// Takes device memory beyond [`ALL`] blocks out of use until it is dropped.
struct Smaller<'d> {
    device: &'d Device,
    pages: usize,
}

impl<'d> Smaller<'d> {
    fn new(device: &'d Device) -> Result<Self> {
        let pages = device.info()?.vram_bytes as usize / PAGE_SIZE - ALL * HUGE_PAGES;
        let smaller = Self { device, pages };
        let left = device.resize(ALL * HUGE_PAGES, pages, false).context("less device memory")?;
        ensure!(left == 0, "{left} pages are still in use");
        Ok(smaller)
    }
}

impl Drop for Smaller<'_> {
    fn drop(&mut self) {
        // If it fails, later rows run with less memory, and report that.
        let _ = self.device.resize(ALL * HUGE_PAGES, self.pages, true);
    }
}

pub fn measure(size: &Size, name: &'static str) -> Result<Row> {
    let device = size.open()?;
    let _smaller = Smaller::new(&device)?;
    let steady = Mapping::anon_aligned(STEADY)?;
    steady.fill(SEED);
    let there = device.migrate(steady.addr(), steady.pages(), Way::ToDevice)?;
    ensure!(there.moved as usize == steady.pages(), "{} pages have moved", there.moved);
    let jobs = [reader(&device, &steady, 0)?];
    let mut maps = Vec::new();
    for seed in 1..=THREADS as u64 {
        let map = Mapping::anon_aligned(MOVING)?;
        map.fill(SEED + seed);
        maps.push(map);
    }
    let before = device.counters()?;
    let besides = Besides { evictions: true, ..Besides::default() };
    let mut row = Row { name, besides, ..Row::default() };
    while_running(size, THREADS, &jobs, &mut row, |number, done| {
        let map = maps.get(number).context("no such thread")?;
        for first in (0..map.pages()).step_by(AT_ONCE * HUGE_PAGES) {
            let pages = first..first + AT_ONCE * HUGE_PAGES;
            done.migrate(&device, map, pages, Way::ToDevice)?;
        }
        Ok(())
    })?;
    row.count(&device, &before)?;
    row.count_memory(&device, &before)?;
    let states = device.snapshot(steady.addr(), steady.pages())?;
    let local = states.iter().filter(|state| state.is_local()).count();
    ensure!(local == steady.pages(), "{} pages that are used were evicted", steady.pages() - local);
    finish(&jobs)?;
    steady.check(SEED).context("contents of pages that stayed")?;
    for (seed, map) in (1..).zip(&maps) {
        map.check(SEED + seed).context("contents of evicted pages")?;
    }
    Ok(row)
}

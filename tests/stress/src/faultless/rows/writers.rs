// SPDX-License-Identifier: GPL-2.0
//! An engine writes to resident pages while the other pages of their block migrate, and to pages
//! that migrate themselves.

use super::{
    adder,
    finish,
    while_running,
    Besides,
    Done,
    Row,
    Size, //
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
    HUGE_PAGES, //
};

/// Blocks that one call migrates. With the copy delay each block takes at least 10 ms.
const MANY: usize = 16;

/// Pages of a block that do not migrate.
const STAY: usize = HUGE_PAGES / 2;

/// Returns memory whose first `pages` pages are 0 and mapped writable by the device.
fn counted(device: &Device, blocks: usize, pages: usize) -> Result<Mapping> {
    let map = Mapping::anon_aligned(blocks)?;
    map.fill(0);
    let zeros = vec![0; pages * hmm::PAGE_SIZE];
    device.write(map.addr(), &zeros).context("device write")?;
    Ok(map)
}

/// Has an engine increment a word in each of the first `pages` pages of `map` while one thread
/// repeats `trip`. The contents of all other pages must not change.
fn count(
    size: &Size,
    device: &Device,
    map: &Mapping,
    pages: usize,
    mut row: Row,
    trip: impl Fn(&mut Done) -> Result<()> + Sync,
) -> Result<Row> {
    let jobs = [adder(device, map, pages)?];
    let before = device.counters()?;
    while_running(size, 1, &jobs, &mut row, |_, done| trip(done))?;
    row.count(device, &before)?;
    finish(&jobs)?;
    let after = device.counters()?;
    row.added = after.bytes_written / 8;
    row.longest_wait_us = after.stall_ns_max / 1000;
    row.found = (0..pages).map(|page| map.get(page, 0)).sum();
    map.check_pages(0, pages, map.pages() - pages).context("contents at the end")?;
    Ok(row)
}

/// The resident pages are in device memory. Calls that migrate the other pages there name them,
/// too.
pub fn resident(size: &Size, name: &'static str) -> Result<Row> {
    let device = size.open()?;
    let map = counted(&device, 2, STAY)?;
    let there = device.migrate(map.addr(), STAY, Way::ToDevice)?;
    ensure!(there.moved as usize == STAY, "{} pages have moved", there.moved);
    let row = Row { name, ..Row::default() };
    count(size, &device, &map, STAY, row, |done| {
        done.migrate(&device, &map, 0..map.pages(), Way::ToDevice)?;
        done.migrate(&device, &map, STAY..map.pages(), Way::ToSystem)
    })
}

/// The resident pages are in system memory. Calls name only the other pages.
pub fn beside(size: &Size, name: &'static str) -> Result<Row> {
    let device = size.open()?;
    let map = counted(&device, 2, STAY)?;
    let row = Row { name, ..Row::default() };
    count(size, &device, &map, STAY, row, |done| {
        done.migrate(&device, &map, STAY..map.pages(), Way::ToDevice)?;
        done.migrate(&device, &map, STAY..map.pages(), Way::ToSystem)
    })
}

/// All pages migrate, first with many blocks in each call, then with one block in each, which
/// measures the duration of a step. A write may wait for the step of its own block and for the one
/// that overlaps, but not for the whole call.
pub fn moving(size: &Size, name: &'static str) -> Result<Row> {
    let device = size.open()?;
    let map = counted(&device, MANY, MANY * HUGE_PAGES)?;
    let besides = Besides { writes_wait: true, ..Besides::default() };
    let row = Row { name, besides, ..Row::default() };
    count(size, &device, &map, map.pages(), row, |done| {
        // Twice as many steps, so that the longest one is not shorter than those of the call by
        // chance.
        for pages in [map.pages(), HUGE_PAGES, HUGE_PAGES] {
            for way in [Way::ToDevice, Way::ToSystem] {
                for first in (0..map.pages()).step_by(pages) {
                    done.migrate(&device, &map, first..first + pages, way)?;
                }
            }
        }
        Ok(())
    })
}

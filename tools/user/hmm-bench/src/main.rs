// SPDX-License-Identifier: GPL-2.0
//! What the operations of a mock device cost, per page.
//!
//! Under QEMU's `-icount shift=0` a nanosecond of guest time is one instruction, so that the figures
//! are instructions and repeat.

mod later;

use anyhow::{Context, Result};
use clap::Parser;
use hmm::mapping::Mapping;
use hmm::{pattern, Device};
use serde_json::json;
use std::time::Instant;

const MADV_NOHUGEPAGE: i32 = 15;

/// Measures a mock device.
#[derive(Parser)]
struct Args {
    /// Name of the driver, for the report.
    #[arg(long, default_value = "rust_dmirror")]
    driver: String,
    /// MiB of memory that each row works on, a multiple of 2.
    #[arg(long, default_value_t = 32)]
    size: usize,
    /// Repetitions, of which the cheapest counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Nanoseconds of `work`.
fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<u64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_nanos() as u64)
}

pub(crate) struct Bench {
    mib: usize,
    rounds: usize,
    rows: Vec<(&'static str, f64)>,
}

impl Bench {
    fn pages(&self) -> usize {
        self.mib * 256
    }

    /// Memory of 4 KiB pages, not populated.
    fn small(&self) -> Result<Mapping> {
        let map = Mapping::anon(self.pages())?;
        map.advise(MADV_NOHUGEPAGE)?;
        Ok(map)
    }

    /// Memory of huge pages, not populated.
    fn huge(&self) -> Result<Mapping> {
        Ok(Mapping::anon_huge(self.mib / 2)?)
    }

    /// Adds a row: the cheapest of the rounds, divided by `units`.
    fn row(
        &mut self,
        name: &'static str,
        units: usize,
        mut round: impl FnMut(&Bench) -> Result<u64>,
    ) -> Result<()> {
        let mut best = u64::MAX;
        for _ in 0..self.rounds.max(1) {
            best = best.min(round(self).with_context(|| name.to_string())?);
        }
        eprintln!("{name}: {}", best / units as u64);
        self.rows.push((name, best as f64 / units as f64));
        Ok(())
    }
}

/// Opens the device, populates `map` and moves it to the device.
fn on_device(map: &Mapping, buffer: &mut [u8]) -> Result<Device> {
    let device = Device::open(0)?;
    map.fill(1);
    device.migrate_to_device(map.addr(), buffer)?;
    pattern::check(1, 0, buffer)?;
    Ok(device)
}

/// Touches one word of each page.
fn touch(map: &Mapping) {
    for page in 0..map.pages() {
        std::hint::black_box(map.get(page, 0));
    }
}

fn faults(bench: &mut Bench, buffer: &mut [u8]) -> Result<()> {
    let pages = bench.pages();
    bench.row("device read fault, populated", pages, |bench| {
        let (device, map) = (Device::open(0)?, bench.small()?);
        map.fill(1);
        let cost = timed(|| Ok(device.read(map.addr(), buffer)?))?;
        pattern::check(1, 0, buffer)?;
        Ok(cost)
    })?;
    bench.row("device re-read", pages, |bench| {
        let (device, map) = (Device::open(0)?, bench.small()?);
        map.fill(1);
        device.read(map.addr(), buffer)?;
        timed(|| Ok(device.read(map.addr(), buffer)?))
    })?;
    bench.row("device read of one mapped page, per call", 100, |bench| {
        let (device, map) = (Device::open(0)?, bench.small()?);
        map.fill_pages(1, 0, 1);
        let mut page = vec![0; 4096];
        device.read(map.addr(), &mut page)?;
        timed(|| {
            for _ in 0..100 {
                device.read(map.addr(), &mut page)?;
            }
            Ok(())
        })
    })?;
    bench.row("device write fault, unpopulated", pages, |bench| {
        let (device, map) = (Device::open(0)?, bench.small()?);
        let data = pattern::buffer(2, 0, bench.pages());
        let cost = timed(|| Ok(device.write(map.addr(), &data)?))?;
        map.check(2)?;
        Ok(cost)
    })
}

fn migrations(bench: &mut Bench, buffer: &mut [u8]) -> Result<()> {
    let pages = bench.pages();
    bench.row("RAM to device, 4 KiB, with read-back", pages, |bench| {
        let (device, map) = (Device::open(0)?, bench.small()?);
        map.fill(1);
        timed(|| Ok(device.migrate_to_device(map.addr(), buffer)?))
    })?;
    bench.row("RAM to device, THP, with read-back", pages, |bench| {
        let (device, map) = (Device::open(0)?, bench.huge()?);
        map.fill(1);
        timed(|| Ok(device.migrate_to_device(map.addr(), buffer)?))
    })?;
    bench.row("device to RAM, CPU touch, sequential", pages, |bench| {
        let map = bench.small()?;
        let _device = on_device(&map, buffer)?;
        let cost = timed(|| {
            touch(&map);
            Ok(())
        })?;
        map.check(1)?;
        Ok(cost)
    })?;
    bench.row("device to RAM, THP, CPU touch", pages, |bench| {
        let map = bench.huge()?;
        let _device = on_device(&map, buffer)?;
        let cost = timed(|| {
            touch(&map);
            Ok(())
        })?;
        map.check(1)?;
        Ok(cost)
    })?;
    bench.row("device to RAM by request", pages, |bench| {
        let map = bench.small()?;
        let device = on_device(&map, buffer)?;
        let cost = timed(|| Ok(device.migrate_to_system(map.addr(), map.pages())?))?;
        map.check(1)?;
        Ok(cost)
    })?;
    bench.row("close of a device full of pages", pages, |bench| {
        let map = bench.small()?;
        let device = on_device(&map, buffer)?;
        let cost = timed(|| Ok(device.close()?))?;
        map.check(1)?;
        Ok(cost)
    })
}

fn invalidations(bench: &mut Bench, buffer: &mut [u8]) -> Result<()> {
    let pages = bench.pages();
    bench.row("munmap, not mirrored", pages, |bench| {
        let (_device, map) = (Device::open(0)?, bench.small()?);
        map.fill(1);
        timed(|| Ok(map.unmap_pages(0, map.pages())?))
    })?;
    bench.row("munmap, mirrored", pages, |bench| {
        let (device, map) = (Device::open(0)?, bench.small()?);
        map.fill(1);
        device.read(map.addr(), buffer)?;
        timed(|| Ok(map.unmap_pages(0, map.pages())?))
    })
}

fn main() -> Result<()> {
    let args = Args::parse();
    anyhow::ensure!(args.size > 0 && args.size % 2 == 0, "--size must be a multiple of 2 MiB");
    let mut bench = Bench { mib: args.size, rounds: args.rounds, rows: Vec::new() };
    let mut buffer = vec![0; bench.pages() * 4096];
    faults(&mut bench, &mut buffer)?;
    migrations(&mut bench, &mut buffer)?;
    invalidations(&mut bench, &mut buffer)?;
    later::rows(&mut bench)?;
    if args.json {
        let rows: Vec<_> =
            bench.rows.iter().map(|(name, cost)| json!({ "row": name, "cost": cost })).collect();
        println!("{}", json!({ "driver": args.driver, "mib": args.size, "rows": rows }));
        return Ok(());
    }
    println!("{}, {} MiB, ns (instructions under icount) per page", args.driver, args.size);
    for (name, cost) in &bench.rows {
        println!("{name:<62} {cost:>10.0}");
    }
    Ok(())
}

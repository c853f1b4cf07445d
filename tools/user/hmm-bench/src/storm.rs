// SPDX-License-Identifier: GPL-2.0
//! Rows with other threads of the process beside: device faults while these change memory that the
//! device does not use, and CPU faults by several threads at once.

use crate::bench::{timed, Bench, Buffer};
use anyhow::{ensure, Result};
use hmm::abi::PAGE_SIZE;
use hmm::crowd::run_first;
use hmm::mapping::{Mapping, Prot, MADV_DONTNEED};
use hmm::procfs::thread_time;
use hmm::{Device, Errno};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Pages of a device read.
const PAGES: usize = 32;

/// Sleep of a thread with precedence between two times that it interrupts the device's fault: of
/// the order of the fault itself.
const PAUSE: Duration = Duration::from_micros(10);

/// Reads that are interrupted.
const INTERRUPTED: usize = 32;

/// Threads that change memory all the time, where there are processors for them.
const THREADS: usize = 3;

/// Reads of which the median counts there.
const READS: usize = 200;

/// Memory of so many reads, populated.
fn memory(reads: usize) -> Result<Mapping> {
    let map = Mapping::reserve(reads * PAGES * PAGE_SIZE, Prot::ReadWrite)?;
    map.fill(1);
    Ok(map)
}

/// Drops a page that was just written: an invalidation, elsewhere.
fn invalidate(page: &Mapping) -> Result<(), Errno> {
    page.set(0, 0, 1);
    page.advise(MADV_DONTNEED)
}

/// Runs `work` while `threads` threads repeat `step`, each with a page of its own.
fn beside<T>(
    threads: usize,
    step: impl Fn(&Mapping) -> Result<(), Errno> + Sync,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, u64)> {
    let (stop, begun) = (AtomicBool::new(false), Barrier::new(threads + 1));
    thread::scope(|scope| {
        let run = || {
            let page = Mapping::reserve(PAGE_SIZE, Prot::ReadWrite);
            begun.wait();
            let (page, mut times) = (page?, 0);
            while !stop.load(Relaxed) {
                step(&page)?;
                times += 1;
            }
            Ok::<u64, Errno>(times)
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        begun.wait();
        let result = work();
        stop.store(true, Relaxed);
        let mut times = 0;
        for thread in threads {
            times += thread.join().expect("a thread does not panic")?;
        }
        Ok((result?, times))
    })
}

/// Processor time of device reads that fault, while a thread with precedence interrupts them all
/// the time: what it does besides is `step`. That time is not counted.
fn interrupted(step: fn(&Mapping) -> Result<(), Errno>) -> Result<u64> {
    let (device, map) = (Device::open(0)?, memory(INTERRUPTED)?);
    let mut buffer = vec![0; PAGES * PAGE_SIZE];
    let begun = AtomicBool::new(false);
    let interrupt = |page: &Mapping| {
        if !begun.swap(true, Relaxed) {
            run_first()?;
        }
        thread::sleep(PAUSE);
        step(page)
    };
    let (spent, times) = beside(1, interrupt, || {
        let mut spent = Duration::ZERO;
        for first in (0..map.pages()).step_by(PAGES) {
            let before = thread_time();
            device.read(map.page_addr(first), &mut buffer)?;
            spent += thread_time() - before;
            hmm::pattern::check(1, first, &buffer)?;
        }
        Ok(spent)
    })?;
    ensure!(times as usize >= INTERRUPTED, "the thread has run {times} times");
    Ok(spent.as_nanos() as u64)
}

/// Median time of device reads that fault. `before` threads invalidate before that, `meanwhile`
/// meanwhile.
fn median(before: usize, meanwhile: usize) -> Result<u64> {
    let (device, map) = (Device::open(0)?, memory(READS)?);
    let mut buffer = vec![0; PAGES * PAGE_SIZE];
    let mut read = |times: usize| {
        let mut costs = Vec::with_capacity(times);
        for first in (0..times * PAGES).step_by(PAGES) {
            let begin = Instant::now();
            device.read(map.page_addr(first), &mut buffer)?;
            costs.push(begin.elapsed().as_nanos() as u64);
            hmm::pattern::check(1, first, &buffer)?;
        }
        costs.sort_unstable();
        Ok(costs[costs.len() / 2])
    };
    if before > 0 {
        beside(before, invalidate, || read(READS))?;
        // The device loses its entries.
        map.advise(MADV_DONTNEED)?;
        map.fill(1);
    }
    Ok(beside(meanwhile, invalidate, || read(READS))?.0)
}

/// Adds the rows of device faults: of one processor, on which another thread only runs when it
/// interrupts the fault, or of several.
pub fn faults(bench: &mut Bench) -> Result<()> {
    if thread::available_parallelism()?.get() == 1 {
        let pages = INTERRUPTED * PAGES;
        bench.row("device fault, interrupted", "page", pages, |_| interrupted(|_| Ok(())))?;
        return bench.row("device fault, interrupted by invalidations", "page", pages, |_| {
            interrupted(invalidate)
        });
    }
    for (name, before, meanwhile) in [
        ("device fault of 32 pages, median", 0, 0),
        ("device fault of 32 pages, 3 threads invalidate", 0, THREADS),
        ("device fault of 32 pages, after that", THREADS, 0),
    ] {
        bench.row(name, "call", 1, |_| median(before, meanwhile))?;
    }
    Ok(())
}

/// Adds the rows of CPU faults on device memory by several threads, each on a part of its own.
pub fn cpu_faults(bench: &mut Bench) -> Result<()> {
    let pages = bench.pages();
    let mut buffer = Buffer::new(bench);
    for (name, threads) in [
        ("CPU faults on device pages, 1 thread", 1),
        ("CPU faults on device pages, 2 threads", 2),
        ("CPU faults on device pages, 4 threads", 4),
    ] {
        bench.row(name, "page", pages, |bench| {
            let map = bench.small()?;
            let _device = bench.on_device(&map, &mut buffer)?;
            let begin = Barrier::new(threads + 1);
            let touch = |part: usize| {
                begin.wait();
                let count = map.pages() / threads;
                (part * count..(part + 1) * count).for_each(|page| {
                    black_box(map.get(page, 0));
                });
            };
            let cost = thread::scope(|scope| {
                let touch = &touch;
                let threads: Vec<_> =
                    (0..threads).map(|part| scope.spawn(move || touch(part))).collect();
                timed(|| {
                    begin.wait();
                    threads
                        .into_iter()
                        .for_each(|one| one.join().expect("a thread does not panic"));
                    Ok(())
                })
            })?;
            bench.check(&map, 1)?;
            Ok(cost)
        })?;
    }
    Ok(())
}

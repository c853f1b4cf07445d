// SPDX-License-Identifier: GPL-2.0
//! Rows with concurrent threads of the process: device faults while other threads change memory
//! that the device does not use, and CPU faults by several threads.

use crate::bench::{
    timed,
    Bench,
    Buffer, //
};
use anyhow::{
    ensure,
    Result, //
};
use hmm::abi::PAGE_SIZE;
use hmm::crowd::run_first;
use hmm::mapping::{
    Mapping,
    Prot,
    MADV_DONTNEED, //
};
use hmm::procfs::thread_time;
use hmm::{
    Device,
    Errno, //
};
use std::hint::black_box;
use std::sync::atomic::{
    AtomicBool,
    Ordering::Relaxed, //
};
use std::sync::Barrier;
use std::thread;
use std::time::{
    Duration,
    Instant, //
};

/// Pages of one device read.
const PAGES: usize = 32;

/// Sleep of the high-priority thread between two interruptions of the device fault. It is of the
/// order of the duration of a fault.
const PAUSE: Duration = Duration::from_micros(10);

/// Number of interrupted reads.
const INTERRUPTED: usize = 32;

/// Number of threads that change memory continuously, if there are several processors.
const THREADS: usize = 3;

/// Number of reads whose median is the result if there are several processors.
const READS: usize = 200;

/// Returns populated memory for `reads` reads.
fn memory(reads: usize) -> Result<Mapping> {
    let map = Mapping::reserve(reads * PAGES * PAGE_SIZE, Prot::ReadWrite)?;
    map.fill(1);
    Ok(map)
}

/// Drops a page that was just written, which causes an invalidation elsewhere.
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
    let stop = AtomicBool::new(false);
    let begun = Barrier::new(threads + 1);
    thread::scope(|scope| {
        let run = || {
            let page = Mapping::reserve(PAGE_SIZE, Prot::ReadWrite);
            begun.wait();
            let page = page?;
            let mut times = 0;
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

/// Measures the processor time of device reads that fault while a high-priority thread interrupts
/// them continuously and runs `step`. The time of that thread is not counted.
fn interrupted(step: fn(&Mapping) -> Result<(), Errno>) -> Result<u64> {
    let device = Device::open(0)?;
    let map = memory(INTERRUPTED)?;
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

/// Measures the median time of device reads that fault, while `meanwhile` threads invalidate. If
/// `before` is not 0, so many threads invalidate during an earlier run of the reads.
fn median(before: usize, meanwhile: usize) -> Result<u64> {
    let device = Device::open(0)?;
    let map = memory(READS)?;
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
        // Removes the device PTEs of all pages.
        map.advise(MADV_DONTNEED)?;
        map.fill(1);
    }
    Ok(beside(meanwhile, invalidate, || read(READS))?.0)
}

/// Adds the rows of device faults. With one processor another thread runs only when it interrupts
/// the fault. With several processors the threads run concurrently.
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

/// Adds the rows of CPU faults on device pages by several threads, each on a part of its own.
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

// SPDX-License-Identifier: GPL-2.0
//! One working set, one pattern, one policy.

use crate::pattern::{value, Pattern, COUNTED};
use anyhow::{bail, ensure, Context, Result};
use hmm::placement::Policy;
use hmm::{Device, Mapping, HUGE_SIZE, PAGE_SIZE};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Who decides about faults.
    pub policy: Policy,
    /// The working set, in units of the device's memory.
    pub set: f64,
    /// How it is used.
    pub pattern: Pattern,
    /// CPU threads that use a part of it meanwhile.
    pub threads: usize,
    /// Passes after the first one.
    pub passes: u64,
    /// Seconds for a pass.
    pub limit: u64,
}

/// What was measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Bytes that engines used.
    pub used: u64,
    /// Bytes that moved to the device.
    pub there: u64,
    /// Bytes that left it.
    pub back: u64,
    /// Faults of engines.
    pub faults: u64,
    /// Faults of CPUs.
    pub cpu_faults: u64,
    /// Bytes that these brought back, of those that left.
    pub cpu_back: u64,
    /// How long it took.
    pub seconds: f64,
}

impl Figures {
    /// Both.
    pub fn plus(&self, other: &Figures) -> Figures {
        Figures {
            used: self.used + other.used,
            there: self.there + other.there,
            back: self.back + other.back,
            faults: self.faults + other.faults,
            cpu_faults: self.cpu_faults + other.cpu_faults,
            cpu_back: self.cpu_back + other.cpu_back,
            seconds: self.seconds + other.seconds,
        }
    }

    /// Bytes moved, there and back, per byte used.
    pub fn moved_per_byte(&self) -> f64 {
        (self.there + self.back) as f64 / self.used.max(1) as f64
    }

    /// Device faults per MiB used.
    pub fn faults_per_mib(&self) -> f64 {
        self.faults as f64 / (self.used.max(1) as f64 / (1 << 20) as f64)
    }

    /// The same without the effects of CPU faults, whose number depends on scheduling: each page that
    /// they bring back costs one more migration to the device, and one more device fault.
    pub fn without_cpus(&self) -> Figures {
        Figures {
            there: self.there.saturating_sub(self.cpu_back),
            back: self.back.saturating_sub(self.cpu_back),
            faults: self.faults.saturating_sub(self.cpu_faults),
            ..*self
        }
    }
}

/// What the device has counted so far.
fn counted(device: &Device) -> Result<Figures> {
    let counters = device.counters()?;
    let page = PAGE_SIZE as u64;
    Ok(Figures {
        used: 0,
        there: counters.migrated_to_device * page,
        back: (counters.migrated_to_system + counters.evicted_pages + counters.cpu_fault_pages)
            * page,
        faults: counters.engine_faults_read + counters.engine_faults_write,
        cpu_faults: counters.cpu_faults,
        cpu_back: counters.cpu_fault_pages * page,
        seconds: 0.0,
    })
}

/// One pass; every result is checked.
fn pass(case: &Case, device: &Device, map: &Mapping) -> Result<Figures> {
    let before = counted(device)?;
    let begin = Instant::now();
    let mut used = 0;
    for (command, bytes) in case.pattern.pass(map, 0) {
        let job = device.submit(command)?;
        let ended = loop {
            let left = Duration::from_secs(case.limit).saturating_sub(begin.elapsed());
            if let (Some(ended), _) = job.poll(left.min(Duration::from_secs(1)))? {
                break ended;
            }
            if left.is_zero() {
                let _ = job.stop();
                bail!("no end of a pass after {} s: a livelock", case.limit);
            }
        };
        ensure!(ended.error.is_none(), "an engine ended with {:?}", ended.error);
        if let Some(expected) = case.pattern.result(map, &command, case.threads != 0) {
            let found = ended.status.result;
            ensure!(found == expected, "wrong result: {found:#x}, expected {expected:#x}");
        }
        used += bytes;
    }
    let after = counted(device)?;
    Ok(Figures {
        used,
        there: after.there - before.there,
        back: after.back - before.back,
        faults: after.faults - before.faults,
        cpu_faults: after.cpu_faults - before.cpu_faults,
        cpu_back: after.cpu_back - before.cpu_back,
        seconds: begin.elapsed().as_secs_f64(),
    })
}

/// Counts in the last word of some pages until told to stop; returns how often for each page.
fn count(map: &Mapping, thread: usize, threads: usize, stop: &AtomicBool) -> Vec<u64> {
    let pages = map.pages();
    let mut sums = vec![0; pages];
    let mut at = thread * 97;
    while !stop.load(Relaxed) {
        // Each thread has its pages: one of 16, spread over all.
        let page = (at * 16 + thread) % pages / threads * threads + thread;
        if page < pages {
            map.atomic(page, COUNTED).fetch_add(1, Relaxed);
            sums[page] += 1;
        }
        at += 31;
        std::thread::sleep(Duration::from_millis(2));
    }
    sums
}

fn check(case: &Case, map: &Mapping, sums: &[Vec<u64>]) -> Result<()> {
    for page in 0..map.pages() {
        let expected: u64 = sums.iter().map(|sums| sums[page]).sum();
        let found = map.get(page, COUNTED);
        ensure!(found == expected, "page {page}: counted {found}, expected {expected}");
        if matches!(case.pattern, Pattern::Sequential | Pattern::Strided) {
            ensure!(map.get(page, 0) == value(page), "page {page} has changed");
        }
    }
    Ok(())
}

/// Figures of the first pass, and of all others.
pub fn measure(case: &Case) -> Result<(Figures, Figures)> {
    let device = Device::open(0)?;
    device.set_policy(case.policy)?;
    let bytes = (device.info()?.vram_bytes as f64 * case.set) as usize;
    let map = Mapping::anon_aligned((bytes / HUGE_SIZE).max(1)).context("memory")?;
    case.pattern.prepare(&map);
    let stop = AtomicBool::new(false);
    let (figures, sums) = std::thread::scope(|scope| {
        let (map, stop) = (&map, &stop);
        let threads: Vec<_> = (0..case.threads)
            .map(|thread| scope.spawn(move || count(map, thread, case.threads, stop)))
            .collect();
        let run = || -> Result<(Figures, Figures)> {
            let first = pass(case, &device, map)?;
            let mut rest = Figures::default();
            for _ in 0..case.passes {
                rest = rest.plus(&pass(case, &device, map)?);
            }
            Ok((first, rest))
        };
        let figures = run();
        stop.store(true, Relaxed);
        let sums: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().ok()).collect();
        (figures, sums)
    });
    let figures = figures?;
    ensure!(sums.len() == case.threads, "a CPU thread died");
    for (thread, sums) in sums.iter().enumerate() {
        ensure!(sums.iter().sum::<u64>() > 0, "CPU thread {thread} made no progress");
    }
    check(case, &map, &sums)?;
    let stale = device.counters()?.stale_hits;
    ensure!(stale == 0, "{stale} stale translations were used");
    Ok(figures)
}

// SPDX-License-Identifier: GPL-2.0
//! Measures one working set with one pattern and one policy.

use crate::oversub::pattern::{
    value,
    Pattern,
    COUNTED, //
};
use anyhow::{
    bail,
    ensure,
    Context,
    Result, //
};
use hmm::placement::Policy;
use hmm::{
    Device,
    Mapping,
    HUGE_SIZE,
    PAGE_SIZE, //
};
use std::sync::atomic::{
    AtomicBool,
    Ordering::Relaxed, //
};
use std::time::{
    Duration,
    Instant, //
};

/// Parameters of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Policy that handles device faults.
    pub policy: Policy,
    /// The working set, in units of the device's memory.
    pub set: f64,
    /// Access pattern of the engines.
    pub pattern: Pattern,
    /// Number of CPU threads that access a part of it concurrently.
    pub threads: usize,
    /// Passes after the first one.
    pub passes: u64,
    /// Time limit of a pass, in seconds.
    pub limit: u64,
}

/// Figures of one or more passes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Bytes used by engines.
    pub used: u64,
    /// Bytes migrated to the device.
    pub there: u64,
    /// Bytes migrated back to system memory.
    pub back: u64,
    /// Device faults.
    pub faults: u64,
    /// CPU faults on device pages.
    pub cpu_faults: u64,
    /// Bytes that CPU faults migrated back; `back` includes them.
    pub cpu_back: u64,
    /// Duration in seconds.
    pub seconds: f64,
}

impl Figures {
    /// Returns the sums of two sets of figures.
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

    /// Returns the bytes moved, in both directions, per byte used.
    pub fn moved_per_byte(&self) -> f64 {
        (self.there + self.back) as f64 / self.used.max(1) as f64
    }

    /// Returns the device faults per MiB used.
    pub fn faults_per_mib(&self) -> f64 {
        self.faults as f64 / (self.used.max(1) as f64 / (1 << 20) as f64)
    }

    /// Returns the figures without the effects of CPU faults, whose number depends on scheduling.
    /// Each page that a CPU fault migrates back costs one more migration to the device and one more
    /// device fault.
    pub fn without_cpus(&self) -> Figures {
        Figures {
            there: self.there.saturating_sub(self.cpu_back),
            back: self.back.saturating_sub(self.cpu_back),
            faults: self.faults.saturating_sub(self.cpu_faults),
            ..*self
        }
    }
}

/// Returns the counters of the device as figures. `used` and `seconds` are 0.
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

/// Runs one pass and checks every result.
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

/// Increments the last word of some pages until `stop` is set. Returns the number of increments of
/// each page.
fn count(map: &Mapping, thread: usize, threads: usize, stop: &AtomicBool) -> Vec<u64> {
    let pages = map.pages();
    let mut sums = vec![0; pages];
    let mut at = thread * 97;
    while !stop.load(Relaxed) {
        // No two threads increment the same page. Their pages are one of 16, spread over the
        // mapping.
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

/// Returns the figures of the first pass, and the sums of all later passes.
pub fn measure(case: &Case) -> Result<(Figures, Figures)> {
    let device = Device::open(0)?;
    device.set_policy(case.policy)?;
    let bytes = (device.info()?.vram_bytes as f64 * case.set) as usize;
    let map = Mapping::anon_aligned((bytes / HUGE_SIZE).max(1)).context("memory")?;
    case.pattern.prepare(&map);
    let stop = AtomicBool::new(false);
    let (figures, sums) = std::thread::scope(|scope| {
        let map = &map;
        let stop = &stop;
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

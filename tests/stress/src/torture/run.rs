// SPDX-License-Identifier: GPL-2.0
//! Runs a script: one process for each of the shape, one thread for each lane, and a supervisor
//! that checks the progress of all lanes.

mod lanes;
mod outcome;
mod process;
mod reload;
mod supervisor;
mod visitors;

use crate::torture::env::{
    Board,
    Common, //
};
use crate::torture::script::{
    Script,
    Shape, //
};
use anyhow::{
    anyhow,
    Result, //
};
use hmm::{
    Device,
    Mapping, //
};
pub use outcome::{
    Failure,
    Outcome, //
};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{
    Duration,
    Instant, //
};
use supervisor::Supervisor;

/// Options of a run.
pub struct Options {
    /// Time without progress after which a lane counts as hung.
    pub patience: Duration,
    /// Time limit of a run that does not fail.
    pub most: Option<Duration>,
    /// Start additional processes, which are killed at random.
    pub visitors: bool,
    /// Print the progress.
    pub progress: bool,
}

/// Runs a script.
pub fn run(script: &Script, options: &Options) -> Result<Outcome> {
    let lanes = script.shape.lanes();
    if !script.shape.hardware {
        reload::bring_back(script.shape.devices)?;
    }
    let board = Board::new(lanes + 1)?;
    let end = Mapping::shared(1)?;
    let wide = Common::wide()?;
    lanes::forget_counts(lanes + 1);
    // Settings and counters are reset when the last file is closed: keep the devices open.
    let open = open_devices(script.shape.devices)?;
    let before = device_counters(&script.shape)?;
    let failed_before = before.get("copy_failures").copied().unwrap_or(0);
    let begin = Instant::now();
    let mut supervisor = Supervisor::start(script, options, &board, &wide, &end)?;
    let mut failure = supervisor.watch(&end)?;
    let killed = supervisor.stop();
    if failure.is_none() {
        failure = wide.check().err().map(Failure::new);
    }
    drop(open);
    let devices = settled_counters(&script.shape, options.patience)?;
    // The last counter is that of processes that are killed.
    let each: Vec<u64> = (0..=lanes).map(|lane| board.bus_errors(lane).load(SeqCst)).collect();
    let bus_errors: u64 = each.iter().sum();
    let failed_copies = devices.get("copy_failures").copied().unwrap_or(0) - failed_before;
    if failure.is_none() && bus_errors > failed_copies.min(board.armed()) {
        let armed = board.armed();
        let what = format!(
            "{bus_errors} bus errors, {failed_copies} copies that failed, {armed} made to fail"
        );
        failure = Some(Failure::new(what));
    }
    let left = pages_used(&devices);
    if failure.is_none() && left != 0 {
        failure = Some(Failure::new(format!("{left} device pages are in use without a user")));
    }
    if failure.is_none() && script.shape.hardware {
        failure = mapped_for_dma(options.patience)?.map(Failure::new);
    }
    let begun: Vec<u64> = (0..lanes).map(|lane| board.begun(lane).load(SeqCst)).collect();
    if let Some(failure) = &mut failure {
        failure.begun = begun.clone();
        failure.at = failure.at.or(failed(&board, lanes));
        failure.last_part = board.resting() == lanes as u64;
    }
    Ok(Outcome {
        ops: begun.iter().sum(),
        counts: lanes::counts(lanes),
        devices,
        bus_errors: each,
        killed,
        seconds: begin.elapsed().as_secs_f64(),
        failure,
    })
}

fn open_devices(devices: usize) -> Result<Vec<Device>> {
    (0..devices)
        .map(|dev| Device::open(dev as u32).map_err(|error| anyhow!("device {dev}: {error}")))
        .collect()
}

/// The first lane that failed, and the index of its operation.
fn failed(board: &Board, lanes: usize) -> Option<(usize, usize)> {
    (0..lanes).find_map(|lane| {
        let number = board.failed(lane).load(SeqCst) as usize;
        Some((lane, number.checked_sub(1)?))
    })
}

type Counters = BTreeMap<&'static str, u64>;

fn pages_used(counters: &Counters) -> u64 {
    counters.get("device_pages_used").copied().unwrap_or(0)
}

/// Sums the counters of all devices once no device memory is in use. All files are closed, but
/// killed processes may still be exiting: waits up to `patience`.
fn settled_counters(shape: &Shape, patience: Duration) -> Result<Counters> {
    let until = Instant::now() + patience;
    loop {
        let counters = device_counters(shape)?;
        if pages_used(&counters) == 0 || Instant::now() > until {
            return Ok(counters);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Checks the account of DMA mappings: pages must have been mapped, and none may remain mapped.
/// Waits for the latter up to `patience`.
fn mapped_for_dma(patience: Duration) -> Result<Option<String>> {
    let until = Instant::now() + patience;
    loop {
        let account = hmm::dma::account()?;
        if account.mapped == 0 {
            return Ok(Some("nothing was mapped for DMA".into()));
        }
        if account.live() == 0 {
            return Ok(None);
        }
        if Instant::now() > until {
            return Ok(Some(format!("{} pages are mapped for DMA without a user", account.live())));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn device_counters(shape: &Shape) -> Result<Counters> {
    let mut sums = BTreeMap::new();
    // `qemu_gpu` has no counters.
    for dev in (0..shape.devices).filter(|_| !shape.hardware) {
        let counters = Device::open(dev as u32).and_then(|device| device.counters());
        let counters = counters.map_err(|error| anyhow!("counters of device {dev}: {error}"))?;
        for (name, value) in counters.fields() {
            *sums.entry(name).or_default() += value;
        }
    }
    Ok(sums)
}

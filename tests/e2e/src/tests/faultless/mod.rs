// SPDX-License-Identifier: GPL-2.0
//! Faultless migration: the holes through which it could go wrong, and concurrent changes of memory
//! that migrates.
//!
//! Documentation/faultless.rst explains H1 to H17.

mod basic;
mod cpu_faults;
mod holes;
mod kernel;
mod races;

use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    Test,
    What, //
};
use crate::mover::{
    rounds,
    Mover, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::engine::checksum_of_pattern;
use hmm::{
    Command,
    Device,
    EngineOp,
    Job,
    Mapping,
    Setting, //
};
use std::time::{
    Duration,
    Instant, //
};

const OURS: &str = "the C driver has no engines";
/// Pages of a race: as many as a huge page of 2 MiB has. With pages of 16 KiB, a huge page has four
/// times as many, which make each round longer and races no likelier.
const PAGES: usize = 512;
/// Delay of each copy.
const DELAY_NS: u64 = 20_000;

/// Returns all tests of the group.
pub fn tests() -> Vec<Test> {
    [basic::TESTS, holes::TESTS, races::TESTS, kernel::TESTS].concat()
}

/// Opens the device and sets a copy delay.
pub fn open(ctx: &Ctx) -> Result<Device, Stop> {
    let device = ctx.open()?;
    device.set(Setting::CopyDelay, DELAY_NS)?;
    Ok(device)
}

/// Opens the device with a copy delay, and starts a mover on pages with the pattern 1.
pub fn moving(ctx: &Ctx) -> Result<(Device, Mapping, Mover), Stop> {
    let device = open(ctx)?;
    let map = Mapping::anon_in_block(PAGES)?;
    let mover = Mover::start(&device, &map)?;
    map.fill(1);
    Ok((device, map, mover))
}

/// Starts a command that reads `map` repeatedly and fails if it does not find the pattern `seed`.
pub fn watch<'d>(device: &'d Device, map: &Mapping, seed: u64) -> Result<Job<'d>, Stop> {
    let read = Command::new(EngineOp::Checksum, map.addr(), map.len());
    let read = read.verify(checksum_of_pattern(seed, map.pages()));
    let first = device.run(read)?;
    check_eq!(first.error, None, "end of the first pass");
    Ok(device.submit(read.rounds(0))?)
}

/// Stops the command of [`watch`]. Fails if it found wrong contents or has not completed a round.
pub fn watched(job: &Job<'_>, what: &str) -> Outcome {
    // A slow machine may need some time for a whole round.
    let begin = Instant::now();
    while let (None, status) = job.poll(Duration::from_millis(5)).what(what)? {
        if status.rounds > 0 || begin.elapsed() > Duration::from_secs(60) {
            let ended = job.finish().what(what)?;
            check_eq!(ended.error, None, "reads {what}");
            check!(ended.status.rounds > 0, "no round {what}");
            return Ok(());
        }
    }
    Err(Stop::Fail(format!("the reader has ended, as only an error does, {what}")))
}

/// Checks that no translation was used after its flush.
pub fn no_stale_hits(device: &Device) -> Outcome {
    check_eq!(device.counters()?.stale_hits, 0, "stale hits");
    Ok(())
}

/// Repeats `body` until pages have moved during events of all `movers`.
pub fn race(movers: &[&Mover], mut body: impl FnMut(u64) -> Outcome) -> Outcome {
    rounds(2, |round| {
        body(round)?;
        Ok(movers.iter().all(|mover| mover.raced()))
    })
}

/// Repeats `body` for the time of a race, without a mover.
pub fn repeat(mut body: impl FnMut(u64) -> Outcome) -> Outcome {
    rounds(2, |round| body(round).map(|()| true))
}

/// Drops pages while `mover` runs. From then on CPU and device must read zeroes.
pub fn dropped(
    (device, map, mover): (&Device, &Mapping, &Mover),
    seed: u64,
    first: usize,
    count: usize,
) -> Outcome {
    mover.during(|| map.advise_pages(libc::MADV_DONTNEED, first, count))?;
    device_sees_zero(device, map, first, count, "of dropped pages")?;
    map.check_zero(first, count).what("dropped pages")?;
    map.fill_pages(seed, first, count);
    device_sees_pages(device, map, seed, first, count, "of pages written again")?;
    Ok(())
}

/// Repeats `disturb` with memory that a mover migrates, while an engine continuously reads other
/// memory that also migrates. `disturb` runs its event in [`Mover::during`].
pub fn disturbed(
    ctx: &Ctx,
    mut disturb: impl FnMut(&Device, &Mapping, &Mover, u64) -> Outcome,
) -> Outcome {
    let device = open(ctx)?;
    let steady = Mapping::anon_in_block(PAGES)?;
    let map = Mapping::anon_in_block(PAGES)?;
    let beside = Mover::start(&device, &steady)?;
    let mover = Mover::start(&device, &map)?;
    steady.fill(3);
    map.fill(1);
    let job = watch(&device, &steady, 3)?;
    beside.during(|| race(&[&mover], |round| disturb(&device, &map, &mover, round)))?;
    watched(&job, "of untouched memory")?;
    mover.end()?;
    beside.end()?;
    cpu_sees(&steady, 3, "of untouched memory")?;
    no_stale_hits(&device)
}

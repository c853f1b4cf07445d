// SPDX-License-Identifier: GPL-2.0
//! Progress of a process beside another one that is stalled.

use super::memory::{block, on_device, to_device, unload_soon, with};
use crate::harness::{Ctx, Outcome, Stop, Test, What};
use crate::support::*;
use crate::{check, check_eq};
use hmm::{procfs, Child, Device, Gate, Mapping, Prot, Setting};
use std::time::{Duration, Instant};

const OURS: &str = "test_hmm waits for other processes";

pub const TESTS: &[Test] = &[Test::new("progress", "eviction_beside_a_stalled_process", eviction)
    .only_rust(OURS)
    .seconds(180)];

/// The least share of its normal progress that a process has beside a stalled one, in percent.
const LEAST: u128 = 90;

/// Pairs of phases, one with a stall and one without. Other work on the machine may slow down either, so the best ones
/// are compared. Something that slows down each phase with a stall slows down the best one, too.
const LEAST_PAIRS: u32 = 3;
const MOST_PAIRS: u32 = 8;

/// Calls `phase` in turn with and without a stall, until the progress with a stall is sufficient. It returns the time
/// for one unit of work.
fn compare(mut phase: impl FnMut(bool) -> Result<Duration, Stop>) -> Outcome {
    let mut best = [Duration::MAX; 2];
    let share = |best: &[Duration; 2]| best[0].as_nanos() * 100 / best[1].as_nanos().max(1);
    for pair in 1..=MOST_PAIRS {
        for stall in [false, true] {
            let took = phase(stall)?;
            println!("# pair {pair}, stall {stall}: {} us", took.as_micros());
            let least = &mut best[usize::from(stall)];
            *least = took.min(*least);
        }
        if pair >= LEAST_PAIRS && share(&best) >= LEAST {
            break;
        }
    }
    println!("# progress beside a stall: {} percent of normal", share(&best));
    check!(share(&best) >= LEAST, "progress beside a stall: {} percent of normal", share(&best));
    Ok(())
}

/// What the parent orders of the process that is stalled.
const END: u64 = 0;
const MOVE: u64 = 1;

/// A process holds its mmap lock for writing while another device of it takes seconds for a flush, and has the block that
/// was not used for the longest time. Another process migrates more memory to the device than that has.
fn eviction(ctx: &Ctx) -> Outcome {
    /// Longer than a phase.
    const STALL: u64 = 6_000_000_000;
    let _restore = with(ctx, "vram_mib=4")?;
    let device = ctx.open()?;
    let other = Device::open(ctx.second).what("open the second device")?;
    let (order, ready, go, done) = (Gate::new()?, Gate::new()?, Gate::new()?, Gate::new()?);
    let stalls = Mapping::shared(1).what("map")?;
    let child = Child::spawn(|| -> Outcome {
        let device = ctx.open()?;
        let other = Device::open(ctx.second).what("open the second device")?;
        let (map, mapped) = (block(1)?, Mapping::anon(8).what("map")?);
        mapped.fill(2);
        while order.receive()? != END {
            check_eq!(to_device(&device, &map)?.moved, 512, "pages that moved");
            device_sees(&other, &mapped, 2, "of memory in place")?;
            ready.open()?;
            go.wait()?;
            let before = on_device(&device, &map)?;
            mapped.protect(Prot::Read).what("protect")?;
            stalls.set(0, 0, stalls.get(0, 0) + 1);
            mapped.protect(Prot::ReadWrite).what("protect back")?;
            let after = on_device(&device, &map)?;
            cpu_sees(&map, 1, "of the stalled process")?;
            done.send((before * 1024 + after) as u64)?;
        }
        Ok(())
    })?;
    let maps = (3..6).map(block).collect::<Result<Vec<_>, _>>()?;
    let mut next = (0..maps.len()).cycle();
    let mut move_one = || -> Outcome {
        let map = &maps[next.next().unwrap_or(0)];
        check_eq!(to_device(&device, map)?.moved, 512, "pages that moved");
        Ok(())
    };
    compare(|stall| {
        other.set(Setting::FlushDelay, 0).what("set the delay back")?;
        order.send(MOVE)?;
        ready.wait()?;
        let stalls_before = stalls.get(0, 0);
        if stall {
            other.set(Setting::FlushDelay, STALL).what("set the delay")?;
            go.open()?;
            procfs::wait_for_call(child.pid(), child.pid(), libc::SYS_mprotect)
                .what("wait for the lock")?;
        }
        // Evicts the block of this process that is still there: then that of the other one is the coldest.
        move_one()?;
        let (begin, mut moves) = (Instant::now(), 0);
        while moves < 6 || begin.elapsed() < Duration::from_millis(600) {
            move_one()?;
            moves += 1;
        }
        let took = begin.elapsed() / moves;
        check_eq!(stalls.get(0, 0), stalls_before, "stalls that ended during the phase");
        if !stall {
            go.open()?;
        }
        // Not evicted while the process was stalled, but otherwise.
        let expected = if stall { 512 * 1024 + 512 } else { 0 };
        check_eq!(done.receive()?, expected, "pages of the other process (stall: {stall})");
        Ok(took)
    })?;
    order.send(END)?;
    child.join().map_err(Stop::Fail)?;
    for (map, seed) in maps.iter().zip(3..) {
        cpu_sees(map, seed, "at the end")?;
    }
    device.close().what("close")?;
    other.close().what("close the second device")?;
    unload_soon(ctx)
}

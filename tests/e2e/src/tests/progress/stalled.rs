// SPDX-License-Identifier: GPL-2.0
//! Progress beside a stalled process, in comparison with progress without one.

use super::split_waits::Waiter;
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::support::*;
use crate::tests::memory::{
    block,
    on_device,
    to_device,
    unload_soon,
    with, //
};
use crate::{
    check,
    check_eq, //
};
use hmm::abi::FLAG_FAIL_ALLOC;
use hmm::{
    pattern,
    procfs,
    Child,
    Device,
    Gate,
    Mapping,
    Prot,
    Setting,
    HUGE_PAGES, //
};
use std::time::{
    Duration,
    Instant, //
};

/// Minimal progress of a process beside a stalled one, in percent of its normal progress.
const LEAST: u128 = 90;

/// Number of pairs of phases that are compared, one with a stall and one without. The first pair is
/// not compared, because it depends on the state of memory before the test.
const PAIRS: usize = 3;

/// Runs `phase` in turn without and with a stall, and compares the slowest phase with a stall with
/// the fastest or slowest one without it, as `normal_of` selects. `phase` returns the time for one
/// unit of work.
fn compare(
    normal_of: fn(Duration, Duration) -> Duration,
    mut phase: impl FnMut(bool) -> Result<Duration, Stop>,
) -> Outcome {
    let mut normal = None;
    let mut stalled = Duration::ZERO;
    for pair in 0..=PAIRS {
        let took = [phase(false)?, phase(true)?];
        println!(
            "# pair {pair}: {} us, beside a stall {} us",
            took[0].as_micros(),
            took[1].as_micros()
        );
        if pair != 0 {
            normal = Some(normal.map_or(took[0], |normal| normal_of(normal, took[0])));
            stalled = stalled.max(took[1]);
        }
    }
    let share = normal.unwrap_or_default().as_nanos() * 100 / stalled.as_nanos().max(1);
    println!("# progress beside a stall: {share} percent of normal");
    check!(share >= LEAST, "progress beside a stall: {share} percent of normal");
    Ok(())
}

/// Commands of the parent to the process that is stalled.
const END: u64 = 0;
const MOVE: u64 = 1;

/// A process holds its mmap lock for writing while its second device takes seconds for a flush, and
/// owns the least recently used block. Another process migrates more memory to the device than it
/// has.
pub(super) fn eviction(ctx: &Ctx) -> Outcome {
    /// Longer than a phase.
    const STALL: u64 = 6_000_000_000;
    let _restore = with(ctx, &vram(2))?;
    let device = ctx.open()?;
    let other = Device::open(ctx.second).what("open the second device")?;
    let order = Gate::new()?;
    let ready = Gate::new()?;
    let go = Gate::new()?;
    let done = Gate::new()?;
    let stalls = Mapping::shared(1).what("map")?;
    let child = Child::spawn(|| -> Outcome {
        let device = ctx.open()?;
        let other = Device::open(ctx.second).what("open the second device")?;
        let map = block(1)?;
        let mapped = Mapping::anon(8).what("map")?;
        mapped.fill(2);
        while order.receive()? != END {
            check_eq!(to_device(&device, &map)?.moved, BLOCK_PAGES, "pages that moved");
            device_sees(&other, &mapped, 2, "of memory in place")?;
            ready.open()?;
            go.wait()?;
            let before = on_device(&device, &map)?;
            mapped.protect(Prot::Read).what("protect")?;
            stalls.set(0, 0, stalls.get(0, 0) + 1);
            mapped.protect(Prot::ReadWrite).what("protect back")?;
            let after = on_device(&device, &map)?;
            cpu_sees(&map, 1, "of the stalled process")?;
            done.send((before * 2 * HUGE_PAGES + after) as u64)?;
        }
        Ok(())
    })?;
    let maps = (3..6).map(block).collect::<Result<Vec<_>, _>>()?;
    let mut next = (0..maps.len()).cycle();
    let mut move_one = || -> Outcome {
        let map = &maps[next.next().unwrap_or(0)];
        check_eq!(to_device(&device, map)?.moved, BLOCK_PAGES, "pages that moved");
        Ok(())
    };
    compare(Duration::min, |stall| {
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
        // Evicts the other block of this process. After that the block of the other process is the
        // least recently used.
        move_one()?;
        let begin = Instant::now();
        let mut moves = 0;
        while moves < 6 || begin.elapsed() < Duration::from_millis(600) {
            move_one()?;
            moves += 1;
        }
        let took = begin.elapsed() / moves;
        check_eq!(stalls.get(0, 0), stalls_before, "stalls that ended during the phase");
        if !stall {
            go.open()?;
        }
        // The block must be evicted if and only if the process is not stalled.
        let expected = if stall { BLOCK_PAGES * 2 * BLOCK_PAGES + BLOCK_PAGES } else { 0 };
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

/// A huge page is split for a process, which waits for the flush of another process's device.
/// Meanwhile a third process touches its own huge pages, for which no huge page of system memory
/// can be allocated.
pub(super) fn splits(ctx: &Ctx) -> Outcome {
    /// Longer than a phase, and as long as a flush.
    const STALL: Duration = Duration::from_secs(6);
    const PAGES: u64 = 8;
    let device = ctx.open()?;
    // The time of a split depends on the kernel's free lists of small pages: from 1.8 ms, where a
    // large block becomes the small pages, to 4.4 ms. Compare the slowest splits.
    compare(Duration::max, |stall| {
        device.set(Setting::FlushDelay, 0).what("set the delay back")?;
        // A fault that found the page in use has left the flag set.
        device.set_flags(FLAG_FAIL_ALLOC << 1).what("clear the flag")?;
        let mut stalled = None;
        if stall {
            // Fork before this process maps the pages, which the child would share otherwise.
            let begin = Gate::new()?;
            let ready = Gate::new()?;
            let go = Gate::new()?;
            let over = Mapping::shared(1).what("map")?;
            let child = Child::spawn(|| -> Outcome {
                begin.wait()?;
                let device = ctx.open()?;
                let map = huge(1, 99)?;
                migrate(&device, &map, 99)?;
                let waiter = Waiter::begin(&device, &map, 99, STALL)?;
                ready.open()?;
                waiter.child.join().map_err(Stop::Fail)?;
                over.set(0, 0, 1);
                go.wait()?;
                cpu_sees(&map, 99, "of the process that was stalled")
            })?;
            stalled = Some((child, over, go, begin, ready));
        }
        let maps =
            (0..PAGES).map(|seed| on_its_own(&device, seed)).collect::<Result<Vec<_>, _>>()?;
        if let Some((.., begin, ready)) = &stalled {
            begin.open()?;
            ready.wait()?;
        } else {
            device.set(Setting::FlushDelay, STALL.as_nanos() as u64).what("set the delay")?;
        }
        let mut slowest = Duration::ZERO;
        for (map, seed) in maps.iter().zip(0..) {
            device.set_flags(FLAG_FAIL_ALLOC).what("set the flag")?;
            let begin = Instant::now();
            check_eq!(map.get(77, 7), pattern::word(seed, 77, 7), "CPU read of one word");
            slowest = slowest.max(begin.elapsed());
        }
        if let Some((child, over, go, ..)) = stalled {
            check_eq!(over.get(0, 0), 0, "whether the stall has ended during the phase");
            go.open()?;
            child.join().map_err(Stop::Fail)?;
        }
        device.set(Setting::FlushDelay, 0).what("set the delay back")?;
        for (map, seed) in maps.iter().zip(0..) {
            check_eq!(resident_huge(&device, map)?, 0, "pages in huge device pages");
            cpu_sees(map, seed, "after the phase")?;
        }
        Ok(slowest)
    })
}

/// Maps a huge page in device memory without device PTEs, so that its split needs no flush.
fn on_its_own(device: &Device, seed: u64) -> Result<Mapping, Stop> {
    let map = huge(1, seed)?;
    migrate(device, &map, seed)?;
    map.protect(Prot::Read)?;
    map.protect(Prot::ReadWrite)?;
    check_eq!(resident_huge(device, &map)?, map.pages(), "pages in huge device pages");
    Ok(map)
}

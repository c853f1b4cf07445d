// SPDX-License-Identifier: GPL-2.0
//! Thrashing: pages that CPUs and devices access in turns.

use super::memory::with;
use super::module_reload::unload;
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    Test,
    What, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::child::Ended;
use hmm::placement::Policy;
use hmm::{
    procfs,
    Child,
    Command,
    Device,
    EngineOp,
    Gate,
    Mapping, //
};
use std::sync::atomic::{
    AtomicBool,
    AtomicU64,
    Ordering::Relaxed, //
};
use std::time::{
    Duration,
    Instant, //
};

const OURS: &str = "test_hmm moves no page by itself";

/// Tests in the group that unloads modules.
pub const TESTS: &[Test] = &[
    Test::new("memory", "thrashing_page_makes_progress", thrashing_page)
        .only_rust(OURS)
        .seconds(120),
    Test::new("memory", "thrashing_page_stays_in_place", thrashing_page_stays).only_rust(OURS),
    Test::new("memory", "thrashing_state_is_shared_by_mirrors", stays_for_all)
        .only_rust(OURS)
        .private(),
    Test::new("memory", "thrashing_wait_sleeps_and_is_killable", thrashing_wait)
        .only_rust(OURS)
        .private(),
];

/// Two devices and four CPU threads access one page. The number of moves is bounded by
/// `policy/thrash.rs`.
fn thrashing_page(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, "thrash_count=3 thrash_lapse_ms=10000 thrash_pin_ms=400")?;
    let devices = [ctx.open()?, Device::open(ctx.second)?];
    for device in &devices {
        device.set_policy(Policy::Default)?;
    }
    let map = Mapping::anon(1)?;
    map.set(0, 0, 0);
    let stop = AtomicBool::new(false);
    let added = [const { AtomicU64::new(0) }; 4];
    let begin = Instant::now();
    let jobs = std::thread::scope(|scope| -> Result<Vec<u64>, Stop> {
        for count in &added {
            let stop = &stop;
            let map = &map;
            scope.spawn(move || {
                while !stop.load(Relaxed) {
                    map.atomic(0, 0).fetch_add(1, Relaxed);
                    count.fetch_add(1, Relaxed);
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let rounds = || -> Result<Vec<u64>, Stop> {
            let add = Command::new(EngineOp::AtomicAdd, map.addr(), 8).value(1).stride(8);
            let jobs = devices
                .iter()
                .map(|device| device.submit(add.rounds(0).think(Duration::from_micros(200))))
                .collect::<Result<Vec<_>, _>>()?;
            std::thread::sleep(Duration::from_secs(5));
            let mut rounds = Vec::new();
            for job in &jobs {
                let ended = job.finish()?;
                check_eq!(ended.error, None, "end of a device's work");
                rounds.push(ended.status.rounds);
            }
            Ok(rounds)
        };
        let result = rounds();
        stop.store(true, Relaxed);
        result
    })?;
    let seconds = begin.elapsed().as_secs_f64();
    let sum: u64 = added.iter().map(|count| count.load(Relaxed)).chain(jobs.iter().copied()).sum();
    check_eq!(map.get(0, 0), sum, "sum of all additions");
    for (who, count) in added.iter().map(|count| count.load(Relaxed)).chain(jobs).enumerate() {
        check!(count >= 50, "number {who} got on by {count} only in {seconds:.1} s");
    }
    // The page moves to each device three times, and then is pinned for 400 ms.
    let bound = (3.0 * (seconds / 0.4 + 1.0)) as u64;
    for device in &devices {
        let moved = device.placement()?.moved;
        check!(moved <= bound, "{moved} moves in {seconds:.1} s, the bound is {bound}");
    }
    drop(devices);
    unload(ctx)
}

/// A page that a CPU and a device write in turns stays in place after three moves.
fn thrashing_page_stays(ctx: &Ctx) -> Outcome {
    let params = "thrash_count=3 thrash_lapse_ms=60000 thrash_pin_ms=60000 thrash_delay_ms=1";
    let _restore = with(ctx, params)?;
    let device = ctx.open()?;
    device.set_policy(Policy::Default)?;
    let map = Mapping::anon(1)?;
    for round in 0..10 {
        map.fill(round);
        device_fills(&device, &map, round + 100, "by turns")?;
        check_eq!(resident(&device, &map, 0, 1)?, usize::from(round < 3), "moved, round {round}");
        cpu_sees(&map, round + 100, "by turns")?;
    }
    let placement = device.placement()?;
    check_eq!(placement.moved, 3, "pages that moved");
    check!(placement.in_place > 0, "no fault left it where it was");
    drop(device);
    unload(ctx)
}

/// Two mirrors of a device share the thrashing state of a page, so the page moves three times in
/// total. A page that one mirror has on the device can be used by the other mirror immediately.
fn stays_for_all(ctx: &Ctx) -> Outcome {
    let params = "thrash_count=3 thrash_lapse_ms=60000 thrash_pin_ms=60000 thrash_delay_ms=1";
    let _restore = with(ctx, params)?;
    let devices = [ctx.open()?, ctx.open()?];
    for device in &devices {
        device.set_policy(Policy::Default)?;
    }
    let moved = || -> Result<u64, Stop> {
        let [one, other] = &devices;
        Ok(one.placement()?.moved + other.placement()?.moved)
    };
    let steady = Mapping::anon(1)?;
    steady.fill(5);
    for round in 0..10 {
        for device in &devices {
            // Removes the PTE of this mirror. The PTE of the other mirror and the page stay.
            device.discard(steady.addr(), 1).what("discard")?;
            device_sees(device, &steady, 5, "of a page that stays on the device")?;
            check_eq!(resident(device, &steady, 0, 1)?, 1, "pages on the device, round {round}");
        }
    }
    for device in &devices {
        check_eq!(device.placement()?.in_place, 0, "faults that left it where it was");
    }
    let map = Mapping::anon(1)?;
    let before = moved()?;
    for round in 0..10 {
        map.fill(round);
        let device = &devices[round as usize % 2];
        device_fills(device, &map, round + 100, "by turns")?;
        check_eq!(resident(device, &map, 0, 1)?, usize::from(round < 3), "moved, round {round}");
        cpu_sees(&map, round + 100, "by turns")?;
    }
    check_eq!(moved()? - before, 3, "pages that moved");
    drop(devices);
    unload(ctx)
}

/// A device that wants a page back from a CPU waits for a while. It must sleep, and be killable.
fn thrashing_wait(ctx: &Ctx) -> Outcome {
    let params = "thrash_count=1000 thrash_lapse_ms=60000 thrash_delay_ms=";
    for (delay, kill) in [(1000u64, false), (30_000, true)] {
        let _restore = with(ctx, &format!("{params}{delay}"))?;
        let ready = Gate::new()?;
        let mut child = Child::spawn(|| -> Outcome {
            let device = ctx.open()?;
            device.set_policy(Policy::Default)?;
            let map = Mapping::anon(1)?;
            map.fill(1);
            device_fills(&device, &map, 1, "at first")?;
            check_eq!(resident(&device, &map, 0, 1)?, 1, "pages that the first write moved");
            cpu_sees(&map, 1, "back from the device")?;
            // An engine command as well: its end must not wait either.
            let engine = Command::new(EngineOp::Write, map.addr(), 8).rounds(0);
            if kill {
                device.submit(engine).what("submit")?;
            }
            ready.open()?;
            let begin = Instant::now();
            let used = procfs::thread_time();
            device_fills(&device, &map, 2, "when it bounces")?;
            let waited = begin.elapsed();
            let used = procfs::thread_time() - used;
            let least = Duration::from_millis(delay * 9 / 10);
            check!(waited >= least, "it waited {waited:?} only");
            check!(used < waited / 4, "it used the CPU for {used:?} of {waited:?}");
            cpu_sees(&map, 2, "after all")
        })?;
        ready.wait()?;
        if kill {
            std::thread::sleep(Duration::from_millis(500));
            let begin = Instant::now();
            child.signal(libc::SIGKILL);
            let ended = child.wait_timeout(Duration::from_secs(60));
            check_eq!(ended, Some(Ended::Signal(libc::SIGKILL)), "end of the waiting thread");
            let took = begin.elapsed();
            check!(took < Duration::from_secs(8), "its end took {took:?}");
        } else {
            child.join().map_err(Stop::Fail)?;
        }
        unload(ctx)?;
    }
    Ok(())
}

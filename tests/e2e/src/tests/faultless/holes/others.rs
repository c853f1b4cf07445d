// SPDX-License-Identifier: GPL-2.0
//! Other mirrors, devices and migrations, eviction and CPU faults (H9, H10, H12 to H14).

use super::super::*;
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::engine::Way;
use hmm::pattern::{
    self,
    WORDS, //
};
use hmm::{
    Child,
    Command,
    Device,
    EngineOp,
    Errno,
    Mapping,
    Setting, //
};

pub(super) fn h09_second_mirror(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let second = ctx.open()?;
    let map = Mapping::anon(64)?;
    let mover = Mover::start(&second, &map)?;
    map.fill(1);
    race(&[&mover], |round| {
        // The new contents differ from those that a stale entry of either mirror would show.
        map.fill(round);
        mover.during(|| {
            device_sees(&device, &map, round, "by the first mirror")?;
            device_sees(&second, &map, round, "by the second mirror")?;
            device_fills(&device, &map, round + 1, "by the first mirror")?;
            device_sees(&second, &map, round + 1, "of words that the first engine wrote")?;
            Ok(())
        })
    })?;
    mover.end()?;
    let reused = reuse_freed_pages(256)?;
    let job = watch(&device, &reused, 0).err();
    check!(job.is_some(), "memory with other contents has the right checksum");
    no_stale_hits(&device)?;
    no_stale_hits(&second)
}

pub(super) fn h09_keeps(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let second = ctx.open()?;
    let map = Mapping::anon(16)?;
    map.fill(1);
    for (round, way) in [Way::ToDevice, Way::ToSystem, Way::ToDevice].into_iter().enumerate() {
        let seed = 10 * round as u64;
        device_fills(&second, &map, seed + 2, "by the second mirror")?;
        let moved = device.migrate(map.addr(), map.pages(), way)?.moved;
        check_eq!(moved, map.pages() as u64, "pages that moved, {way:?}");
        let done = device_fills(&second, &map, seed + 3, "by the second mirror, afterwards")?;
        check_eq!(done.faults, 0, "fault rounds of a write by the second mirror, {way:?}");
        device_sees(&device, &map, seed + 3, "of words that the second mirror wrote")?;
    }
    // Write access that was taken before the migration does not come back: the pages are shared.
    let child = Child::spawn(|| -> Outcome {
        std::thread::sleep(Duration::from_millis(100));
        cpu_sees(&map, 23, "by the child")
    })?;
    device.migrate(map.addr(), map.pages(), Way::ToSystem)?;
    device_fills(&second, &map, 24, "by the second mirror, after the fork")?;
    child.join().map_err(Stop::Fail)?;
    device_sees(&device, &map, 24, "of words written after the fork")?;
    cpu_sees(&map, 24, "at the end")?;
    no_stale_hits(&device)?;
    no_stale_hits(&second)
}

pub(super) fn h10_other_device(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let other = Device::open(ctx.second)?;
    other.set(Setting::CopyDelay, DELAY_NS)?;
    let map = Mapping::anon_aligned(1)?;
    let mover = Mover::start(&device, &map)?;
    let rival = Mover::start(&other, &map)?;
    map.fill(1);
    let here = watch(&device, &map, 1)?;
    let there = watch(&other, &map, 1)?;
    race(&[&mover, &rival], |_| {
        mover.during(|| rival.during(|| std::thread::sleep(Duration::from_millis(100))));
        Ok(())
    })?;
    watched(&here, "by the device")?;
    watched(&there, "by the other device")?;
    mover.end()?;
    rival.end()?;
    cpu_sees(&map, 1, "at the end")?;
    no_stale_hits(&device)?;
    no_stale_hits(&other)
}

pub(super) fn h12_eviction(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    device.set(Setting::CopyDelay, 0)?;
    let map = Mapping::anon_aligned(1)?;
    // It may get the device pages that evictions of `map` free.
    let other = Mapping::anon_aligned(4)?;
    map.fill(1);
    other.fill(2);
    device_sees(&device, &map, 1, "at first")?;
    for seed in 2..6 {
        device.migrate(map.addr(), map.pages(), Way::ToDevice)?;
        device.release().what("release")?;
        // The CPU writes to system memory. A stale entry for device memory would still show the old
        // contents.
        map.fill(seed);
        let done = device.migrate(other.addr(), other.pages(), Way::ToDevice)?;
        check!(done.moved > 0, "the other mapping took no device page");
        device_sees(&device, &map, seed, "whose device pages another mapping has")?;
        device.migrate(other.addr(), other.pages(), Way::ToSystem)?;
    }
    let mover = Mover::start(&device, &map)?;
    let job = watch(&device, &map, 5)?;
    race(&[&mover], |_| {
        match mover.during(|| device.release()) {
            // EBUSY: the mover allocates new pages all the time.
            Ok(_) | Err(Errno::EBUSY) => {}
            Err(error) => return Err(Stop::Fail(format!("release: {error}"))),
        }
        for way in [Way::ToDevice, Way::ToSystem] {
            device.migrate(other.addr(), other.pages(), way)?;
        }
        Ok(())
    })?;
    watched(&job, "during evictions")?;
    mover.end()?;
    check!(device.counters()?.evicted_pages > 0, "nothing was evicted");
    cpu_sees(&map, 5, "at the end")?;
    cpu_sees(&other, 2, "of the other mapping")?;
    no_stale_hits(&device)
}

pub(super) fn h13_overlapping(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon_aligned(1)?;
    let movers = [Mover::start(&device, &map)?, Mover::start(&device, &map)?];
    let mut moved = 0;
    map.fill(1);
    let job = watch(&device, &map, 1)?;
    rounds(2, |round| {
        let first = (round as usize * 29) % 448;
        let way = if round % 2 == 0 { Way::ToDevice } else { Way::ToSystem };
        let migrate = || device.migrate(map.page_addr(first), 64, way);
        moved += movers[0].during(|| movers[1].during(migrate))?.moved;
        // On a busy machine the movers may leave no page to the third migration for a while.
        Ok(moved > 0 && movers.iter().all(Mover::raced))
    })?;
    watched(&job, "during migrations that overlap")?;
    check!(moved > 0, "the third moved nothing");
    let [one, two] = movers;
    one.end()?;
    two.end()?;
    cpu_sees(&map, 1, "at the end")?;
    no_stale_hits(&device)
}

pub(super) fn h14_cpu_faults(ctx: &Ctx) -> Outcome {
    let (device, map, mover) = moving(ctx)?;
    let job = watch(&device, &map, 1)?;
    let before = device.counters()?;
    race(&[&mover], |round| {
        let page = (round as usize * 67) % map.pages();
        let word = mover.during(|| map.get(page, 1));
        check_eq!(word, pattern::word(1, page, 1), "CPU read of page {page}");
        Ok(())
    })?;
    mover.end()?;
    // The mover may have been faster than the CPU each time.
    for round in 0..8 {
        device.migrate(map.addr(), map.pages(), Way::ToDevice)?;
        let page = round * 64 + 1;
        check_eq!(map.get(page, 1), pattern::word(1, page, 1), "CPU read of page {page}");
    }
    watched(&job, "while CPUs bring pages back")?;
    let faults = device.counters()?.cpu_faults - before.cpu_faults;
    check!(faults > 0 || ctx.coherent(), "no CPU fault");
    no_stale_hits(&device)
}

pub(super) fn h14_keeps(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let second = ctx.open()?;
    if ctx.coherent() {
        return Err(Stop::Skip("a CPU takes no fault on coherent memory".to_string()));
    }
    for map in [Mapping::anon(16)?, huge(1, 1)?] {
        map.fill(1);
        let job = watch(&device, &map, 1)?;
        device.migrate(map.addr(), map.pages(), Way::ToDevice)?;
        device_fills(&second, &map, 1, "by the second mirror")?;
        let before = device.counters()?;
        cpu_sees(&map, 1, "of device memory")?;
        let after = device.counters()?;
        watched(&job, "while CPUs bring pages back")?;
        check!(after.cpu_faults > before.cpu_faults, "no CPU fault");
        let switched = after.switched_pages - before.switched_pages;
        check_eq!(switched, map.pages() as u64, "pages switched by CPU faults");
        check_eq!(after.engine_faults_read, before.engine_faults_read, "faults of the reader");
        // Nothing has taken the write access that the engines had.
        let write = Command::new(EngineOp::Fill, map.addr(), map.len()).value(2);
        check_eq!(device.run(write)?.error, None, "a write after the CPU fault");
        let writes = device.counters()?.engine_faults_write - after.engine_faults_write;
        check_eq!(writes, 0, "faults of a write after the CPU fault");
        check_eq!(map.get(map.pages() - 1, WORDS - 1), 2, "the last word that the engine wrote");
        let done = device_fills(&second, &map, 3, "by the second mirror, after the CPU fault")?;
        check_eq!(done.faults, 0, "fault rounds of a write by the second mirror");
        cpu_sees(&map, 3, "of words that the second mirror wrote")?;
    }
    no_stale_hits(&device)?;
    no_stale_hits(&second)
}

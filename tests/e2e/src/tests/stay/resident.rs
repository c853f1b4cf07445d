// SPDX-License-Identifier: GPL-2.0
//! Requests for memory that is on the device already.

use super::few_events;
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::support::*;
use crate::tests::memory::{
    block,
    to_device, //
};
use crate::{
    check,
    check_eq, //
};
use hmm::engine::Way;
use hmm::{
    Command,
    EngineOp,
    Mapping,
    Setting,
    HUGE_PAGES,
    PAGE_SIZE, //
};
use std::time::{
    Duration,
    Instant, //
};

/// A request to migrate memory that is resident has no effect, also for other mirrors of the
/// process.
pub(super) fn resident_memory(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let other = ctx.open()?;
    for map in [block(1)?, huge(1, 1)?] {
        to_device(&device, &map)?;
        check_eq!(resident(&device, &map, 0, HUGE_PAGES)?, HUGE_PAGES, "pages on the device");
        device_fills(&device, &map, 2, "of device memory")?;
        device_sees(&other, &map, 2, "of the same memory")?;
        let before = device.counters()?;
        let theirs = other.counters()?;
        for _ in 0..20 {
            let done = to_device(&device, &map)?;
            check_eq!((done.moved, done.skipped), (0, 0), "pages moved, and skipped");
        }
        let after = device.counters()?;
        few_events(&before, &after, "of requests for resident memory")?;
        check_eq!(after.invalidated_pages, before.invalidated_pages, "entries lost");
        few_events(&theirs, &other.counters()?, "of the other mirror")?;
        let lost = other.counters()?.invalidated_pages - theirs.invalidated_pages;
        check_eq!(lost, 0, "entries that the other mirror lost");
        check_eq!(after.bytes_copied, before.bytes_copied, "bytes copied");
        // A request to migrate back does not affect pages in system memory either.
        cpu_sees(&map, 2, "on its way back")?;
        device.migrate(map.addr(), HUGE_PAGES, Way::ToSystem).what("migrate back")?;
        device_fills(&device, &map, 3, "of system memory")?;
        let before = device.counters()?;
        for _ in 0..20 {
            let done =
                device.migrate(map.addr(), HUGE_PAGES, Way::ToSystem).what("migrate back")?;
            check_eq!((done.moved, done.skipped), (0, 0), "pages moved back, and skipped");
        }
        let after = device.counters()?;
        few_events(&before, &after, "of requests for the way back")?;
        check_eq!(after.invalidated_pages, before.invalidated_pages, "entries lost by it");
    }
    Ok(())
}

/// An engine writes device memory while the process requests its migration repeatedly, as programs
/// do before each launch.
pub(super) fn resident_and_written(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon_aligned(2)?;
    map.forbid_huge()?;
    map.fill(1);
    to_device(&device, &map)?;
    let fill = Command::new(EngineOp::Fill, map.addr(), map.len()).rounds(1);
    check_eq!(device.run(fill).what("fill")?.error, None, "end of the first round");
    let job = device.submit(fill.rounds(0)).what("submit")?;
    let before = device.counters()?;
    for _ in 0..200 {
        let done = to_device(&device, &map)?;
        check_eq!(done.moved, 0, "pages moved");
    }
    let after = device.counters()?;
    job.stop().what("stop")?;
    check_eq!(job.wait().what("wait")?.error, None, "end of the engine");
    let faults = after.engine_faults_write - before.engine_faults_write;
    check_eq!(faults, 0, "write faults in 200 requests for resident memory");
    check_eq!(after.invalidated_pages, before.invalidated_pages, "entries that lost a right");
    Ok(())
}

/// One half of a block migrates to the device while engines write and read the resident half, and a
/// CPU faults some of its pages back.
pub(super) fn half_resident(ctx: &Ctx) -> Outcome {
    const COPY: u64 = 2_000_000;
    let device = ctx.open()?;
    let map = block(1)?;
    let half = HUGE_PAGES / 2;
    let moved = device.migrate(map.addr(), half, Way::ToDevice).what("migrate")?.moved;
    check_eq!(moved, half as u64, "pages that moved");
    device_fills_pages(&device, &map, 1, 0, half, "of the first half")?;
    device_sees_pages(&device, &map, 1, half, half, "of the second half")?;
    let bytes = half / 2 * PAGE_SIZE;
    let write = Command::new(EngineOp::Fill, map.addr(), bytes).engine(0).rounds(0);
    let read = Command::new(EngineOp::Read, map.page_addr(half / 2), bytes).engine(1).rounds(0);
    let writer = device.submit(write)?;
    let reader = device.submit(read)?;
    for job in [&writer, &reader] {
        until("an engine's first round", || Ok(job.poll(Duration::ZERO)?.1.rounds > 0))?;
    }
    device.set(Setting::CopyDelay, COPY).what("slow copies")?;
    let before = device.counters()?;
    let result = std::thread::scope(|scope| {
        let mover = scope.spawn(|| device.migrate(map.addr(), HUGE_PAGES, Way::ToDevice));
        // Wait until copies are in flight.
        let start = Instant::now();
        while device.counters()?.bytes_copied == before.bytes_copied {
            check!(start.elapsed() < Duration::from_secs(20), "no copy begins");
            std::thread::sleep(Duration::from_millis(1));
        }
        check!(!mover.is_finished(), "the half has moved before the CPU touched the other");
        let touched = map.get(half - 40, 0);
        check_eq!(touched, hmm::pattern::word(1, half - 40, 0), "CPU read meanwhile");
        let during = device.counters()?;
        let done = mover.join().map_err(|_| Stop::Fail("a thread panicked".into()))?;
        Ok((during, done.what("migrate")?))
    });
    device.set(Setting::CopyDelay, 0).what("fast copies")?;
    let after = device.counters()?;
    for job in [&writer, &reader] {
        job.stop().what("stop")?;
        check_eq!(job.wait().what("wait")?.error, None, "end of an engine");
    }
    let (during, done) = result?;
    check!(during.cpu_faults > before.cpu_faults, "the CPU did not fault");
    check_eq!(done.moved, half as u64, "pages of the other half that moved");
    check_eq!(done.switched, half as u64, "pages of the other half that were switched");
    let writes = after.engine_faults_write - before.engine_faults_write;
    check_eq!(writes, 0, "write faults of memory that was there");
    let reads = after.engine_faults_read - before.engine_faults_read;
    check_eq!(reads, 0, "read faults of memory that a CPU took back meanwhile");
    Ok(())
}

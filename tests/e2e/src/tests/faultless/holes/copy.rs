// SPDX-License-Identifier: GPL-2.0
//! Changes before and during the copy (H1 to H4, H15, H16).

use super::super::*;
use crate::harness::{
    Ctx,
    Outcome, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::engine::Way;
use hmm::pattern::WORDS;
use hmm::PAGE_SIZE;
use hmm::{
    Command,
    EngineOp,
    Mapping,
    Setting, //
};

pub(super) fn h01_write(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon_aligned(1)?;
    (0..map.pages()).for_each(|page| map.set(page, 0, 0));
    let add = Command::new(EngineOp::AtomicAdd, map.addr(), map.len()).stride(PAGE_SIZE).value(1);
    check_eq!(device.run(add)?.error, None, "first pass");
    let before = device.counters()?;
    let job = device.submit(add.rounds(0))?;
    // An engine that writes to a single page as often as possible.
    map.set(9, 1, 0);
    let hammer = Command::new(EngineOp::AtomicAdd, map.page_addr(9) + 8, 8).stride(8).value(1);
    let hammer = device.submit(hammer.engine(1).rounds(0))?;
    repeat(|round| {
        // A slow flush widens the time between marking and isolation, in which a write fault must
        // not give write access back.
        device.set(Setting::FlushDelay, round % 2 * 1_000_000)?;
        for way in [Way::ToDevice, Way::ToSystem] {
            check!(device.migrate(map.addr(), map.pages(), way)?.moved > 0, "nothing moved");
        }
        Ok(())
    })?;
    // On a slow kernel with large blocks, a pass of the writer takes longer than these rounds.
    device.set(Setting::FlushDelay, 0)?;
    until("another pass of the writer, while the block moves", || {
        for way in [Way::ToDevice, Way::ToSystem] {
            device.migrate(map.addr(), map.pages(), way)?;
        }
        let written = device.counters()?.bytes_written - before.bytes_written;
        Ok(written / 8 > map.pages() as u64)
    })?;
    check_eq!(job.finish()?.error, None, "end of the writer");
    let hammered = hammer.finish()?;
    check_eq!(hammered.error, None, "end of the writer to one page");
    check_eq!(map.get(9, 1), hammered.status.rounds, "additions to one page, and those made");
    let after = device.counters()?;
    let adds = map.pages() as u64 + (after.bytes_written - before.bytes_written) / 8;
    let found: u64 = (0..map.pages()).map(|page| map.get(page, 0)).sum::<u64>() + map.get(9, 1);
    check_eq!(found, adds, "additions that are found, of those that were made");
    check!(adds > 2 * map.pages() as u64, "hardly any addition");
    no_stale_hits(&device)
}

pub(super) fn h02_fault_in_flight(ctx: &Ctx) -> Outcome {
    let (device, map, mover) = moving(ctx)?;
    let job = watch(&device, &map, 1)?;
    // Entries are removed all the time, so that faults occur in every phase.
    race(&[&mover], |round| {
        let first = (round as usize * 37) % (map.pages() - 64);
        Ok(mover.during(|| device.discard(map.page_addr(first), 64))?)
    })?;
    watched(&job, "with faults in flight")?;
    check!(device.counters()?.engine_faults_read > 0, "no fault");
    mover.end()?;
    cpu_sees(&map, 1, "at the end")?;
    no_stale_hits(&device)
}

pub(super) fn h03_dontneed(ctx: &Ctx) -> Outcome {
    let (device, map, mover) = moving(ctx)?;
    device_sees(&device, &map, 1, "at first")?;
    race(&[&mover], |round| {
        let first = (round as usize * 61) % 448;
        if round % 2 == 0 {
            // The device does not read before the step in flight has ended.
            mover.during(|| map.advise_pages(libc::MADV_DONTNEED, first, 64))?;
            mover.wait_for(1)?;
            device_sees_zero(&device, &map, first, 64, "of pages dropped during a step")?;
        }
        dropped((&device, &map, &mover), 1, first, 64)
    })?;
    mover.end()?;
    device_sees(&device, &map, 1, "at the end")?;
    cpu_sees(&map, 1, "at the end")?;
    no_stale_hits(&device)
}

pub(super) fn h04_before(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    // A slow flush, so that an event is announced long before the CPU PTEs are cleared.
    device.set(Setting::FlushDelay, 500_000)?;
    device.set(Setting::CopyDelay, 0)?;
    let map = Mapping::anon(16)?;
    let mover = Mover::start(&device, &map)?;
    map.fill(1);
    race(&[&mover], |round| dropped((&device, &map, &mover), 1 + round, 4, 8))?;
    mover.end()?;
    device_sees_pages(&device, &map, 1, 0, 4, "at the end")?;
    no_stale_hits(&device)
}

pub(super) fn h15_flush(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    device.set(Setting::FlushDelay, 1_000_000)?;
    let map = Mapping::anon_aligned(1)?;
    let mover = Mover::start(&device, &map)?;
    map.fill(1);
    let job = watch(&device, &map, 1)?;
    // Pages that the migrations free are allocated and overwritten immediately. They are kept,
    // because the next round would otherwise get only the pages that this round has freed. The
    // range is mapped in advance, because a step blocks `mmap()` of other tasks.
    let freed = Mapping::anon(100_000)?;
    race(&[&mover], |round| {
        let first = (round as usize * 16) % freed.pages();
        mover.during(|| {
            for page in first..first + 16 {
                (0..WORDS).for_each(|word| freed.set(page, word, 0xdead_dead_dead_dead));
            }
        });
        Ok(())
    })?;
    watched(&job, "while freed pages are used again")?;
    mover.end()?;
    no_stale_hits(&device)
}

pub(super) fn h16_free(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    // After a faultless migration and a CPU fault the device may continue to write, and therefore
    // reports pages as dirty. After an ordinary migration it may not.
    for (there, back) in [(true, 0), (true, 1), (true, 2), (false, 0)] {
        if back == 2 && ctx.coherent() {
            continue;
        }
        let map = Mapping::anon(64)?;
        map.fill(1);
        map.advise(libc::MADV_FREE)?;
        if there {
            device.migrate(map.addr(), 64, Way::ToDevice)?;
        }
        device_fills(&device, &map, 2, "after MADV_FREE")?;
        match back {
            0 => drop(device.migrate(map.addr(), 64, Way::ToSystem)?),
            1 => drop(device.migrate(map.addr(), 64, Way::ToSystemOrdinary)?),
            _ => cpu_sees(&map, 2, "of device memory")?,
        }
        check_eq!(resident(&device, &map, 0, 64)?, 0, "pages on the device");
        // Reclaim frees clean pages of MADV_FREE immediately. It swaps out the others if there is
        // swap.
        map.advise(libc::MADV_PAGEOUT)?;
        cpu_sees(&map, 2, "of words that the device wrote after MADV_FREE")?;
    }
    Ok(())
}

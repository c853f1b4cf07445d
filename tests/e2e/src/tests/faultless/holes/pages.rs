// SPDX-License-Identifier: GPL-2.0
//! Pages that are pinned, shared, merged, in part of a huge page, or not there (H5 to H8, H17).

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
    pagemap,
    Child,
    Command,
    Device,
    EngineOp,
    Mapping,
    PageOutcome,
    Setting, //
};
use hmm::{
    HUGE_PAGES,
    PAGE_SIZE, //
};

pub(super) fn h05_pinned(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon(16)?;
    map.fill(1);
    let job = watch(&device, &map, 1)?;
    let before = device.counters()?;
    let pin = hmm::files::Pin::of(map.page_addr(5)).what("pin a page by vmsplice")?;
    let (done, pages) = device.migrate_pages(map.addr(), 16, Way::ToDevice)?;
    check_eq!((done.moved, done.skipped), (15, 1), "pages moved and skipped");
    check_eq!(pages[5], PageOutcome::Skipped, "outcome of the pinned page");
    drop(pin);
    let (_, pages) = device.migrate_pages(map.addr(), 16, Way::ToDevice)?;
    check_eq!(pages[5], PageOutcome::Switched, "outcome of the page when it is free");
    let after = device.counters()?;
    check_eq!(after.engine_faults_read, before.engine_faults_read, "read faults");
    watched(&job, "of a pinned page")?;
    no_stale_hits(&device)
}

pub(super) fn h05_written(ctx: &Ctx) -> Outcome {
    const PINNED: usize = 5;
    let device = open(ctx)?;
    let map = Mapping::anon(16)?;
    map.fill(1);
    device_sees(&device, &map, 1, "at first")?;
    let pin = hmm::files::Pin::of(map.page_addr(PINNED)).what("pin a page by vmsplice")?;
    let write = Command::new(EngineOp::Fill, map.page_addr(PINNED), PAGE_SIZE).value(2);
    check_eq!(device.run(write)?.error, None, "end of the first write");
    let job = device.submit(write.rounds(0))?;
    let before = device.counters()?;
    for _ in 0..200 {
        device.migrate(map.addr(), 16, Way::ToDevice)?;
    }
    let after = device.counters()?;
    let ended = job.finish()?;
    check_eq!(ended.error, None, "writes");
    check!(ended.status.rounds > 0, "no write during the migrations");
    let moved = after.migrated_to_device - before.migrated_to_device;
    check_eq!(moved, 15, "pages that moved");
    let faults = after.engine_faults_write - before.engine_faults_write;
    check_eq!(faults, 0, "write faults on the pinned page");
    drop(pin);
    device_sees_pages(&device, &map, 1, 0, PINNED, "of pages before the pinned one")?;
    device_sees_pages(&device, &map, 1, PINNED + 1, 10, "of pages after the pinned one")?;
    check_eq!(map.get(PINNED, WORDS - 1), 2, "the last word that the engine wrote");
    no_stale_hits(&device)
}

pub(super) fn h06_holes(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    repeat(|round| {
        let map = Mapping::anon(64)?;
        // Every fourth page is a hole, the next one is the zero page, and two have contents.
        for page in 0..64 {
            match page % 4 {
                0 => {}
                1 => check_eq!(map.get(page, 0), 0, "a page that was never written"),
                _ => map.fill_pages(1, page, 1),
            }
        }
        if round % 2 == 0 {
            device_sees_zero(&device, &map, 1, 1, "of the zero page")?;
        }
        std::thread::scope(|scope| -> Outcome {
            let mover = scope.spawn(|| device.migrate(map.addr(), 64, Way::ToDevice));
            for page in (0..64).filter(|page| page % 8 < 2) {
                map.set(page, 3, 0x5555);
            }
            let moved = mover.join().map_err(|_| Stop::Fail("a thread panicked".into()))?;
            let moved = moved.what("migration of holes")?;
            check!(moved.moved > 0, "no page moved while a CPU wrote into holes");
            Ok(())
        })?;
        for page in 0..64 {
            let mut data = vec![0; PAGE_SIZE];
            device.read(map.page_addr(page), &mut data)?;
            let word = |index: usize| {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(&data[index * 8..index * 8 + 8]);
                u64::from_ne_bytes(bytes)
            };
            let expected = match page % 8 {
                0 | 1 => [0, 0x5555],
                4 | 5 => [0, 0],
                _ => [pattern::word(1, page, 0), pattern::word(1, page, 3)],
            };
            check_eq!([word(0), word(3)], expected, "words of page {page}");
        }
        Ok(())
    })?;
    no_stale_hits(&device)
}

/// A CPU writes to the page that replaces the zero page, as soon as it exists. In coherent memory
/// that is possible before the migration ends.
pub(super) fn h06_written(ctx: &Ctx) -> Outcome {
    let indices = if ctx.coherent() { vec![ctx.device] } else { vec![ctx.device, 2] };
    indices.into_iter().try_for_each(|index| {
        let device = Device::open(index)?;
        let second = Device::open(index)?;
        // The entries of the other mirrors are switched and flushed before those of the mirror that
        // migrates.
        second.set(Setting::FlushDelay, 50_000_000)?;
        repeat(|round| {
            written_at_once([&device, &second], &Mapping::anon(16)?, round + 1)?;
            written_at_once([&device, &second], &Mapping::anon_huge(1)?, round + 1)
        })?;
        no_stale_hits(&device)
    })
}

fn written_at_once([device, second]: [&Device; 2], map: &Mapping, seed: u64) -> Outcome {
    map.check_zero(0, map.pages()).what("pages that were never written")?;
    device_sees_zero(device, map, 0, 16, "of the zero page")?;
    device_sees_zero(second, map, 0, 16, "of the zero page, by the second mirror")?;
    let frame = || pagemap::read(map.addr(), 1).what("page map");
    let zero = frame()?;
    std::thread::scope(|scope| -> Outcome {
        let mover = scope.spawn(|| device.migrate(map.addr(), 16, Way::ToDevice));
        let begin = Instant::now();
        while frame()? == zero {
            check!(begin.elapsed() < Duration::from_secs(60), "the zero page stays");
        }
        map.fill_pages(seed, 0, 16);
        device_sees_pages(device, map, seed, 0, 16, "of holes that were written")?;
        device_sees_pages(second, map, seed, 0, 16, "of them, by the second mirror")?;
        let done = mover.join().map_err(|_| Stop::Fail("a thread panicked".into()))?;
        check_eq!(done.what("migration of holes")?.moved, 16, "holes that moved");
        Ok(())
    })?;
    map.check_pages(seed, 0, 16).what("CPU read")
}

pub(super) fn h07_fork(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let mut moved = 0;
    for map in [Mapping::anon(32)?, huge(1, 1)?] {
        map.fill(1);
        let gate = hmm::Gate::new()?;
        let child = Child::spawn(|| -> Outcome {
            gate.wait().what("gate")?;
            cpu_sees(&map, 1, "by the child")
        })?;
        let job = watch(&device, &map, 1)?;
        for way in [Way::ToDevice, Way::ToSystem, Way::ToDevice] {
            let done = device.migrate(map.addr(), map.pages(), way)?;
            println!("# {way:?}: {} moved, {} switched", done.moved, done.switched);
            // The core unmaps a page from both processes, which causes a foreign event.
            check_eq!(done.switched, 0, "entries kept of pages shared by fork, {way:?}");
            moved += done.moved;
        }
        watched(&job, "of pages shared by fork")?;
        device_fills(&device, &map, 2, "of pages shared by fork")?;
        gate.open().what("gate")?;
        child.join().map_err(Stop::Fail)?;
        cpu_sees(&map, 2, "by the parent")?;
    }
    check!(moved > 0, "no page shared by fork moved");
    no_stale_hits(&device)
}

pub(super) fn h08_partial_thp(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    repeat(|_| {
        let map = huge(1, 1)?;
        map.unmap_pages(100, 3)?;
        device_sees_pages(&device, &map, 1, 0, 100, "before")?;
        let done = device.migrate(map.addr(), 100, Way::ToDevice)?;
        // The core splits the folio, which causes a foreign event, so the entries are removed.
        check_eq!((done.moved, done.switched), (100, 0), "pages moved, and switched");
        let done = device.migrate(map.page_addr(103), HUGE_PAGES - 103, Way::ToDevice)?;
        check_eq!(done.moved as usize, HUGE_PAGES - 103, "pages moved behind the hole");
        device_sees_pages(&device, &map, 1, 0, 100, "after")?;
        device_sees_pages(&device, &map, 1, 103, HUGE_PAGES - 103, "after")?;
        device.migrate(map.addr(), 100, Way::ToSystem)?;
        device_sees_pages(&device, &map, 1, 0, 100, "at the end")?;
        map.check_pages(1, 103, HUGE_PAGES - 103).what("CPU read")
    })?;
    no_stale_hits(&device)
}

pub(super) fn h17_ksm(ctx: &Ctx) -> Outcome {
    let ksm = match hmm::files::Ksm::start() {
        Ok(ksm) => ksm,
        Err(error) => return Err(Stop::Skip(format!("no KSM: {error}"))),
    };
    let device = open(ctx)?;
    let map = Mapping::anon(32)?;
    for page in 0..32 {
        (0..WORDS).for_each(|word| map.set(page, word, 0x1234));
    }
    ksm.merge(&map).what("merge")?;
    let (done, pages) = device.migrate_pages(map.addr(), 32, Way::ToDevice)?;
    check!(done.skipped > 0, "no merged page was left: {pages:?}");
    let read = Command::new(EngineOp::Read, map.addr(), map.len());
    let sum = 0x1234u64.wrapping_mul((32 * WORDS) as u64);
    check_eq!(device.run(read)?.status.result, sum, "sum of merged pages");
    for page in 0..32 {
        check_eq!(map.get(page, 9), 0x1234, "CPU read of merged page {page}");
    }
    no_stale_hits(&device)
}

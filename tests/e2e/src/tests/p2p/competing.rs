// SPDX-License-Identifier: GPL-2.0
//! Several devices that use the same memory, and several processes that use one device.

use super::{
    pair,
    Pair, //
};
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
use hmm::{
    Child,
    Command,
    Connection,
    Device,
    EngineOp,
    Errno,
    Mapping,
    PAGE_SIZE, //
};
use std::sync::atomic::{
    AtomicBool,
    AtomicU64,
    Ordering, //
};
use std::time::Instant;

pub(super) fn fight(ctx: &Ctx) -> Outcome {
    let Pair { one, two } = pair(ctx, Connection::Migratable)?;
    let map = Mapping::anon(64)?;
    map.fill(0);
    (0..64).for_each(|page| map.set(page, 0, 0));
    let sums = || -> Result<[u64; 2], Stop> {
        let one = one.counters()?;
        let two = two.counters()?;
        let faults = one.engine_faults_write + two.engine_faults_write;
        Ok([faults, one.migrated_to_device + two.migrated_to_device])
    };
    let before = sums()?;
    // Isolating a page that a CPU has just put back drains the LRU lists of all CPUs, which takes
    // milliseconds. Meanwhile the other device continues. For a second or two one device may be ten
    // times as fast. So both continue until neither has more than three times as many rounds as the
    // other, for at least two seconds and at most 60.
    let begin = Instant::now();
    let rounds = [AtomicU64::new(0), AtomicU64::new(0)];
    let fair = AtomicBool::new(false);
    let over = || {
        let [mine, theirs] = [0, 1].map(|index: usize| rounds[index].load(Ordering::Relaxed));
        let seconds = begin.elapsed().as_secs();
        if seconds >= 2 && mine + theirs >= 100 && mine.max(theirs) <= 3 * mine.min(theirs) {
            fair.store(true, Ordering::Relaxed);
        }
        // Rounds of one device after the other has ended do not count.
        fair.load(Ordering::Relaxed) || seconds >= 60
    };
    let fighter = |index: usize, mine: &Device, other: &Device| -> Result<(u64, u64), Errno> {
        let mut adds = 0;
        let mut moved = 0;
        while !over() {
            moved += mine.pull(map.addr(), 64, other)?.moved;
            moved += mine.migrate(map.addr(), 64, Way::ToDevice)?.moved;
            let add = Command::new(EngineOp::AtomicAdd, map.addr(), map.len());
            let ended = mine.run(add.value(1).stride(PAGE_SIZE))?;
            match ended.error {
                None => adds += 1,
                Some(error) => return Err(error),
            }
            rounds[index].store(adds, Ordering::Relaxed);
        }
        Ok((adds, moved))
    };
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| fighter(0, &one, &two));
        let second = scope.spawn(|| fighter(1, &two, &one));
        (first.join(), second.join())
    });
    let (Ok(first), Ok(second)) = (first, second) else {
        return Err(Stop::Fail("a fighter panicked".into()));
    };
    let ((adds, moved), (others, theirs)) = (first.what("the first")?, second.what("the second")?);
    check!(adds >= 3 && others >= 3, "rounds: {adds} and {others}");
    check!(moved > 0 && theirs > 0, "pages that moved: {moved} and {theirs}");
    // Each move removes the PTE of a page from each device at most once, and each fault migrates or
    // maps the page. So the numbers of faults and moves for one addition are bounded.
    let [faults, moves] = sums()?;
    let faults = faults - before[0];
    let moves = moves - before[1];
    println!("# {adds} and {others} rounds, {moves} pages moved, {faults} write faults");
    check!(faults <= moves + moves / 2 + 128, "{faults} write faults of {moves} pages that moved");
    check!(fair.into_inner(), "rounds: {adds} and {others}: unfair");
    for page in 0..64 {
        check_eq!(map.get(page, 0), adds + others, "sum in page {page}");
    }
    Ok(())
}

pub(super) fn four_devices(_: &Ctx) -> Outcome {
    let devices: Vec<Device> = (0..4).map_while(|index| Device::open(index).ok()).collect();
    if devices.len() < 4 {
        return Err(Stop::Skip("there are no coherent devices".into()));
    }
    let map = Mapping::anon(4 * 64)?;
    map.fill(5);
    let sum = |device: &Device| -> Result<u64, Stop> {
        let ended =
            device.run(Command::new(EngineOp::Checksum, map.addr(), map.len())).what("sum")?;
        check_eq!(ended.error, None, "error of a checksum");
        Ok(ended.status.result)
    };
    let expected = hmm::engine::checksum_of_pattern(5, map.pages());
    for (index, device) in devices.iter().enumerate() {
        // Migrate a quarter to each device.
        let moved = device.migrate(map.page_addr(64 * index), 64, Way::ToDevice).what("migrate")?;
        check_eq!(moved.moved, 64, "pages on device {index}");
    }
    for (index, device) in devices.iter().enumerate() {
        check_eq!(sum(device)?, expected, "checksum by device {index}");
    }
    // Each device pulls from its neighbour of the same kind, and from the others through system
    // memory.
    for (index, device) in devices.iter().enumerate() {
        let from = &devices[(index + 1) % 4];
        device.pull(map.addr(), map.pages(), from).what("pull")?;
        check_eq!(sum(device)?, expected, "checksum by device {index} after its pull");
    }
    cpu_sees(&map, 5, "at the end")
}

pub(super) fn four_processes(ctx: &Ctx) -> Outcome {
    let children: Vec<Child> = (0..4u64)
        .map(|seed| {
            Child::spawn(|| -> Result<(), Stop> {
                let device = ctx.open()?;
                let map = Mapping::anon(128)?;
                for round in 0..8 {
                    map.fill(seed * 100 + round);
                    let expected = hmm::engine::checksum_of_pattern(seed * 100 + round, 128);
                    let way = Way::ToDevice;
                    device.migrate(map.addr(), 128, way).what("migrate")?;
                    let command = Command::new(EngineOp::Checksum, map.addr(), map.len());
                    let ended = device.run(command.verify(expected)).what("checksum")?;
                    check_eq!(ended.error, None, "checksum of process {seed}, round {round}");
                    cpu_sees(&map, seed * 100 + round, "after it")?;
                }
                Ok(())
            })
        })
        .collect::<Result<_, _>>()?;
    for child in children {
        child.join().map_err(Stop::Fail)?;
    }
    Ok(())
}

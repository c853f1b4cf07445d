// SPDX-License-Identifier: GPL-2.0
//! Two devices as tiles of one device: their memories have the same pgmap owner.

use super::memory::{
    block,
    engine_reads,
    to_device,
    with, //
};
use super::module_reload::{
    as_booted,
    load,
    unload,
    Restore, //
};
use super::p2p::{
    pair,
    Pair, //
};
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
use hmm::engine::{
    checksum_of_pattern,
    Way, //
};
use hmm::placement::Policy;
use hmm::{
    smaps,
    Command,
    Connection,
    Device,
    EngineOp,
    Errno,
    Mapping,
    Setting,
    HUGE_PAGES, //
};
use std::sync::atomic::{
    AtomicBool,
    Ordering::Relaxed, //
};
use std::thread;
use std::time::Duration;

const OURS: &str = "test_hmm has one memory for a device";

/// Tests in the group that unloads modules.
pub const TESTS: &[Test] = &[
    Test::new("memory", "remote_tile_is_read_in_place", in_place).only_rust(OURS).private(),
    Test::new("memory", "fault_migrates_pages_between_tiles", moved).only_rust(OURS).private(),
    Test::new("memory", "unconnected_tiles_copy_through_system_memory", through)
        .only_rust(OURS)
        .private(),
    Test::new("memory", "eviction_keeps_pages_of_the_other_tile", evicted)
        .only_rust(OURS)
        .private(),
    Test::new("memory", "unplug_of_one_tile_keeps_the_other", unplugged).only_rust(OURS).private(),
    Test::new("memory", "huge_pages_migrate_between_tiles_unsplit", huge_pages)
        .only_rust(OURS)
        .private(),
    Test::new("memory", "concurrent_faults_of_two_tiles_complete", fight).only_rust(OURS).private(),
    Test::new("memory", "thrashing_between_tiles_ends", thrashing).only_rust(OURS).private(),
    Test::new("memory", "unplug_of_a_tile_during_its_faults", unplug_during_faults)
        .only_rust(OURS)
        .private(),
    Test::new("memory", "coherent_tiles_are_used_in_place", coherent).only_rust(OURS).private(),
];

/// Parameters of the module for two tiles with memory for four blocks each.
fn two_tiles() -> String {
    format!("{} tiles=2", vram(4))
}

/// Maps a block with the pattern `seed` and migrates it to the second tile.
fn on_two(pair: &Pair, seed: u64) -> Result<Mapping, Stop> {
    let map = block(seed)?;
    check_eq!(
        to_device(&pair.two, &map)?.moved,
        BLOCK_PAGES,
        "pages that moved to the second tile"
    );
    Ok(map)
}

/// Returns the pages in use on both tiles.
fn used(Pair { one, two }: &Pair) -> Result<[u64; 2], Stop> {
    Ok([one.counters()?.device_pages_used, two.counters()?.device_pages_used])
}

fn closed(Pair { one, two }: Pair) -> Outcome {
    one.close().what("close the first")?;
    two.close().what("close the second")
}

fn in_place(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &two_tiles())?;
    let pair = pair(ctx, Connection::Unified)?;
    let connection = pair.one.connection(&pair.two).what("connection")?;
    check_eq!(connection, Connection::Unified, "of private memories of one owner");
    let map = on_two(&pair, 5)?;
    let one = Delta::start(ctx, &pair.one)?;
    let two = Delta::start(ctx, &pair.two)?;
    engine_reads(&pair.one, &map, 5)?;
    device_fills_pages(&pair.one, &map, 6, 0, map.pages(), "by the first tile")?;
    engine_reads(&pair.two, &map, 6)?;
    check_eq!(used(&pair)?, [0, BLOCK_PAGES], "pages of each tile");
    for (name, delta) in [("first", &one), ("second", &two)] {
        delta.exactly("cpu_faults", 0, name)?;
        delta.exactly("migrated_to_system", 0, name)?;
    }
    // CPU faults migrate it back from the second tile. Neither tile may read old contents
    // afterwards.
    cpu_sees(&map, 6, "of the second tile")?;
    check_eq!(used(&pair)?, [0, 0], "pages that are left");
    map.fill(7);
    engine_reads(&pair.one, &map, 7)?;
    engine_reads(&pair.two, &map, 7)?;
    drop(map);
    closed(pair)
}

fn moved(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &two_tiles())?;
    let pair = pair(ctx, Connection::Migratable)?;
    let map = on_two(&pair, 5)?;
    let one = Delta::start(ctx, &pair.one)?;
    let two = Delta::start(ctx, &pair.two)?;
    engine_reads(&pair.one, &map, 5)?;
    check_eq!(used(&pair)?, [BLOCK_PAGES, 0], "pages of each tile");
    for (name, delta) in [("first", &one), ("second", &two)] {
        delta.exactly("cpu_faults", 0, name)?;
        delta.exactly("migrated_to_system", 0, name)?;
    }
    engine_reads(&pair.two, &map, 5)?;
    check_eq!(used(&pair)?, [0, BLOCK_PAGES], "pages of each tile, back");
    cpu_sees(&map, 5, "at the end")?;
    drop(map);
    closed(pair)
}

fn through(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &two_tiles())?;
    let pair = pair(ctx, Connection::None)?;
    let map = on_two(&pair, 5)?;
    engine_reads(&pair.one, &map, 5)?;
    check_eq!(used(&pair)?, [0, 0], "pages of each tile");
    check!(pair.two.counters()?.cpu_faults > 0, "no page came back");
    cpu_sees(&map, 5, "at the end")?;
    drop(map);
    closed(pair)
}

fn evicted(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &two_tiles())?;
    let pair = pair(ctx, Connection::Unified)?;
    let mine = block(1)?;
    check_eq!(
        to_device(&pair.one, &mine)?.moved,
        BLOCK_PAGES,
        "pages that moved to the first tile"
    );
    // The memory of the second tile holds four blocks.
    let maps = (2..8).map(|seed| on_two(&pair, seed)).collect::<Result<Vec<_>, _>>()?;
    check_eq!(used(&pair)?, [BLOCK_PAGES, 4 * BLOCK_PAGES], "pages of each tile");
    check_eq!(pair.one.counters()?.evicted_pages, 0, "pages evicted from the first tile");
    for (seed, map) in (2..8).zip(&maps) {
        engine_reads(&pair.one, map, seed)?;
    }
    check_eq!(
        used(&pair)?,
        [BLOCK_PAGES, 4 * BLOCK_PAGES],
        "pages of each tile, as reading moves nothing"
    );
    cpu_sees(&mine, 1, "of the first tile")?;
    drop((mine, maps));
    closed(pair)
}

fn unplugged(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &two_tiles())?;
    let pair = pair(ctx, Connection::Unified)?;
    let mine = block(1)?;
    check_eq!(
        to_device(&pair.one, &mine)?.moved,
        BLOCK_PAGES,
        "pages that moved to the first tile"
    );
    let map = on_two(&pair, 5)?;
    engine_reads(&pair.one, &map, 5)?;
    pair.two.unplug(0, 0).what("unplug the second tile")?;
    check_eq!(used(&pair)?, [BLOCK_PAGES, 0], "pages of each tile");
    // The first tile still works, and reads the pages that were saved.
    engine_reads(&pair.one, &map, 5)?;
    engine_reads(&pair.one, &mine, 1)?;
    check_eq!(to_device(&pair.one, &map)?.moved, BLOCK_PAGES, "pages that moved to the first tile");
    cpu_sees(&map, 5, "after all")?;
    cpu_sees(&mine, 1, "after all")?;
    drop((mine, map));
    closed(pair)
}

fn huge_pages(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &two_tiles())?;
    for connection in [Connection::Unified, Connection::Migratable] {
        let pair = pair(ctx, connection)?;
        let map = huge(1, 5)?;
        let pages = HUGE_PAGES as u64;
        check_eq!(to_device(&pair.two, &map)?.moved, pages, "pages that moved to the second tile");
        let delta = Delta::start(ctx, &pair.two)?;
        engine_reads(&pair.one, &map, 5)?;
        let expected = match connection {
            Connection::Unified => [0, pages],
            _ => [pages, 0],
        };
        check_eq!(used(&pair)?, expected, "pages of each tile, {connection:?}");
        delta.exactly("cpu_faults", 0, "second")?;
        cpu_sees(&map, 5, "at the end")?;
        // The huge page was never split, so it has migrated back as a whole.
        let kib = smaps::field(map.addr(), map.len(), "AnonHugePages").what("smaps")?;
        check_eq!(kib, HUGE_KIB, "KiB in huge pages at the end, {connection:?}");
        drop(map);
        closed(pair)?;
    }
    Ok(())
}

/// Repeats an engine command that reads all of `map` until `stop`. Each must find the pattern
/// `seed`. Returns the number of rounds.
fn keep_reading(
    device: &Device,
    map: &Mapping,
    seed: u64,
    stop: &AtomicBool,
) -> Result<(u64, Option<Errno>), Errno> {
    let sum = checksum_of_pattern(seed, map.pages());
    let mut rounds = 0;
    while !stop.load(Relaxed) {
        let read = Command::new(EngineOp::Checksum, map.addr(), map.len()).verify(sum);
        if let Some(error) = device.run(read)?.error {
            return Ok((rounds, Some(error)));
        }
        rounds += 1;
    }
    Ok((rounds, None))
}

fn fight(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &two_tiles())?;
    let pair = pair(ctx, Connection::Migratable)?;
    let map = on_two(&pair, 5)?;
    let stop = AtomicBool::new(false);
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| keep_reading(&pair.one, &map, 5, &stop));
        let second = scope.spawn(|| keep_reading(&pair.two, &map, 5, &stop));
        thread::sleep(Duration::from_secs(3));
        stop.store(true, Relaxed);
        (first.join(), second.join())
    });
    for (name, ended) in [("first", first), ("second", second)] {
        let Ok(Ok((rounds, error))) = ended else {
            return Err(Stop::Fail(format!("{name}: {ended:?}")));
        };
        check_eq!(error, None, "error of the {name} tile");
        check!(rounds > 0, "the {name} tile has not read the block once");
    }
    cpu_sees(&map, 5, "at the end")?;
    drop(map);
    closed(pair)
}

fn thrashing(ctx: &Ctx) -> Outcome {
    let thrash = "thrash_count=3 thrash_lapse_ms=60000 thrash_pin_ms=60000 thrash_delay_ms=1";
    let _restore = with(ctx, &format!("{} {thrash}", two_tiles()))?;
    let pair = pair(ctx, Connection::Migratable)?;
    let devices = [&pair.one, &pair.two];
    for device in devices {
        device.set_policy(Policy::Default)?;
    }
    let map = Mapping::anon(1)?;
    map.fill(1);
    let deltas = [Delta::start(ctx, &pair.one)?, Delta::start(ctx, &pair.two)?];
    for round in 0..12 {
        let turn = round as usize % 2;
        device_fills(devices[turn], &map, round, "by turns")?;
        // The page moves three times to each tile, in turns.
        let mut expected = [0, 0];
        if round < 6 {
            expected[turn] = 1;
        }
        check_eq!(used(&pair)?, expected, "pages of each tile, round {round}");
    }
    for (device, delta) in devices.iter().zip(&deltas) {
        delta.exactly("migrated_to_device", 3, "moves to a tile")?;
        check_eq!(device.placement()?.moved, 3, "moves by faults");
    }
    cpu_sees(&map, 11, "at the end")?;
    drop(map);
    closed(pair)
}

fn unplug_during_faults(ctx: &Ctx) -> Outcome {
    for connection in [Connection::Unified, Connection::Migratable] {
        let _restore = with(ctx, &two_tiles())?;
        let pair = pair(ctx, connection)?;
        let map = on_two(&pair, 5)?;
        let stop = AtomicBool::new(false);
        let (saved, read) = thread::scope(|scope| {
            let reader = scope.spawn(|| keep_reading(&pair.one, &map, 5, &stop));
            thread::sleep(Duration::from_millis(200));
            let saved = pair.two.unplug(0, 0);
            thread::sleep(Duration::from_millis(200));
            stop.store(true, Relaxed);
            (saved, reader.join())
        });
        saved.what("unplug the second tile")?;
        let Ok(Ok((rounds, error))) = read else {
            return Err(Stop::Fail(format!("the reader: {read:?}")));
        };
        check_eq!(error, None, "error of a reader on the first tile, {connection:?}");
        check!(rounds > 0, "nothing was read");
        engine_reads(&pair.one, &map, 5)?;
        check_eq!(used(&pair)?[1], 0, "pages left on the second tile");
        cpu_sees(&map, 5, "after all")?;
        drop(map);
        closed(pair)?;
    }
    Ok(())
}

fn coherent(ctx: &Ctx) -> Outcome {
    let _restore = Restore(ctx);
    load(ctx, "")?;
    unload(ctx)?;
    load(ctx, &format!("{} tiles=2", as_booted(ctx)))?;
    for connection in [Connection::Unified, Connection::None] {
        let (Ok(one), Ok(two)) = (Device::open(2), Device::open(3)) else {
            return Err(Stop::Skip("there are no coherent devices".into()));
        };
        let pair = Pair { one, two };
        for device in [&pair.one, &pair.two] {
            device.set(Setting::Connection, connection as u64).what("set the connection")?;
        }
        let map = on_two(&pair, 5)?;
        engine_reads(&pair.one, &map, 5)?;
        device_fills_pages(&pair.one, &map, 6, 0, map.pages(), "by the first tile")?;
        engine_reads(&pair.two, &map, 6)?;
        cpu_sees(&map, 6, "where it is")?;
        check_eq!(used(&pair)?, [0, BLOCK_PAGES], "pages of each tile, {connection:?}");
        // A migration back removes the entries of both tiles.
        pair.two.migrate(map.addr(), map.pages(), Way::ToSystem).what("migrate back")?;
        check_eq!(used(&pair)?, [0, 0], "pages that are left");
        map.fill(7);
        engine_reads(&pair.one, &map, 7)?;
        engine_reads(&pair.two, &map, 7)?;
        drop(map);
        closed(pair)?;
    }
    Ok(())
}

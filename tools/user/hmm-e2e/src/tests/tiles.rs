// SPDX-License-Identifier: GPL-2.0
//! The two private devices as tiles of one device: its memories have the same owner.

use super::connect::{pair, Pair};
use super::memory::{block, engine_reads, to_device, with};
use crate::harness::{Ctx, Outcome, Stop, Test, What};
use crate::support::*;
use crate::{check, check_eq};
use hmm::{Connection, Mapping};

const OURS: &str = "test_hmm has one memory for a device";

/// In the group that unloads modules.
pub const TESTS: &[Test] = &[
    Test::new("memory", "the_other_tile_is_read_in_place", in_place).only_rust(OURS).private(),
    Test::new("memory", "a_fault_moves_pages_between_tiles", moved).only_rust(OURS).private(),
    Test::new("memory", "unconnected_tiles_go_through_memory", through).only_rust(OURS).private(),
    Test::new("memory", "eviction_leaves_the_other_tile_alone", evicted).only_rust(OURS).private(),
    Test::new("memory", "one_tile_is_unplugged", unplugged).only_rust(OURS).private(),
];

/// A block on the second tile, with the contents of `seed`.
fn on_two(pair: &Pair, seed: u64) -> Result<Mapping, Stop> {
    let map = block(seed)?;
    check_eq!(to_device(&pair.two, &map)?.moved, 512, "pages that moved to the second tile");
    Ok(map)
}

/// Pages in use of both tiles.
fn used(Pair { one, two }: &Pair) -> Result<[u64; 2], Stop> {
    Ok([one.counters()?.device_pages_used, two.counters()?.device_pages_used])
}

fn closed(Pair { one, two }: Pair) -> Outcome {
    one.close().what("close the first")?;
    two.close().what("close the second")
}

fn in_place(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, "vram_mib=8 tiles=2")?;
    let pair = pair(ctx, Connection::Unified)?;
    let connection = pair.one.connection(&pair.two).what("connection")?;
    check_eq!(connection, Connection::Unified, "of private memories of one owner");
    let map = on_two(&pair, 5)?;
    let (one, two) = (Delta::start(ctx, &pair.one)?, Delta::start(ctx, &pair.two)?);
    engine_reads(&pair.one, &map, 5)?;
    device_fills_pages(&pair.one, &map, 6, 0, map.pages(), "by the first tile")?;
    engine_reads(&pair.two, &map, 6)?;
    check_eq!(used(&pair)?, [0, 512], "pages of each tile");
    for (name, delta) in [("first", &one), ("second", &two)] {
        delta.exactly("cpu_faults", 0, name)?;
        delta.exactly("migrated_to_system", 0, name)?;
    }
    // CPU faults bring it back from the tile that has it; neither tile reads what was before.
    cpu_sees(&map, 6, "of the second tile")?;
    check_eq!(used(&pair)?, [0, 0], "pages that are left");
    map.fill(7);
    engine_reads(&pair.one, &map, 7)?;
    engine_reads(&pair.two, &map, 7)?;
    drop(map);
    closed(pair)
}

fn moved(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, "vram_mib=8 tiles=2")?;
    let pair = pair(ctx, Connection::Migratable)?;
    let map = on_two(&pair, 5)?;
    let (one, two) = (Delta::start(ctx, &pair.one)?, Delta::start(ctx, &pair.two)?);
    engine_reads(&pair.one, &map, 5)?;
    check_eq!(used(&pair)?, [512, 0], "pages of each tile");
    for (name, delta) in [("first", &one), ("second", &two)] {
        delta.exactly("cpu_faults", 0, name)?;
        delta.exactly("migrated_to_system", 0, name)?;
    }
    engine_reads(&pair.two, &map, 5)?;
    check_eq!(used(&pair)?, [0, 512], "pages of each tile, back");
    cpu_sees(&map, 5, "at the end")?;
    drop(map);
    closed(pair)
}

fn through(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, "vram_mib=8 tiles=2")?;
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
    let _restore = with(ctx, "vram_mib=8 tiles=2")?;
    let pair = pair(ctx, Connection::Unified)?;
    let mine = block(1)?;
    check_eq!(to_device(&pair.one, &mine)?.moved, 512, "pages that moved to the first tile");
    // The second tile has room for four blocks.
    let maps = (2..8).map(|seed| on_two(&pair, seed)).collect::<Result<Vec<_>, _>>()?;
    check_eq!(used(&pair)?, [512, 2048], "pages of each tile");
    check_eq!(pair.one.counters()?.evicted_pages, 0, "pages evicted from the first tile");
    for (seed, map) in (2..8).zip(&maps) {
        engine_reads(&pair.one, map, seed)?;
    }
    check_eq!(used(&pair)?, [512, 2048], "pages of each tile, as reading moves nothing");
    cpu_sees(&mine, 1, "of the first tile")?;
    drop((mine, maps));
    closed(pair)
}

fn unplugged(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, "vram_mib=8 tiles=2")?;
    let pair = pair(ctx, Connection::Unified)?;
    let mine = block(1)?;
    check_eq!(to_device(&pair.one, &mine)?.moved, 512, "pages that moved to the first tile");
    let map = on_two(&pair, 5)?;
    engine_reads(&pair.one, &map, 5)?;
    pair.two.unplug(0, 0).what("unplug the second tile")?;
    check_eq!(used(&pair)?, [512, 0], "pages of each tile");
    // The first tile works as before, and reads what was saved.
    engine_reads(&pair.one, &map, 5)?;
    engine_reads(&pair.one, &mine, 1)?;
    check_eq!(to_device(&pair.one, &map)?.moved, 512, "pages that moved to the first tile");
    cpu_sees(&map, 5, "after all")?;
    cpu_sees(&mine, 1, "after all")?;
    drop((mine, map));
    closed(pair)
}

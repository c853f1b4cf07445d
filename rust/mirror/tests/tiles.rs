// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: several memories of one device (tiles).

use super::*;
use crate::{
    migrate::PageOutcome,
    mm::device_pages::{
        DeviceRange,
        CHUNK_PAGES, //
    }, //
};

/// A device with two tiles, the first of which is its own memory.
struct Tiled([Arc<Shared>; 2]);

impl Device for Tiled {
    type Memory = TestMemory;
    type Format = Radix4;
    type Walker = ();
    type Flush = ();

    fn memory(&self) -> Option<&Memory<TestMemory>> {
        Some(&self.0[0].memory)
    }

    fn tile(&self, index: usize) -> Option<&Memory<TestMemory>> {
        Some(&self.0.get(index)?.memory)
    }

    fn flush_start(&self, _range: PageRange) {
        self.0[0].flushes.fetch_add(1, Relaxed);
    }

    fn flush_wait(&self, (): ()) {}
}

/// Creates two tiles of one owner.
fn tiles(connection: Connection) -> Result<[Arc<Shared>; 2]> {
    let owner = Owner::new()?;
    let tiles = [shared_of(&owner)?, shared_of(&owner)?];
    for tile in &tiles {
        let memory = tile.memory.driver();
        memory.connection.store(connection as usize, Relaxed);
    }
    Ok(tiles)
}

/// Creates a mirror with tile `own` as its own memory.
fn mirror_on(tiles: &[Arc<Shared>; 2], own: usize) -> Result<Mirror<Tiled>> {
    let current = current!();
    let mm = current.mm().ok_or(EINVAL)?;
    let device = Tiled([tiles[own].clone(), tiles[1 - own].clone()]);
    crate::new_mirror!(mm, device)
}

/// Returns memory with contents, migrated to tile 1 by the mirror whose own memory that is, and
/// both mirrors.
fn on_the_other(
    pages: usize,
    connection: Connection,
) -> Result<(PageRange, [Arc<Shared>; 2], [Mirror<Tiled>; 2])> {
    let range = map(pages)?;
    for index in 0..pages {
        store(range.address(index), 100 + index as u64)?;
    }
    let tiles = tiles(connection)?;
    let mirrors = [mirror_on(&tiles, 0)?, mirror_on(&tiles, 1)?];
    assert_eq!(mirrors[1].migrate(range).to_device()?.moved, pages);
    assert_eq!(used(&tiles), [0, pages]);
    Ok((range, tiles, mirrors))
}

/// Returns the number of pages in use of each tile.
fn used(tiles: &[Arc<Shared>; 2]) -> [usize; 2] {
    [tiles[0].memory.usage().0, tiles[1].memory.usage().0]
}

/// Like [`device_load`], but reads from the tile that has the page.
fn tiled_load(mirror: &Mirror<Tiled>, addr: usize) -> Result<Option<u64>> {
    let mut bytes = [0; 8];
    let table = mirror.lock_table()?;
    match table.readable(addr) {
        None => return Ok(None),
        Some(PageMemory::Cpu(page)) => page.read(0, &mut bytes)?,
        Some(PageMemory::Device(range)) => {
            let mut tiles = mirror.device().0.iter();
            let found = tiles.find_map(|tile| Some((tile, tile.memory.locate(range)?)));
            let (tile, local) = found.ok_or(EIO)?;
            let (block, offset) = tile.memory.driver().block(local.first)?;
            block.read(offset, &mut bytes)?;
        }
    }
    Ok(Some(u64::from_ne_bytes(bytes)))
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_tiles)]
mod suite {
    use super::*;

    #[test]
    fn entry_numbers_identify_the_tile() -> Result {
        let tiles = tiles(Connection::None)?;
        let page = |first| DeviceRange { first, count: 1 };
        assert_eq!(tiles[0].memory.locate(page(3)), Some(page(3)));
        assert_eq!(tiles[1].memory.locate(page(3)), None);
        assert_eq!(tiles[1].memory.locate(page(CHUNK_PAGES + 3)), Some(page(3)));
        assert_eq!(tiles[0].memory.locate(page(CHUNK_PAGES + 3)), None);
        // Numbers beyond the limit of a tile, and beyond all tiles.
        for first in [PMD_PAGES * 4, CHUNK_PAGES * 2, usize::MAX] {
            assert!(tiles
                .iter()
                .all(|tile| tile.memory.locate(page(first)).is_none()));
        }
        assert_eq!(tiles[0].memory.owner(), tiles[1].memory.owner());
        assert_ne!(tiles[0].memory.tile(), tiles[1].memory.tile());
        Ok(())
    }

    #[test]
    fn pages_of_a_reachable_tile_are_mapped_in_place() -> Result {
        let (range, tiles, mirrors) = on_the_other(6, Connection::Unified)?;
        mirrors[0].fault(range, Access::Write)?;
        assert_eq!(used(&tiles), [0, 6]);
        for index in 0..6 {
            for mirror in &mirrors {
                let loaded = tiled_load(mirror, range.address(index))?;
                assert_eq!(loaded, Some(100 + index as u64));
            }
        }
        for tile in &tiles {
            assert_eq!(tile.memory.stats().get(Counter::CpuFaults), 0);
        }
        // A CPU fault migrates a page back from its tile, and both mirrors follow.
        assert_eq!(load(range.address(2))?, 102);
        assert!(tiles[1].memory.stats().get(Counter::CpuFaults) > 0);
        assert_eq!(tiles[0].memory.stats().get(Counter::CpuFaults), 0);
        store(range.address(2), 7)?;
        for mirror in &mirrors {
            mirror.fault(range, Access::Read)?;
            assert_eq!(tiled_load(mirror, range.address(2))?, Some(7));
        }
        Ok(())
    }

    #[test]
    fn pages_of_a_connected_tile_are_copied_directly() -> Result {
        let (range, tiles, mirrors) = on_the_other(6, Connection::Migratable)?;
        mirrors[0].fault(range, Access::Read)?;
        assert_eq!(used(&tiles), [6, 0]);
        for index in 0..6 {
            let loaded = tiled_load(&mirrors[0], range.address(index))?;
            assert_eq!(loaded, Some(100 + index as u64));
            // No entry refers to the previous location of the pages.
            assert_eq!(tiled_load(&mirrors[1], range.address(index))?, None);
        }
        for tile in &tiles {
            assert_eq!(tile.memory.stats().get(Counter::CpuFaults), 0);
        }
        Ok(())
    }

    #[test]
    fn pages_of_an_unconnected_tile_migrate_to_system_memory() -> Result {
        let (range, tiles, mirrors) = on_the_other(6, Connection::None)?;
        mirrors[0].fault(range, Access::Read)?;
        assert_eq!(used(&tiles), [0, 0]);
        assert!(tiles[1].memory.stats().get(Counter::CpuFaults) > 0);
        assert_eq!(tiled_load(&mirrors[0], range.address(5))?, Some(105));
        Ok(())
    }

    #[test]
    fn pages_that_cannot_be_pulled_migrate_to_system_memory() -> Result {
        let (range, tiles, mirrors) = on_the_other(1, Connection::Migratable)?;
        let all = DeviceRange {
            first: 0,
            count: tiles[0].memory.limit(),
        };
        assert_eq!(tiles[0].memory.offline_pages(all)?, 0);
        mirrors[0].fault(range, Access::Read)?;
        assert_eq!(used(&tiles), [0, 0]);
        assert_eq!(tiled_load(&mirrors[0], range.start())?, Some(100));
        Ok(())
    }

    #[test]
    fn frames_of_an_unlisted_tile_are_never_mapped() -> Result {
        let (range, tiles, _mirrors) = on_the_other(2, Connection::Unified)?;
        // The device has tile 0 as its own memory, and no other tile.
        let alone = mirror(&tiles[0])?;
        alone.fault(range, Access::Read)?;
        assert_eq!(used(&tiles), [0, 0]);
        assert_eq!(device_load(&alone, range.start())?, Some(100));
        Ok(())
    }

    #[test]
    fn request_gathers_pages_of_connected_tiles() -> Result {
        for (connection, expected) in [
            (Connection::Unified, [6, 0]),
            (Connection::Migratable, [6, 0]),
            (Connection::None, [0, 6]),
        ] {
            let (range, tiles, mirrors) = on_the_other(6, connection)?;
            let mut pages = [PageOutcome::Lost; 6];
            let outcome = mirrors[0].migrate(range).outcomes(&mut pages).to_device()?;
            assert_eq!((used(&tiles), outcome.moved), (expected, expected[0]));
            assert_eq!((outcome.moved + outcome.skipped, outcome.no_memory), (6, 0));
            let page = match connection {
                Connection::None => PageOutcome::Skipped,
                _ => PageOutcome::None,
            };
            assert!(pages.iter().all(|each| *each == page));
            for tile in &tiles {
                assert_eq!(tile.memory.stats().get(Counter::CpuFaults), 0);
            }
            assert_eq!(load(range.address(3))?, 103);
        }
        Ok(())
    }

    #[test]
    fn block_on_both_tiles_migrates_to_one() -> Result {
        let (range, tiles, mirrors) = on_the_other(6, Connection::Migratable)?;
        let middle = PageRange::from_pages(range.address(2), 2)?;
        mirrors[0].fault(middle, Access::Read)?;
        assert_eq!(used(&tiles), [2, 4]);
        // A migration to system memory takes pages of the mirror's own memory only.
        assert_eq!(mirrors[0].migrate(range).to_system()?.moved, 2);
        assert_eq!(used(&tiles), [0, 4]);
        // A CPU fault takes only pages of the same tile.
        assert_eq!(load(range.address(0))?, 100);
        mirrors[0].fault(range, Access::Read)?;
        for index in 0..6 {
            let loaded = tiled_load(&mirrors[0], range.address(index))?;
            assert_eq!(loaded, Some(100 + index as u64));
        }
        assert_eq!(used(&tiles)[1], 0);
        Ok(())
    }

    #[test]
    fn eviction_of_a_tile_keeps_the_other() -> Result {
        let (range, tiles, mirrors) = on_the_other(4, Connection::Unified)?;
        let own = map(4)?;
        store(own.start(), 7)?;
        assert_eq!(mirrors[0].migrate(own).to_device()?.moved, 4);
        mirrors[0].fault(range, Access::Read)?;
        assert_eq!(tiles[1].memory.evict_all()?, 0);
        assert_eq!(used(&tiles), [4, 0]);
        assert_eq!(tiled_load(&mirrors[0], own.start())?, Some(7));
        mirrors[0].fault(range, Access::Read)?;
        assert_eq!(tiled_load(&mirrors[0], range.address(3))?, Some(103));
        Ok(())
    }

    #[test]
    fn unplug_of_a_tile_removes_the_entries_of_all_mirrors() -> Result {
        let (range, tiles, mirrors) = on_the_other(4, Connection::Unified)?;
        let own = map(1)?;
        store(own.start(), 7)?;
        assert_eq!(mirrors[0].migrate(own).to_device()?.moved, 1);
        mirrors[0].fault(range, Access::Read)?;
        // The copy of one page fails, so that it stays in device memory.
        tiles[1]
            .memory
            .driver()
            .fail_copies
            .store(usize::MAX, Relaxed);
        assert_eq!(tiles[1].memory.unplug()?, (0, 4));
        for index in 0..4 {
            assert_eq!(tiled_load(&mirrors[0], range.address(index))?, None);
        }
        // All entries were removed before a page was evicted.
        assert_eq!(tiled_load(&mirrors[0], own.start())?, None);
        // The lost page is not mapped again. The other tile is still usable.
        assert_eq!(mirrors[0].fault(range, Access::Read), Err(EFAULT));
        assert_eq!(tiled_load(&mirrors[0], range.start())?, None);
        assert_eq!(mirrors[1].fault(own, Access::Read), Err(ENODEV));
        mirrors[0].fault(own, Access::Read)?;
        assert_eq!(tiled_load(&mirrors[0], own.start())?, Some(7));
        assert_eq!(used(&tiles), [1, 4]);
        tiles[1].memory.driver().fail_copies.store(0, Relaxed);
        unmap(range)
    }
}

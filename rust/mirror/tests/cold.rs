// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: reclaim of page-table pages.

use super::*;
use crate::{
    attributes::AttributeUpdate,
    kernel::shrinker::Shrink, //
};

/// Number of blocks, each with a page-table page of its own. Some chunks have no other table pages.
const BLOCKS: usize = 96;

/// Size of a block in bytes: the range of a table of level 0 of [`Radix4`].
const BLOCK_SIZE: usize = 2 << 20;

/// Returns the first page of each block, with contents and an entry, a device, and its mirror.
fn sparse() -> Result<(KVec<PageRange>, Arc<Shared>, Arc<Mirror<TestDevice>>)> {
    let (all, shared, mirror) = attached((BLOCKS + 1) * BLOCK_SIZE / PAGE_SIZE)?;
    let start = all.start().next_multiple_of(BLOCK_SIZE);
    let mut pages = KVec::new();
    for block in 0..BLOCKS {
        let page = PageRange::from_pages(start + block * BLOCK_SIZE, 1)?;
        store(page.start(), value(block))?;
        mirror.fault(page, Access::Write)?;
        pages.push(page, GFP_KERNEL)?;
    }
    Ok((pages, shared, Arc::new(mirror, GFP_KERNEL)?))
}

/// Returns the first word of a block.
fn value(block: usize) -> u64 {
    1000 + block as u64
}

/// Scans each chunk `times` times.
fn reclaim(mirror: &Mirror<TestDevice>, times: usize) {
    for _ in 0..times {
        mirror.inner().scan(usize::MAX);
    }
}

fn live(mirror: &Mirror<TestDevice>) -> usize {
    mirror.inner().lock().table.live()
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_cold)]
mod suite {
    use super::*;

    #[test]
    fn cold_tables_are_freed_and_rebuilt() -> Result {
        let (pages, shared, mirror) = sparse()?;
        let mut frames = KVec::new();
        for page in &pages {
            let frame = mirror.inner().lock().table.get(page.start()).number();
            assert!(!is_dirty(frame));
            frames.push(frame, GFP_KERNEL)?;
        }
        // The first scan frees unused table pages. Used ones have a second chance.
        reclaim(&mirror, 1);
        assert_eq!(live(&mirror), BLOCKS);
        let tables = mirror.inner().count();
        let flushes = shared.flushes.load(Relaxed);
        reclaim(&mirror, 1);
        let left = live(&mirror);
        assert!(left <= BLOCKS - 32);
        assert_eq!(shared.flushes.load(Relaxed), flushes + 1);
        // Whole chunks are freed, with the table pages of the entries that were removed.
        assert!(mirror.inner().count() + BLOCKS - left <= tables);
        let mut gone = 0;
        for (block, (page, frame)) in pages.iter().zip(&frames).enumerate() {
            match device_load(&mirror, page.start())? {
                // A page that the device may have written must be dirty.
                None => assert!(is_dirty(*frame)),
                Some(seen) => assert_eq!(seen, value(block)),
            }
            gone += usize::from(is_dirty(*frame));
        }
        assert_eq!(gone, BLOCKS - left);
        for (block, page) in pages.iter().enumerate() {
            mirror.fault(*page, Access::Read)?;
            assert_eq!(device_load(&mirror, page.start())?, Some(value(block)));
        }
        assert_eq!(live(&mirror), BLOCKS);
        Ok(())
    }

    #[test]
    fn recently_written_tables_are_kept() -> Result {
        let (pages, _shared, mirror) = sparse()?;
        reclaim(&mirror, 1);
        for page in pages.iter().skip(BLOCKS - 8) {
            let next = PageRange::from_pages(page.end(), 1)?;
            mirror.fault(next, Access::Write)?;
        }
        let before = live(&mirror);
        reclaim(&mirror, 1);
        assert!(live(&mirror) < before);
        for page in pages.iter().skip(BLOCKS - 8) {
            assert!(device_load(&mirror, page.start())?.is_some());
            assert_eq!(device_load(&mirror, page.end())?, Some(0));
        }
        Ok(())
    }

    #[test]
    fn tables_with_exclusive_entries_are_kept() -> Result {
        let (pages, _shared, mirror) = sparse()?;
        for (block, page) in pages.iter().enumerate().skip(BLOCKS / 2) {
            if block % 8 == 0 {
                mirror.make_exclusive(*page)?;
            }
        }
        reclaim(&mirror, 3);
        assert!(live(&mirror) < BLOCKS);
        for (block, page) in pages.iter().enumerate().skip(BLOCKS / 2) {
            if block % 8 == 0 {
                assert!(mirror.lock_table()?.any_exclusive(*page));
                assert_eq!(device_load(&mirror, page.start())?, Some(value(block)));
            }
        }
        Ok(())
    }

    #[test]
    fn tables_of_an_in_flight_migration_are_kept() -> Result {
        // The chunks that reclaim takes do not depend on the mirror.
        let (pages, _shared, mirror) = sparse()?;
        reclaim(&mirror, 3);
        let mut gone = KVec::new();
        for (block, page) in pages.iter().enumerate() {
            if device_load(&mirror, page.start())?.is_none() {
                gone.push(block, GFP_KERNEL)?;
            }
        }
        assert!(gone.len() >= 32);
        for block in [gone.first(), gone.get(gone.len() / 2), gone.last()] {
            let block = *block.ok_or(EINVAL)?;
            let (pages, shared, mirror) = sparse()?;
            let page = *pages.get(block).ok_or(EINVAL)?;
            let left = Arc::new(Atomic::new(0), GFP_KERNEL)?;
            let during = mirror.clone();
            let seen = left.clone();
            let addr = page.start();
            let memory = shared.memory.driver();
            *memory.at_copy.lock() = Some(Arc::new(
                move || {
                    reclaim(&during, 3);
                    let state = during.inner().lock();
                    // The device can read the old page while it is copied.
                    let is_there = state.table.get(addr).is_valid();
                    seen.store(usize::from(is_there) * state.table.live(), Relaxed);
                },
                GFP_KERNEL,
            )?);
            let outcome = mirror.migrate(page).to_device();
            *memory.at_copy.lock() = None;
            let outcome = outcome?;
            assert_eq!((outcome.moved, outcome.switched), (1, 1));
            // The table pages of its chunk stay. Those of other chunks are freed.
            assert!((1..BLOCKS).contains(&left.load(Relaxed)));
            assert_eq!(device_load(&mirror, page.start())?, Some(value(block)));
        }
        Ok(())
    }

    #[test]
    fn tables_of_accessed_by_memory_are_kept() -> Result {
        let (pages, _shared, mirror) = sparse()?;
        let change = AttributeUpdate {
            accessed_by: Some(true),
            ..AttributeUpdate::default()
        };
        mirror.set_attributes(*pages.first().ok_or(EINVAL)?, &change)?;
        reclaim(&mirror, 3);
        assert_eq!(live(&mirror), BLOCKS);
        Ok(())
    }

    #[test]
    fn reclaim_does_not_wait_for_the_table_lock() -> Result {
        let (_pages, _shared, mirror) = sparse()?;
        let table = mirror.inner().lock();
        reclaim(&mirror, 3);
        assert_eq!(table.table.live(), BLOCKS);
        drop(table);
        reclaim(&mirror, 2);
        assert!(live(&mirror) < BLOCKS);
        Ok(())
    }
}

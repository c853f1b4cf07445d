// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: memory of the radix table: when its pages are reused, cold, and freed.

use super::*;

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_pgtable_memory)]
mod suite {
    use super::*;
    use kernel::sync::atomic::ordering::Relaxed;

    #[test]
    fn full_pool_does_not_grow() -> Result {
        const FULL: usize = usize::MAX / 2;
        let table = Table::<Radix4>::new()?;
        let pool = &table.pool;
        pool.make_root()?;
        pool.grow(true)?;
        let pages = pool.pages.load(Relaxed);
        let count = pool.count.xchg(FULL, Relaxed);
        let top = pool.top.xchg(FULL, Relaxed);
        let grown = [pool.grow(true), pool.grow(false)];
        pool.count.store(count, Relaxed);
        pool.top.store(top, Relaxed);
        assert_eq!(grown, [Err(ENOMEM); 2]);
        assert_eq!(pool.pages.load(Relaxed), pages);
        pool.grow(true)
    }

    #[test]
    fn tables_are_not_reused_before_the_flush() -> Result {
        let mut table = Table::<Radix4>::new()?;
        let range = PageRange::from_pages(0x10_0000, 4)?;
        fill(&mut table, range, 8, false)?;
        let before = table.pool.free_pages();
        let mut batch = table.batch();
        table.for_each(range, &mut batch, |_, entry| *entry = DevicePte::NONE);
        // Three tables are detached, but not yet free.
        assert_eq!(batch.detached.len(), 3);
        assert_eq!(table.pool.free_pages(), before);
        let flusher = TestFlusher::default();
        let flushing = batch.start(&flusher);
        assert_eq!((table.pool.free_pages(), flusher.waited.get()), (before, 0));
        let _proof = flushing.wait(&flusher);
        assert_eq!(
            (table.pool.free_pages(), flusher.waited.get()),
            (before + 3, 1)
        );

        // A merge detaches a table, too. A concurrent walk in that table still finds its entries.
        let whole = PageRange::from_pages(LEAF_SIZE, LEAF_PAGES)?;
        let half = PageRange::from_pages(LEAF_SIZE, LEAF_PAGES / 2)?;
        fill(&mut table, half, LEAF_PAGES, true)?;
        assert!(fill(&mut table, whole, LEAF_PAGES, true)?.is_some());
        assert_eq!(table.live(), LEAF_PAGES);
        Ok(())
    }

    #[test]
    fn lookups_do_not_use_a_table_that_was_removed() -> Result {
        let mut table = Table::<Radix4>::new()?;
        let whole = PageRange::from_pages(LEAF_SIZE, LEAF_PAGES)?;
        fill(&mut table, whole, LEAF_PAGES, true)?;
        let page = PageRange::from_pages(0, 1)?;
        fill(&mut table, page, 8, true)?;
        assert_eq!(table.get_near(0).number(), 8);
        let (_, removed) = table.pool.walk(table.root, 0);
        clear(&mut table, page);
        // The split of the huge leaf uses the table that was freed last.
        clear(&mut table, PageRange::from_pages(LEAF_SIZE + PAGE_SIZE, 1)?);
        let (_, split) = table.pool.walk(table.root, LEAF_SIZE);
        assert_eq!(split, removed);
        assert!(!table.get_near(0).is_valid());
        assert_eq!(table.get_near(LEAF_SIZE).number(), LEAF_PAGES);
        Ok(())
    }

    #[test]
    fn empty_table_has_at_most_one_page() -> Result {
        let mut table = Table::<Radix4>::new()?;
        let range = PageRange::from_pages(0, 3)?;
        // Unused: the table has no page, and lookups find nothing.
        assert_eq!((table.pool.pages(), table.pool.count()), (0, 0));
        assert!(table.leaf(range.start()).is_none() && !table.any(range, |_| true));
        assert_eq!(table.present(range), 0);
        clear(&mut table, range);
        assert_eq!((table.pool.pages(), table.pool.scan(usize::MAX)), (0, 0));
        // The root is allocated once, and the shrinker does not free it.
        table.pool.make_root()?;
        table.pool.make_root()?;
        assert_eq!((table.pool.pages(), table.pool.count()), (1, 0));
        assert_eq!(table.pool.scan(usize::MAX), 0);
        fill(&mut table, range, 8, false)?;
        clear(&mut table, range);
        while table.pool.count() != 0 {
            assert_ne!(table.pool.scan(usize::MAX), 0);
        }
        assert_eq!(table.pool.pages(), 1);
        fill(&mut table, range, 8, false)?;
        assert_eq!(table.get(range.address(2)).number(), 10);
        Ok(())
    }

    #[test]
    fn chunks_unwritten_for_two_passes_are_cold() -> Result {
        let mut table = Table::<Radix4>::new()?;
        let at = |index: usize| PageRange::from_pages(index * LEAF_SIZE, 3);
        // Examines all chunks except the first one.
        let pass = |table: &mut Table<Radix4>, stays: bool| {
            let mut spans = KVec::new();
            for _ in 0..table.chunks() {
                let cold = table.next_cold(|_| stays);
                for span in cold.iter().flat_map(|cold| cold.ranges()) {
                    spans.push(span, GFP_KERNEL)?;
                }
            }
            Ok::<_, Error>(spans)
        };
        for index in 0..200 {
            fill(&mut table, at(index)?, 16 + index, false)?;
        }
        // All tables were just written.
        assert!(pass(&mut table, false)?.is_empty());
        // Write one page of one chunk again.
        fill(&mut table, at(150)?, 1000, true)?;
        let cold = pass(&mut table, false)?;
        assert!(cold.len() >= 3 * 32 && cold.len() < 200);
        assert!(!cold
            .iter()
            .any(|span| at(150).is_ok_and(|at| span.contains(at.start()))));
        // The search does not change entries.
        assert!(pass(&mut table, true)?.is_empty());
        assert_eq!(table.live(), 600);
        for span in &cold {
            assert_eq!(span.pages(), LEAF_PAGES);
            assert_eq!(clear(&mut table, *span).0, 3);
        }
        // All of them are in chunks that can be freed.
        let before = table.pool.pages();
        while table.pool.count() != 0 {
            assert_ne!(table.pool.scan(usize::MAX), 0);
        }
        assert!(table.pool.pages() <= before - cold.len());
        assert_eq!(table.get(at(150)?.address(2)).number(), 1002);
        assert_eq!(table.live(), 600 - 3 * cold.len());
        // Removed entries can be installed again, and their tables are warm.
        for span in &cold {
            fill(
                &mut table,
                PageRange::from_pages(span.start(), 3)?,
                5000,
                true,
            )?;
            assert_eq!(table.get(span.start()).number(), 5000);
        }
        assert_eq!(table.live(), 600);
        assert!(pass(&mut table, false)?
            .iter()
            .all(|now| !cold.contains(now)));
        Ok(())
    }

    /// As many tables above level 0 as there are chunks of 32 pages, and more.
    #[test]
    fn chunks_of_tables_far_apart_are_cold() -> Result {
        const TABLES: usize = 400;
        let mut table = Table::<Radix4>::new()?;
        // 16 tables of level 0 for each table above.
        let distance = 32 * LEAF_SIZE;
        for index in 0..TABLES {
            let page = PageRange::from_pages(index * distance, 1)?;
            fill(&mut table, page, 16 + index, false)?;
        }
        let before = table.pool.pages();
        let mut cold = 0;
        for _ in 0..2 * table.chunks() {
            let Some(chunk) = table.next_cold(|_| false) else {
                continue;
            };
            for span in chunk.ranges() {
                cold += clear(&mut table, span).0;
            }
        }
        // All but those in the first chunks, which are for tables of all levels, and in the last
        // one, from which the next update takes pages.
        assert!(cold >= TABLES - 64 && cold < TABLES);
        while table.pool.count() != 0 {
            assert_ne!(table.pool.scan(usize::MAX), 0);
        }
        assert!(table.pool.pages() + cold <= before);
        assert_eq!(table.live(), TABLES - cold);
        for index in 0..TABLES {
            let page = PageRange::from_pages(index * distance, 1)?;
            fill(&mut table, page, 16 + index, false)?;
        }
        assert_eq!(table.live(), TABLES);
        Ok(())
    }

    #[test]
    fn free_tables_are_reclaimed() -> Result {
        let mut table = Table::<Radix4>::new()?;
        let at = |index: usize| PageRange::from_pages(index * LEAF_SIZE, 3);
        let stays = at(1000)?;
        fill(&mut table, stays, 8, false)?;
        let few = table.pool.pages();
        for index in 0..300 {
            fill(&mut table, at(index)?, 16 + index, false)?;
        }
        let many = table.pool.pages();
        assert!(many > few + 256);
        // Tables are in use: only free pages are released.
        let free = table.pool.free_pages();
        assert!(table.pool.scan(usize::MAX) <= free);
        for index in 0..300 {
            let entry = table.get(at(index)?.start());
            assert_eq!((entry.is_valid(), entry.number()), (true, 16 + index));
            clear(&mut table, at(index)?);
        }
        let count = table.pool.count();
        let before = table.pool.pages();
        assert!(count > 256);
        let mut given = 0;
        while table.pool.count() != 0 {
            let now = table.pool.scan(128);
            assert!(now != 0);
            given += now;
        }
        assert_eq!(given, count);
        assert_eq!(table.pool.pages(), before - given);
        // Tables in use are unchanged. Freed ones are allocated again at the same places.
        assert_eq!(table.get(stays.address(2)).number(), 10);
        let top = table.pool.places();
        for index in 0..300 {
            fill(&mut table, at(index)?, 16 + index, false)?;
        }
        assert_eq!(table.get(at(299)?.start()).number(), 16 + 299);
        assert_eq!(table.get(stays.start()).number(), 8);
        assert_eq!((table.pool.places(), table.live()), (top, 903));
        Ok(())
    }
}

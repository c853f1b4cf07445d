// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of the radix table.

use super::*;

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_pgtable)]
mod tests {
    use super::*;
    use kernel::sync::atomic::ordering::Relaxed;

    #[test]
    fn scan_visits_each_page_once() -> Result {
        scan_sees_all::<Radix4>()?;
        scan_sees_all::<Radix5>()?;
        scan_sees_all::<Narrow>()
    }

    #[test]
    fn entries_keep_their_fields() {
        let entry = DevicePte::device(77, true);
        assert!(entry.is_valid() && entry.is_writable() && entry.is_device());
        assert_eq!(entry.number(), 77);
        assert!(!entry.write_protected().is_writable());
        assert_eq!(entry.write_protected().number(), 77);
        assert_eq!(entry.plus(3), DevicePte::device(80, true));
        assert_eq!(DevicePte::NONE.plus(3), DevicePte::NONE);
        assert!(DevicePte::exclusive(5).may_be_dirty() && !DevicePte::exclusive(5).is_writable());
        assert!(!DevicePte::NONE.is_valid());
        // A TLB may keep an entry with fewer access rights.
        let read = entry.write_protected();
        assert!(!read.is_outdated_by(entry) && entry.is_outdated_by(read));
        assert!(read.is_outdated_by(DevicePte::NONE) && !DevicePte::NONE.is_outdated_by(read));
        assert!(read.is_outdated_by(DevicePte::system(77, false)));
    }

    #[test]
    fn formats_agree_with_a_model() -> Result {
        for seed in [0x1234_5678_9abc_def1, 0xfeed_f00d_dead_beef, 0x2_0000_0001] {
            agrees_with_model::<Radix4>(seed)?;
            agrees_with_model::<Radix5>(seed)?;
            agrees_with_model::<Narrow>(seed)?;
        }
        Ok(())
    }

    #[test]
    fn installed_entries_are_found_and_removed() -> Result {
        let mut table = Table::<Radix4>::new()?;
        let at = 0x7f00_0000_0000;
        let range = PageRange::from_pages(at, PMD_PAGES - 1)?;
        assert_eq!(fill(&mut table, range, 1, true)?, None);
        assert_eq!(table.live(), range.pages());
        let one_more = PageRange::from_pages(at, PMD_PAGES)?;
        assert_eq!(table.present(one_more), range.pages());
        assert_eq!(table.get(at + PAGE_SIZE), DevicePte::system(2, true));
        // Clearing the whole address space visits only existing tables.
        let (pages, flushed) = clear(&mut table, all()?);
        assert_eq!((pages, table.live()), (range.pages(), 0));
        assert!(flushed.is_some_and(|flushed| flushed.intersect(&range) == Some(range)));
        assert!(!table.get(at).is_valid());
        assert_eq!(clear(&mut table, all()?), (0, None));
        Ok(())
    }

    /// A search of the whole address space, most of which has no table. Page by page it would not
    /// end.
    #[test]
    fn search_skips_absent_entries() -> Result {
        let mut table = Table::<Radix4>::new()?;
        assert!(!table.any(all()?, |_| true));
        let at = 0x7f00_0000_0000;
        fill(&mut table, PageRange::from_pages(at, 3)?, 1, true)?;
        fill(
            &mut table,
            PageRange::from_pages(PMD_SIZE, PMD_PAGES)?,
            PMD_PAGES,
            true,
        )?;
        let top = PageRange::from_pages((1 << 48) - PAGE_SIZE, 1)?;
        fill(&mut table, top, 9, false)?;
        let mut seen = 0;
        let everything = PageRange::new(0, usize::MAX & PAGE_MASK)?;
        assert!(!table.any(everything, |_| {
            seen += 1;
            false
        }));
        // A huge leaf is visited once.
        assert_eq!(seen, 3 + PMD_PAGES / LEAF_PAGES + 1);
        let is = |number| move |entry: DevicePte| entry.number() == number;
        assert!(table.any(everything, is(3)) && table.any(everything, is(9)));
        assert!(table.any(top, is(9)) && !table.any(top, is(3)));
        assert!(!table.any(PageRange::from_pages(at + 3 * PAGE_SIZE, 1)?, |_| true));
        // Search from the middle of a huge leaf.
        let middle = PageRange::from_pages(PMD_SIZE + PAGE_SIZE, 1)?;
        assert!(table.any(middle, is(PMD_PAGES + 1)) && !table.any(middle, is(PMD_PAGES)));
        clear(&mut table, all()?);
        assert!(!table.any(all()?, |_| true) && table.any(everything, is(9)));
        Ok(())
    }

    #[test]
    fn runs_merge_and_huge_leaves_split() -> Result {
        let mut table = Table::<Radix4>::new()?;
        let range = PageRange::from_pages(LEAF_SIZE, LEAF_PAGES)?;
        fill(&mut table, range, LEAF_PAGES, true)?;
        let leaf = table.leaf(LEAF_SIZE + 5 * PAGE_SIZE).ok_or(EINVAL)?;
        let entry = DevicePte::system(LEAF_PAGES + 5, true);
        assert_eq!((leaf.order, leaf.entry), (LEAF_ORDER, entry));
        // Removing one page leaves the others.
        let page = PageRange::from_pages(LEAF_SIZE + 5 * PAGE_SIZE, 1)?;
        assert_eq!(clear(&mut table, page), (1, Some(page)));
        assert_eq!(table.live(), LEAF_PAGES - 1);
        let leaf = table.leaf(LEAF_SIZE + 6 * PAGE_SIZE).ok_or(EINVAL)?;
        let entry = DevicePte::system(LEAF_PAGES + 6, true);
        assert_eq!((leaf.order, leaf.entry), (0, entry));
        // All pages are present, but their numbers are not aligned or their rights differ: no
        // merge.
        fill(&mut table, range, LEAF_PAGES + 1, true)?;
        assert_eq!(table.leaf(LEAF_SIZE).ok_or(EINVAL)?.order, 0);
        fill(&mut table, range, 2 * LEAF_PAGES, false)?;
        assert_eq!(table.leaf(LEAF_SIZE).ok_or(EINVAL)?.order, LEAF_ORDER);
        // One page gains access rights: the leaf becomes a table again, and no page is lost.
        fill(&mut table, page, 2 * LEAF_PAGES + 5, true)?;
        assert_eq!(table.live(), LEAF_PAGES);
        assert_eq!(table.leaf(LEAF_SIZE).ok_or(EINVAL)?.order, 0);
        assert_eq!(clear(&mut table, range).0, LEAF_PAGES);
        Ok(())
    }

    #[test]
    fn huge_leaves_need_no_table_each() -> Result {
        const LEAVES: usize = 2048;
        let mut table = Table::<Radix4>::new()?;
        let mut before = 0;
        for index in 0..LEAVES {
            let range = PageRange::from_pages(index * LEAF_SIZE, LEAF_PAGES)?;
            fill(&mut table, range, index * LEAF_PAGES, true)?;
            if index == 0 {
                before = table.pool.pages();
            }
        }
        assert_eq!(table.live(), LEAVES * LEAF_PAGES);
        // Tables in use and preallocated ones take less than 64 bytes for each leaf.
        let bytes = format::fan::<Radix4>() * size_of::<u64>();
        assert!((table.pool.pages() - before) * bytes <= LEAVES * 64);
        // The preallocated pages are not refilled: some leaves are split, the others are removed
        // whole.
        let mut split = 0;
        let mut whole = 0;
        for index in 0..64 {
            let page = PageRange::from_pages(index * LEAF_SIZE + PAGE_SIZE, 1)?;
            let huge = PageRange::from_pages(index * LEAF_SIZE, LEAF_PAGES)?;
            match clear(&mut table, page) {
                (1, Some(flushed)) if flushed == page => split += 1,
                (LEAF_PAGES, Some(flushed)) if flushed == huge => whole += 1,
                _ => return Err(EINVAL),
            }
        }
        assert!(split >= 8 && whole > 0 && split + whole == 64);
        assert_eq!(
            table.live(),
            LEAVES * LEAF_PAGES - split - whole * LEAF_PAGES
        );
        table.reader().prealloc().refill()?;
        let page = PageRange::from_pages(100 * LEAF_SIZE, 1)?;
        assert_eq!(clear(&mut table, page), (1, Some(page)));
        let (_, _) = clear(&mut table, all()?);
        assert_eq!(table.live(), 0);
        Ok(())
    }

    #[test]
    fn both_ends_of_the_address_space_are_mapped() -> Result {
        both_ends::<Radix4>(48)?;
        both_ends::<Radix5>(57)?;
        let mut table = Table::<Radix4>::new()?;
        // A range that crosses the boundary of a block is refused.
        let across = PageRange::from_pages(PMD_SIZE - PAGE_SIZE, 2)?;
        assert_eq!(fill(&mut table, across, 0, true), Err(EINVAL));
        // An entry that the format cannot express is refused, and the table is unchanged.
        let mut narrow = Table::<Narrow>::new()?;
        let page = PageRange::from_pages(PAGE_SIZE, 1)?;
        let number = 1 << (NarrowBits::BITS.number_bits + Narrow::PAGE_SHIFT) >> PAGE_SHIFT;
        assert_eq!(fill(&mut narrow, page, number, true), Err(EINVAL));
        assert_eq!(narrow.live(), 0);
        Ok(())
    }

    /// A page in each 64 GiB of the 128 TiB that a process can have.
    #[test]
    fn sparse_pages_in_128_tib_are_mapped() -> Result {
        const STEP: usize = 64 << 30;
        const SPARSE: usize = (128 << 40) / STEP;
        let at = |index: usize| index * STEP + index * 7919 % (STEP / PAGE_SIZE) * PAGE_SIZE;
        let mut table = Table::<Radix4>::new()?;
        let reader = table.reader();
        for index in 0..SPARSE {
            let page = PageRange::from_pages(at(index), 1)?;
            assert_eq!(fill(&mut table, page, index + 1, true)?, None);
        }
        assert_eq!(table.live(), SPARSE);
        for index in 0..SPARSE {
            let found = reader.walk(at(index)).ok_or(EINVAL)?;
            assert_eq!(found.entry, DevicePte::system(index + 1, true));
            assert!(reader.walk(at(index) ^ PAGE_SIZE).is_none());
        }
        let (pages, flushed) = clear(&mut table, all()?);
        assert_eq!((pages, table.live()), (SPARSE, 0));
        assert!(flushed.is_some() && reader.walk(at(SPARSE - 1)).is_none());
        Ok(())
    }

    #[test]
    fn install_without_prealloc_fails() -> Result {
        let mut table = Table::<Radix4>::new()?;
        let mut none = table.reader().prealloc();
        let range = PageRange::from_pages(PAGE_SIZE, 1)?;
        let mut batch = table.batch();
        let result = table.install(range, &mut none, &mut batch, |_, entry| {
            *entry = DevicePte::system(1, false);
        });
        assert_eq!(result, Err(ENOMEM));
        assert!(batch.is_empty());
        assert_eq!(table.live(), 0);
        Ok(())
    }

    #[test]
    fn prealloc_and_batches_of_another_table_are_refused() -> Result {
        let mut table = Table::<Radix4>::new()?;
        let other = Table::<Radix4>::new()?;
        let range = PageRange::from_pages(PAGE_SIZE, 1)?;
        let mut own = table.reader().prealloc();
        let mut foreign = other.reader().prealloc();
        own.refill()?;
        foreign.refill()?;
        let mut batch = table.batch();
        let mut wrong = other.batch();
        let set = |_: usize, entry: &mut DevicePte| *entry = DevicePte::system(1, false);
        assert_eq!(
            table.install(range, &mut foreign, &mut batch, set),
            Err(EINVAL)
        );
        assert_eq!(table.install(range, &mut own, &mut wrong, set), Err(EINVAL));
        assert_eq!(table.live(), 0);
        table.install(range, &mut own, &mut batch, set)?;
        // The detached pages would be freed into the pool of the other table.
        let expected = ExpectedAlarm::new(Alarm::FlushOfAnotherTable);
        table.for_each(range, &mut wrong, |_, entry| *entry = DevicePte::NONE);
        assert_eq!(expected.raised(), 1);
        drop(expected);
        assert_eq!(table.live(), 1);
        assert!(wrong.is_empty());
        let _unused = flush(batch);
        assert_eq!(clear(&mut table, range).0, 1);
        Ok(())
    }

    #[test]
    fn only_removed_entries_are_flushed() -> Result {
        let mut table = Table::<Radix4>::new()?;
        let range = PageRange::from_pages(0x10_0000, 4)?;
        let second = PageRange::from_pages(range.address(1), 1)?;
        assert_eq!(fill(&mut table, range, 8, false)?, None);
        // More access rights need no flush, nor does the same entry.
        assert_eq!(fill(&mut table, second, 9, true)?, None);
        assert_eq!(fill(&mut table, second, 9, true)?, None);
        // Fewer access rights, and another page.
        assert_eq!(fill(&mut table, second, 9, false)?, Some(second));
        assert_eq!(fill(&mut table, second, 77, false)?, Some(second));
        Ok(())
    }

    #[test]
    fn dropped_flush_raises_an_alarm() -> Result {
        let mut table = Table::<Radix4>::new()?;
        let range = PageRange::from_pages(0x10_0000, 1)?;
        for (alarm, started) in [(Alarm::FlushLost, false), (Alarm::FlushNotAwaited, true)] {
            fill(&mut table, range, 8, false)?;
            let mut batch = table.batch();
            table.for_each(range, &mut batch, |_, entry| *entry = DevicePte::NONE);
            let expected = ExpectedAlarm::new(alarm);
            if started {
                drop(batch.start(&TestFlusher::default()))
            } else {
                drop(batch)
            }
            assert_eq!(expected.raised(), 1);
        }
        // An empty batch may be dropped.
        let before = Alarm::FlushLost.count();
        drop(table.batch());
        assert_eq!(Alarm::FlushLost.count(), before);
        Ok(())
    }

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

// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of the radix table.

use super::*;

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_pgtable)]
mod tests {
    use super::*;

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
}

// SPDX-License-Identifier: GPL-2.0

//! Break-before-make: sizes of entries change after a flush.

use super::{
    image::*,
    *, //
};
use crate::pgtable::{
    formats::Lpae,
    BreakBeforeMake,
    Unwritten, //
};

type Sized = BreakBeforeMake<Lpae>;

/// Flushes and writes the unwritten entries of `range`. Returns the flushed range; `None` also if
/// the writes need another flush.
fn settle(table: &mut Table<Sized>, range: PageRange) -> Option<PageRange> {
    let (unwritten, flushed) = ask(table, range);
    let again = unwritten.and_then(|unwritten| write(table, unwritten));
    flushed.filter(|_| again.is_none())
}

/// The same without the writing.
fn ask(table: &mut Table<Sized>, range: PageRange) -> (Option<Unwritten>, Option<PageRange>) {
    let mut batch = table.batch();
    let unwritten = table.unwritten(range, &mut batch);
    (unwritten, flush(batch))
}

/// Writes the entries of `unwritten`. Returns the range to flush after that; `None` is expected.
fn write(table: &mut Table<Sized>, unwritten: Unwritten) -> Option<PageRange> {
    let mut batch = table.batch();
    table.write_sizes(unwritten, &mut batch);
    flush(batch)
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_sizes)]
mod tests {
    use super::*;

    #[test]
    fn runs_change_their_size_after_a_flush() -> Result {
        let mut table = Table::<Sized>::with(None, memory())?;
        let at = 0x7f00_0010_0000;
        let run = PageRange::from_pages(at, RUN_PAGES)?;
        let most = PageRange::from_pages(at, RUN_PAGES - 1)?;
        let last = PageRange::from_pages(run.address(RUN_PAGES - 1), 1)?;
        // New ones are written at once, and need no flush.
        fill(&mut table, most, 64, true)?;
        assert_eq!(
            (order(&table, at), settle(&mut table, run)),
            (Some(0), None)
        );
        // The last page makes the run.
        assert_eq!(
            fill(&mut table, last, 64 + RUN_PAGES - 1, true)?,
            Some(most)
        );
        assert!((0..RUN_PAGES).all(|index| order(&table, run.address(index)).is_none()));
        assert_eq!(settle(&mut table, run), Some(run));
        assert!((0..RUN_PAGES).all(|index| order(&table, run.address(index)) == Some(4)));
        assert_eq!(settle(&mut table, run), None);
        // One page is removed.
        assert_eq!(clear(&mut table, last), (1, Some(run)));
        assert_eq!(order(&table, at), None);
        assert_eq!(settle(&mut table, most), Some(most));
        assert_eq!(order(&table, at), Some(0));
        assert_eq!(order(&table, last.start()), None);
        Ok(())
    }

    #[test]
    fn huge_leaves_change_their_size_after_a_flush() -> Result {
        let mut table = Table::<Sized>::with(None, memory())?;
        let whole = PageRange::from_pages(PMD_SIZE, LEAF_PAGES)?;
        let hole = 6 * RUN_PAGES + RUN_PAGES / 4;
        let page = PageRange::from_pages(whole.address(hole), 1)?;
        fill(&mut table, whole, 1024, true)?;
        assert_eq!(order(&table, whole.start()), Some(9));
        assert_eq!(clear(&mut table, page), (1, Some(whole)));
        assert_eq!(order(&table, whole.start()), None);
        // Asked of one page: the table is written as a whole.
        let first = PageRange::from_pages(PMD_SIZE, 1)?;
        assert_eq!(settle(&mut table, first), Some(whole));
        assert_eq!(order(&table, page.start()), None);
        assert_eq!(order(&table, whole.address(hole - 1)), Some(0));
        assert_eq!(order(&table, whole.address(7 * RUN_PAGES)), Some(4));
        assert_eq!(fill(&mut table, whole, 1024, true)?, Some(whole));
        assert_eq!(order(&table, whole.address(hole - 1)), None);
        assert_eq!(settle(&mut table, whole), Some(whole));
        assert_eq!(order(&table, whole.address(hole - 1)), Some(9));
        Ok(())
    }

    #[test]
    fn removed_entries_keep_their_size_until_a_flush() -> Result {
        let mut table = Table::<Sized>::with(None, memory())?;
        let run = PageRange::from_pages(PMD_SIZE, RUN_PAGES)?;
        let most = PageRange::from_pages(PMD_SIZE, RUN_PAGES - 1)?;
        let other = PageRange::from_pages(PMD_SIZE + 64 * PAGE_SIZE, 1)?;
        // So that the table stays.
        fill(&mut table, other, 7, true)?;
        fill(&mut table, run, 64, true)?;
        clear(&mut table, run);
        fill(&mut table, run, 128, true)?;
        assert_eq!(order(&table, PMD_SIZE), Some(4));
        clear(&mut table, run);
        fill(&mut table, most, 128, true)?;
        assert_eq!(order(&table, PMD_SIZE), None);
        assert_eq!(settle(&mut table, run), Some(most));
        assert_eq!(order(&table, PMD_SIZE), Some(0));
        // A table that was removed is not replaced by another one before a flush.
        clear(&mut table, all()?);
        fill(&mut table, most, 128, true)?;
        assert_eq!(order(&table, PMD_SIZE), None);
        assert!(settle(&mut table, run).is_some());
        assert_eq!(order(&table, PMD_SIZE), Some(0));
        Ok(())
    }

    #[test]
    fn entries_emptied_after_a_flush_began_need_another() -> Result {
        let mut table = Table::<Sized>::with(None, memory())?;
        let piece = PageRange::from_pages(PMD_SIZE, 3 * RUN_PAGES)?;
        let page = |index: usize| PageRange::from_pages(piece.address(index), 1);
        fill(&mut table, piece, 64, true)?;
        // The first run and the third are broken, then the one between them.
        clear(&mut table, page(3)?);
        clear(&mut table, page(2 * RUN_PAGES + RUN_PAGES / 2)?);
        let (unwritten, flushed) = ask(&mut table, piece);
        assert_eq!(flushed, Some(piece));
        clear(&mut table, page(RUN_PAGES + RUN_PAGES / 4)?);
        assert_eq!(write(&mut table, unwritten.ok_or(EINVAL)?), None);
        let orders = |table: &Table<Sized>| {
            [0, 1, 2].map(|run| order(table, piece.address(run * RUN_PAGES)))
        };
        assert_eq!(orders(&table), [Some(0), None, Some(0)]);
        assert!(settle(&mut table, piece).is_some());
        assert_eq!(orders(&table), [Some(0); 3]);
        Ok(())
    }
}

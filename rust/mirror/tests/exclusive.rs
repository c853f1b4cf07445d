// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: exclusive access of the device.

use super::*;
use crate::mm::{
    exclusive::{
        ignore_references,
        reclaim_damages_exclusive,
        reclaim_walks,
        ExclusivePage, //
    },
    vma::MmapGuard, //
};

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_exclusive)]
mod suite {
    use super::*;

    #[test]
    fn exclusive_access_ends_on_a_cpu_access() -> Result {
        let (range, _shared, mirror) = attached(2)?;
        store(range.start(), 21)?;
        mirror.make_exclusive(range)?;
        assert!(mirror.lock_table()?.any_exclusive(range));
        assert_eq!(device_load(&mirror, range.start())?, Some(21));
        assert_eq!(load(range.start())?, 21);
        let first = PageRange::from_pages(range.start(), 1)?;
        assert!(!mirror.lock_table()?.any_exclusive(first));
        assert!(mirror.lock_table()?.any_exclusive(range));
        assert_eq!(load(range.address(1))?, 0);
        assert!(!mirror.lock_table()?.any_exclusive(range));
        Ok(())
    }

    /// Only where reclaim damages the entries of exclusive pages, the mapping is changed, once.
    #[test]
    fn references_of_exclusive_mappings_are_ignored_by_reclaim() -> Result {
        let (range, _shared, mirror) = attached(2)?;
        store(range.start(), 21)?;
        let first = PageRange::from_pages(range.start(), 1)?;
        let space = mirror.space()?;
        let mm = space.mm();
        let walks = || -> Result<bool> { Ok(reclaim_walks(&MmapGuard::lock(mm)?, range.start())) };
        assert!(walks()?);
        let id = MigrationId::of(&mirror);
        {
            let mmap = MmapGuard::lock(mm)?;
            let exclusive = ExclusivePage::new(&mmap, range.start(), id);
            let result = exclusive.map(|_| ());
            let is_damaged = reclaim_damages_exclusive();
            assert_eq!(result, if is_damaged { Err(EBUSY) } else { Ok(()) });
            // It waits for the mmap lock, which this task holds.
            assert_eq!(ExclusivePage::prepare(mm, range.start()), Err(EDEADLK));
        }
        mirror.make_exclusive(first)?;
        assert_eq!(walks()?, !reclaim_damages_exclusive());
        assert_eq!(load(range.start())?, 21);

        ignore_references(mm, range.start())?;
        assert!(!walks()?);
        mirror.make_exclusive(first)?;
        assert_eq!(device_load(&mirror, range.start())?, Some(21));
        assert_eq!(load(range.start())?, 21);
        // No mapping.
        assert_eq!(ignore_references(mm, 0), Ok(()));
        Ok(())
    }

    #[test]
    fn exclusive_access_fails_after_unplug() -> Result {
        let (range, shared, mirror) = attached(2)?;
        store(range.start(), 21)?;
        let first = PageRange::from_pages(range.start(), 1)?;
        // The first check, before the unplug, succeeds. The announcement follows the removal of the
        // entries, so that the page keeps its mark.
        let space = mirror.space()?;
        let mut prealloc = mirror.prealloc();
        prealloc.refill()?;
        assert_eq!(shared.memory.unplug(), Ok((0, 0)));
        let result = mirror.make_page_exclusive(&space, first, &mut prealloc);
        assert_eq!(result, Ok(Err(ENODEV)));
        assert!(!mirror.lock_table()?.any_exclusive(first));
        assert_eq!(mirror.make_exclusive(first), Err(ENODEV));
        assert_eq!(load(range.start())?, 21);
        Ok(())
    }
}

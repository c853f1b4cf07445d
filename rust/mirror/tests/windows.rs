// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: windows of a space, and the events that a mirror receives.

use super::*;
use crate::kernel::deferred;

/// Returns the number of windows of the mirror's space, after a worker has removed the unused ones.
fn windows(mirror: &Mirror<TestDevice>) -> usize {
    let windows = mirror.inner().space.windows();
    windows.queue_check_all();
    deferred::flush();
    windows.count()
}

/// Returns the number of invalidations of `mirror` while `f` runs.
fn invalidations(mirror: &Mirror<TestDevice>, f: impl FnOnce() -> Result) -> Result<u64> {
    let before = mirror.stats().get(Counter::Invalidations);
    f()?;
    Ok(mirror.stats().get(Counter::Invalidations) - before)
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_windows)]
mod suite {
    use super::*;

    #[test]
    fn mirror_without_windows_gets_no_events() -> Result {
        let (range, _shared, mirror) = attached(PMD_PAGES)?;
        store(range.start(), 1)?;
        assert_eq!(mirror.inner().space.windows().count(), 0);
        assert_eq!(invalidations(&mirror, || unmap(range))?, 0);
        Ok(())
    }

    #[test]
    fn mirror_gets_events_of_its_windows_only() -> Result {
        let (range, _shared, mirror) = attached(4 * PMD_PAGES)?;
        let start = range.start().next_multiple_of(PMD_SIZE);
        let page = |block: usize| PageRange::from_pages(start + block * PMD_SIZE, 1);
        for block in 0..3 {
            store(page(block)?.start(), 7)?;
        }
        mirror.fault(page(1)?, Access::Read)?;
        assert_eq!(windows(&mirror), 1);
        for block in [0, 2, 1] {
            let page = page(block)?;
            // A huge page is split first.
            let invalidations = invalidations(&mirror, || unmap(page))?;
            assert_eq!((invalidations != 0), (block == 1));
        }
        assert_eq!(mirror.lock_table()?.present(page(1)?), 0);
        Ok(())
    }

    #[test]
    fn event_over_many_windows_flushes_once() -> Result {
        let (range, shared, mirror) = attached(4 * PMD_PAGES)?;
        let start = range.start().next_multiple_of(PMD_SIZE);
        for block in 0..3 {
            let page = PageRange::from_pages(start + block * PMD_SIZE, 1)?;
            store(page.start(), 7)?;
            mirror.fault(page, Access::Read)?;
        }
        assert_eq!(windows(&mirror), 3);
        let before = shared.flushes.load(Relaxed);
        unmap(PageRange::from_pages(start, 3 * PMD_PAGES)?)?;
        assert_eq!(shared.flushes.load(Relaxed) - before, 1);
        assert_eq!(mirror.lock_table()?.present(range), 0);
        Ok(())
    }

    #[test]
    fn window_with_entries_is_kept() -> Result {
        let (range, _shared, mirror) = attached(2)?;
        store(range.start(), 7)?;
        let first = PageRange::from_pages(range.start(), 1)?;
        mirror.fault(first, Access::Read)?;
        assert_eq!(windows(&mirror), 1);
        unmap(first)?;
        assert_eq!(mirror.lock_table()?.present(first), 0);
        assert_eq!(windows(&mirror), 0);
        Ok(())
    }

    #[test]
    fn window_in_use_is_kept() -> Result {
        let (range, _shared, mirror) = attached(1)?;
        let space = mirror.space()?;
        let user = mirror.window(&space, range.start())?;
        assert_eq!(windows(&mirror), 1);
        assert!(user.range().contains(range.start()));
        drop(user);
        assert_eq!(windows(&mirror), 0);
        // A new window receives all events, too.
        store(range.start(), 3)?;
        mirror.fault(range, Access::Read)?;
        unmap(range)?;
        assert_eq!(mirror.lock_table()?.present(range), 0);
        Ok(())
    }

    #[test]
    fn window_without_users_is_removed() -> Result {
        let (range, _shared, mirror) = attached(2 * PMD_PAGES)?;
        let start = range.start().next_multiple_of(PMD_SIZE);
        let page = |index: usize| PageRange::from_pages(start + index * PAGE_SIZE, 1);
        store(start, 7)?;
        mirror.fault(page(0)?, Access::Read)?;
        let space = &mirror.inner().space;
        let mut rounds = 0;
        for index in 0..64 {
            unmap(page(index)?)?;
            deferred::flush();
            if space.windows().count() == 0 {
                break;
            }
            rounds += 1;
        }
        // The first event was for a page that the device used.
        assert!((2..32).contains(&rounds));
        Ok(())
    }

    #[test]
    fn mirrors_of_a_process_share_windows() -> Result {
        let range = map(2)?;
        let shared = shared()?;
        let first = mirror(&shared)?;
        let second = mirror(&shared)?;
        store(range.start(), 9)?;
        first.fault(range, Access::Read)?;
        second.fault(range, Access::Read)?;
        assert_eq!(first.inner().space.windows().count(), 1);
        drop(first);
        assert_eq!(windows(&second), 1);
        unmap(range)?;
        assert_eq!(second.lock_table()?.present(range), 0);
        Ok(())
    }
}

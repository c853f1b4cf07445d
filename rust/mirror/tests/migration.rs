// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: migration of a real user address space, and back.

use super::*;
use crate::{
    kernel::cancel::CancelToken,
    migrate::PageOutcome,
    mm::{
        addr::PMD_ORDER,
        device_pages::DeviceRange,
        folio::LockedFolio, //
    }, //
};
use kernel::time::{
    delay::fsleep,
    Delta, //
};

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_migration)]
mod suite {
    use super::*;

    /// Bytes that the first CPU fault migrates back.
    const WINDOW_BYTES: usize = 64 << 10;

    #[test]
    fn migration_to_the_device_and_back_works() -> Result {
        let (range, shared, mirror) = attached(8)?;
        for index in 0..6 {
            store(range.address(index), 100 + index as u64)?;
        }
        let outcome = mirror.migrate(range).to_device()?;
        assert_eq!((outcome.moved, outcome.skipped), (8, 0));
        // Holes are migrated, too, but have no contents.
        assert_eq!(outcome.entries, 6);
        assert_eq!(shared.memory.usage().0, 8);
        assert_eq!(device_load(&mirror, range.address(5))?, Some(105));
        assert_eq!(device_load(&mirror, range.address(7))?, Some(0));

        // Entries of pages that are on the device already survive a second migration.
        let outcome = mirror.migrate(range).to_device()?;
        assert_eq!((outcome.moved, outcome.skipped), (0, 0));
        assert_eq!(mirror.lock_table()?.present(range), 8);

        // A CPU fault migrates back the page and its window. The device keeps its entries.
        assert_eq!(load(range.address(2))?, 102);
        assert_eq!(shared.memory.stats().get(Counter::CpuFaults), 1);
        let window = |index: usize| range.address(index) / WINDOW_BYTES;
        let left = (0..8).filter(|index| window(*index) != window(2)).count();
        assert_eq!(shared.memory.usage().0, left);
        assert_eq!(mirror.lock_table()?.present(range), 8);
        assert!(mirror.lock_table()?.writable(range.address(2)).is_some());
        assert_eq!(device_load(&mirror, range.address(5))?, Some(105));
        assert_eq!(load(range.address(5))?, 105);
        assert_eq!(load(range.address(7))?, 0);

        mirror.migrate(range).to_device()?;
        assert_eq!(mirror.migrate(range).to_system()?.moved, 8);
        assert_eq!(shared.memory.usage().0, 0);
        mirror.migrate(range).to_device()?;
        assert_eq!(shared.memory.evict_all()?, 0);
        assert_eq!(load(range.address(3))?, 103);
        Ok(())
    }

    /// Migrates pages that the device may write to the device and back. While the flush of the
    /// commit is in progress, all entries are read-only, and `at_wait` is called with the mirror
    /// and the pages.
    fn switched(at_wait: fn(&Mirror<TestDevice>, PageRange), expected: bool) -> Result {
        let (range, shared, mirror) = attached(4)?;
        let mirror = Arc::new(mirror, GFP_KERNEL)?;
        for index in 0..4 {
            store(range.address(index), 100 + index as u64)?;
        }
        for to_device in [true, false] {
            mirror.fault(range, Access::Write)?;
            let seen = Arc::new(Atomic::new(0usize), GFP_KERNEL)?;
            let inside = mirror.clone();
            let counted = seen.clone();
            let hook = move || {
                let entry = |index| {
                    let leaf = inside.inner().reader.walk(range.address(index));
                    leaf.map_or(DevicePte::NONE, |leaf| leaf.entry)
                };
                let new = (0..4).filter(|index| entry(*index).is_device() == to_device);
                if new.count() == 4 && counted.fetch_add(1, Relaxed) == 0 {
                    assert!((0..4).all(|index| !entry(index).is_writable()));
                    at_wait(&inside, range);
                }
            };
            *shared.at_wait.lock() = Some(Arc::new(hook, GFP_KERNEL)?);
            let migration = mirror.migrate(range);
            let outcome = if to_device {
                migration.to_device()
            } else {
                migration.to_system()
            };
            *shared.at_wait.lock() = None;
            assert_eq!(outcome?.switched, 4);
            assert_ne!(seen.load(Relaxed), 0);
            let table = mirror.lock_table()?;
            for index in 0..4 {
                assert_eq!(table.writable(range.address(index)).is_some(), expected);
            }
        }
        Ok(())
    }

    #[test]
    fn commit_grants_write_access_after_its_flush() -> Result {
        switched(|_, _| {}, true)
    }

    #[test]
    fn write_access_lost_in_flight_is_not_restored() -> Result {
        let take = |mirror: &Mirror<TestDevice>, range| {
            pretend(mirror, NotifierEvent::ProtectionPage, range);
        };
        switched(take, false)
    }

    #[test]
    fn pages_moved_before_an_error_are_counted() -> Result {
        let (all, shared, mirror) = attached(3 * PMD_PAGES)?;
        let start = all.start().next_multiple_of(PMD_SIZE);
        let range = PageRange::from_pages(start, PMD_PAGES + 1)?;
        store(start, 1)?;
        unmap(PageRange::from_pages(range.address(PMD_PAGES), 1)?)?;
        let outcome = mirror.migrate(range).to_device();
        assert_eq!(outcome.map(|outcome| outcome.moved), Err(EINVAL));
        assert_eq!(shared.memory.usage().0, PMD_PAGES);
        assert_eq!(mirror.stats().get(Counter::ToDevice), PMD_PAGES as u64);
        Ok(())
    }

    #[test]
    fn new_huge_page_is_not_split_for_its_predecessor() -> Result {
        let (_, shared, _mirror) = attached(PMD_PAGES)?;
        let memory = &shared.memory;
        memory.add_chunks(PMD_PAGES)?;
        let arrival = memory.arrive()?;
        let huge = || -> Result<(LockedFolio, usize)> {
            let folio = memory.alloc(&arrival, PMD_ORDER).ok_or(ENOMEM)?;
            let number = memory.entry_number(folio.pfn()).ok_or(EINVAL)?;
            Ok((folio, number))
        };
        // Repeat: by chance, the work item may find no page in a round.
        for _ in 0..16 {
            let (folio, number) = huge()?;
            // Like a fault, after which another fault migrates the page back.
            let completion = memory.split_later(number)?;
            assert!(memory.is_to_be_split(number));
            drop(folio);
            // Two work items, this one and that of the last round, may hold references temporarily,
            // and free the pages then. So another page may be found first: take that, too.
            let mut others = KVec::new();
            let mut again = None;
            for _ in 0..1000 {
                match huge() {
                    Ok((folio, next)) if next == number => {
                        again = Some(folio);
                        break;
                    }
                    Ok((other, _)) => others.push(other, GFP_KERNEL)?,
                    Err(_) => fsleep(Delta::from_millis(1)),
                }
            }
            assert!(again.is_some() && !memory.is_to_be_split(number));
            // Tasks that wait for the previous page are woken.
            completion.wait_interruptible();
        }
        Ok(())
    }

    #[test]
    fn new_page_has_no_stale_flags() -> Result {
        let (_, shared, _mirror) = attached(PMD_PAGES)?;
        let memory = &shared.memory;
        memory.add_chunks(PMD_PAGES)?;
        let arrival = memory.arrive()?;
        let taken = |order| -> Result<(LockedFolio, usize)> {
            let folio = memory.alloc(&arrival, order).ok_or(ENOMEM)?;
            let pfn = folio.pfn();
            Ok((folio, pfn))
        };
        // These flags are not cleared when pages are unmapped in device memory.
        let mut small = KVec::new();
        for _ in 0..4 {
            let (folio, pfn) = taken(0)?;
            assert!(!has_stale_flags(pfn));
            set_stale_flags(pfn);
            small.push((folio, pfn), GFP_KERNEL)?;
        }
        let stale = small.iter().map(|(_, pfn)| *pfn).min().ok_or(EINVAL)?;
        drop(small);
        assert!(has_stale_flags(stale));
        // Allocate the huge page at the same block.
        let mut others = KVec::new();
        let (huge, first) = loop {
            let (huge, first) = taken(PMD_ORDER)?;
            if (first..first + PMD_PAGES).contains(&stale) {
                break (huge, first);
            }
            others.push(huge, GFP_KERNEL)?;
        };
        assert!((first..first + PMD_PAGES).all(|pfn| !has_stale_flags(pfn)));
        set_stale_flags(first);
        drop(huge);
        // Only that block has free pages.
        for _ in 0..PMD_PAGES {
            let (folio, pfn) = taken(0)?;
            assert!((first..first + PMD_PAGES).contains(&pfn) && !has_stale_flags(pfn));
            others.push(folio, GFP_KERNEL)?;
        }
        Ok(())
    }

    #[test]
    fn drained_device_has_no_pages() -> Result {
        let (range, shared, mirror) = attached(PMD_PAGES + 16)?;
        for index in 0..PMD_PAGES + 16 {
            store(range.address(index), 200 + index as u64)?;
        }
        // Pages in system memory among those on the device, and a hole.
        mirror.fault(range, Access::Write)?;
        let moved = PageRange::new(range.address(4), range.address(PMD_PAGES + 12))?;
        assert_eq!(mirror.migrate(moved).to_device()?.moved, PMD_PAGES + 8);
        unmap(PageRange::from_pages(range.address(8), 1)?)?;
        assert_eq!(mirror.drain()?, PMD_PAGES + 7);
        assert_eq!(shared.memory.usage().0, 0);
        assert_eq!(
            shared.memory.stats().get(Counter::Evicted),
            PMD_PAGES as u64 + 7
        );
        assert_eq!(mirror.lock_table()?.present(range), 0);
        assert!(!mirror.lock_table()?.any_exclusive(range));
        for index in (0..PMD_PAGES + 16).filter(|index| *index != 8) {
            assert_eq!(load(range.address(index))?, 200 + index as u64);
        }
        // The pages were not migrated back by CPU faults.
        assert_eq!(shared.memory.stats().get(Counter::CpuFaults), 0);
        assert_eq!(mirror.drain()?, 0);
        Ok(())
    }

    #[test]
    fn only_device_pages_migrate_back() -> Result {
        // All pages are in one window, and its second half was never accessed.
        const HALF: usize = WINDOW_BYTES / PAGE_SIZE / 2;
        let all = map(8 * HALF)?;
        let at = all.start().next_multiple_of(WINDOW_BYTES);
        let range = PageRange::from_pages(at, HALF)?;
        let shared = shared()?;
        let mirror = mirror(&shared)?;
        store(range.start(), 1)?;
        assert_eq!(mirror.migrate(range).to_device()?.moved, HALF);
        assert_eq!(load(range.start())?, 1);
        let pages = shared.memory.stats().get(Counter::CpuFaultPages);
        assert_eq!(pages, HALF as u64);

        assert_eq!(mirror.migrate(range).to_device()?.moved, HALF);
        assert_eq!(mirror.migrate(all).to_system()?.moved, HALF);
        // A snapshot of the rest finds no page.
        let rest = PageRange::from_pages(range.end(), HALF)?;
        mirror.snapshot(rest, |page| assert_eq!(page, Snapshot::None))?;
        Ok(())
    }

    #[test]
    fn failed_copy_keeps_contents() -> Result {
        let (range, shared, mirror) = attached(4)?;
        for index in 0..4 {
            store(range.address(index), 7 + index as u64)?;
        }
        shared.memory.driver().fail_copies.store(2, Relaxed);
        let outcome = mirror.migrate(range).to_device()?;
        assert_eq!((outcome.moved, outcome.copy_failed), (2, 2));
        assert_eq!(shared.memory.usage().0, 2);
        for index in 0..4 {
            assert_eq!(load(range.address(index))?, 7 + index as u64);
        }
        Ok(())
    }

    #[test]
    fn insufficient_device_memory_is_partial_success() -> Result {
        let (range, shared, mirror) = attached(6 * PMD_PAGES)?;
        store(range.start(), 3)?;
        let outcome = mirror.migrate(range).to_device()?;
        assert!(outcome.no_memory > 0 && outcome.moved > 0);
        assert!(shared.memory.usage().0 <= 4 * PMD_PAGES);
        assert_eq!(load(range.start())?, 3);
        Ok(())
    }

    #[test]
    fn pages_marked_accessed_are_not_evicted() -> Result {
        let (all, shared, mirror) = attached(6 * PMD_PAGES)?;
        let start = all.start().next_multiple_of(PMD_SIZE);
        let piece = |number: usize| PageRange::from_pages(start + number * PMD_SIZE, PMD_PAGES);
        let place = |number: usize| -> Result<Option<usize>> {
            Ok(
                match mirror.lock_table()?.readable(piece(number)?.start()) {
                    Some(PageMemory::Device(range)) => Some(range.first),
                    _ => None,
                },
            )
        };
        for number in 0..4 {
            store(piece(number)?.start(), number as u64)?;
            let outcome = mirror.migrate(piece(number)?).to_device()?;
            assert_eq!(outcome.moved, PMD_PAGES);
        }
        // Without this, the first page would be evicted next.
        let first = place(0)?.ok_or(EINVAL)?;
        shared.memory.mark_accessed(DeviceRange { first, count: 1 });
        assert_eq!(mirror.migrate(piece(4)?).to_device()?.moved, PMD_PAGES);
        assert_eq!((place(0)?, place(1)?), (Some(first), None));
        assert_eq!(load(piece(1)?.start())?, 1);
        Ok(())
    }

    #[test]
    fn cancelled_migration_starts_no_step() -> Result {
        let (all, shared, mirror) = attached(4 * PMD_PAGES)?;
        let start = all.start().next_multiple_of(PMD_SIZE);
        let range = PageRange::from_pages(start, 2 * PMD_PAGES)?;
        store(range.start(), 1)?;
        let stop = CancelToken::new()?;
        let asked = stop.clone();
        let memory = shared.memory.driver();
        // This copy has begun.
        *memory.at_copy.lock() = Some(Arc::new(move || asked.set(), GFP_KERNEL)?);
        let outcome = mirror.migrate(range).cancel_token(stop).to_device()?;
        *memory.at_copy.lock() = None;
        assert_eq!(
            (outcome.moved, shared.memory.usage().0),
            (PMD_PAGES, PMD_PAGES)
        );
        Ok(())
    }

    #[test]
    fn device_reads_during_migrations() -> Result {
        let (range, _shared, mirror) = attached(4)?;
        for index in 0..4 {
            store(range.address(index), 50 + index as u64)?;
        }
        mirror.fault(range, Access::Write)?;
        let mut pages = [PageOutcome::None; 4];
        let outcome = mirror.migrate(range).outcomes(&mut pages).to_device()?;
        assert_eq!((outcome.moved, outcome.switched), (4, 4));
        assert_eq!(pages, [PageOutcome::Switched; 4]);
        let outcome = mirror.migrate(range).to_system()?;
        assert_eq!((outcome.moved, outcome.switched), (4, 4));
        assert_eq!(device_load(&mirror, range.address(3))?, Some(53));
        assert!(mirror.lock_table()?.writable(range.start()).is_some());
        // An ordinary migration leaves no entries.
        mirror.migrate(range).to_device()?;
        let back = mirror.migrate(range).faultless(false);
        let outcome = back.outcomes(&mut pages).to_system()?;
        assert_eq!((outcome.moved, outcome.switched), (4, 0));
        assert!(pages.iter().all(|page| page.has_moved()));
        assert_eq!(mirror.lock_table()?.present(range), 0);
        Ok(())
    }
}

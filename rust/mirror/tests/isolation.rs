// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: pages that a migration has isolated, its destinations, and the entries in flight.

use super::*;
use crate::{
    memory::{
        CopyContext,
        Copying, //
    },
    mirror::in_flight::InFlightNode,
    mm::{
        folio::{
            Effort,
            LockedFolio, //
        },
        migrate::{
            Batch,
            Isolated,
            System, //
        },
        vma::MmapGuard, //
    },
    space::{
        Destination,
        EventMatch,
        MigrationDesc, //
    }, //
};

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_isolation)]
mod suite {
    use super::*;

    #[test]
    fn dropped_isolated_pages_are_restored() -> Result {
        let range = map(4)?;
        store(range.start(), 11)?;
        let current = current!();
        let mm = current.mm().ok_or(EINVAL)?;
        let mut batch = Batch::new()?;
        let id = MigrationId::of(&batch);
        let guard = MmapGuard::lock(mm)?;
        let vma = guard.vma_lookup(range.start()).ok_or(EINVAL)?;
        let System::Isolated(mut isolated, _) =
            Isolated::of_system(vma, range, false, id, &mut batch)?
        else {
            return Err(EINVAL);
        };
        assert_eq!(isolated.entries().count(), 4);
        // Destinations are allocated, but nothing is migrated into them.
        isolated.fill(|entry| {
            LockedFolio::alloc_system(Some(vma), range.start(), entry.order(), Effort::Must).ok()
        });
        assert!(isolated.entries().all(|entry| entry.destination != 0));
        drop(isolated);
        drop(guard);
        assert_eq!(load(range.start())?, 11);
        Ok(())
    }

    #[test]
    fn only_filled_destinations_are_migrated_into() -> Result {
        let range = map(4)?;
        for index in 0..4 {
            store(range.address(index), 30 + index as u64)?;
        }
        let current = current!();
        let mm = current.mm().ok_or(EINVAL)?;
        let mut batch = Batch::new()?;
        let id = MigrationId::of(&batch);
        let guard = MmapGuard::lock(mm)?;
        let vma = guard.vma_lookup(range.start()).ok_or(EINVAL)?;
        let System::Isolated(mut isolated, _) =
            Isolated::of_system(vma, range, false, id, &mut batch)?
        else {
            return Err(EINVAL);
        };
        isolated.fill(|entry| {
            LockedFolio::alloc_system(Some(vma), range.start(), entry.order(), Effort::Must).ok()
        });
        // The third page is copied, abandoned, and gets another destination, which is not filled.
        for index in [1, 2] {
            let from = isolated.source(index);
            let to = isolated.destination(index);
            let mut word = [0; 8];
            from.ok_or(EINVAL)?.read(0, &mut word)?;
            to.ok_or(EINVAL)?.write(0, &word)?;
            isolated.set_filled(index);
        }
        isolated.skip(2);
        isolated.fill(|entry| {
            LockedFolio::alloc_system(Some(vma), range.start(), entry.order(), Effort::Must).ok()
        });
        let migrated = isolated.migrate();
        let moved = migrated.moved();
        for entry in moved.entries() {
            assert_eq!(entry.index, 1);
        }
        assert!(moved.at(1).is_some() && moved.at(2).is_none());
        drop(migrated);
        drop(guard);
        for index in 0..4 {
            assert_eq!(load(range.address(index))?, 30 + index as u64);
        }
        Ok(())
    }

    #[test]
    fn dropped_migration_invalidates_before_freeing() -> Result {
        let (range, shared, mirror) = attached(4)?;
        for index in 0..4 {
            store(range.address(index), 80 + index as u64)?;
        }
        assert_eq!(mirror.migrate(range).to_device()?.moved, 4);
        let memory = &shared.memory;
        let space = mirror.space()?;
        let mut batch = Batch::new()?;
        let mut copies = CopyContext::new(true)?;
        let request = MigrationDesc {
            name: MigrationId::of(&range),
            identity: EventMatch::current(memory.owner()),
            range,
            faultless: true,
            destination: Destination::Any,
        };
        let (mmap, announced) = mirror.begin(&space, request)?;
        let vma = mmap.vma_lookup(range.start()).ok_or(EINVAL)?;
        let origin = memory.origin();
        let mut isolated = Isolated::read_by(announced, || {
            Isolated::new(vma, range, origin, false, None, &mut batch)
        })?;
        isolated.fill(|entry| {
            let addr = range.address(entry.index);
            LockedFolio::alloc_system(Some(vma), addr, entry.order(), Effort::Must).ok()
        });
        let mut copying = Copying::new(isolated);
        memory.copier().submit(&mut copying, &mut copies)?;
        let failed = copying.complete();
        let isolated = copying.into_isolated();
        let migrated = isolated.migrate();
        let moved = migrated.moved().entries().count();
        let entries = mirror.lock_table()?.present(range);
        let flushes = shared.flushes.load(Relaxed);
        drop(migrated);
        drop(mmap);
        // The device had entries of the sources until the migration was dropped.
        assert!(failed.is_empty());
        assert_eq!((moved, entries), (4, 4));
        // They were removed, and flushed while the sources were in use.
        assert_eq!(mirror.lock_table()?.present(range), 0);
        assert_eq!(shared.flushes.load(Relaxed), flushes + 1);
        assert_eq!(shared.used_at_wait.load(Relaxed), 4);
        assert_eq!(memory.usage().0, 0);
        // The migration has ended, so that the device can fault on the pages again.
        mirror.fault(range, Access::Read)?;
        for index in 0..4 {
            let addr = range.address(index);
            let value = 80 + index as u64;
            assert_eq!(load(addr)?, value);
            assert_eq!(device_load(&mirror, addr)?, Some(value));
        }
        Ok(())
    }

    #[test]
    fn holes_without_page_tables_migrate() -> Result {
        // The process has mapped nothing else in the last block, whose PMD is in another page table
        // than that of the start.
        let all = map((PMD_PAGES + 1) * PMD_PAGES)?;
        let range = PageRange::from_pages(all.address(PMD_PAGES * PMD_PAGES + 8), 8)?;
        let shared = shared()?;
        let mirror = mirror(&shared)?;
        store(all.start(), 1)?;
        let outcome = mirror.migrate(range).to_device()?;
        assert_eq!((outcome.moved, outcome.entries), (8, 0));
        assert_eq!(shared.memory.usage().0, 8);
        assert_eq!(device_load(&mirror, range.address(7))?, Some(0));
        assert_eq!(load(range.address(7))?, 0);
        assert_eq!(load(all.start())?, 1);
        unmap(all)?;
        assert_eq!(shared.memory.usage().0, 0);
        Ok(())
    }

    #[test]
    fn entries_that_stay_keep_their_marks() -> Result {
        let (range, _shared, mirror) = attached(4)?;
        mirror.migrate(range).to_device()?;
        let name = MigrationId::of(&range);
        let request = MigrationDesc {
            name,
            identity: EventMatch::Name,
            range,
            faultless: true,
            destination: Destination::Any,
        };
        let node = InFlightNode::new()?;
        mirror.inner().lock().in_flight.begin(request, node)?;
        let stays = |span: PageRange| span.start() == range.address(2);
        mirror.remove_some(range, |span, _| !stays(span));
        let state = mirror.inner().lock();
        for index in 0..4 {
            let owns = state.in_flight.owns(name, range.address(index));
            assert_eq!(owns, index == 2);
        }
        drop(state);
        let start = range.start();
        assert!(mirror.inner().lock().in_flight.end(name, start));
        let table = mirror.lock_table()?;
        for index in 0..4 {
            assert_eq!(table.readable(range.address(index)).is_some(), index == 2);
        }
        Ok(())
    }

    #[test]
    fn unmarked_entry_does_not_outlive_its_page() -> Result {
        let (range, shared, mirror) = attached(4)?;
        let mirror = Arc::new(mirror, GFP_KERNEL)?;
        let memory = shared.memory.driver();
        for index in 0..4 {
            store(range.address(index), 60 + index as u64)?;
        }
        let unmarked = PageRange::from_pages(range.address(1), 1)?;
        for to_device in [true, false] {
            mirror.fault(range, Access::Read)?;
            let taken = mirror.clone();
            // Like an event that removes write access only.
            *memory.at_copy.lock() = Some(Arc::new(
                move || taken.inner().lock().in_flight.unmark(unmarked),
                GFP_KERNEL,
            )?);
            let migration = mirror.migrate(range);
            let outcome = if to_device {
                migration.to_device()?
            } else {
                migration.to_system()?
            };
            *memory.at_copy.lock() = None;
            assert_eq!(outcome.moved, 4);
            let at = |index| device_load(&mirror, range.address(index));
            assert_eq!(at(0)?, Some(60));
            if to_device {
                // On the way to the device, the lost entry is installed again.
                assert_eq!(at(1)?, Some(61));
            } else {
                assert_eq!(at(1)?, None);
            }
        }
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: connections of two devices, and migration from one to the other.

use super::*;
use crate::{
    memory::{
        CopyContext,
        Copying, //
    },
    migrate::Outcome,
    mm::{
        device_pages::DeviceRange,
        folio::{
            Effort,
            LockedFolio, //
        },
        migrate::{
            Batch,
            Isolated, //
        }, //
    },
    space::{
        Destination,
        EventMatch,
        JoinedMirrors,
        MigrationDesc, //
    }, //
};

/// Returns memory on a device with its mirror, and another device with one.
fn two(
    pages: usize,
    connection: Connection,
) -> Result<(PageRange, [(Arc<Shared>, Mirror<TestDevice>); 2])> {
    let (range, shared, first) = attached(pages)?;
    for index in 0..pages {
        store(range.address(index), 100 + index as u64)?;
    }
    let other = super::shared()?;
    let second = mirror(&other)?;
    for shared in [&shared, &other] {
        let memory = shared.memory.driver();
        memory.connection.store(connection as usize, Relaxed);
    }
    assert_eq!(first.migrate(range).to_device()?.moved, pages);
    Ok((range, [(shared, first), (other, second)]))
}

/// A format that cannot encode device pages beyond the first block.
enum Tight {}

impl Format for Tight {
    type Word = u64;

    const LEVELS: u32 = Radix4::LEVELS;
    const BITS: u32 = Radix4::BITS;
    const LEAVES: &'static [u32] = Radix4::LEAVES;

    fn can_hold(entry: DevicePte) -> bool {
        !entry.is_device() || entry.number() < PMD_SIZE >> Self::PAGE_SHIFT
    }

    fn table(level: u32, address: u64) -> u64 {
        Radix4::table(level, address)
    }

    fn leaf(order: u32, entry: DevicePte) -> u64 {
        Radix4::leaf(order, entry)
    }
}

/// A device with a page table of that format.
struct TightDevice(Arc<Shared>);

impl Device for TightDevice {
    type Memory = TestMemory;
    type Format = Tight;
    type Walker = ();
    type Flush = ();

    fn memory(&self) -> Option<&Memory<TestMemory>> {
        Some(&self.0.memory)
    }

    fn flush_start(&self, _range: PageRange) {
        self.0.flushes.fetch_add(1, Relaxed);
    }

    fn flush_wait(&self, (): ()) {}
}

/// A device with or without memory.
struct Spare(Option<Arc<Shared>>);

impl Device for Spare {
    type Memory = TestMemory;
    type Format = Radix4;
    type Walker = ();
    type Flush = ();

    fn memory(&self) -> Option<&Memory<TestMemory>> {
        self.0.as_ref().map(|shared| &shared.memory)
    }

    fn flush_start(&self, _range: PageRange) {}

    fn flush_wait(&self, (): ()) {}
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_pull)]
mod suite {
    use super::*;

    #[test]
    fn dropped_migration_invalidates_all_readers() -> Result {
        let (range, [(shared, source), (_, destination)]) = two(4, Connection::None)?;
        let memory = &shared.memory;
        let reader = mirror(&shared)?;
        for mirror in [&source, &reader] {
            mirror.fault(range, Access::Read)?;
        }
        let entries = || -> Result<(usize, usize)> {
            let first = source.lock_table()?.present(range);
            Ok((first, reader.lock_table()?.present(range)))
        };
        let (space, mut batch, mut copies) =
            (destination.space()?, Batch::new()?, CopyContext::new(true)?);
        let request = MigrationDesc {
            name: MigrationId::of(&range),
            identity: EventMatch::current(memory.owner()),
            range,
            faultless: true,
            destination: Destination::Any,
        };
        let (mmap, announced) = destination.begin(&space, request)?;
        let vma = mmap.vma_lookup(range.start()).ok_or(EINVAL)?;
        let origin = memory.origin();
        let mut joined = JoinedMirrors::new();
        let mut isolated = Isolated::read_by(announced.join(&mut joined), || {
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
        let copied = failed.is_empty();
        let there = entries();
        drop(migrated);
        drop(mmap);
        assert_eq!((copied, moved, there?), (true, 4, (4, 4)));
        // The entries were removed, and flushed while the sources were in use.
        assert_eq!(entries()?, (0, 0));
        assert_eq!(
            (shared.used_at_wait.load(Relaxed), memory.usage().0),
            (4, 0)
        );
        for mirror in [&source, &reader, &destination] {
            mirror.fault(range, Access::Read)?;
            assert_eq!(device_load(mirror, range.start())?, Some(100));
        }
        Ok(())
    }

    #[test]
    fn refused_pull_destination_leaves_no_source_entry() -> Result {
        let range = map(4)?;
        store(range.start(), 7)?;
        let current = current!();
        let mm = current.mm().ok_or(EINVAL)?;
        let shared = super::super::shared()?;
        let other = super::super::shared()?;
        let one = crate::new_mirror!(mm, TightDevice(shared.clone()))?;
        let two = crate::new_mirror!(mm, TightDevice(other.clone()))?;
        for shared in [&shared, &other] {
            let connection = &shared.memory.driver().connection;
            connection.store(Connection::Migratable as usize, Relaxed);
        }
        let block = DeviceRange {
            first: 0,
            count: PMD_PAGES,
        };
        assert_eq!(other.memory.offline_pages(block)?, 0);
        assert_eq!(one.migrate(range).to_device()?.moved, 4);
        assert_eq!(one.lock_table()?.present(range), 4);
        let flushes = shared.flushes.load(Relaxed);
        assert_eq!(two.pull(range, &one).err(), Some(EINVAL));
        // The pages have moved, and their sources are free.
        assert_eq!((shared.memory.usage().0, other.memory.usage().0), (0, 4));
        for mirror in [&one, &two] {
            assert_eq!(mirror.lock_table()?.present(range), 0);
        }
        assert!(shared.flushes.load(Relaxed) > flushes);
        assert_eq!(load(range.start())?, 7);
        Ok(())
    }

    #[test]
    fn both_drivers_are_queried_once_and_the_weaker_counts() -> Result {
        let (_range, [(shared, one), (other, two)]) = two(1, Connection::Unified)?;
        let here = shared.memory.driver();
        let there = other.memory.driver();
        // Access in place requires memory that the CPU can address.
        assert_eq!(one.connection(&two), Connection::Migratable);
        assert_eq!(two.connection(&one), Connection::Migratable);
        assert_eq!(one.connection(&one), Connection::Unified);
        let asked = (here.asked.load(Relaxed), there.asked.load(Relaxed));
        for _ in 0..10 {
            one.connection(&two);
            two.connection(&one);
        }
        assert_eq!((here.asked.load(Relaxed), there.asked.load(Relaxed)), asked);
        there.connection.store(Connection::None as usize, Relaxed);
        assert_eq!(one.connection(&two), Connection::Migratable);
        shared.memory.invalidate_connections();
        assert_eq!(one.connection(&two), Connection::None);
        assert_eq!(two.connection(&one), Connection::None);
        Ok(())
    }

    #[test]
    fn connected_devices_copy_directly() -> Result {
        let (range, [(shared, one), (other, two)]) = two(6, Connection::Migratable)?;
        let outcome = two.pull(range, &one)?;
        assert_eq!((outcome.moved, outcome.copy_failed), (6, 0));
        assert_eq!((shared.memory.usage().0, other.memory.usage().0), (0, 6));
        for index in 0..6 {
            let at = range.address(index);
            assert_eq!(device_load(&two, at)?, Some(100 + index as u64));
            assert_eq!(device_load(&one, at)?, None);
        }
        assert_eq!(shared.memory.stats().get(Counter::CpuFaults), 0);
        assert_eq!(one.stats().get(Counter::ToSystem), 0);
        assert_eq!(load(range.address(4))?, 104);
        Ok(())
    }

    #[test]
    fn unconnected_devices_copy_through_system_memory() -> Result {
        let (range, [(_, one), (other, two)]) = two(6, Connection::None)?;
        assert_eq!(two.pull(range, &one)?.moved, 6);
        assert_eq!(one.stats().get(Counter::ToSystem), 6);
        assert_eq!(other.memory.usage().0, 6);
        assert_eq!(device_load(&two, range.address(5))?, Some(105));
        Ok(())
    }

    #[test]
    fn failed_copy_leaves_its_page_at_the_source() -> Result {
        let (range, [(shared, one), (other, two)]) = two(4, Connection::Migratable)?;
        shared.memory.driver().fail_copies.store(1, Relaxed);
        let outcome = two.pull(range, &one)?;
        assert_eq!((outcome.moved, outcome.copy_failed), (3, 1));
        assert_eq!((shared.memory.usage().0, other.memory.usage().0), (1, 3));
        for index in 0..4 {
            assert_eq!(load(range.address(index))?, 100 + index as u64);
        }
        Ok(())
    }

    #[test]
    fn unmapped_pages_are_not_pulled() -> Result {
        for connection in [Connection::None, Connection::Migratable] {
            let (range, [(shared, one), (other, two)]) = two(4, connection)?;
            // The pull ends at the first page that is not mapped.
            unmap(PageRange::from_pages(range.address(2), 1)?)?;
            assert_eq!(two.pull(range, &one).err(), Some(EINVAL));
            assert_eq!((shared.memory.usage().0, other.memory.usage().0), (1, 2));
            for index in [0, 1, 3] {
                assert_eq!(load(range.address(index))?, 100 + index as u64);
            }
        }
        Ok(())
    }

    #[test]
    fn pull_from_a_device_without_memory_is_empty() -> Result {
        let range = map(4)?;
        store(range.start(), 7)?;
        let current = current!();
        let mm = current.mm().ok_or(EINVAL)?;
        let shared = super::super::shared()?;
        let with = crate::new_mirror!(mm, Spare(Some(shared.clone())))?;
        let without = crate::new_mirror!(mm, Spare(None))?;
        assert_eq!(with.connection(&without), Connection::None);
        without.fault(range, Access::Write)?;
        assert_eq!(with.pull(range, &without)?, Outcome::default());
        assert_eq!(shared.memory.usage().0, 0);
        assert_eq!(without.lock_table()?.present(range), 4);
        // Nothing can be migrated to a device without memory.
        assert_eq!(without.migrate(range).to_device().err(), Some(ENODEV));
        assert_eq!(load(range.start())?, 7);
        Ok(())
    }

    #[test]
    fn refused_migration_destination_leaves_no_entry() -> Result {
        let range = map(4)?;
        store(range.start(), 7)?;
        let current = current!();
        let mm = current.mm().ok_or(EINVAL)?;
        let shared = super::super::shared()?;
        let mirror = crate::new_mirror!(mm, TightDevice(shared.clone()))?;
        let block = DeviceRange {
            first: 0,
            count: PMD_PAGES,
        };
        assert_eq!(shared.memory.offline_pages(block)?, 0);
        mirror.fault(range, Access::Write)?;
        let flushes = shared.flushes.load(Relaxed);
        assert_eq!(mirror.migrate(range).to_device().err(), Some(EINVAL));
        // The pages have moved, and no entry refers to their sources.
        assert_eq!(shared.memory.usage().0, 4);
        assert_eq!(mirror.lock_table()?.present(range), 0);
        assert!(shared.flushes.load(Relaxed) > flushes);
        assert_eq!(load(range.start())?, 7);
        Ok(())
    }
}

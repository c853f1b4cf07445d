// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: entries of a mirror's page table after faults and invalidations.

use super::*;
use crate::{
    attributes::AttributeUpdate,
    kernel::kthread::Thread,
    mm::range_fault::PfnBuffer,
    pgtable::{
        Leaf,
        Radix, //
    }, //
};
use kernel::{
    sync::atomic::ordering::Acquire,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

/// A device whose page table translates addresses of 39 bits.
struct SmallDevice(Arc<Shared>);

impl Device for SmallDevice {
    type Memory = TestMemory;
    type Format = Radix<3>;
    type Walker = ();
    type Flush = ();

    fn memory(&self) -> Option<&Memory<TestMemory>> {
        Some(&self.0.memory)
    }

    fn flush_start(&self, _range: PageRange) {}

    fn flush_wait(&self, (): ()) {}
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_mirror)]
mod suite {
    use super::*;

    /// Memory beyond the addresses of the table is refused before it is faulted in. If nothing is
    /// mapped there, that error is reported instead.
    #[test]
    fn addresses_beyond_the_table_are_refused() -> Result {
        let range = map(2)?;
        let shared = shared()?;
        let current = current!();
        let mm = current.mm().ok_or(EINVAL)?;
        let small = crate::new_mirror!(mm, SmallDevice(shared.clone()))?;
        assert!(range.start() > 1 << 39);
        assert_eq!(small.fault(range, Access::Read), Err(ERANGE));
        assert_eq!(small.fault(range, Access::Write), Err(ERANGE));
        assert_eq!(small.make_exclusive(range), Err(ERANGE));
        assert_eq!(small.migrate(range).to_device().err(), Some(ERANGE));
        // No page was faulted in.
        let mirror = mirror(&shared)?;
        mirror.snapshot(range, |page| assert_eq!(page, Snapshot::None))?;
        unmap(range)?;
        for beyond in [range.start(), 1 << 56, 0xffff_8880_0000_0000] {
            let beyond = PageRange::from_pages(beyond, 1)?;
            assert_eq!(small.fault(beyond, Access::Read), Err(EFAULT));
            assert_eq!(small.make_exclusive(beyond), Err(EFAULT));
            assert_eq!(small.migrate(beyond).to_device().err(), Some(EINVAL));
        }
        drop((small, mirror, shared));
        Ok(())
    }

    #[test]
    fn fault_installs_and_munmap_removes_entries() -> Result {
        let (range, shared, mirror) = attached(4)?;
        store(range.start(), 41)?;
        assert_eq!(device_load(&mirror, range.start())?, None);
        mirror.fault(range, Access::Read)?;
        assert_eq!(device_load(&mirror, range.start())?, Some(41));
        // A page that was only read is the zero page, and not writable. A page that was written is
        // writable.
        {
            let table = mirror.lock_table()?;
            assert!(table.writable(range.start()).is_some());
            assert!(table.writable(range.address(1)).is_none());
        }
        mirror.fault(range, Access::Write)?;
        assert!(mirror.lock_table()?.writable(range.address(1)).is_some());
        assert_eq!(mirror.lock_table()?.present(range), 4);

        let before = shared.flushes.load(Relaxed);
        unmap(range)?;
        assert_eq!(mirror.lock_table()?.present(range), 0);
        assert!(shared.flushes.load(Relaxed) > before);
        assert_eq!(mirror.fault(range, Access::Read), Err(EFAULT));
        Ok(())
    }

    #[test]
    fn invalidation_between_collect_and_commit_is_detected() -> Result {
        let (range, _shared, mirror) = attached(4)?;
        store(range.start(), 1)?;
        let space = mirror.space()?;
        let mut buffer = PfnBuffer::new()?;
        let window = mirror.window(&space, range.start())?;
        let collected =
            space.collect(&window, range, Access::Read, PgmapOwner::NONE, &mut buffer)?;
        assert!(collected.lock(mirror.inner()).is_ok());

        let collected =
            space.collect(&window, range, Access::Read, PgmapOwner::NONE, &mut buffer)?;
        unmap(PageRange::from_pages(range.address(3), 1)?)?;
        assert!(collected.lock(mirror.inner()).is_err());
        Ok(())
    }

    #[test]
    fn discard_removes_entries_and_snapshot_finds_pages() -> Result {
        let (range, _shared, mirror) = attached(2)?;
        store(range.start(), 5)?;
        mirror.fault(range, Access::Read)?;
        mirror.discard(range)?;
        assert_eq!(device_load(&mirror, range.start())?, None);
        let mut count = 0;
        mirror.snapshot(range, |page| {
            count += 1;
            assert_ne!(page, Snapshot::Error);
        })?;
        assert_eq!(count, 2);
        Ok(())
    }

    #[test]
    fn second_mirror_keeps_its_entries() -> Result {
        let range = map(2)?;
        let shared = shared()?;
        let first = mirror(&shared)?;
        let second = mirror(&shared)?;
        store(range.start(), 9)?;
        first.fault(range, Access::Read)?;
        assert_eq!(device_load(&first, range.start())?, Some(9));
        assert_eq!(second.migrate(range).to_device()?.moved, 2);
        assert_eq!(device_load(&first, range.start())?, Some(9));
        assert_eq!(second.migrate(range).to_system()?.moved, 2);
        assert_eq!(device_load(&first, range.start())?, Some(9));
        assert_eq!(load(range.start())?, 9);
        assert_eq!(device_load(&first, range.start())?, Some(9));
        Ok(())
    }

    #[test]
    fn write_protecting_events_keep_the_entry() -> Result {
        let (range, _shared, mirror, pfn) = writable()?;
        let first = PageRange::from_pages(range.start(), 1)?;
        assert!(pretend(&mirror, NotifierEvent::SoftDirty, first));
        {
            let table = mirror.lock_table()?;
            assert!(table.readable(range.start()).is_some());
            assert!(table.writable(range.start()).is_none());
            assert!(table.writable(range.address(1)).is_some());
        }
        // The device may have written the page, so that reclaim must not drop it.
        assert!(is_dirty(pfn));
        // There is no write access left to remove.
        assert!(!pretend(&mirror, NotifierEvent::ProtectionPage, first));
        // A write fault restores write access.
        mirror.fault(first, Access::Write)?;
        assert!(mirror.lock_table()?.writable(range.start()).is_some());

        // A change of the VMA's protection may remove read access, too.
        assert!(pretend(&mirror, NotifierEvent::ProtectionVma, first));
        assert!(mirror.lock_table()?.readable(range.start()).is_none());
        assert_eq!(mirror.lock_table()?.present(range), 0);
        assert!(mirror.lock_table()?.readable(range.address(1)).is_some());
        Ok(())
    }

    #[test]
    fn device_written_pages_are_dirty_after_invalidation() -> Result {
        let (range, _shared, mirror, pfn) = writable()?;
        assert!(pretend(&mirror, NotifierEvent::ProtectionVma, range));
        assert_eq!(mirror.lock_table()?.present(range), 0);
        assert!(is_dirty(pfn));
        Ok(())
    }

    #[test]
    fn flushes_of_several_devices_overlap() -> Result {
        let range = map(1)?;
        let shared = shared()?;
        store(range.start(), 1)?;
        let mut mirrors = KVec::new();
        for _ in 0..8 {
            let mirror = mirror(&shared)?;
            mirror.fault(range, Access::Read)?;
            mirrors.push(mirror, GFP_KERNEL)?;
        }
        shared.first_wait.store(0, Relaxed);
        let before = shared.flushes.load(Relaxed);
        unmap(range)?;
        assert_eq!(shared.flushes.load(Relaxed), before + mirrors.len());
        // All flushes were started before one was waited for.
        assert!(shared.last_start.load(Relaxed) < shared.first_wait.load(Relaxed));
        Ok(())
    }

    #[test]
    fn translations_are_checked_before_use() -> Result {
        let (range, _shared, mirror) = attached(2)?;
        store(range.start(), 1)?;
        mirror.fault(range, Access::Write)?;
        let addr = range.start();
        let inner = mirror.inner();
        let kept = mirror.enter(0)?.walk(addr).ok_or(EINVAL)?;
        assert!(mirror.enter(0)?.resolve(addr, &kept).is_ok());
        assert!(mirror.enter(0)?.resolve_mut(addr, &kept).is_ok());
        assert!(mirror.enter(1).is_err());

        let check = |leaf: &Leaf| -> Result<[Option<TranslateError>; 2]> {
            let section = mirror.enter(0)?;
            let write = section.resolve_mut(addr, leaf).err();
            Ok([section.resolve(addr, leaf).err(), write])
        };
        // A leaf with fewer rights than the table: valid for reading, and another walk is needed
        // for writing.
        let read_only = Leaf {
            entry: kept.entry.write_protected(),
            order: 0,
        };
        assert_eq!(check(&read_only)?, [None, Some(TranslateError::Changing)]);
        // The table has fewer rights than the leaf. Because that was flushed, no engine may hold
        // the leaf.
        let page = PageRange::from_pages(addr, 1)?;
        assert!(pretend(&mirror, NotifierEvent::SoftDirty, page));
        assert_eq!(check(&read_only)?, [None, Some(TranslateError::ReadOnly)]);
        assert_eq!(check(&kept)?, [Some(TranslateError::Stale); 2]);
        // An invalid entry is not a translation of page frame 0.
        let none = Leaf {
            entry: DevicePte::NONE,
            order: 0,
        };
        assert_eq!(check(&none)?, [Some(TranslateError::Stale); 2]);
        // While a change is in progress, this is not a bug.
        inner.changing.fetch_add(1, Full);
        assert_eq!(check(&kept)?, [Some(TranslateError::Changing); 2]);
        inner.changing.fetch_sub(1, Full);
        mirror.discard(range)?;
        assert!(mirror.enter(0)?.walk(addr).is_none());
        assert_eq!(check(&read_only)?, [Some(TranslateError::Stale); 2]);
        Ok(())
    }

    /// Counters of a thread of the next test.
    struct Progress {
        entered: Atomic<u32>,
        left: Atomic<u32>,
    }

    #[test]
    fn flush_waits_for_running_accesses() -> Result {
        let range = map(1)?;
        let shared = shared()?;
        let mirror = Arc::new(mirror(&shared)?, GFP_KERNEL)?;
        mirror.fault(range, Access::Write)?;
        for _ in 0..4 {
            mirror.fault(range, Access::Write)?;
            let progress = Progress {
                entered: Atomic::new(0),
                left: Atomic::new(0),
            };
            let progress = Arc::new(progress, GFP_KERNEL)?;
            let engine = mirror.clone();
            let other = progress.clone();
            let thread = Thread::spawn(c"hmm-test", move || {
                if let Ok(section) = engine.enter(0) {
                    other.entered.store(1, Release);
                    kernel::time::delay::udelay(Delta::from_micros(900));
                    other.left.store(1, Release);
                    drop(section);
                }
            })?;
            while progress.entered.load(Acquire) == 0 {
                fsleep(Delta::from_micros(20));
            }
            mirror.discard(range)?;
            assert_eq!(progress.left.load(Acquire), 1);
            drop(thread);
        }
        Ok(())
    }

    #[test]
    fn device_written_pages_are_dirty_after_mirror_drop() -> Result {
        let (_, shared, mirror, pfn) = writable()?;
        let before = shared.flushes.load(Relaxed);
        drop(mirror);
        assert!(is_dirty(pfn));
        // The drop has flushed the device's TLB.
        assert!(shared.flushes.load(Relaxed) > before);
        Ok(())
    }
    #[test]
    fn only_lost_memory_is_mapped_again() -> Result {
        let (range, _shared, mirror) = attached(3)?;
        let page = |index: usize| PageRange::from_pages(range.address(index), 1);
        for index in 0..3 {
            store(range.address(index), 7)?;
        }
        let change = AttributeUpdate {
            accessed_by: Some(true),
            ..AttributeUpdate::default()
        };
        mirror.set_attributes(range, &change)?;
        assert_eq!(mirror.lock_table()?.present(range), 3);
        // The driver does not need the page in the middle.
        mirror.discard(page(1)?)?;
        for index in [0, 2] {
            pretend(&mirror, NotifierEvent::Clear, page(index)?);
        }
        assert_eq!(mirror.lock_table()?.present(range), 0);
        mirror.inner().restore(None)?;
        for (index, expected) in [(0, 1), (1, 0), (2, 1)] {
            assert_eq!(mirror.lock_table()?.present(page(index)?), expected);
        }
        Ok(())
    }
}

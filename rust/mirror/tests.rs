// SPDX-License-Identifier: GPL-2.0

//! Mirrors and migration of a real user address space, in KUnit.

use super::*;
use crate::{
    bindings,
    memory::{Copy, CopyJob},
    migrate::PageOutcome,
    mm::{
        addr::{PMD_PAGES, PMD_SIZE},
        device_pages::Kind,
        migrate::{Batch, Isolated, Select},
        notifier::{Cookie, Reason},
        page::{Effort, LockedFolio, SharedBytes},
        range_fault::{Access, PfnBuffer},
        space::MmapGuard,
    },
    pgtable::{Entry, Leaf, Radix4},
    thread::Thread,
};
use kernel::{
    page::PAGE_SIZE,
    sync::{
        atomic::ordering::{Acquire, Relaxed},
        Arc,
        SetOnce, //
    },
    time::{delay::fsleep, Delta},
    uaccess::UserSlice, //
};

mod reentry;

/// Memory of one block, which is enough for the pages at its end and start.
struct TestMemory {
    blocks: KVec<SetOnce<SharedBytes>>,
    fail_copies: Atomic<usize>,
}

impl TestMemory {
    fn new() -> Result<Self> {
        let mut blocks = KVec::new();
        for _ in 0..crate::mm::device_pages::PIECE_PAGES / PMD_PAGES {
            blocks.push(SetOnce::new(), GFP_KERNEL)?;
        }
        Ok(Self {
            blocks,
            fail_copies: Atomic::new(0),
        })
    }

    fn block(&self, first: usize) -> Result<(&SharedBytes, usize)> {
        let block = self.blocks.get(first / PMD_PAGES).ok_or(EINVAL)?;
        if block.as_ref().is_none() {
            block.populate(SharedBytes::new(PMD_SIZE)?);
        }
        let offset = first % PMD_PAGES * PAGE_SIZE;
        Ok((block.as_ref().ok_or(EIO)?, offset))
    }
}

impl TestMemory {
    fn do_copy(&self, copy: &Copy<'_>) -> Result {
        if self.fail_copies.load(Relaxed) != 0 {
            self.fail_copies.fetch_sub(1, Relaxed);
            return Err(EIO);
        }
        match (&copy.source, &copy.destination) {
            (None, PlaceMut::Cpu(to)) => {
                to.clear();
                Ok(())
            }
            (None, PlaceMut::Device(to)) => {
                let (block, offset) = self.block(to.first)?;
                block.clear(offset, to.count * PAGE_SIZE)
            }
            (Some(Place::Cpu(from)), PlaceMut::Device(to)) => {
                let (block, offset) = self.block(to.first)?;
                block.load(offset, from)
            }
            (Some(Place::Device(from)), PlaceMut::Cpu(to)) => {
                let (block, offset) = self.block(from.first)?;
                block.store(offset, to)
            }
            _ => Err(EINVAL),
        }
    }
}

impl MemoryOps for TestMemory {
    fn copy(&self, job: CopyJob) {
        let result = self.do_copy(&job.copy());
        job.complete(result);
    }
}

#[pin_data]
struct Shared {
    walkers: Arc<Walkers<()>>,
    #[pin]
    memory: Memory<TestMemory>,
    flushes: Atomic<usize>,
    /// Counts the steps of all flushes.
    clock: Atomic<usize>,
    /// When the last flush was started, and when the first one was waited for.
    last_start: Atomic<usize>,
    first_wait: Atomic<usize>,
}

struct TestDevice(Arc<Shared>);

impl Device for TestDevice {
    type Memory = TestMemory;
    type Format = Radix4;
    type Walker = ();
    type Flush = ();

    fn walkers(&self) -> Option<Arc<Walkers<()>>> {
        Some(self.0.walkers.clone())
    }

    fn memory(&self) -> Option<&Memory<TestMemory>> {
        Some(&self.0.memory)
    }

    fn flush_start(&self, _range: PageRange) {
        self.0.flushes.fetch_add(1, Relaxed);
        let now = self.0.clock.fetch_add(1, Relaxed);
        self.0.last_start.store(now, Relaxed);
    }

    fn flush_wait(&self, (): ()) {
        let now = self.0.clock.fetch_add(1, Relaxed);
        if self.0.first_wait.load(Relaxed) == 0 {
            self.0.first_wait.store(now, Relaxed);
        }
    }
}

fn shared() -> Result<Arc<Shared>> {
    Arc::pin_init(
        try_pin_init!(Shared {
            walkers: Walkers::new(1, |_| Ok(()))?,
            memory <- Memory::new(TestMemory::new()?, Kind::Private, PMD_PAGES * 4),
            flushes: Atomic::new(0),
            clock: Atomic::new(1),
            last_start: Atomic::new(0),
            first_wait: Atomic::new(0),
        }? Error),
        GFP_KERNEL,
    )
}

fn map(pages: usize) -> Result<PageRange> {
    // SAFETY: No preconditions; in a test.
    let addr = unsafe { bindings::rust_hmm_kunit_mmap(pages * PAGE_SIZE) };
    PageRange::from_pages(addr, pages).map_err(|_| ENOMEM)
}

fn unmap(range: PageRange) -> Result {
    // SAFETY: The range is a mapping of the test's own.
    kernel::error::to_result(unsafe {
        bindings::rust_hmm_kunit_munmap(range.start(), range.pages() * PAGE_SIZE)
    })
}

fn mirror(shared: &Arc<Shared>) -> Result<Mirror<TestDevice>> {
    let current = current!();
    let mm = current.mm().ok_or(EINVAL)?;
    crate::new_mirror!(mm, TestDevice(shared.clone()))
}

fn user(addr: usize) -> UserSlice {
    UserSlice::new(UserPtr::from_addr(addr), size_of::<u64>())
}

fn store(addr: usize, value: u64) -> Result {
    user(addr).writer().write(&value)
}

fn load(addr: usize) -> Result<u64> {
    user(addr).reader().read()
}

/// The first word of the page at `addr`, as the device reads it. `None` without an entry.
fn device_load(mirror: &Mirror<TestDevice>, addr: usize) -> Result<Option<u64>> {
    let mut bytes = [0; 8];
    let table = mirror.lock_table()?;
    match table.readable(addr) {
        None => return Ok(None),
        Some(Place::Cpu(page)) => page.read(0, &mut bytes)?,
        Some(Place::Device(range)) => {
            let memory = mirror.device().memory().ok_or(EINVAL)?;
            let (block, offset) = memory.driver().block(range.first)?;
            block.read(offset, &mut bytes)?;
        }
    }
    Ok(Some(u64::from_ne_bytes(bytes)))
}

#[kunit_tests(rust_hmm_mirror)]
mod suite {
    use super::*;

    #[test]
    fn a_fault_maps_and_munmap_takes_it_away() -> Result {
        let range = map(4)?;
        let shared = shared()?;
        let mirror = mirror(&shared)?;
        store(range.start(), 41)?;
        assert_eq!(device_load(&mirror, range.start())?, None);
        mirror.fault(range, Access::Read)?;
        assert_eq!(device_load(&mirror, range.start())?, Some(41));
        // What was only read is the zero page and not writable; what was written is.
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
    fn an_invalidation_between_collect_and_commit_is_seen() -> Result {
        let range = map(4)?;
        let shared = shared()?;
        let mirror = mirror(&shared)?;
        store(range.start(), 1)?;
        let space = mirror.space()?;
        let mut buffer = PfnBuffer::new()?;
        let collected = space.collect(range, Access::Read, Cookie::NONE, &mut buffer)?;
        assert!(collected.lock().is_ok());

        let collected = space.collect(range, Access::Read, Cookie::NONE, &mut buffer)?;
        unmap(PageRange::from_pages(range.address(3), 1)?)?;
        assert!(collected.lock().is_err());
        Ok(())
    }

    #[test]
    fn discard_and_snapshot() -> Result {
        let range = map(2)?;
        let shared = shared()?;
        let mirror = mirror(&shared)?;
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
    fn migration_there_and_back() -> Result {
        let range = map(8)?;
        let shared = shared()?;
        let mirror = mirror(&shared)?;
        for index in 0..6 {
            store(range.address(index), 100 + index as u64)?;
        }
        let outcome = mirror.migrate(range).to_device()?;
        assert_eq!((outcome.moved, outcome.skipped), (8, 0));
        // Holes move, too, but have no contents.
        assert_eq!(outcome.entries, 6);
        assert_eq!(shared.memory.usage().0, 8);
        assert_eq!(device_load(&mirror, range.address(5))?, Some(105));
        assert_eq!(device_load(&mirror, range.address(7))?, Some(0));

        // Entries of pages that stay on the device survive a second migration.
        let outcome = mirror.migrate(range).to_device()?;
        assert_eq!((outcome.moved, outcome.skipped), (0, 0));
        assert_eq!(mirror.lock_table()?.present(range), 8);

        // The CPU touches one: it comes back, with the window around it, and the device reads on.
        assert_eq!(load(range.address(2))?, 102);
        assert_eq!(shared.memory.stats().get(Counter::CpuFaults), 1);
        assert_eq!(shared.memory.usage().0, 0);
        assert_eq!(mirror.lock_table()?.present(range), 8);
        assert!(mirror.lock_table()?.writable(range.address(2)).is_none());
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

    #[test]
    fn only_device_pages_come_back() -> Result {
        // All in one window, of which the second half was never touched.
        let all = map(64)?;
        let at = all.start().next_multiple_of(16 * PAGE_SIZE);
        let range = PageRange::from_pages(at, 8)?;
        let shared = shared()?;
        let mirror = mirror(&shared)?;
        store(range.start(), 1)?;
        assert_eq!(mirror.migrate(range).to_device()?.moved, 8);
        assert_eq!(load(range.start())?, 1);
        assert_eq!(shared.memory.stats().get(Counter::CpuFaultPages), 8);

        assert_eq!(mirror.migrate(range).to_device()?.moved, 8);
        assert_eq!(mirror.migrate(all).to_system()?.moved, 8);
        // A look at the rest finds nothing.
        let rest = PageRange::from_pages(range.end(), 8)?;
        mirror.snapshot(rest, |page| assert_eq!(page, Snapshot::None))?;
        Ok(())
    }

    #[test]
    fn a_failed_copy_loses_nothing() -> Result {
        let range = map(4)?;
        let shared = shared()?;
        let mirror = mirror(&shared)?;
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
    fn too_little_device_memory_is_partial_success() -> Result {
        let range = map(6 * PMD_PAGES)?;
        let shared = shared()?;
        let mirror = mirror(&shared)?;
        store(range.start(), 3)?;
        let outcome = mirror.migrate(range).to_device()?;
        assert!(outcome.no_memory > 0 && outcome.moved > 0);
        assert!(shared.memory.usage().0 <= 4 * PMD_PAGES);
        assert_eq!(load(range.start())?, 3);
        Ok(())
    }

    #[test]
    fn a_second_mirror_loses_its_entries() -> Result {
        let range = map(2)?;
        let shared = shared()?;
        let (first, second) = (mirror(&shared)?, mirror(&shared)?);
        store(range.start(), 9)?;
        first.fault(range, Access::Read)?;
        assert_eq!(device_load(&first, range.start())?, Some(9));
        second.migrate(range).to_device()?;
        assert_eq!(device_load(&first, range.start())?, None);
        first.fault(range, Access::Read)?;
        assert_eq!(device_load(&first, range.start())?, Some(9));
        Ok(())
    }

    #[test]
    fn isolated_pages_go_back_when_dropped() -> Result {
        let range = map(4)?;
        store(range.start(), 11)?;
        let current = current!();
        let mm = current.mm().ok_or(EINVAL)?;
        let mut batch = Batch::new()?;
        let cookie = Cookie::of(&batch);
        let guard = MmapGuard::lock(mm)?;
        let vma = guard.vma_lookup(range.start()).ok_or(EINVAL)?;
        let mut isolated =
            Isolated::new(vma, range, Select::System, false, cookie, None, &mut batch)?;
        assert_eq!(isolated.entries().count(), 4);
        // Destinations are given, but never migrated into.
        isolated.fill(|entry| {
            LockedFolio::alloc_system(Some(vma), range.start(), entry.order(), Effort::Must).ok()
        });
        assert!(isolated.entries().all(|entry| entry.destination != 0));
        drop(isolated);
        drop(guard);
        assert_eq!(load(range.start())?, 11);
        Ok(())
    }

    /// Lets the mirror see an event that did not happen. Returns whether it flushed.
    fn pretend(mirror: &Mirror<TestDevice>, reason: Reason, range: PageRange) -> bool {
        let inner = mirror.notifier.subscriber();
        let mut state = mirror.notifier.lock();
        let event = Event::for_test(reason, range, Cookie::NONE);
        match inner.invalidate(&mut state, &event) {
            ControlFlow::Continue(Some(flush)) => {
                inner.finish(flush);
                true
            }
            _ => false,
        }
    }

    #[test]
    fn events_that_only_take_write_access_keep_the_entry() -> Result {
        let range = map(2)?;
        let shared = shared()?;
        let mirror = mirror(&shared)?;
        mirror.fault(range, Access::Write)?;
        let pfn = mirror.notifier.lock().table.get(range.start()).number();
        // SAFETY: The page is mapped by this test.
        let dirty = |pfn| unsafe { bindings::rust_hmm_kunit_is_dirty(pfn) };
        assert!(!dirty(pfn));

        let first = PageRange::from_pages(range.start(), 1)?;
        assert!(pretend(&mirror, Reason::SoftDirty, first));
        {
            let table = mirror.lock_table()?;
            assert!(table.readable(range.start()).is_some());
            assert!(table.writable(range.start()).is_none());
            assert!(table.writable(range.address(1)).is_some());
        }
        // The device may have written it: reclaim must not drop it.
        assert!(dirty(pfn));
        // Nothing is left to take away.
        assert!(!pretend(&mirror, Reason::ProtectionPage, first));
        // A write fault gives it back.
        mirror.fault(first, Access::Write)?;
        assert!(mirror.lock_table()?.writable(range.start()).is_some());

        // A change of the mapping's rights may take read access, too.
        assert!(pretend(&mirror, Reason::ProtectionVma, first));
        assert!(mirror.lock_table()?.readable(range.start()).is_none());
        assert_eq!(mirror.lock_table()?.present(range), 0);
        assert!(mirror.lock_table()?.readable(range.address(1)).is_some());
        Ok(())
    }

    #[test]
    fn flushes_of_several_devices_overlap() -> Result {
        let range = map(1)?;
        let shared = shared()?;
        let (first, second) = (mirror(&shared)?, mirror(&shared)?);
        store(range.start(), 1)?;
        first.fault(range, Access::Read)?;
        second.fault(range, Access::Read)?;
        shared.first_wait.store(0, Relaxed);
        let before = shared.flushes.load(Relaxed);
        unmap(range)?;
        assert_eq!(shared.flushes.load(Relaxed), before + 2);
        // Both were started before one was waited for.
        assert!(shared.last_start.load(Relaxed) < shared.first_wait.load(Relaxed));
        Ok(())
    }

    #[test]
    fn exclusive_access_ends_with_a_cpu_touch() -> Result {
        let range = map(2)?;
        let shared = shared()?;
        let mirror = mirror(&shared)?;
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

    #[test]
    fn translations_are_checked_before_use() -> Result {
        let range = map(2)?;
        let shared = shared()?;
        let mirror = mirror(&shared)?;
        store(range.start(), 1)?;
        mirror.fault(range, Access::Write)?;
        let (addr, inner) = (range.start(), mirror.inner());
        let kept = mirror.enter(0)?.walk(addr).ok_or(EINVAL)?;
        assert!(mirror.enter(0)?.resolve(addr, &kept).is_ok());
        assert!(mirror.enter(0)?.resolve_mut(addr, &kept).is_ok());
        assert!(mirror.enter(1).is_err());

        let check = |leaf: &Leaf| -> Result<[Option<Unresolved>; 2]> {
            let section = mirror.enter(0)?;
            let write = section.resolve_mut(addr, leaf).err();
            Ok([section.resolve(addr, leaf).err(), write])
        };
        // Less rights than the table gives: good for reading, to be looked up again for writing.
        let read_only = Leaf {
            entry: kept.entry.write_protected(),
            order: 0,
        };
        assert_eq!(check(&read_only)?, [None, Some(Unresolved::Changing)]);
        // The table gives less: that was flushed, so nobody should have the old one.
        let page = PageRange::from_pages(addr, 1)?;
        assert!(pretend(&mirror, Reason::SoftDirty, page));
        assert_eq!(check(&read_only)?, [None, Some(Unresolved::ReadOnly)]);
        assert_eq!(check(&kept)?, [Some(Unresolved::Stale); 2]);
        // What is no translation is none of page frame 0, either.
        let none = Leaf {
            entry: Entry::NONE,
            order: 0,
        };
        assert_eq!(check(&none)?, [Some(Unresolved::Stale); 2]);
        // While a change is under way it is no bug.
        inner.changing.fetch_add(1, Full);
        assert_eq!(check(&kept)?, [Some(Unresolved::Changing); 2]);
        inner.changing.fetch_sub(1, Full);
        mirror.discard(range)?;
        assert!(mirror.enter(0)?.walk(addr).is_none());
        assert_eq!(check(&read_only)?, [Some(Unresolved::Stale); 2]);
        Ok(())
    }

    /// What a thread of the next test tells.
    struct Told {
        entered: Atomic<u32>,
        left: Atomic<u32>,
    }

    #[test]
    fn a_flush_waits_for_accesses_under_way() -> Result {
        let range = map(1)?;
        let shared = shared()?;
        let mirror = Arc::new(mirror(&shared)?, GFP_KERNEL)?;
        mirror.fault(range, Access::Write)?;
        for _ in 0..4 {
            mirror.fault(range, Access::Write)?;
            let told = Told {
                entered: Atomic::new(0),
                left: Atomic::new(0),
            };
            let told = Arc::new(told, GFP_KERNEL)?;
            let (engine, other) = (mirror.clone(), told.clone());
            let thread = Thread::spawn(c"hmm-test", move || {
                if let Ok(section) = engine.enter(0) {
                    other.entered.store(1, Release);
                    kernel::time::delay::udelay(Delta::from_micros(900));
                    other.left.store(1, Release);
                    drop(section);
                }
            })?;
            while told.entered.load(Acquire) == 0 {
                fsleep(Delta::from_micros(20));
            }
            mirror.discard(range)?;
            assert_eq!(told.left.load(Acquire), 1);
            drop(thread);
        }
        Ok(())
    }

    #[test]
    fn the_device_reads_while_pages_move() -> Result {
        let range = map(4)?;
        let shared = shared()?;
        let mirror = mirror(&shared)?;
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
        // The ordinary way leaves nothing.
        mirror.migrate(range).to_device()?;
        let back = mirror.migrate(range).faultless(false);
        let outcome = back.outcomes(&mut pages).to_system()?;
        assert_eq!((outcome.moved, outcome.switched), (4, 0));
        assert!(pages.iter().all(|page| page.has_moved()));
        assert_eq!(mirror.lock_table()?.present(range), 0);
        Ok(())
    }

    #[test]
    fn what_the_device_wrote_is_dirty_when_the_mirror_goes() -> Result {
        let range = map(2)?;
        let shared = shared()?;
        let mirror = mirror(&shared)?;
        mirror.fault(range, Access::Write)?;
        let pfn = mirror.notifier.lock().table.get(range.start()).number();
        // SAFETY: The page is mapped by this test.
        let dirty = |pfn| unsafe { bindings::rust_hmm_kunit_is_dirty(pfn) };
        assert!(!dirty(pfn));
        let before = shared.flushes.load(Relaxed);
        drop(mirror);
        assert!(dirty(pfn));
        // Nor does the device use them any more.
        assert!(shared.flushes.load(Relaxed) > before);
        Ok(())
    }
}

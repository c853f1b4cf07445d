// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: memory that cannot move, and memory that is being evicted.

use super::*;
use crate::{
    kernel::kthread::Thread,
    mm::device_pages::DeviceRange,
    policy::{
        Decision,
        FaultInfo,
        Policy,
        SinglePage, //
    }, //
};
use kernel::{
    sync::atomic::ordering::Acquire,
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    }, //
};

/// Pages of the smallest migration of the default policy.
const MIN_MIGRATION_PAGES: usize = (64 << 10) / PAGE_SIZE;

/// Bytes for which the cache of immovable memory has one entry.
const BLOCK_SIZE: usize = 2 << 20;

/// References to pages, which make them immovable.
struct Held(KVec<usize>);

impl Held {
    /// Takes references to the present pages of `range` for whose index `which` returns `true`.
    fn new(
        mirror: &Mirror<TestDevice>,
        range: PageRange,
        which: impl Fn(usize) -> bool,
    ) -> Result<Self> {
        mirror.fault(range, Access::Read)?;
        let mut held = Self(KVec::new());
        for index in (0..range.pages()).filter(|index| which(*index)) {
            let pfn = mirror
                .inner()
                .lock()
                .table
                .get(range.address(index))
                .number();
            held.0.push(pfn, GFP_KERNEL)?;
            // SAFETY: The test has the page mapped.
            unsafe { bindings::rust_hmm_pfn_get(pfn) };
        }
        Ok(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for pfn in &self.0 {
            // SAFETY: `new()` took the reference, and it is dropped only once.
            unsafe { bindings::rust_hmm_pfn_put(*pfn) };
        }
    }
}

/// Returns `pages` pages with contents within such a block, aligned to [`MIN_MIGRATION_PAGES`], a
/// device, and its mirror.
fn within_block(pages: usize) -> Result<(PageRange, Arc<Shared>, Mirror<TestDevice>)> {
    let (all, shared, mirror) = attached(2 * (pages + MIN_MIGRATION_PAGES) + 1)?;
    let mut start = all
        .start()
        .next_multiple_of(MIN_MIGRATION_PAGES * PAGE_SIZE);
    let border = start.next_multiple_of(BLOCK_SIZE);
    if border - start < pages * PAGE_SIZE {
        start = border;
    }
    let range = PageRange::from_pages(start, pages)?;
    for index in 0..pages {
        store(range.address(index), 100 + index as u64)?;
    }
    Ok((range, shared, mirror))
}

/// A policy that migrates the accessed page only, and sums up the reported pages.
struct Reported(Atomic<usize>);

impl Policy for Reported {
    fn place(&self, fault: &FaultInfo<'_>) -> Decision {
        SinglePage.place(fault)
    }

    fn moved(&self, range: PageRange, _now: u64) {
        for index in 0..range.pages() {
            self.0.fetch_add(range.address(index) / PAGE_SIZE, Relaxed);
        }
    }
}

/// A policy that migrates the aligned [`Self::PAGES`] pages around the fault.
struct Chunks;

impl Chunks {
    /// More than the first window of a CPU fault.
    const PAGES: usize = 2 * MIN_MIGRATION_PAGES;
}

impl Policy for Chunks {
    fn place(&self, fault: &FaultInfo<'_>) -> Decision {
        let start = fault.range.start() & !(Self::PAGES * PAGE_SIZE - 1);
        let chunk = PageRange::from_pages(start, Self::PAGES).ok();
        Decision::Move {
            range: chunk
                .and_then(|chunk| chunk.intersect(&fault.limits))
                .map_or(fault.range, |chunk| chunk.union(&fault.range)),
            evict: true,
        }
    }
}

/// Drains the per-CPU LRU batches. Pages in a batch are not on an LRU list yet, and count as
/// movable.
pub(super) fn settle(mirror: &Mirror<TestDevice>) -> Result {
    let other = map(1)?;
    store(other.start(), 1)?;
    assert_eq!(mirror.migrate(other).to_device()?.moved, 1);
    unmap(other)
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_stay)]
mod suite {
    use super::*;

    #[test]
    fn runs_of_held_pages_share_one_pause() -> Result {
        const PAGES: usize = 64;
        let (range, shared, mirror) = within_block(PAGES)?;
        let held = Held::new(&mirror, range, |index| index % 2 == 1)?;
        settle(&mirror)?;
        let outcome = mirror.migrate(range).to_device()?;
        assert_eq!((outcome.moved, outcome.skipped), (PAGES / 2, PAGES / 2));
        let pauses = mirror.stats().get(Counter::Pauses);
        assert!((1..=3).contains(&pauses));
        assert_eq!(mirror.migrate(range).to_system()?.moved, PAGES / 2);

        // The references are dropped while the last of the other pages is copied. One more pass
        // moves all of them.
        let held = Arc::pin_init(kernel::new_mutex!(Some(held)), GFP_KERNEL)?;
        let copies = Atomic::new(0);
        let memory = shared.memory.driver();
        *memory.at_copy.lock() = Some(Arc::new(
            move || {
                if copies.fetch_add(1, Full) == PAGES / 2 - 1 {
                    *held.lock() = None;
                }
            },
            GFP_KERNEL,
        )?);
        let outcome = mirror.migrate(range).to_device();
        *memory.at_copy.lock() = None;
        let outcome = outcome?;
        assert_eq!((outcome.moved, outcome.skipped), (PAGES, 0));
        assert_eq!(mirror.stats().get(Counter::Pauses), pauses + 1);
        for index in 0..PAGES {
            let word = device_load(&mirror, range.address(index))?;
            assert_eq!(word, Some(100 + index as u64));
        }
        Ok(())
    }

    #[test]
    fn pass_over_immovable_memory_surveys_each_block_once() -> Result {
        const CHUNKS: usize = 14;
        let (range, shared, mirror) = within_block(CHUNKS * MIN_MIGRATION_PAGES)?;
        let _held = Held::new(&mirror, range, |_| true)?;
        settle(&mirror)?;
        mirror.discard(range)?;
        let before = mirror.stats().get(Counter::Migrations);
        for chunk in 0..CHUNKS {
            let part = PageRange::from_pages(
                range.address(chunk * MIN_MIGRATION_PAGES),
                MIN_MIGRATION_PAGES,
            )?;
            assert_eq!(
                mirror
                    .fault_with_policy(part, Access::Read, &SinglePage)?
                    .moved,
                0
            );
        }
        let asked = mirror.stats().get(Counter::Migrations) - before;
        // There is another attempt if 500 ms have passed.
        assert!((1..=2).contains(&asked));
        assert_eq!(
            mirror.lock_table()?.present(range),
            CHUNKS * MIN_MIGRATION_PAGES
        );
        assert_eq!(shared.memory.usage().0, 0);
        assert_eq!(mirror.stats().get(Counter::Pauses), 0);
        Ok(())
    }

    #[test]
    fn immovable_page_among_resident_ones_is_remembered() -> Result {
        const PAGES: usize = 64;
        let (range, shared, mirror) = within_block(PAGES)?;
        let _held = Held::new(&mirror, range, |index| index == 37)?;
        settle(&mirror)?;
        assert_eq!(mirror.migrate(range).to_device()?.moved, PAGES - 1);
        let before = mirror.stats().get(Counter::Migrations);
        for _ in 0..8 {
            mirror.discard(range)?;
            assert_eq!(
                mirror
                    .fault_with_policy(range, Access::Read, &SinglePage)?
                    .moved,
                0
            );
            assert_eq!(mirror.lock_table()?.present(range), PAGES);
        }
        let asked = mirror.stats().get(Counter::Migrations) - before;
        assert!((1..=2).contains(&asked));
        // Pages that a CPU fault has migrated back can be migrated again, also if the mirror's
        // entries were switched.
        assert_eq!(load(range.address(3))?, 103);
        let left = shared.memory.usage().0;
        assert!(left < PAGES - 1);
        let moved = mirror
            .fault_with_policy(range, Access::Read, &SinglePage)?
            .moved;
        assert_eq!(moved, PAGES - 1 - left);
        // This also holds for pages that a request has migrated back.
        mirror.fault_with_policy(range, Access::Read, &SinglePage)?;
        assert_eq!(mirror.migrate(range).to_system()?.moved, PAGES - 1);
        let moved = mirror
            .fault_with_policy(range, Access::Read, &SinglePage)?
            .moved;
        assert_eq!(moved, PAGES - 1);
        Ok(())
    }

    #[test]
    fn pages_of_another_device_migrate_although_cached_as_immovable() -> Result {
        const PAGES: usize = 4 * Chunks::PAGES;
        // Aligned to a chunk, and within a block.
        let all = map(2 * PMD_PAGES)?;
        let range = PageRange::from_pages(all.start().next_multiple_of(PMD_SIZE), PAGES)?;
        let theirs = shared()?;
        let owner = super::mirror(&theirs)?;
        let mine = shared()?;
        let mirror = super::mirror(&mine)?;
        for index in 0..PAGES {
            store(range.address(index), 100 + index as u64)?;
        }
        assert_eq!(owner.migrate(range).to_device()?.moved, PAGES);
        let begin = Instant::<Monotonic>::now();
        let mut kept = 0;
        for index in 0..PAGES {
            let page = PageRange::from_pages(range.address(index), 1)?;
            if device_load(&mirror, page.start())?.is_none() {
                let inner = mirror.inner();
                let now = inner.space.now();
                kept += usize::from(inner.lock().immovable.around(page, now).is_some());
                mirror.fault_with_policy(page, Access::Read, &Chunks)?;
            }
            let word = device_load(&mirror, page.start())?;
            assert_eq!(word, Some(100 + index as u64));
        }
        // Some faults find their page in the cache, unless it expires meanwhile.
        assert!(kept != 0 || begin.elapsed() >= Delta::from_millis(500));
        assert_eq!(mine.memory.usage().0, PAGES);
        assert_eq!(theirs.memory.usage().0, 0);
        Ok(())
    }

    #[test]
    fn skipped_pages_are_not_reported_to_the_policy() -> Result {
        const HELD: usize = MIN_MIGRATION_PAGES / 2 - 1;
        let (range, _shared, mirror) = within_block(MIN_MIGRATION_PAGES)?;
        let _held = Held::new(&mirror, range, |index| index == HELD)?;
        settle(&mirror)?;
        mirror.discard(range)?;
        let policy = Reported(Atomic::new(0));
        let moved = mirror
            .fault_with_policy(range, Access::Read, &policy)?
            .moved;
        assert_eq!(moved, MIN_MIGRATION_PAGES - 1);
        let reported = policy.0.load(Relaxed);
        let expected = (0..MIN_MIGRATION_PAGES).filter(|index| *index != HELD);
        let address = |index| range.address(index) / PAGE_SIZE;
        assert_eq!(reported, expected.map(address).sum::<usize>());
        Ok(())
    }

    #[test]
    fn eviction_skips_claimed_blocks() -> Result {
        let (range, shared, mirror) = attached(8)?;
        store(range.start(), 1)?;
        for withdraw in [false, true] {
            assert_eq!(mirror.migrate(range).to_device()?.moved, 8);
            // Make the block of these pages not the most recently used one.
            shared.memory.mark_accessed(DeviceRange {
                first: 2 * PMD_PAGES,
                count: 1,
            });
            let before = shared.memory.turn();
            let rounds = Arc::new(Atomic::new(0), GFP_KERNEL)?;
            let made = Arc::new(Atomic::new(0), GFP_KERNEL)?;
            let other = shared.clone();
            let seen = rounds.clone();
            let calls = made.clone();
            let memory = shared.memory.driver();
            *memory.at_copy.lock() = Some(Arc::new(
                move || {
                    if seen.fetch_add(1, Full) != 0 {
                        return;
                    }
                    let other = other.clone();
                    let Ok(ended) = Arc::new(Atomic::new(0), GFP_KERNEL) else {
                        return;
                    };
                    let end = ended.clone();
                    // Use another task: the copying task holds the mmap lock, and eviction must not
                    // be called with it.
                    let thread = Thread::spawn(c"hmm-test", move || {
                        // The request exceeds the memory, so that all evictable blocks are evicted.
                        let _ = other.memory.make_room(PMD_PAGES * 8, before);
                        end.store(1, Release);
                    });
                    // The drop of a thread does not wait within a callback.
                    let since = Instant::<Monotonic>::now();
                    while thread.is_ok() && ended.load(Acquire) == 0 {
                        if since.elapsed() > Delta::from_secs(20) {
                            break;
                        }
                        fsleep(Delta::from_millis(1));
                    }
                    calls.store(ended.load(Acquire), Relaxed);
                },
                GFP_KERNEL,
            )?);
            let all = DeviceRange {
                first: 0,
                count: PMD_PAGES,
            };
            let stay = if withdraw {
                shared.memory.offline_pages(all)
            } else {
                shared.memory.evict_all()
            };
            *memory.at_copy.lock() = None;
            assert_eq!(stay, Ok(0));
            assert!(rounds.load(Relaxed) != 0);
            assert_eq!(made.load(Relaxed), 1);
            // The block was not used meanwhile, and is as cold as before.
            assert_eq!(shared.memory.turn(), before);
            assert_eq!(load(range.start())?, 1);
        }
        Ok(())
    }

    #[test]
    fn allocation_waits_for_a_concurrent_eviction() -> Result {
        let (range, shared, mirror) = attached(8)?;
        store(range.start(), 1)?;
        assert_eq!(mirror.migrate(range).to_device()?.moved, 8);
        let (_, total) = shared.memory.usage();
        let made = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let other = shared.clone();
        let result = made.clone();
        let thread = Arc::pin_init(kernel::new_mutex!(None), GFP_KERNEL)?;
        let started = thread.clone();
        let memory = shared.memory.driver();
        *memory.at_copy.lock() = Some(Arc::new(
            move || {
                let mut started = started.lock();
                if started.is_some() {
                    return;
                }
                let other = other.clone();
                let result = result.clone();
                *started = Thread::spawn(c"hmm-test", move || {
                    let before = other.memory.turn();
                    if other.memory.make_room(total, before) == Ok(true) {
                        result.store(1, Release);
                    }
                })
                .ok();
                // The other task finds the block claimed, and tries again every few ms.
                fsleep(Delta::from_millis(12));
            },
            GFP_KERNEL,
        )?);
        assert_eq!(shared.memory.evict_all(), Ok(0));
        *memory.at_copy.lock() = None;
        let thread = thread.lock().take();
        assert!(thread.is_some());
        // Dropping the thread waits for it.
        drop(thread);
        assert_eq!(made.load(Relaxed), 1);
        let evicted = shared.memory.stats().get(Counter::EvictedForRoom);
        assert_eq!(evicted, 0);
        assert_eq!(load(range.start())?, 1);
        Ok(())
    }

    #[test]
    fn unevictable_block_is_tried_once() -> Result {
        let (range, shared, mirror) = attached(8)?;
        store(range.start(), 1)?;
        assert_eq!(mirror.migrate(range).to_device()?.moved, 8);
        let (_, total) = shared.memory.usage();
        let before = shared.memory.turn();
        let memory = shared.memory.driver();
        memory.fail_copies.store(PMD_PAGES, Relaxed);
        assert_eq!(shared.memory.make_room(total, before), Ok(false));
        // There is only one attempt. After it, the block is newer than `before`, and not a
        // candidate.
        let left = PMD_PAGES - 8;
        assert_eq!(memory.fail_copies.load(Relaxed), left);
        assert_eq!(shared.memory.usage().0, 8);
        assert_eq!(shared.memory.make_room(total, before), Ok(false));
        assert_eq!(memory.fail_copies.load(Relaxed), left);
        memory.fail_copies.store(0, Relaxed);
        assert_eq!(
            shared.memory.make_room(total, shared.memory.turn()),
            Ok(true)
        );
        assert_eq!(shared.memory.usage().0, 0);
        assert_eq!(load(range.start())?, 1);
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: overlapping steps of a migration.

use super::{
    stay::settle,
    *, //
};
use crate::{
    inject::{
        ArmedPoint,
        FailPoint, //
    },
    kernel::{
        cancel::CancelToken,
        kthread::Thread, //
    },
    migrate::{
        counted,
        Overlap,
        PageOutcome, //
    }, //
};
use core::ops::Range;
use kernel::{
    sync::atomic::AtomicFlag,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

/// Number of blocks in the tests.
const BLOCKS: usize = 4;

/// Polling interval of [`Engine`].
const ENGINE_POLL_INTERVAL: Delta = Delta::from_millis(10);

/// Number of polls without a new job after which a block completes.
const ENGINE_IDLE_POLLS: usize = 40;

const OVERLAP_RESULTS: [Overlap; 8] = [
    Overlap::Isolated,
    Overlap::Copied,
    Overlap::Contended,
    Overlap::Stopped,
    Overlap::Pages,
    Overlap::Room,
    Overlap::Changed,
    Overlap::Failed,
];

/// Copies of small pages that complete block by block.
pub(super) struct Later {
    jobs: KVVec<Option<CopyJob>>,
    /// Number of blocks that have completed.
    done: usize,
    /// Number of jobs at which each block completes.
    until: KVec<usize>,
    /// Jobs that fail.
    fail: Range<usize>,
    /// Number of blocks that have completed because no further job was submitted.
    late: usize,
}

impl Later {
    pub(super) fn take(&mut self, memory: &TestMemory, job: CopyJob) {
        // If this fails, the job is dropped and fails, which the test detects.
        let _ = self.jobs.push(Some(job), GFP_KERNEL);
        while let Some(until) = self.until.get(self.done) {
            if self.jobs.len() < *until {
                break;
            }
            self.complete(memory);
        }
    }

    /// Completes the next block, and remaining jobs of previous ones: retried pages.
    fn complete(&mut self, memory: &TestMemory) {
        for index in 0..(self.done + 1) * PMD_PAGES {
            let Some(job) = self.jobs.get_mut(index).and_then(Option::take) else {
                continue;
            };
            let result = if self.fail.contains(&index) {
                Err(EIO)
            } else {
                memory.do_copy(memory, &job.copy())
            };
            job.complete(result);
        }
        self.done += 1;
    }
}

/// Makes the copies of a device complete later. A block completes when a given number of jobs was
/// submitted, or when none is submitted for some time.
struct Engine {
    shared: Arc<Shared>,
    stop: Arc<AtomicFlag>,
    thread: Option<Thread>,
}

impl Engine {
    fn new(shared: &Arc<Shared>) -> Result<Self> {
        let stop = Arc::new(AtomicFlag::new(false), GFP_KERNEL)?;
        let its = stop.clone();
        let device = shared.clone();
        let thread = Thread::spawn(c"overlap", move || {
            let mut seen = 0;
            let mut polls = 0;
            while !its.load(Relaxed) {
                fsleep(ENGINE_POLL_INTERVAL);
                let memory = device.memory.driver();
                let mut guard = memory.later.lock();
                let Some(later) = &mut *guard else {
                    continue;
                };
                polls = if later.jobs.len() == seen {
                    polls + 1
                } else {
                    0
                };
                seen = later.jobs.len();
                if polls >= ENGINE_IDLE_POLLS && later.jobs.iter().any(Option::is_some) {
                    later.complete(memory);
                    later.late += 1;
                    polls = 0;
                }
            }
        })?;
        Ok(Self {
            shared: shared.clone(),
            stop,
            thread: Some(thread),
        })
    }

    /// From the next job on, each block completes when the number of jobs reaches its element of
    /// `until`.
    fn set(&self, until: &[usize], fail: Range<usize>) -> Result {
        let mut all = KVec::new();
        all.extend_from_slice(until, GFP_KERNEL)?;
        *self.shared.memory.driver().later.lock() = Some(Later {
            jobs: KVVec::with_capacity(2 * BLOCKS * PMD_PAGES, GFP_KERNEL)?,
            done: 0,
            until: all,
            fail,
            late: 0,
        });
        Ok(())
    }

    /// Returns the number of blocks that have completed because no further job was submitted.
    fn late(&self) -> usize {
        let later = self.shared.memory.driver().later.lock();
        later.as_ref().map_or(0, |later| later.late)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.thread = None;
        *self.shared.memory.driver().later.lock() = None;
    }
}

/// Returns how often each result of an overlap has occurred since `before`.
fn since(before: &[u64; OVERLAP_RESULTS.len()]) -> [u64; OVERLAP_RESULTS.len()] {
    let mut counts = OVERLAP_RESULTS.map(counted);
    for (count, before) in counts.iter_mut().zip(before) {
        *count -= before;
    }
    counts
}

fn now() -> [u64; OVERLAP_RESULTS.len()] {
    since(&[0; OVERLAP_RESULTS.len()])
}

/// Returns the counts for `isolated` overlapping blocks, and one occurrence of `other`.
fn ends(isolated: u64, other: Option<Overlap>) -> [u64; OVERLAP_RESULTS.len()] {
    let one = |end| u64::from(other == Some(end));
    let mut counts = OVERLAP_RESULTS.map(one);
    if let Some(first) = counts.first_mut() {
        *first = isolated;
    }
    counts
}

/// Returns `count` blocks with contents, except for the page `hole`, a device with asynchronous
/// copies, which a previous migration has made known, and its mirror.
fn blocks(
    count: usize,
    hole: Option<usize>,
) -> Result<(PageRange, Arc<Shared>, Arc<Mirror<TestDevice>>, Engine)> {
    let (all, shared, mirror) = attached((count + 1) * PMD_PAGES)?;
    let start = all.start().next_multiple_of(PMD_SIZE);
    let range = PageRange::from_pages(start, count * PMD_PAGES)?;
    for index in (0..range.pages()).filter(|index| Some(*index) != hole) {
        store(range.address(index), 100 + index as u64)?;
    }
    let engine = Engine::new(&shared)?;
    engine.set(&[], 0..0)?;
    settle(&mirror)?;
    Ok((range, shared, Arc::new(mirror, GFP_KERNEL)?, engine))
}

/// Checks the contents of all pages that the device can read, and returns the number of these.
fn readable(mirror: &Mirror<TestDevice>, range: PageRange) -> Result<usize> {
    let mut count = 0;
    for index in 0..range.pages() {
        if let Some(word) = device_load(mirror, range.address(index))? {
            assert_eq!(word, 100 + index as u64);
            count += 1;
        }
    }
    Ok(count)
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_overlap)]
mod suite {
    use super::*;

    /// Pages of a block.
    const P: usize = PMD_PAGES;

    #[test]
    fn next_block_is_isolated_during_the_copy() -> Result {
        const ALL: usize = BLOCKS * PMD_PAGES;
        let (range, shared, mirror, engine) = blocks(BLOCKS, None)?;
        mirror.fault(range, Access::Read)?;
        let before = now();
        // A block completes when the next one is in flight.
        engine.set(&[2 * P, 3 * P, 4 * P, 4 * P], 0..0)?;
        // The device can read all blocks at all times. No window is removed, not even of blocks
        // that have completed.
        let lost = Arc::new(Atomic::<usize>::new(0), GFP_KERNEL)?;
        let reader = mirror.clone();
        let count = lost.clone();
        let check = move || {
            let inner = reader.inner().lock();
            let windows = reader.inner().space.windows();
            for addr in (0..BLOCKS).map(|block| range.address(block * PMD_PAGES)) {
                if !inner.table.get(addr).is_valid() || windows.users(addr) == 0 {
                    count.fetch_add(1, Relaxed);
                }
            }
        };
        *shared.memory.driver().at_copy.lock() = Some(Arc::new(check, GFP_KERNEL)?);
        let outcome = mirror.migrate(range).to_device();
        *shared.memory.driver().at_copy.lock() = None;
        let outcome = outcome?;
        assert_eq!((outcome.moved, outcome.switched), (ALL, ALL));
        assert_eq!((outcome.entries, lost.load(Relaxed)), (ALL, 0));
        assert_eq!(since(&before), ends(3, None));
        assert_eq!((engine.late(), shared.memory.usage().0), (0, ALL));
        assert_eq!(readable(&mirror, range)?, ALL);

        // Migrations to system memory do not overlap.
        engine.set(&[], 0..0)?;
        assert_eq!(mirror.migrate(range).to_system()?.moved, ALL);
        assert_eq!(since(&before), ends(3, None));
        assert_eq!((engine.late(), shared.memory.usage().0), (BLOCKS, 0));
        for index in 0..ALL {
            assert_eq!(load(range.address(index))?, 100 + index as u64);
        }
        Ok(())
    }

    #[test]
    fn synchronous_copies_do_not_overlap() -> Result {
        let (range, _shared, mirror, engine) = blocks(2, None)?;
        drop(engine);
        let before = now();
        // The last copies were synchronous, and only one block is prepared.
        assert_eq!(mirror.migrate(range).to_device()?.moved, 2 * PMD_PAGES);
        assert_eq!(mirror.migrate(range).to_system()?.moved, 2 * PMD_PAGES);
        assert_eq!(since(&before), ends(0, Some(Overlap::Copied)));
        settle(&mirror)?;
        let before = now();
        for _ in 0..2 {
            assert_eq!(mirror.migrate(range).to_device()?.moved, 2 * PMD_PAGES);
            assert_eq!(mirror.migrate(range).to_system()?.moved, 2 * PMD_PAGES);
            settle(&mirror)?;
        }
        assert_eq!(since(&before), ends(0, None));
        Ok(())
    }

    #[test]
    fn failed_copy_affects_its_page_only() -> Result {
        const FAILED: usize = 70;
        // A page of the first block, and one of a block that overlaps.
        for first in [3, PMD_PAGES + 3] {
            let (range, _shared, mirror, engine) = blocks(3, None)?;
            mirror.fault(range, Access::Read)?;
            let before = now();
            engine.set(&[2 * P, 3 * P, 3 * P], first..first + FAILED)?;
            let mut pages = KVec::from_elem(PageOutcome::None, range.pages(), GFP_KERNEL)?;
            let outcome = mirror.migrate(range).outcomes(&mut pages).to_device()?;
            let moved = range.pages() - FAILED;
            assert_eq!((outcome.moved, outcome.copy_failed), (moved, FAILED));
            for (index, page) in pages.iter().enumerate() {
                let failed = (first..first + FAILED).contains(&index);
                assert_eq!((*page == PageOutcome::CopyFailed), failed);
                assert_eq!(page.has_moved(), !failed);
            }
            assert_eq!(since(&before), ends(2, None));
            assert_eq!(engine.late(), 0);
            assert_eq!(readable(&mirror, range)?, range.pages());
            drop(engine);
            for index in 0..range.pages() {
                assert_eq!(load(range.address(index))?, 100 + index as u64);
            }
        }
        Ok(())
    }

    #[test]
    fn blocks_unfit_for_overlap_migrate_without() -> Result {
        for (point, end) in [
            (FailPoint::Retry, Overlap::Changed),
            (FailPoint::Announce, Overlap::Failed),
            (FailPoint::Isolate, Overlap::Failed),
        ] {
            let (range, shared, mirror, engine) = blocks(3, None)?;
            mirror.fault(range, Access::Read)?;
            let before = now();
            engine.set(&[], 0..0)?;
            let armed = ArmedPoint::new(point, 2, false)?;
            assert_eq!(mirror.migrate(range).to_device()?.moved, range.pages());
            assert!(!armed.is_left());
            drop(armed);
            // The next hold of the mmap lock migrates the other two blocks.
            assert_eq!(since(&before), ends(1, Some(end)));
            assert_eq!(shared.memory.usage().0, range.pages());
            assert_eq!(readable(&mirror, range)?, range.pages());
        }
        Ok(())
    }

    #[test]
    fn failed_allocations_are_retried_after_the_overlap() -> Result {
        let (range, _shared, mirror, engine) = blocks(3, None)?;
        mirror.fault(range, Access::Read)?;
        let before = now();
        // A page of the second block. It is copied after the others have completed.
        engine.set(&[2 * P - 1, 3 * P - 1, 3 * P - 1, 3 * P], 0..0)?;
        let armed = ArmedPoint::new(FailPoint::DevicePage, P as u64 + 188, false)?;
        let outcome = mirror.migrate(range).to_device()?;
        assert!(!armed.is_left());
        drop(armed);
        assert_eq!((outcome.moved, outcome.no_memory), (range.pages(), 0));
        assert_eq!(outcome.switched, range.pages());
        assert_eq!((since(&before), engine.late()), (ends(2, None), 0));
        assert_eq!(readable(&mirror, range)?, range.pages());
        Ok(())
    }

    #[test]
    fn lost_entries_are_restored_after_the_overlap() -> Result {
        // Entries of the first block, and of one that overlaps.
        for lost in [1, 2] {
            let (range, _shared, mirror, engine) = blocks(3, None)?;
            mirror.fault(range, Access::Read)?;
            let before = now();
            engine.set(&[2 * P, 3 * P, 3 * P], 0..0)?;
            let armed = ArmedPoint::new(FailPoint::Install, lost, false)?;
            let outcome = mirror.migrate(range).to_device()?;
            assert!(!armed.is_left());
            drop(armed);
            assert_eq!((outcome.moved, outcome.switched), (range.pages(), 2 * P));
            assert_eq!((since(&before), engine.late()), (ends(2, None), 0));
            assert_eq!(readable(&mirror, range)?, range.pages());
        }
        Ok(())
    }

    #[test]
    fn hole_ends_the_overlap() -> Result {
        const HOLE: usize = PMD_PAGES + 5;
        let (range, _shared, mirror, engine) = blocks(3, Some(HOLE))?;
        let before = now();
        engine.set(&[], 0..0)?;
        assert_eq!(mirror.migrate(range).to_device()?.moved, range.pages());
        let end = if cfg!(CONFIG_TRANSPARENT_HUGEPAGE = "y") {
            ends(1, Some(Overlap::Pages))
        } else {
            ends(2, None)
        };
        assert_eq!(since(&before), end);
        drop(engine);
        assert_eq!(load(range.address(HOLE))?, 0);
        assert_eq!(load(range.address(HOLE + 1))?, 101 + HOLE as u64);
        Ok(())
    }

    #[test]
    fn next_block_evicts_nothing() -> Result {
        let (range, shared, mirror, engine) = blocks(BLOCKS, None)?;
        // Device memory has two blocks.
        let used = PageRange::from_pages(range.address(2 * PMD_PAGES), 2 * PMD_PAGES)?;
        engine.set(&[2 * P, 2 * P], 0..0)?;
        assert_eq!(mirror.migrate(used).to_device()?.moved, used.pages());
        let other = map(4 * PMD_PAGES)?;
        let start = other.start().next_multiple_of(PMD_SIZE);
        let other = PageRange::from_pages(start, 3 * PMD_PAGES)?;
        for index in 0..other.pages() {
            store(other.address(index), 1)?;
        }
        engine.set(&[], 0..0)?;
        settle(&mirror)?;
        let before = now();
        engine.set(&[2 * P], 0..0)?;
        let outcome = mirror.migrate(other).evict(false).to_device()?;
        assert_eq!((outcome.moved, outcome.no_memory), (2 * P, P));
        assert_eq!(since(&before), ends(1, Some(Overlap::Room)));
        assert_eq!(shared.memory.stats().get(Counter::Evicted), 0);
        Ok(())
    }

    #[test]
    fn cancelled_migration_isolates_no_next_block() -> Result {
        let (range, shared, mirror, engine) = blocks(3, None)?;
        let before = now();
        engine.set(&[], 0..0)?;
        let stop = CancelToken::new()?;
        let its = stop.clone();
        *shared.memory.driver().at_copy.lock() = Some(Arc::new(move || its.set(), GFP_KERNEL)?);
        let outcome = mirror.migrate(range).cancel_token(stop).to_device();
        *shared.memory.driver().at_copy.lock() = None;
        assert_eq!(outcome?.moved, PMD_PAGES);
        assert_eq!(since(&before), ends(0, Some(Overlap::Stopped)));
        assert_eq!(shared.memory.usage().0, PMD_PAGES);
        Ok(())
    }
}

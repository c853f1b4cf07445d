// SPDX-License-Identifier: GPL-2.0

//! Eviction of pages from device memory, by block, whichever processes map them.
//!
//! The task that has claimed a block in the LRU evicts it, and other tasks skip it. The pages are
//! found by page frame, and their mappings by the reverse mapping. An eviction may be part of a
//! fault or a migration of any process. Therefore it waits for the mmap lock of the current process
//! only, and takes those of other processes by trylock ([`MmapLocks`]), unless the memory is
//! removed.
//!
//! Eviction is best effort. A page with a temporary reference is evicted in a later pass.

use super::{
    lru::{
        Claim,
        Lru,
        NoClaim, //
    },
    pipeline::{
        fill_from_system,
        Migration,
        MigrationOps, //
    },
    steps::StepGuard,
    Copier,
    CopyContext,
    Memory,
    MemoryOps,
    MemoryParts, //
};
use crate::{
    debug::{
        events::EvictReason,
        stats::Counter,
        timing::Stopwatch,
        trace, //
    },
    kernel::{
        identity::MmId,
        reentry, //
    },
    mm::{
        addr::{
            PMD_ORDER,
            PMD_PAGES, //
        },
        device_pages::MmapLocks,
        folio::{
            Effort,
            LockedFolio, //
        },
        migrate::{
            Batch,
            Isolated,
            Moved, //
        },
        vma::fatal_signal_pending, //
    },
    space, //
};
use core::cell::Cell;
use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::Relaxed,
        Atomic, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

/// Passes over the memory before an eviction of all pages gives up. A page to which another task
/// had a temporary reference is evicted in a later pass.
const EVICT_MAX_PASSES: usize = 50;

/// Number of rounds of an eviction that must empty the memory after which it raises an alarm: about
/// 10 seconds.
pub(super) const STAY_REPORT_ROUNDS: usize = 100;

/// Time between two passes.
const EVICT_PASS_INTERVAL: Delta = Delta::from_millis(2);

/// Guard: an eviction is isolating pages. Counted in
/// [`MemoryState::evicting`](super::MemoryState::evicting).
///
/// The count is relaxed. The core calls the notifiers of an isolation in the task that evicts,
/// which sees its own increment. An invalidation by another task may miss the count, which is
/// correct because its pages are not evicted, or still find it, which costs a notification without
/// effect.
struct EvictingGuard<'a>(&'a Atomic<usize>);

impl<'a> EvictingGuard<'a> {
    fn begin(count: &'a Atomic<usize>) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for EvictingGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl<M: MemoryOps> Memory<M> {
    /// Evicts all pages in use to system memory. Signals do not stop it. Returns the number of
    /// pages that remain in use, because of references that other tasks have or because of
    /// concurrent allocations.
    ///
    /// # Errors
    ///
    /// After an error no page has moved.
    ///
    /// - `ENOMEM`
    /// - `EDEADLK` within a callback, with a table lock held or in a section.
    ///
    /// # Context
    ///
    /// May sleep; no lock may be held.
    pub fn evict_all(&self) -> Result<usize> {
        reentry::may_wait()?;
        self.parts.evict(MmapLocks::Own, false)
    }

    /// Evicts all pages in use as [`Self::evict_all`], but stops if the task is killed.
    ///
    /// # Errors
    ///
    /// - Those of [`Self::evict_all`].
    /// - `EINTR` if the task was killed. Pages that have been evicted by then stay evicted.
    ///
    /// # Context
    ///
    /// May sleep; no lock may be held.
    pub fn evict_all_killable(&self) -> Result<usize> {
        reentry::may_wait()?;
        self.parts.evict(MmapLocks::Own, true)
    }

    /// Returns whether an eviction is isolating pages. If so, the space `name` is added to those
    /// whose mirrors are notified after the eviction. An invalidation calls this when a mirror of
    /// the space loses device pages without a migration of its own.
    pub(crate) fn evicts_from(&self, name: MmId) -> bool {
        let ops = self.pages().data();
        let evicting = ops.evicting.load(Relaxed) != 0;
        if evicting {
            ops.victims.add(name);
        }
        evicting
    }
}

/// A block that the current task evicts. No other task evicts it, and an unplug waits until this is
/// dropped.
pub(super) struct Eviction<'a> {
    claim: Claim<'a>,
    _departure: StepGuard<'a>,
}

impl Eviction<'_> {
    /// Returns the first page of the block.
    pub(super) fn first(&self) -> usize {
        self.claim.block() * PMD_PAGES
    }
}

/// Operations of the migration of an eviction, whose [`Eviction`] an unplug waits for.
struct EvictMigration {
    /// Destination of a huge page.
    huge: Option<LockedFolio>,
    /// Number of pages that moved.
    moved: usize,
}

impl MigrationOps<()> for EvictMigration {
    fn fill(&mut self, isolated: &mut Isolated<'_>) -> bool {
        fill_from_system(
            isolated,
            None,
            |_| true,
            |entry| match entry.order() {
                PMD_ORDER => self.huge.take(),
                order => LockedFolio::alloc_system(None, 0, order, Effort::Must).ok(),
            },
        );
        true
    }

    fn moved(&mut self, moved: &Moved<'_>) {
        self.moved = moved.pages();
    }

    fn switch(&mut self, (): (), _moved: &Moved<'_>) {}
}

impl<M: MemoryOps> MemoryParts<M> {
    /// Evicts all pages in use. Returns the number of pages that remain in use.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no page has moved.
    /// - `EINTR`: the task was killed. With `killable` the eviction has stopped. With
    ///   [`MmapLocks::All`] it has tried each page, but pages are left whose mmap lock is
    ///   contended.
    ///
    /// # Context
    ///
    /// May sleep. A call that returns `EINTR` for an mmap lock has slept, so that a caller that
    /// repeats it does not spin.
    pub(super) fn evict(&self, locks: MmapLocks, killable: bool) -> Result<usize> {
        let mut batch = Batch::new()?;
        let mut copies = CopyContext::new(killable)?;
        for pass in 0..EVICT_MAX_PASSES {
            if pass > 0 {
                fsleep(EVICT_PASS_INTERVAL);
            }
            let result = self.evict_pass(&mut batch, &mut copies, locks, killable);
            result?;
            if self.pages.used() == 0 {
                break;
            }
            if batch.was_killed() {
                fsleep(EVICT_PASS_INTERVAL);
                return Err(EINTR);
            }
        }
        Ok(self.pages.used())
    }

    fn evict_pass(
        &self,
        batch: &mut Batch,
        copies: &mut CopyContext,
        locks: MmapLocks,
        killable: bool,
    ) -> Result {
        let mut moved = 0;
        let mut result = Ok(());
        for block in self.pages.used_blocks() {
            if killable && fatal_signal_pending() {
                result = Err(EINTR);
                break;
            }
            // A block that a concurrent task evicts is left to the next pass.
            let begun = self.begin_eviction(|lru| lru.claim(block.first / PMD_PAGES));
            moved += begun.map_or(0, |eviction| {
                self.evict_block(&eviction, locks, batch, copies)
            });
        }
        self.pages.data().stats.add(Counter::Evicted, moved as u64);
        self.evicted(EvictReason::All, moved);
        result
    }

    /// Reports the end of an eviction that has moved `moved` pages: emits the tracepoint, and
    /// notifies each mirror that has lost pages. Memory with the attribute "accessed by" is mapped
    /// again at its new location: memory of the current process at once, memory of other processes
    /// by a worker.
    pub(super) fn evicted(&self, need: EvictReason, moved: usize) {
        let ops = self.pages.data();
        trace::evict(ops.id, need, moved, self.pages.used());
        self.notify_victims(Some(need));
    }

    /// Notifies the mirrors that have lost pages. Without `need` no event is reported; used for
    /// pages that are taken out of use.
    pub(super) fn notify_victims(&self, need: Option<EvictReason>) {
        let ops = self.pages.data();
        let victims = ops.victims.take();
        let restore = !ops.arrivals.is_closed();
        for name in victims.iter() {
            if let Some(space) = space::find(name) {
                space.evicted(need, restore);
            }
        }
        if victims.more {
            ops.mirrors
                .for_each(|mirror| mirror.evicted_from_many(need, restore));
        }
    }

    /// Begins the eviction of the block that `claim` claims.
    ///
    /// # Errors
    ///
    /// The reason why `claim` claimed no block.
    pub(super) fn begin_eviction<'a>(
        &'a self,
        claim: impl FnOnce(&'a Lru) -> Result<Claim<'a>, NoClaim>,
    ) -> Result<Eviction<'a>, NoClaim> {
        let ops = self.pages.data();
        // Begun before the claim, so that an unplug that finds the block claimed also finds the
        // departure, and waits for it.
        let departure = ops.departures.begin();
        Ok(Eviction {
            claim: claim(&ops.lru)?,
            _departure: departure,
        })
    }

    /// Migrates the pages of a block to system memory, as far as they can move. Returns the number
    /// of pages that moved.
    pub(super) fn evict_block(
        &self,
        eviction: &Eviction<'_>,
        locks: MmapLocks,
        batch: &mut Batch,
        copies: &mut CopyContext,
    ) -> usize {
        let first = eviction.first();
        let mut huge = None;
        if self.pages.is_huge(first) {
            huge = self.huge_destination();
            if huge.is_none() {
                self.pages.split(first, locks, batch);
            }
        }
        let stopwatch = Stopwatch::start();
        let begin = || Some(EvictingGuard::begin(&self.pages.data().evicting));
        let evicting = Cell::new(begin());
        let mut moved = self.pages.isolate_huge(first, locks, batch, |isolated| {
            evicting.set(None);
            self.migrate_to_ram(isolated, huge.take(), copies, stopwatch)
        });
        if moved.is_none() && !self.pages.is_huge(first) {
            let mut small = 0;
            let mut stopwatch = stopwatch;
            self.pages.isolate_small(first, locks, batch, |isolated| {
                evicting.set(None);
                small += self.migrate_to_ram(isolated, None, copies, stopwatch);
                evicting.set(begin());
                stopwatch = Stopwatch::start();
            });
            moved = Some(small);
        }
        drop(evicting);
        moved.unwrap_or(0)
    }

    /// Migrates the isolated pages to system memory, a huge page to `huge`. Returns the number of
    /// pages that moved.
    fn migrate_to_ram(
        &self,
        isolated: Isolated<'_>,
        huge: Option<LockedFolio>,
        copies: &mut CopyContext,
        stopwatch: Stopwatch,
    ) -> usize {
        let migration = Migration {
            copier: Copier::new(&self.pages, None),
            copies,
            // No mirror joins: the invalidation of the isolation has removed the device PTEs.
            readers: (),
            ops: EvictMigration { huge, moved: 0 },
            stopwatch,
        };
        // Pages that could not be copied stay.
        let evicted = migration.run(|| Ok(isolated)).ok().flatten();
        evicted.map_or(0, |evicted| evicted.moved)
    }

    /// Allocates a huge page of system memory, in one cheap attempt.
    fn huge_destination(&self) -> Option<LockedFolio> {
        if self.pages.data().faults.fails_allocation() {
            return None;
        }
        LockedFolio::alloc_system(None, 0, PMD_ORDER, Effort::Try).ok()
    }

    /// Evicts until no page is in use, because the memory cannot be freed before. Raises an alarm
    /// every `report` rounds. Called by the drop.
    ///
    /// The drop cannot fail, and its caller frees the device's resources next. So a fatal signal
    /// does not end it. The signal ends waits for mmap locks, which are then tried ten times a
    /// second, until their holders release them. Meanwhile the task sleeps.
    pub(super) fn evict_until_empty(&self, report: usize) {
        let mut rounds = 0usize;
        while self.pages.used() != 0 {
            if self.evict(MmapLocks::All, false).is_err() {
                fsleep(Delta::from_millis(100));
            }
            rounds += 1;
            if rounds.checked_rem(report) == Some(0) {
                let used = self.pages.used();
                crate::alarm!(PagesStayInUse, "{used} device pages after {rounds} tries");
            }
        }
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_evict)]
mod tests {
    use super::*;
    use crate::{
        alarm::{
            Alarm,
            ExpectedAlarm, //
        },
        kernel::kthread::Thread,
        memory::{
            CopyJob,
            Memory, //
        },
        mm::device_pages::MemoryKind, //
    };
    use kernel::sync::Arc;

    /// A driver that cannot copy.
    struct NoCopies;

    impl MemoryOps for NoCopies {
        fn copy(&self, job: CopyJob) {
            job.complete(Err(EINVAL));
        }
    }

    #[test]
    fn page_in_use_raises_an_alarm() -> Result {
        let memory = Memory::new(NoCopies, MemoryKind::Private, PMD_PAGES);
        let memory = Arc::pin_init(memory, GFP_KERNEL)?;
        memory.add_chunks(1)?;
        // A page that no process maps cannot be evicted.
        let page = memory.pages().alloc(0).ok_or(ENOMEM)?;
        let expected = ExpectedAlarm::new(Alarm::PagesStayInUse);
        let theirs = memory.clone();
        let thread = Thread::spawn(c"hmm-test", move || theirs.parts.evict_until_empty(1))?;
        for _ in 0..5000 {
            if expected.raised() != 0 {
                break;
            }
            fsleep(Delta::from_millis(1));
        }
        assert_ne!(expected.raised(), 0);
        // It returns as soon as the page is free.
        drop(page);
        drop(thread);
        assert_eq!(memory.usage().0, 0);
        Ok(())
    }
}

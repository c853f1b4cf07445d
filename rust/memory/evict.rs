// SPDX-License-Identifier: GPL-2.0

//! Eviction of what is in the memory, whoever maps it: for release and unload.

use super::{
    lru::{Claim, Lru, NoClaim},
    steps::Step,
    Copies, Memory, MemoryOps, Parts,
};
use crate::{
    events::Need,
    mm::{
        addr::{PMD_ORDER, PMD_PAGES},
        device_pages::{DeviceRange, MmapLocks},
        migrate::{Batch, Isolated, Source},
        notifier::Cookie,
        page::{Effort, LockedFolio},
        space::fatal_signal_pending,
        trace,
    },
    phases::{Lap, Phase},
    space,
    stats::Counter,
    within,
};
use core::cell::Cell;
use kernel::{
    prelude::*,
    sync::atomic::{ordering::Relaxed, Atomic},
    time::{delay::fsleep, Delta}, //
};

/// Passes over the memory before a release gives up. Pages that somebody holds for a moment are
/// found in the next pass.
const PASSES: usize = 50;

/// Time between two passes.
const PAUSE: Delta = Delta::from_millis(2);

/// Pages are being isolated to be evicted, as long as this is there.
struct Evicting<'a>(&'a Atomic<usize>);

impl<'a> Evicting<'a> {
    fn begin(count: &'a Atomic<usize>) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for Evicting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl<M: MemoryOps> Memory<M> {
    /// Moves all pages in use to system memory, whatever signals come: for a close. Returns the
    /// pages that stay, because somebody holds them or takes new ones.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, or `EDEADLK` within a callback, before anything was done. Context: may sleep; no lock
    /// may be held.
    pub fn evict_all(&self) -> Result<usize> {
        within::may_wait()?;
        self.parts.evict(MmapLocks::Own, false)
    }

    /// As [`Self::evict_all`], for a process that may be killed meanwhile.
    ///
    /// # Errors
    ///
    /// Also `EINTR`: killed; what was moved by then has moved.
    pub fn evict_all_killable(&self) -> Result<usize> {
        within::may_wait()?;
        self.parts.evict(MmapLocks::Own, true)
    }

    /// Whether pages are being evicted: then what the space `name` loses without a transaction of its own is told as
    /// that, when the eviction is over.
    pub(crate) fn evicts_from(&self, name: Cookie) -> bool {
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
    _departure: Step<'a>,
}

impl Eviction<'_> {
    /// The pages of the block.
    pub(super) fn block(&self) -> DeviceRange {
        DeviceRange {
            first: self.claim.block() * PMD_PAGES,
            count: PMD_PAGES,
        }
    }
}

impl<M: MemoryOps> Parts<M> {
    pub(super) fn evict(&self, locks: MmapLocks, killable: bool) -> Result<usize> {
        let mut batch = Batch::new()?;
        let mut copies = Copies::new(killable)?;
        for pass in 0..PASSES {
            if pass > 0 {
                fsleep(PAUSE);
            }
            let result = self.evict_pass(&mut batch, &mut copies, locks, killable);
            result?;
            if self.pages.used() == 0 {
                break;
            }
        }
        Ok(self.pages.used())
    }

    fn evict_pass(
        &self,
        batch: &mut Batch,
        copies: &mut Copies,
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
            // A block that another task evicts is left to the next pass.
            let begun = self.begin_eviction(|lru| lru.claim(block.first / PMD_PAGES));
            moved += begun.map_or(0, |eviction| {
                self.evict_block(&eviction, locks, batch, copies)
            });
        }
        self.pages.data().stats.add(Counter::Evicted, moved as u64);
        self.evicted(Need::All, moved);
        result
    }

    /// Tells of an eviction, after which `moved` pages were elsewhere: for the device, and for each mirror that has lost
    /// some. Memory that a device is to have mapped always is mapped where it is now: that of the current process at
    /// once, that of others by a worker.
    pub(super) fn evicted(&self, need: Need, moved: usize) {
        let ops = self.pages.data();
        trace::evict(ops.id, need, moved, self.pages.used());
        self.tell_victims(Some(need));
    }

    /// As [`Self::evicted`], of pages that are taken out of use: without `need`, this is no event.
    pub(super) fn tell_victims(&self, need: Option<Need>) {
        let ops = self.pages.data();
        let victims = ops.victims.take();
        let restore = !ops.arrivals.is_closed();
        for name in victims.iter() {
            if let Some(space) = space::find(name) {
                space.evicted(need, restore);
            }
        }
        if victims.more {
            ops.peers
                .for_each(|peer| peer.evicted_from_many(need, restore));
        }
    }

    /// Begins the eviction of the block that `claim` claims, or returns why it claimed none.
    pub(super) fn begin_eviction<'a>(
        &'a self,
        claim: impl FnOnce(&'a Lru) -> Result<Claim<'a>, NoClaim>,
    ) -> Result<Eviction<'a>, NoClaim> {
        let ops = self.pages.data();
        // Before the claim: an unplug that finds the block claimed must find the departure, too.
        let departure = ops.departures.begin();
        Ok(Eviction {
            claim: claim(&ops.lru)?,
            _departure: departure,
        })
    }

    /// Moves the pages of a block that can move to system memory. Returns how many were freed.
    pub(super) fn evict_block(
        &self,
        eviction: &Eviction<'_>,
        locks: MmapLocks,
        batch: &mut Batch,
        copies: &mut Copies,
    ) -> usize {
        let block = eviction.block();
        let mut huge = None;
        if self.pages.is_huge(block.first) {
            huge = self.huge_destination();
            if huge.is_none() {
                self.pages.split(block.first, locks, batch);
            }
        }
        let mut lap = Lap::start();
        let begin = || Some(Evicting::begin(&self.pages.data().evicting));
        let evicting = Cell::new(begin());
        let mut moved = self
            .pages
            .isolate_huge(block.first, locks, batch, |isolated| {
                evicting.set(None);
                self.bring_back(isolated, huge.take(), copies, &mut lap)
            });
        if moved.is_none() && !self.pages.is_huge(block.first) {
            let mut small = 0;
            self.pages
                .isolate_small(block.first, locks, batch, |isolated| {
                    evicting.set(None);
                    small += self.bring_back(isolated, None, copies, &mut lap);
                    evicting.set(begin());
                });
            moved = Some(small);
        }
        drop(evicting);
        moved.unwrap_or(0)
    }

    /// Moves what is isolated to system memory, a huge page to `huge`. Returns the pages moved.
    fn bring_back(
        &self,
        mut isolated: Isolated<'_>,
        mut huge: Option<LockedFolio>,
        copies: &mut Copies,
        lap: &mut Lap,
    ) -> usize {
        lap.end(Phase::Unmap);
        if isolated.fill_small(None, |_| true) {
            isolated.fill(|entry| match (entry.source, entry.order()) {
                // Of other migrations: a page of the device is there, or its entry is empty.
                (Source::Hole, _) => None,
                (_, PMD_ORDER) => huge.take(),
                (_, order) => LockedFolio::alloc_system(None, 0, order, Effort::Must).ok(),
            });
        }
        lap.end(Phase::Allocate);
        self.pages
            .data()
            .copy_all(&self.pages, &mut isolated, copies);
        lap.end(Phase::Copy);
        let migrated = isolated.migrate();
        let moved = migrated.moved().pages();
        lap.end(Phase::Switch);
        // The notifiers of the isolation have removed what devices had.
        migrated.finalize(|(), _| ());
        lap.end(Phase::Finalize);
        moved
    }

    /// A huge page of system memory, if it can be had without effort.
    fn huge_destination(&self) -> Option<LockedFolio> {
        if self.pages.data().fails(PMD_ORDER) {
            return None;
        }
        LockedFolio::alloc_system(None, 0, PMD_ORDER, Effort::Try).ok()
    }

    /// For drop: the memory cannot go before its pages have.
    pub(super) fn evict_until_empty(&self) {
        let mut rounds = 0u32;
        while self.pages.used() != 0 {
            if self.evict(MmapLocks::All, false).is_err() {
                fsleep(Delta::from_millis(100));
            }
            rounds += 1;
            if rounds % 100 == 0 {
                let used = self.pages.used();
                crate::alarm!(PagesStayInUse, "{used} device pages after {rounds} tries");
            }
        }
    }
}

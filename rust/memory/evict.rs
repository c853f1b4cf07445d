// SPDX-License-Identifier: GPL-2.0

//! Eviction by physical page, whoever maps it: for release and unload.

use super::{Copies, Memory, MemoryOps};
use crate::{
    mm::{
        device_pages::DeviceRange,
        migrate::{Batch, Isolated},
        page::{Effort, LockedFolio},
        space::fatal_signal_pending,
        trace,
    },
    phases::{Lap, Phase},
    stats::Counter,
    within,
};
use kernel::{
    prelude::*,
    time::{delay::fsleep, Delta}, //
};

/// Passes over the memory before a release gives up. Pages that somebody holds for a moment are
/// found in the next pass.
const PASSES: usize = 50;

/// Time between two passes.
const PAUSE: Delta = Delta::from_millis(2);

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
        self.evict(false)
    }

    /// As [`Self::evict_all`], for a process that may be killed meanwhile.
    ///
    /// # Errors
    ///
    /// Also `EINTR`: killed; what was moved by then has moved.
    pub fn evict_all_killable(&self) -> Result<usize> {
        within::may_wait()?;
        self.evict(true)
    }

    fn evict(&self, killable: bool) -> Result<usize> {
        let mut batch = Batch::new()?;
        let mut copies = Copies::new(killable)?;
        for pass in 0..PASSES {
            if pass > 0 {
                fsleep(PAUSE);
            }
            self.evict_pass(&mut batch, &mut copies, killable)?;
            if self.pages.used() == 0 {
                break;
            }
        }
        Ok(self.pages.used())
    }

    fn evict_pass(&self, batch: &mut Batch, copies: &mut Copies, killable: bool) -> Result {
        let mut moved = 0;
        let mut result = Ok(());
        for block in self.pages.used_blocks() {
            if killable && fatal_signal_pending() {
                result = Err(EINTR);
                break;
            }
            moved += self.evict_block(block, batch, copies).unwrap_or(0);
        }
        self.stats().add(Counter::Evicted, moved as u64);
        trace::evict(self.pages.data().id, moved, self.pages.used());
        result
    }

    fn evict_block(
        &self,
        block: DeviceRange,
        batch: &mut Batch,
        copies: &mut Copies,
    ) -> Result<usize> {
        let mut lap = Lap::start();
        let mut isolated = Isolated::from_device(&self.pages, block, batch)?;
        lap.end(Phase::Unmap);
        isolated.fill_small(None, |_| true);
        // A huge device folio can only go to a huge one here: so try hard.
        isolated.fill(|entry| LockedFolio::alloc_system(None, 0, entry.order(), Effort::Must).ok());
        lap.end(Phase::Allocate);
        self.copy_all(&mut isolated, copies);
        lap.end(Phase::Copy);
        let migrated = isolated.migrate();
        let moved = migrated.moved().map(|entry| entry.pages).sum();
        lap.end(Phase::Switch);
        // The notifiers of the isolation have removed what devices had.
        drop(migrated);
        lap.end(Phase::Finalize);
        Ok(moved)
    }

    /// For drop: the memory cannot go before its pages have.
    pub(super) fn evict_until_empty(&self) {
        let mut rounds = 0u32;
        while self.pages.used() != 0 {
            if self.evict(false).is_err() {
                fsleep(Delta::from_millis(100));
            }
            rounds += 1;
            if rounds % 100 == 0 {
                pr_warn!("{} device pages are still in use\n", self.pages.used());
            }
        }
    }
}

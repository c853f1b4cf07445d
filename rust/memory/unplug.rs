// SPDX-License-Identifier: GPL-2.0

//! Removal of device memory: of a part of it at run time, or of all of it on unplug.
//!
//! Unplug first closes `arrivals`. Faults and migrations recheck that under the table lock before
//! they install an entry. Therefore none is installed after unplug has removed the entries of a
//! mirror. Then unplug waits for migrations that have begun, and evicts the remaining pages.
//!
//! Pages are evicted in several passes, because a page with a temporary reference cannot be
//! migrated.
//!
//! The wait for an mmap lock is killable. The pages that are left then are not lost: unplug fails,
//! and can be repeated.

use super::{
    CopyContext,
    Memory,
    MemoryOps, //
};
use crate::{
    debug::stats::Counter,
    kernel::reentry,
    mm::{
        addr::PMD_PAGES,
        device_pages::{
            DeviceRange,
            MmapLocks, //
        },
        migrate::Batch, //
    }, //
};
use kernel::{
    prelude::*,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

/// Number of passes over the pages to be removed. A page that has a temporary reference is evicted
/// in a later pass.
const UNPLUG_MAX_PASSES: usize = 20;

/// Maximum number of further evictions by unplug, each after a wait for migrations from the device
/// that the previous one met.
const UNPLUG_MAX_ROUNDS: usize = 4;

/// Time between two passes.
const UNPLUG_PASS_INTERVAL: Delta = Delta::from_millis(2);

impl<M: MemoryOps> Memory<M> {
    /// Returns whether the device was unplugged.
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_gone(&self) -> bool {
        self.pages().data().arrivals.is_closed()
    }

    /// Stops the use of a device that was or is about to be removed. All its mirrors lose their
    /// entries, no page is migrated to it, and readable pages are saved to system memory.
    ///
    /// Returns the number of pages that this call saved, and the number that were lost because the
    /// driver's copies failed. A CPU access to a lost page raises `SIGBUS`. A lost page stays in
    /// use until its processes have unmapped it.
    ///
    /// Operations that need the device return `ENODEV` from now on. This function waits for
    /// migrations to and from the device that have begun, and for their copies. A driver whose copy
    /// engine has stopped must therefore fail its jobs first. When this returns, only lost pages
    /// are in the memory, and the driver may stop its copy engine.
    ///
    /// After `EINTR` and `ENOMEM` the device counts as unplugged, too, but pages that can be saved
    /// are left. Each of them is migrated back when a CPU accesses it. The driver must not stop its
    /// copy engine, and calls this function again to save the rest. If the removal cannot fail, it
    /// repeats the call until another result is returned: each call that returns `EINTR` has tried
    /// all pages, and has slept.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if another call unplugs the device, or has done so.
    /// - `EINTR` if the task was killed, and the mmap lock of a process that maps pages of the
    ///   memory is contended. All other pages were saved.
    /// - `ENOMEM`: no page was saved.
    /// - `EDEADLK` within a callback.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kernel::prelude::*;
    /// use rust_hmm::memory::Memory;
    /// use rust_hmm::memory::MemoryOps;
    ///
    /// /// Called by `unbind`, while the device can still copy. Returns whether nothing was lost.
    /// fn unbind<M: MemoryOps>(memory: &Memory<M>) -> Result<bool> {
    ///     let (_saved, lost) = memory.unplug()?;
    ///     Ok(lost == 0)
    /// }
    /// ```
    pub fn unplug(&self) -> Result<(usize, usize)> {
        reentry::may_wait()?;
        let ops = self.pages().data();
        if !ops.arrivals.close() && !ops.arrivals.take_failed() {
            return Err(ENODEV);
        }
        ops.mirrors.for_each(|mirror| mirror.remove_entries());
        // Wait for migrations to the device. Their pages are saved with the others.
        ops.arrivals.wait();
        let before = self.stats().get(Counter::Evicted);
        let lost = self.save_pages();
        // Remove the entries that concurrent migrations have installed, also after an error.
        ops.mirrors.for_each(|mirror| mirror.remove_entries());
        let saved = (self.stats().get(Counter::Evicted) - before) as usize;
        lost.map(|lost| (saved, lost))
            .inspect_err(|_| ops.arrivals.set_failed())
    }

    /// Evicts all pages of an unplugged device, and waits for migrations from it. Returns the
    /// number of pages that are lost.
    fn save_pages(&self) -> Result<usize> {
        let ops = self.pages().data();
        // Eviction does not find pages that a concurrent migration has isolated. These pages are
        // not lost, but their copies need the device.
        ops.departures.wait();
        let mut lost = self.parts.evict(MmapLocks::All, false)?;
        for _ in 0..UNPLUG_MAX_ROUNDS {
            if lost == 0 || !ops.departures.wait() {
                break;
            }
            lost = self.parts.evict(MmapLocks::All, false)?;
        }
        Ok(lost)
    }

    /// Takes pages out of use, for example because the memory has become bad. Pages in use are
    /// evicted to system memory. Returns the number of pages that could not be evicted because they
    /// have other references; these are taken out of use when they are freed.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `range` is empty or exceeds the memory.
    /// - `ENOMEM`
    /// - `EDEADLK` within a callback.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    pub fn offline_pages(&self, range: DeviceRange) -> Result<usize> {
        reentry::may_wait()?;
        let end = range.first.checked_add(range.count).ok_or(EINVAL)?;
        if range.count == 0 || end > self.pages().limit() {
            return Err(EINVAL);
        }
        self.start_worker()?;
        self.pages().grow_to(end)?;
        let mut batch = Batch::new()?;
        let mut copies = CopyContext::new(false)?;
        let blocks =
            || (range.first / PMD_PAGES..end.div_ceil(PMD_PAGES)).map(|block| block * PMD_PAGES);
        for pass in 0..UNPLUG_MAX_PASSES {
            if pass > 0 {
                fsleep(UNPLUG_PASS_INTERVAL);
            }
            if self.pages().offline(range) == 0 {
                self.parts.notify_victims(None);
                return Ok(0);
            }
            for first in blocks().filter(|first| self.pages().used_in_block(*first) != 0) {
                // Leave a block that another task is evicting to the next pass.
                let begun = self
                    .parts
                    .begin_eviction(|lru| lru.claim(first / PMD_PAGES));
                if let Ok(eviction) = begun {
                    let moved =
                        self.parts
                            .evict_block(&eviction, MmapLocks::Own, &mut batch, &mut copies);
                    self.stats().add(Counter::Evicted, moved as u64);
                }
            }
        }
        self.parts.notify_victims(None);
        Ok(self.pages().offline(range))
    }

    /// Returns pages to use that [`Self::offline_pages`] took out of use.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `range` is empty or exceeds the memory.
    /// - `EDEADLK` within a callback.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn online_pages(&self, range: DeviceRange) -> Result {
        reentry::may_wait()?;
        let end = range.first.checked_add(range.count).ok_or(EINVAL)?;
        if range.count == 0 || end > self.pages().limit() {
            return Err(EINVAL);
        }
        self.pages().online(range);
        Ok(())
    }
}

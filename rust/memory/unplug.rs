// SPDX-License-Identifier: GPL-2.0

//! Removal of device memory: of a part at run time, or of all of it when the device is unplugged.

use super::{Copies, Memory, MemoryOps};
use crate::{
    mm::{
        addr::PMD_PAGES,
        device_pages::{DeviceRange, MmapLocks},
        migrate::Batch,
    },
    stats::Counter,
    within,
};
use kernel::{
    prelude::*,
    time::{delay::fsleep, Delta},
};

/// Passes over the pages to be removed. A page that has a second reference for a moment is evicted
/// in the next one.
const PASSES: usize = 20;

/// More evictions of unplug, each after the migrations from the device that the one before has met.
const ROUNDS: usize = 4;

/// Time between two passes.
const PAUSE: Delta = Delta::from_millis(2);

impl<M: MemoryOps> Memory<M> {
    /// Whether the device was unplugged.
    pub fn is_gone(&self) -> bool {
        self.pages().data().arrivals.is_closed()
    }

    /// Ends the use of a device that was removed, or is about to be: all its mirrors lose their
    /// entries, no page is brought to it, and pages that can still be read are saved to system
    /// memory. Returns how many were saved, and how many were lost, because the driver's copies
    /// failed. A CPU that touches a lost page gets `SIGBUS`; it stays in use until its processes
    /// have unmapped it.
    ///
    /// Operations that need the device fail with `ENODEV` from now on. Waits for migrations to the
    /// device and from it that have begun, and for their copies: a driver whose copy engine has
    /// stopped fails its jobs before. So only lost pages are in the memory afterwards, and the
    /// driver may stop its copy engine.
    ///
    /// # Errors
    ///
    /// `ENODEV` if it was called before; `ENOMEM`: no page was saved, but each comes back when a
    /// CPU touches it. `EDEADLK` within a callback. Context: may sleep; no lock may be held.
    pub fn unplug(&self) -> Result<(usize, usize)> {
        within::may_wait()?;
        let ops = self.pages().data();
        if !ops.arrivals.close() {
            return Err(ENODEV);
        }
        ops.peers.for_each(|peer| peer.forget());
        // The pages that they bring are saved with the others.
        ops.arrivals.wait();
        let before = self.stats().get(Counter::Evicted);
        // An eviction does not find pages that others have isolated. These are not lost: their
        // copies need the device.
        ops.departures.wait();
        let mut lost = self.parts.evict(MmapLocks::All, false)?;
        for _ in 0..ROUNDS {
            if lost == 0 || !ops.departures.wait() {
                break;
            }
            lost = self.parts.evict(MmapLocks::All, false)?;
        }
        // What migrations that had begun have brought.
        ops.peers.for_each(|peer| peer.forget());
        Ok(((self.stats().get(Counter::Evicted) - before) as usize, lost))
    }

    /// Takes pages out of use, such as those that have become bad: those that are in use go to
    /// system memory. Returns how many could not, because of other references; these are taken out
    /// of use when they are freed.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they are not there, or not there yet; `ENOMEM`; `EDEADLK` within a callback.
    /// Context: may sleep; no lock may be held.
    pub fn remove(&self, range: DeviceRange) -> Result<usize> {
        within::may_wait()?;
        let end = range.first.checked_add(range.count).ok_or(EINVAL)?;
        if range.count == 0 || end > self.pages().limit() {
            return Err(EINVAL);
        }
        self.start_worker()?;
        self.pages().grow_to(end)?;
        let mut batch = Batch::new()?;
        let mut copies = Copies::new(false)?;
        let blocks =
            || (range.first / PMD_PAGES..end.div_ceil(PMD_PAGES)).map(|block| block * PMD_PAGES);
        for pass in 0..PASSES {
            if pass > 0 {
                fsleep(PAUSE);
            }
            if self.pages().withdraw(range) == 0 {
                self.parts.tell_victims(None);
                return Ok(0);
            }
            for first in blocks().filter(|first| self.pages().used_in_block(*first) != 0) {
                // A block that another task evicts is left to the next pass.
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
        self.parts.tell_victims(None);
        Ok(self.pages().withdraw(range))
    }

    /// Brings pages back into use that [`Self::remove`] took out.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there are no such pages; `EDEADLK` within a callback. Context: may sleep.
    pub fn add(&self, range: DeviceRange) -> Result {
        within::may_wait()?;
        let end = range.first.checked_add(range.count).ok_or(EINVAL)?;
        if range.count == 0 || end > self.pages().limit() {
            return Err(EINVAL);
        }
        self.pages().restore(range);
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Room in a device memory that is smaller than the work: the least recently used block goes to system
//! memory, whoever maps it.
//!
//! Called before a step takes its locks. It is bounded: if nothing can go, the caller's pages stay where
//! they are, and are mapped in place.

use super::{
    lru::{Claim, Lru, NoClaim, Turn, Usage},
    Copies, Memory, MemoryOps,
};
use crate::{
    events::Need,
    mm::{
        addr::PMD_PAGES,
        device_pages::{DeviceRange, MmapLocks},
        migrate::Batch,
        space::fatal_signal_pending, //
    },
    stats::Counter,
};
use kernel::{
    prelude::*,
    time::{delay::fsleep, Delta}, //
};

/// Blocks of which the eviction is tried for one step. One that cannot go, because its pages are
/// pinned or locked, counts as used.
const TRIES: usize = 8;

/// Time between two tries while other tasks evict all blocks that could be chosen.
const PAUSE: Delta = Delta::from_millis(5);

impl<M: MemoryOps> Memory<M> {
    /// The device uses `range` of its memory: pages that it does not use go first when room is needed.
    /// Drivers of devices that count accesses call this; faults and migrations do it by themselves.
    ///
    /// Context: any.
    pub fn touch(&self, range: DeviceRange) {
        let lru = &self.pages().data().lru;
        let last = range.first.saturating_add(range.count.saturating_sub(1));
        for block in range.first / PMD_PAGES..=last / PMD_PAGES {
            lru.touch(block);
        }
    }

    /// Page `local` of this memory is used now.
    #[inline]
    pub(crate) fn touch_page(&self, local: usize) {
        self.pages().data().lru.touch(local / PMD_PAGES);
    }

    /// Now, in accesses of the device.
    pub(crate) fn turn(&self) -> Turn {
        self.pages().data().lru.now()
    }

    /// Whether `pages` pages can be taken now; perhaps only as small ones.
    pub(crate) fn has_room(&self, pages: usize) -> bool {
        self.pages().total().saturating_sub(self.pages().used()) >= pages
    }

    /// Whether a page can be taken now.
    pub(crate) fn has_any(&self) -> bool {
        self.has_room(1)
    }

    /// Makes room for `pages` pages, at most 512: evicts blocks that were not used after `before`.
    /// Returns whether there is room; others may take it.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, before anything was done; `EINTR` if killed. Context: as [`Memory::grow`].
    pub(crate) fn make_room(&self, pages: usize, before: Turn) -> Result<bool> {
        if self.has_room(pages) {
            return Ok(true);
        }
        self.evict_for(pages, before)
    }

    fn evict_for(&self, pages: usize, before: Turn) -> Result<bool> {
        let mut batch = Batch::new()?;
        let mut copies = Copies::new(true)?;
        for _ in 0..TRIES {
            if fatal_signal_pending() {
                return Err(EINTR);
            }
            let eviction = match self.parts.begin_eviction(|lru| self.coldest(lru, before)) {
                Ok(eviction) => eviction,
                Err(NoClaim::Busy) => {
                    fsleep(PAUSE);
                    if self.has_room(pages) {
                        return Ok(true);
                    }
                    continue;
                }
                Err(NoClaim::Nothing) => break,
            };
            let moved = self
                .parts
                .evict_block(&eviction, MmapLocks::Own, &mut batch, &mut copies);
            self.stats().add(Counter::Evicted, moved as u64);
            self.stats().add(Counter::EvictedForRoom, moved as u64);
            self.parts.evicted(Need::Room, moved);
            if self.has_room(pages) {
                return Ok(true);
            }
            // No other task evicts the block, because it is claimed, so its pages are pinned or
            // locked.
            let block = eviction.block();
            if self.pages().used_in_block(block.first) != 0 {
                self.pages().data().lru.put_off(block.first / PMD_PAGES);
            }
        }
        Ok(self.has_room(pages))
    }

    fn coldest<'a>(&self, lru: &'a Lru, before: Turn) -> Result<Claim<'a>, NoClaim> {
        let usage = |block: usize| match self.pages().used_in_block(block * PMD_PAGES) {
            0 => Usage::Empty,
            PMD_PAGES => Usage::Full,
            _ => Usage::Partial,
        };
        let count = self.pages().used().div_ceil(PMD_PAGES);
        lru.coldest(&usage, count, before)
    }
}

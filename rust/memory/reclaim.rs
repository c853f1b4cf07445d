// SPDX-License-Identifier: GPL-2.0

//! Eviction for oversubscribed device memory: the least recently used block is moved to system
//! memory, whichever processes map it.
//!
//! Called before a step takes its locks. It is bounded: if no block can be evicted, the caller's
//! pages stay in system memory and the device maps them there.

use super::{
    lru::{
        BlockUsage,
        Claim,
        Lru,
        LruStamp,
        NoClaim, //
    },
    CopyContext,
    Memory,
    MemoryOps, //
};
use crate::{
    debug::{
        events::EvictReason,
        stats::Counter, //
    },
    mm::{
        addr::PMD_PAGES,
        device_pages::{
            DeviceRange,
            MmapLocks, //
        },
        migrate::Batch,
        vma::fatal_signal_pending, //
    }, //
};
use kernel::{
    prelude::*,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

/// Number of blocks whose eviction is tried for one step. A block that cannot be evicted, because
/// its pages are pinned or locked, counts as recently used.
const RECLAIM_MAX_TRIES: usize = 8;

/// Time between two tries while other tasks evict all blocks that could be chosen.
const RECLAIM_RETRY_INTERVAL: Delta = Delta::from_millis(5);

impl<M: MemoryOps> Memory<M> {
    /// Records that the device accesses `range` of its memory, so that it is evicted later than
    /// memory which the device does not access. Called by drivers of devices that count accesses.
    /// Faults and migrations record accesses themselves.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Examples
    ///
    /// ```
    /// use kernel::page::PAGE_SIZE;
    /// use rust_hmm::memory::Memory;
    /// use rust_hmm::memory::MemoryOps;
    /// use rust_hmm::mm::device_pages::DeviceRange;
    ///
    /// /// Called for each 2 MiB whose access counter has reached its limit.
    /// fn counter_reached_limit<M: MemoryOps>(memory: &Memory<M>, counter: usize) {
    ///     const PAGES: usize = (2 << 20) / PAGE_SIZE;
    ///     memory.mark_accessed(DeviceRange { first: counter * PAGES, count: PAGES });
    /// }
    /// ```
    pub fn mark_accessed(&self, range: DeviceRange) {
        let lru = &self.pages().data().lru;
        let last = range.first.saturating_add(range.count.saturating_sub(1));
        for block in range.first / PMD_PAGES..=last / PMD_PAGES {
            lru.mark_accessed(block);
        }
    }

    /// Records an access to page `local` of this memory.
    #[inline]
    pub(crate) fn touch_page(&self, local: usize) {
        self.pages().data().lru.mark_accessed(local / PMD_PAGES);
    }

    /// Returns the current turn of the LRU.
    pub(crate) fn turn(&self) -> LruStamp {
        self.pages().data().lru.now()
    }

    /// Returns whether `pages` pages are free, not necessarily in one piece.
    pub(crate) fn has_room(&self, pages: usize) -> bool {
        self.pages().total().saturating_sub(self.pages().used()) >= pages
    }

    /// Returns whether a page is free.
    pub(crate) fn has_any(&self) -> bool {
        self.has_room(1)
    }

    /// Makes room for `pages` pages, at most [`PMD_PAGES`], by evicting blocks that were not used
    /// after `before`. Returns whether they are free. A concurrent allocation may take them.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` before any page was evicted.
    /// - `EINTR` if a fatal signal is pending.
    ///
    /// # Context
    ///
    /// As for [`Memory::add_chunks`].
    pub(crate) fn make_room(&self, pages: usize, before: LruStamp) -> Result<bool> {
        if self.has_room(pages) {
            return Ok(true);
        }
        self.evict_for(pages, before)
    }

    fn evict_for(&self, pages: usize, before: LruStamp) -> Result<bool> {
        let mut batch = Batch::new()?;
        let mut copies = CopyContext::new(true)?;
        for _ in 0..RECLAIM_MAX_TRIES {
            if fatal_signal_pending() {
                return Err(EINTR);
            }
            let eviction = match self.parts.begin_eviction(|lru| self.coldest(lru, before)) {
                Ok(eviction) => eviction,
                Err(NoClaim::Busy) => {
                    fsleep(RECLAIM_RETRY_INTERVAL);
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
            self.parts.evicted(EvictReason::Room, moved);
            if self.has_room(pages) {
                return Ok(true);
            }
            // The block is claimed, so that no other task evicts it. Pages that are still in use
            // are pinned or locked.
            let first = eviction.first();
            if self.pages().used_in_block(first) != 0 {
                self.pages().data().lru.put_off(first / PMD_PAGES);
            }
        }
        Ok(self.has_room(pages))
    }

    fn coldest<'a>(&self, lru: &'a Lru, before: LruStamp) -> Result<Claim<'a>, NoClaim> {
        let usage = |block: usize| {
            let first = block * PMD_PAGES;
            match self.pages().used_in_block(first) {
                0 => BlockUsage::Empty,
                used if used == self.pages().pages_in_block(first) => BlockUsage::Full,
                _ => BlockUsage::Partial,
            }
        };
        let count = self.pages().used().div_ceil(PMD_PAGES);
        lru.coldest(&usage, count, before)
    }
}

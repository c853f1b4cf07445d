// SPDX-License-Identifier: GPL-2.0

//! Thrashing detection.
//!
//! A fault on a page that was recently migrated to the device means that the page has left it:
//! because of a CPU access, another device, or eviction. After a few such faults in a row, the
//! block of the page is pinned: for some time it stays in place, and the device maps it there. So
//! in [`Parameters::thrash_pin`] ms the faults of a process on one device move a page at most
//! [`Parameters::thrash_count`] times, regardless of other accesses. All users make progress,
//! because each of them can access a pinned page in place, and no thread waits for it. Until the
//! block is pinned, each such fault sleeps for [`Parameters::thrash_delay`] ms, so that other users
//! can access the page meanwhile.
//!
//! A page that has left and would be migrated again because of a fault on a page nearby counts in
//! the same way. It is left out if it would exceed the limit. The bound requires that
//! [`Parameters::thrash_lapse`] is at least `thrash_pin`, because slower repetitions are not
//! counted.
//!
//! The history of a block is kept for at least `thrash_lapse` after its last migration. After that,
//! it is removed when others are added. So the number of histories is bounded by the amount of
//! memory that is migrated in that time, or by [`MIN_KEPT_HISTORIES`] blocks if that is more. It
//! takes about twice 128 bytes for each block with pages of 4 KiB. A block for whose history no
//! memory is available stays in place.
//!
//! When device memory is full, an evicted page that faults again is pinned immediately. Otherwise
//! it would replace memory that is used as much.

use super::{
    block_start,
    parameters::Parameters,
    PageSet, //
};
use crate::mm::addr::{
    PageRange,
    PMD_SIZE, //
};
use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    }, //
};

mod history;
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
mod tests;

use history::BlockHistory;

/// Number of histories that are kept regardless of their age.
const MIN_KEPT_HISTORIES: usize = 1024;

/// Number of histories that are checked, and removed if they have expired, for each one that is
/// added. More than 1, so that the number of expired histories decreases.
const EXPIRY_CHECKS: usize = 2;

/// Decision for a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThrashHint {
    /// Migrate the range.
    Move,
    /// Leave the range in place.
    Stay,
    /// Sleep for this time in ms, and retry. Other users may access the range meanwhile.
    Wait(u64),
}

/// Thrashing detector. Times are in ms.
pub(super) struct ThrashDetector {
    /// Maximum of [`Parameters::thrash_lapse`] of all callers. A history expires after this time.
    lapse: u64,
    /// Histories by address of the block.
    pasts: RBTree<usize, BlockHistory>,
    /// Number of histories in the tree.
    count: usize,
    /// Number of histories that are kept regardless of their age.
    kept: usize,
    /// Address of the next block whose history is checked for expiry.
    hand: usize,
}

impl ThrashDetector {
    /// Creates an empty detector.
    pub(super) fn new() -> Self {
        Self::with_kept(MIN_KEPT_HISTORIES)
    }

    /// Like [`Self::new`], but keeps the histories of `kept` blocks regardless of their age.
    pub(super) fn with_kept(kept: usize) -> Self {
        Self {
            lapse: 0,
            pasts: RBTree::new(),
            count: 0,
            kept,
            hand: 0,
        }
    }

    /// Returns the history of the block of `range`, if there is one.
    fn history(&mut self, range: PageRange) -> Option<&mut BlockHistory> {
        self.pasts.get_mut(&block_start(range.start()))
    }

    /// Returns the history of the block of `range`, and creates it if there is none. Returns `None`
    /// if there is no memory for it.
    fn past(&mut self, range: PageRange, now: u64) -> Option<&mut BlockHistory> {
        let block = block_start(range.start());
        if self.pasts.get(&block).is_none() {
            self.expire(now);
            let past = BlockHistory::new(now);
            self.pasts
                .insert(RBTreeNode::new(block, past, GFP_KERNEL).ok()?);
            self.count += 1;
        }
        self.pasts.get_mut(&block)
    }

    /// Checks up to [`EXPIRY_CHECKS`] histories, if at least `kept` are in the tree, and removes
    /// those that have expired.
    fn expire(&mut self, now: u64) {
        for _ in 0..EXPIRY_CHECKS {
            if self.count < self.kept {
                return;
            }
            let next = self.pasts.cursor_lower_bound(&self.hand);
            let next = next.map(|cursor| {
                let (block, past) = cursor.current();
                (*block, past.matters(now, self.lapse))
            });
            let Some((block, matters)) = next else {
                self.hand = 0;
                continue;
            };
            self.hand = block.saturating_add(PMD_SIZE);
            if !matters && self.pasts.remove(&block).is_some() {
                self.count -= 1;
            }
        }
    }

    /// Returns whether a page of `range`, which lies within a block, was recently migrated to the
    /// device. It may have left since.
    pub(super) fn has_moved(&mut self, range: PageRange) -> bool {
        self.history(range)
            .is_some_and(|past| past.has_moved(range))
    }

    /// Returns whether `range`, which lies within a block, may be migrated with a page for which
    /// [`Self::fault`] returned [`ThrashHint::Move`]. `resident` are the pages of the block that
    /// are on the device.
    pub(super) fn comes_along(
        &mut self,
        range: PageRange,
        resident: &PageSet,
        now: u64,
        by: &Parameters,
    ) -> bool {
        self.past(range, now)
            .is_some_and(|past| past.comes_along(range, resident, now, by))
    }

    /// Records a device fault on `range`, which lies within a block. `full` is whether device
    /// memory is full. `resident` are the pages of the block that are on the device, for which the
    /// faulting mirror only has no entry.
    pub(super) fn fault(
        &mut self,
        range: PageRange,
        resident: &PageSet,
        full: bool,
        now: u64,
        by: &Parameters,
    ) -> ThrashHint {
        self.lapse = self.lapse.max(by.thrash_lapse);
        match self.past(range, now) {
            Some(past) => past.fault(range, resident, full, now, by),
            None => ThrashHint::Stay,
        }
    }

    /// Records that the pages of `range`, which lies within a block, have moved to the device.
    pub(super) fn moved(&mut self, range: PageRange, now: u64) {
        if let Some(past) = self.past(range, now) {
            past.moved(range, now);
        }
    }
}

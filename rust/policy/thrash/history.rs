// SPDX-License-Identifier: GPL-2.0

//! The history of a block, which decides whether its pages may move.

use super::ThrashHint;
use crate::{
    mm::addr::{
        PageRange,
        PMD_PAGES, //
    },
    policy::{
        block_start,
        PageSet,
        Parameters, //
    }, //
};
use core::ops::Range;
use kernel::page::PAGE_SIZE;

/// History of a block. Times are in ms.
#[derive(Clone, Copy)]
pub(super) struct BlockHistory {
    /// Pages that were migrated to the device.
    moved: PageSet,
    /// Time of the last migration.
    when: u64,
    /// Number of faults on pages that were migrated and have left.
    bounces: u32,
    /// Whether the last counted event was a fault on the page itself, and no page was migrated for
    /// it yet.
    is_counted: bool,
    /// Time until which the block is pinned in place.
    pinned: u64,
    /// Time until which faults on the block sleep.
    rests: u64,
}

const NONE: BlockHistory = BlockHistory {
    moved: PageSet::EMPTY,
    when: 0,
    bounces: 0,
    is_counted: false,
    pinned: 0,
    rests: 0,
};

impl BlockHistory {
    /// Creates the history of a block, of which no page was migrated until `now`.
    pub(super) fn new(now: u64) -> Self {
        Self { when: now, ..NONE }
    }

    /// Resets the history after the block was pinned.
    fn begin_anew(&mut self) {
        *self = NONE;
    }

    /// Returns whether the history affects decisions after `now`.
    pub(super) fn matters(&self, now: u64, lapse: u64) -> bool {
        now < self.pinned.max(self.rests) || now.saturating_sub(self.when) <= lapse
    }

    /// Returns the pages of `range` that were migrated to the device and are not in `resident`.
    fn left(&self, range: PageRange, resident: &PageSet) -> PageSet {
        let mut left = self.moved;
        left.remove(0..pages(range).start);
        left.remove(pages(range).end..PMD_PAGES);
        left.remove_all(resident);
        left
    }

    /// Resets the count if the last migration was too long ago.
    fn lapse(&mut self, now: u64, lapse: u64) {
        if now.saturating_sub(self.when) > lapse {
            self.bounces = 0;
        }
    }

    /// Returns whether a page of `range` was recently migrated to the device.
    pub(super) fn has_moved(&self, range: PageRange) -> bool {
        self.moved.count(pages(range)) != 0
    }

    /// Returns whether `range` may be migrated with another page; see
    /// [`ThrashDetector::comes_along`](super::ThrashDetector::comes_along).
    pub(super) fn comes_along(
        &mut self,
        range: PageRange,
        resident: &PageSet,
        now: u64,
        by: &Parameters,
    ) -> bool {
        let Parameters {
            thrash_count,
            thrash_lapse,
            ..
        } = *by;
        if now < self.pinned.max(self.rests) {
            return false;
        }
        if self.pinned != 0 {
            self.begin_anew();
        }
        let left = self.left(range, resident);
        let is_counted = core::mem::take(&mut self.is_counted);
        if left.is_empty() || is_counted {
            return true;
        }
        self.lapse(now, thrash_lapse);
        if self.bounces + 1 >= thrash_count {
            return false;
        }
        self.bounces += 1;
        self.moved.remove_all(&left);
        true
    }

    /// Records a device fault on `range`; see
    /// [`ThrashDetector::fault`](super::ThrashDetector::fault).
    pub(super) fn fault(
        &mut self,
        range: PageRange,
        resident: &PageSet,
        full: bool,
        now: u64,
        by: &Parameters,
    ) -> ThrashHint {
        let Parameters {
            thrash_count,
            thrash_lapse,
            thrash_pin,
            thrash_delay,
            ..
        } = *by;
        if now < self.pinned {
            return ThrashHint::Stay;
        }
        if self.pinned != 0 {
            self.begin_anew();
        }
        if now < self.rests {
            return ThrashHint::Wait(self.rests - now);
        }
        if self.left(range, resident).is_empty() {
            return ThrashHint::Move;
        }
        self.moved.remove(pages(range));
        self.lapse(now, thrash_lapse);
        self.bounces += 1;
        self.is_counted = true;
        if full || self.bounces >= thrash_count {
            self.pinned = now + thrash_pin;
            return ThrashHint::Stay;
        }
        if thrash_delay != 0 {
            self.rests = now + thrash_delay;
            return ThrashHint::Wait(thrash_delay);
        }
        ThrashHint::Move
    }

    /// Records that the pages of `range` have moved to the device.
    pub(super) fn moved(&mut self, range: PageRange, now: u64) {
        self.moved.add(pages(range));
        self.when = now;
    }
}

/// Returns the numbers of the pages of `range` in their block.
fn pages(range: PageRange) -> Range<usize> {
    let start = (range.start() - block_start(range.start())) / PAGE_SIZE;
    start..start + range.pages()
}

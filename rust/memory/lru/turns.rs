// SPDX-License-Identifier: GPL-2.0

//! Time of the last access of each block, in turns.

use crate::kernel::word::load_u64;
use kernel::sync::atomic::{
    ordering::Relaxed,
    Atomic,
    AtomicFlag, //
};

/// A time, in turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LruStamp(pub(super) u64);

/// First turn. Smaller bounds are tokens of searches, see
/// [`TreeBounds::renew`](super::bounds::TreeBounds::renew).
pub(super) const FIRST_STAMP: u64 = 1 << 20;

/// State of a block of device memory.
pub(super) struct BlockState {
    /// Turn of the last access.
    pub(super) last: Atomic<u64>,
    /// Whether a task evicts the block, see [`Claim`](super::Claim).
    pub(super) claimed: AtomicFlag,
}

impl BlockState {
    pub(super) fn new() -> Self {
        Self {
            // Older than any access.
            last: Atomic::new(FIRST_STAMP - 1),
            claimed: AtomicFlag::new(false),
        }
    }
}

/// Counter of turns, advanced when the device accesses another block than before.
pub(super) struct LruClock(Atomic<u64>);

impl LruClock {
    pub(super) fn new() -> Self {
        Self(Atomic::new(FIRST_STAMP))
    }

    /// Returns the current turn. Blocks that are accessed from now on do not have an older one.
    pub(super) fn now(&self) -> LruStamp {
        LruStamp(self.0.load(Relaxed))
    }

    /// Records an access of the device to `block`.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub(super) fn mark_accessed(&self, block: &BlockState) {
        if load_u64(&block.last) != load_u64(&self.0) {
            self.advance(block);
        }
    }

    /// Like [`Self::mark_accessed`], but advances the turn even if `block` is the most recently
    /// used one.
    #[inline]
    pub(super) fn advance(&self, block: &BlockState) {
        block.last.store(self.0.fetch_add(1, Relaxed) + 1, Relaxed);
    }
}

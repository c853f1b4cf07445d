// SPDX-License-Identifier: GPL-2.0

//! When each block was used last, in turns.

use crate::mm::word::load_u64;
use kernel::sync::atomic::{
    ordering::Relaxed,
    Atomic,
    AtomicFlag, //
};

/// A moment, in turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn(pub(super) u64);

/// Turns count from here on. Lower bounds are tokens of searches, see
/// [`Bounds::renew`](super::bounds::Bounds::renew).
pub(super) const FIRST_TURN: u64 = 1 << 20;

/// What is known of a block.
pub(super) struct Block {
    /// Turn of the last access.
    pub(super) last: Atomic<u64>,
    /// Whether a task evicts the block, see [`Claim`](super::Claim).
    pub(super) claimed: AtomicFlag,
}

impl Block {
    pub(super) fn new() -> Self {
        Self {
            // Before the first turn.
            last: Atomic::new(FIRST_TURN - 1),
            claimed: AtomicFlag::new(false),
        }
    }
}

/// Counts turns: one passes when the device goes from one block to another.
pub(super) struct Turns(Atomic<u64>);

impl Turns {
    pub(super) fn new() -> Self {
        Self(Atomic::new(FIRST_TURN))
    }

    /// Now. Blocks that are used from here on are not older.
    pub(super) fn now(&self) -> Turn {
        Turn(self.0.load(Relaxed))
    }

    /// The device uses `block` now. Context: any.
    #[inline]
    pub(super) fn touch(&self, block: &Block) {
        if load_u64(&block.last) != load_u64(&self.0) {
            self.advance(block);
        }
    }

    /// As [`Self::touch`], but a turn passes even if `block` is the most recently used one.
    #[inline]
    pub(super) fn advance(&self, block: &Block) {
        block.last.store(self.0.fetch_add(1, Relaxed) + 1, Relaxed);
    }
}

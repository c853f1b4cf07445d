// SPDX-License-Identifier: GPL-2.0

//! Trees of lower bounds: no candidate below a node was accessed before the turn that is its bound.

use super::turns::FIRST_STAMP;
use crate::{
    kernel::word::load_u64,
    mm::device_alloc::set, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::{
            Acquire,
            Full,
            Relaxed, //
        },
        Atomic, //
    }, //
};

/// Children of a node. The lowest nodes have blocks as children.
pub(super) const FANOUT: usize = u64::BITS as usize;

/// Minimum number of levels above the lowest nodes.
const LEVELS: usize = 3;

/// Bound of a node without candidates.
pub(super) const NO_CANDIDATE: u64 = u64::MAX;

/// The two trees.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LruTree {
    /// Blocks that have pages in use.
    Used = 0,
    /// Blocks that have both pages in use and free pages.
    Partial = 1,
}

/// A value for each tree.
pub(super) struct PerTree([Atomic<u64>; 2]);

impl PerTree {
    fn new(value: u64) -> Self {
        Self([Atomic::new(value), Atomic::new(value)])
    }

    pub(super) fn of(&self, tree: LruTree) -> &Atomic<u64> {
        let [used, partial] = &self.0;
        match tree {
            LruTree::Used => used,
            LruTree::Partial => partial,
        }
    }
}

/// A lowest node.
pub(super) struct LruNode {
    /// A bit for each child that may be a candidate.
    pub(super) blocks: PerTree,
    pub(super) bounds: PerTree,
}

impl LruNode {
    pub(super) fn new() -> Self {
        Self {
            blocks: PerTree::new(0),
            bounds: PerTree::new(NO_CANDIDATE),
        }
    }

    /// Returns whether the block `child` is a candidate.
    #[inline]
    pub(super) fn has(&self, child: usize, tree: LruTree) -> bool {
        load_u64(self.blocks.of(tree)) >> child & 1 != 0
    }

    /// Makes the block `child`, which was last used at `turn`, a candidate.
    pub(super) fn add(&self, child: usize, tree: LruTree, turn: u64) {
        set(self.blocks.of(tree), 1 << child);
        lower(self.bounds.of(tree), turn);
    }
}

/// Bounds of the nodes above the lowest ones.
pub(super) struct TreeBounds {
    /// Nodes by level: the first level has a node for each group of lowest nodes, the last one has
    /// the root.
    levels: KVec<KVVec<PerTree>>,
    /// Source of unique tokens, see [`Self::renew`].
    tokens: Atomic<u64>,
}

impl TreeBounds {
    /// Allocates the bounds for `groups` groups.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn new(groups: usize) -> Result<Self> {
        let mut levels = KVec::new();
        let mut nodes = groups.max(1);
        while levels.len() < LEVELS || nodes > 1 {
            if !levels.is_empty() {
                nodes = nodes.div_ceil(FANOUT);
            }
            // Round up to whole nodes of the level above, so that a search costs the same for any
            // size.
            let len = nodes.next_multiple_of(FANOUT);
            let mut level = KVVec::with_capacity(len, GFP_KERNEL)?;
            for _ in 0..len {
                level.push(PerTree::new(NO_CANDIDATE), GFP_KERNEL)?;
            }
            levels.push(level, GFP_KERNEL)?;
        }
        Ok(Self {
            levels,
            tokens: Atomic::new(0),
        })
    }

    /// Number of levels.
    pub(super) fn levels(&self) -> usize {
        self.levels.len()
    }

    /// Returns the bounds of the nodes of `level`, from `first` on.
    pub(super) fn from(&self, level: usize, first: usize) -> Option<&[PerTree]> {
        self.levels.get(level)?.get(first..)
    }

    /// Lowers the bounds above `group`, because a block of it that was last used at `turn` becomes
    /// a candidate.
    pub(super) fn lower(&self, group: usize, tree: LruTree, turn: u64) {
        let mut index = group;
        for level in &self.levels {
            if let Some(bounds) = level.get(index) {
                lower(bounds.of(tree), turn);
            }
            index /= FANOUT;
        }
    }

    /// Returns the number of nodes that all searches have visited so far.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(super) fn visits(&self) -> u64 {
        // Each visit takes a token.
        self.tokens.load(Relaxed)
    }

    /// Sets the bound of a node to the result of `search`, and returns that.
    ///
    /// During the search, the bound is a token that no other search has. A block that is added
    /// concurrently replaces the token. The result of the search, which may miss that block, is not
    /// stored then.
    pub(super) fn renew(&self, bound: &Atomic<u64>, search: impl FnOnce() -> u64) -> u64 {
        // 0 is not a token; it stands for a token that `lower()` has replaced. Relaxed: a token
        // must be unique, and carries no data.
        let token = self.tokens.fetch_add(1, Relaxed) % (FIRST_STAMP - 2) + 1;
        let old = bound.load(Relaxed);
        // Full barrier: the token is stored before the search loads bits and bounds below the node.
        // A task that adds a block sets its bit, and then lowers bounds from the lowest level up,
        // each with a full barrier, or with an acquire if the bound is low enough. So the search
        // sees a change, or that task finds the token.
        let is_ours = bound.cmpxchg(old, token, Full).is_ok();
        let least = search();
        if is_ours {
            // Only the value matters: the exchange fails if the token was replaced. Readers of a
            // bound rely on no other data.
            let _ = bound.cmpxchg(token, least, Full);
        }
        least
    }
}

/// Returns the node with the lowest bound, among the first [`FANOUT`] of `all` that are not in
/// `seen`, and its bound.
pub(super) fn lowest<'a>(
    all: impl Iterator<Item = &'a PerTree>,
    tree: LruTree,
    seen: u64,
) -> (usize, u64) {
    let mut lowest = (0, NO_CANDIDATE);
    for (child, bounds) in all.enumerate().take(FANOUT) {
        let bound = load_u64(bounds.of(tree));
        if bound < lowest.1 && seen >> child & 1 == 0 {
            lowest = (child, bound);
        }
    }
    lowest
}

/// Lowers `bound` to `turn` at most, and replaces the token of a search by 0.
fn lower(bound: &Atomic<u64>, turn: u64) {
    // Acquire: if the bound is low enough, nothing is stored here. The bound of the next level is
    // then loaded after this one, and has the token of a search that has read an older value of
    // this.
    let mut old = bound.load(Acquire);
    // A bound of 0 was a token, and a bound that is low enough need not change.
    while old != 0 && (old < FIRST_STAMP - 1 || old > turn) {
        let new = if old < FIRST_STAMP - 1 { 0 } else { turn };
        // Full barrier: the change is stored before the bound of the next level is loaded. See
        // `TreeBounds::renew`.
        match bound.cmpxchg(old, new, Full) {
            Ok(_) => return,
            // A failed exchange has no ordering.
            Err(_) => old = bound.load(Acquire),
        }
    }
}

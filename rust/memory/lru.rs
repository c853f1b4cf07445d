// SPDX-License-Identifier: GPL-2.0

//! Least recently used order of the blocks of device memory.
//!
//! Each block, the memory that one PMD maps, records the time of its last access in *turns*
//! ([`turns`]). The turn is advanced when the device accesses another block than before. An access
//! costs a few loads and takes no lock. The order is that of accesses, not of allocations.
//!
//! The unit is a block because a huge folio is evicted as a whole, and because an evicted block
//! makes room for a huge folio. With smaller units, parts of several blocks would be evicted
//! instead.
//!
//! The search for the coldest block does not visit all blocks ([`search`]). It uses a tree with
//! [`FANOUT`] children per node and a *bound* in each node ([`bounds`]): no candidate below the
//! node was accessed before that turn. An access only makes bounds too low, never too high, and
//! therefore need not update the tree. A search descends to the child with the lowest bound, and
//! raises the bounds that it finds too low. There are two trees: one of all blocks in use, and one
//! of the partially used blocks.
//!
//! The trees have as many levels for 1 GiB as for 32 TiB, and one more for each factor of 64
//! beyond. The state of blocks is allocated for [`GROUP_BLOCKS`] blocks at a time, when memory is
//! first added there.

mod bounds;
mod search;
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
mod tests;
mod turns;

use crate::kernel::once_box::OnceBox;
use bounds::{
    LruNode,
    LruTree,
    TreeBounds,
    FANOUT, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::{
            Acquire,
            Relaxed,
            Release, //
        },
        AtomicFlag, //
    }, //
};
use search::Search;
pub(crate) use turns::LruStamp;
use turns::{
    BlockState,
    LruClock, //
};

/// Blocks whose state is allocated at once: 8 GiB.
pub(super) const GROUP_BLOCKS: usize = FANOUT * FANOUT;

/// State of [`GROUP_BLOCKS`] blocks, or of fewer at the end of the memory.
struct BlockGroup {
    blocks: KVVec<BlockState>,
    nodes: KVVec<LruNode>,
}

impl BlockGroup {
    fn new(blocks: usize) -> Result<Self> {
        let mut all = KVVec::with_capacity(blocks, GFP_KERNEL)?;
        for _ in 0..blocks {
            all.push(BlockState::new(), GFP_KERNEL)?;
        }
        let mut nodes = KVVec::with_capacity(FANOUT, GFP_KERNEL)?;
        for _ in 0..FANOUT {
            nodes.push(LruNode::new(), GFP_KERNEL)?;
        }
        Ok(Self { blocks: all, nodes })
    }
}

/// Access times of all blocks, and the trees that find the coldest one.
pub(super) struct Lru {
    turns: LruClock,
    /// Number of blocks.
    len: usize,
    groups: KVVec<OnceBox<BlockGroup>>,
    bounds: TreeBounds,
}

/// A block that the current task evicts. No other task chooses it until this is dropped.
///
/// # Invariants
///
/// The flag was set for this value.
pub(super) struct Claim<'a> {
    claimed: &'a AtomicFlag,
    block: usize,
}

impl Claim<'_> {
    /// Number of the block.
    pub(super) fn block(&self) -> usize {
        self.block
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        // Pairs with the acquire in `claim`: the next task to evict the block sees which pages are
        // left.
        self.claimed.store(false, Release);
    }
}

/// Why there is no block to evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoClaim {
    /// Other tasks evict all blocks that could be chosen.
    Busy,
    /// No block can be chosen.
    Nothing,
}

/// Pages of a block that are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockUsage {
    /// None.
    Empty,
    /// Some.
    Partial,
    /// All.
    Full,
}

impl BlockUsage {
    fn is_in(self, tree: LruTree) -> bool {
        match tree {
            LruTree::Used => self != Self::Empty,
            LruTree::Partial => self == Self::Partial,
        }
    }
}

impl Lru {
    /// Creates the order for `blocks` blocks. [`Self::prepare`] must allocate the state of a block
    /// before it counts.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn new(blocks: usize) -> Result<Self> {
        let count = blocks.div_ceil(GROUP_BLOCKS);
        let mut groups = KVVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            groups.push(OnceBox::empty(), GFP_KERNEL)?;
        }
        Ok(Self {
            turns: LruClock::new(),
            len: blocks,
            groups,
            bounds: TreeBounds::new(count)?,
        })
    }

    /// Allocates the state of `block` and of its group, if it is not allocated yet.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn prepare(&self, block: usize) -> Result {
        let number = block / GROUP_BLOCKS;
        let Some(group) = self.groups.get(number) else {
            return Ok(());
        };
        if group.get().is_none() {
            let blocks = self
                .len
                .saturating_sub(number * GROUP_BLOCKS)
                .min(GROUP_BLOCKS);
            group.put(KBox::pin(BlockGroup::new(blocks)?, GFP_KERNEL)?);
        }
        Ok(())
    }

    #[inline]
    fn group(&self, block: usize) -> Option<&BlockGroup> {
        self.groups.get(block / GROUP_BLOCKS)?.get()
    }

    #[inline]
    fn block(&self, block: usize) -> Option<&BlockState> {
        self.group(block)?.blocks.get(block % GROUP_BLOCKS)
    }

    /// Records an access of the device to `block`.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub(super) fn mark_accessed(&self, block: usize) {
        if let Some(block) = self.block(block) {
            self.turns.mark_accessed(block);
        }
    }

    /// Makes `block` the most recently used block, even if it is that already, because it could not
    /// be evicted.
    ///
    /// # Context
    ///
    /// Any.
    pub(super) fn put_off(&self, block: usize) {
        if let Some(block) = self.block(block) {
            self.turns.advance(block);
        }
    }

    /// Returns the current turn. Blocks that are accessed from now on do not have an older one.
    pub(super) fn now(&self) -> LruStamp {
        self.turns.now()
    }

    /// Records that pages of `block` were allocated: all of them, or some. The caller has executed
    /// a full barrier after the allocation.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub(super) fn allocated(&self, block: usize, all: bool) {
        self.insert(block, LruTree::Used);
        if !all {
            self.insert(block, LruTree::Partial);
        }
    }

    /// Records that some pages of `block`, but not all, were freed. The caller has executed a full
    /// barrier after the free.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub(super) fn freed(&self, block: usize) {
        self.insert(block, LruTree::Partial);
    }

    /// Makes `block` a candidate in `tree`.
    #[inline]
    fn insert(&self, block: usize, tree: LruTree) {
        let Some(group) = self.group(block) else {
            return;
        };
        let Some(node) = group.nodes.get(block % GROUP_BLOCKS / FANOUT) else {
            return;
        };
        // A search clears the bit before it checks the pages again. Either it sees these pages, or
        // this load sees the bit clear.
        if !node.has(block % FANOUT, tree) {
            self.add(block, node, tree);
        }
    }

    #[cold]
    fn add(&self, block: usize, node: &LruNode, tree: LruTree) {
        let Some(BlockState { last, .. }) = self.block(block) else {
            return;
        };
        let turn = last.load(Relaxed);
        node.add(block % FANOUT, tree, turn);
        self.bounds.lower(block / GROUP_BLOCKS, tree, turn);
    }

    /// Claims `block` for the current task to evict it.
    pub(super) fn claim(&self, block: usize) -> Result<Claim<'_>, NoClaim> {
        let entry = self.block(block).ok_or(NoClaim::Nothing)?;
        let claimed = &entry.claimed;
        // Pairs with the release in the drop of the previous claim.
        if claimed.xchg(true, Acquire) {
            return Err(NoClaim::Busy);
        }
        // INVARIANT: The flag was set by the exchange above.
        Ok(Claim { claimed, block })
    }

    /// Claims the block to evict. Candidates are blocks that were not used after `before` and that
    /// no other task evicts.
    ///
    /// A partially used block is preferred if it was not used recently: it costs less to evict, and
    /// makes as much room for a huge page. Otherwise this claims the block that was not used for
    /// the longest time. A block was used recently if fewer turns have passed since then than half
    /// of `count`, the number of blocks in use. `usage` returns how much of a block is in use.
    pub(super) fn coldest(
        &self,
        usage: &dyn Fn(usize) -> BlockUsage,
        count: usize,
        before: LruStamp,
    ) -> Result<Claim<'_>, NoClaim> {
        let now = self.now().0;
        let is_old = |last: u64| now.saturating_sub(last) > count as u64 / 2;
        let (partial, _) = Search::run(self, LruTree::Partial, usage, before);
        if let Some((_, block)) = partial.filter(|(last, _)| is_old(*last)) {
            return self.claim(block);
        }
        match Search::run(self, LruTree::Used, usage, before) {
            // Another task may claim it first.
            (Some((_, block)), _) => self.claim(block),
            (None, true) => Err(NoClaim::Busy),
            (None, false) => Err(NoClaim::Nothing),
        }
    }
}

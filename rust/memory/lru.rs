// SPDX-License-Identifier: GPL-2.0

//! Which block of device memory the device has not used for the longest time.
//!
//! Each block of 2 MiB has the time of its last access, in *turns* ([`turns`]): a turn passes when
//! the device goes from one block to another. An access costs a few loads and takes no lock, and the
//! order is that of accesses, not that of allocations.
//!
//! The search for the coldest block does not look at all blocks ([`search`]). A tree with [`FANOUT`]
//! children a node has a *bound* in each node ([`bounds`]): no candidate below it was used before
//! that turn. An access only makes a bound too low, never too high, so that it need not change the
//! tree. A search descends to the child with the lowest bound, and raises the bounds that it finds
//! too low. There are two trees: one of all blocks that are in use, one of those that are used in
//! part.
//!
//! The trees have as many levels for 1 GiB as for 32 TiB, and one more for each factor of 64
//! beyond. State of blocks is allocated for [`GROUP`] blocks at a time, when memory is first added
//! there.

mod bounds;
mod search;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;
mod turns;

use crate::mm::once_box::OnceBox;
use bounds::{Bounds, Node, Tree, FANOUT};
use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::{Acquire, Relaxed, Release},
        AtomicFlag, //
    },
};
use search::Search;
pub(crate) use turns::Turn;
use turns::{Block, Turns};

/// Blocks whose state is allocated at once: 8 GiB.
pub(super) const GROUP: usize = FANOUT * FANOUT;

/// State of [`GROUP`] blocks, or of fewer at the end of the memory.
struct Group {
    blocks: KVVec<Block>,
    nodes: KVVec<Node>,
}

impl Group {
    fn new(blocks: usize) -> Result<Self> {
        let mut all = KVVec::with_capacity(blocks, GFP_KERNEL)?;
        for _ in 0..blocks {
            all.push(Block::new(), GFP_KERNEL)?;
        }
        let mut nodes = KVVec::with_capacity(FANOUT, GFP_KERNEL)?;
        for _ in 0..FANOUT {
            nodes.push(Node::new(), GFP_KERNEL)?;
        }
        Ok(Self { blocks: all, nodes })
    }
}

/// Times of access of all blocks.
pub(super) struct Lru {
    turns: Turns,
    /// Number of blocks.
    len: usize,
    groups: KVVec<OnceBox<Group>>,
    bounds: Bounds,
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
        self.claimed.store(false, Release);
    }
}

/// Why there is no block to evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoClaim {
    /// Other tasks evict all blocks that could be chosen.
    Busy,
    /// There is none.
    Nothing,
}

/// Pages of a block that are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Usage {
    /// None.
    Empty,
    /// Some.
    Partial,
    /// All.
    Full,
}

impl Usage {
    fn is_in(self, tree: Tree) -> bool {
        match tree {
            Tree::Used => self != Self::Empty,
            Tree::Partial => self == Self::Partial,
        }
    }
}

impl Lru {
    /// For `blocks` blocks. The state of none is there yet, see [`Self::prepare`]. Context: may
    /// sleep. `ENOMEM`.
    pub(super) fn new(blocks: usize) -> Result<Self> {
        let count = blocks.div_ceil(GROUP);
        let mut groups = KVVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            groups.push(OnceBox::new(), GFP_KERNEL)?;
        }
        Ok(Self {
            turns: Turns::new(),
            len: blocks,
            groups,
            bounds: Bounds::new(count)?,
        })
    }

    /// Allocates the state of `block` and of its neighbours, if it is not there. Context: may
    /// sleep. `ENOMEM`.
    pub(super) fn prepare(&self, block: usize) -> Result {
        let number = block / GROUP;
        let Some(group) = self.groups.get(number) else {
            return Ok(());
        };
        if group.get().is_none() {
            let blocks = self.len.saturating_sub(number * GROUP).min(GROUP);
            group.put(KBox::pin(Group::new(blocks)?, GFP_KERNEL)?);
        }
        Ok(())
    }

    #[inline]
    fn group(&self, block: usize) -> Option<&Group> {
        self.groups.get(block / GROUP)?.get()
    }

    #[inline]
    fn block(&self, block: usize) -> Option<&Block> {
        self.group(block)?.blocks.get(block % GROUP)
    }

    /// The device uses `block` now. Context: any.
    #[inline]
    pub(super) fn touch(&self, block: usize) {
        if let Some(block) = self.block(block) {
            self.turns.touch(block);
        }
    }

    /// Moves `block`, which could not be evicted, behind all others, even if it is the most
    /// recently used one. Context: any.
    pub(super) fn put_off(&self, block: usize) {
        if let Some(block) = self.block(block) {
            self.turns.advance(block);
        }
    }

    /// Now. Blocks that are used from here on are not older.
    pub(super) fn now(&self) -> Turn {
        self.turns.now()
    }

    /// Pages of `block` were taken into use: all of them, or some. A full barrier lies between that
    /// and this call. Context: any.
    #[inline]
    pub(super) fn allocated(&self, block: usize, all: bool) {
        self.insert(block, Tree::Used);
        if !all {
            self.insert(block, Tree::Partial);
        }
    }

    /// Pages of `block`, but not all, were freed. A full barrier lies between that and this call.
    /// Context: any.
    #[inline]
    pub(super) fn freed(&self, block: usize) {
        self.insert(block, Tree::Partial);
    }

    /// Makes `block` a candidate.
    #[inline]
    fn insert(&self, block: usize, tree: Tree) {
        let Some(group) = self.group(block) else {
            return;
        };
        let Some(node) = group.nodes.get(block % GROUP / FANOUT) else {
            return;
        };
        // A search that clears the bit looks at the pages after that; either it sees these, or this
        // load sees the bit clear.
        if !node.has(block % FANOUT, tree) {
            self.add(block, node, tree);
        }
    }

    #[cold]
    fn add(&self, block: usize, node: &Node, tree: Tree) {
        let Some(Block { last, .. }) = self.block(block) else {
            return;
        };
        let turn = last.load(Relaxed);
        node.add(block % FANOUT, tree, turn);
        self.bounds.lower(block / GROUP, tree, turn);
    }

    /// Claims `block` for the current task to evict it.
    pub(super) fn claim(&self, block: usize) -> Result<Claim<'_>, NoClaim> {
        let known = self.block(block).ok_or(NoClaim::Nothing)?;
        let claimed = &known.claimed;
        if claimed.xchg(true, Acquire) {
            return Err(NoClaim::Busy);
        }
        // INVARIANT: Set just now, by us.
        Ok(Claim { claimed, block })
    }

    /// Claims the block to evict: of those that were not used after `before` and that no other task evicts, first one
    /// that is used in part only and was not used lately, then the one that was not used for the longest time.
    ///
    /// Lately is, in as many turns as half of the blocks in use take in turn; `count` is how many
    /// there are. What is used in part costs less to evict, and makes as much room for a huge page.
    /// `usage` says how much of a block is in use.
    pub(super) fn coldest(
        &self,
        usage: &dyn Fn(usize) -> Usage,
        count: usize,
        before: Turn,
    ) -> Result<Claim<'_>, NoClaim> {
        let now = self.now().0;
        let is_old = |last: u64| now.saturating_sub(last) > count as u64 / 2;
        let (partial, _) = Search::run(self, Tree::Partial, usage, before);
        if let Some((_, block)) = partial.filter(|(last, _)| is_old(*last)) {
            return self.claim(block);
        }
        match Search::run(self, Tree::Used, usage, before) {
            // Another task may be faster.
            (Some((_, block)), _) => self.claim(block),
            (None, true) => Err(NoClaim::Busy),
            (None, false) => Err(NoClaim::Nothing),
        }
    }
}

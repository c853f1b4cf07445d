// SPDX-License-Identifier: GPL-2.0

//! Which block of device memory the device has not used for the longest time.
//!
//! Each block of 2 MiB has the time of its last access, in *turns*: a turn passes when the device
//! goes from one block to another. An access costs a few loads and takes no lock, and the order is
//! that of accesses, not that of allocations.
//!
//! The search for the coldest block does not look at all blocks. A tree with [`FANOUT`] children a
//! node has a *bound* in each node: no candidate below it was used before that turn. An access only
//! makes a bound too low, never too high, so that it need not change the tree. A search descends to
//! the child with the lowest bound, and raises the bounds that it finds too low. There are two
//! trees: one of all blocks that are in use, one of those that are used in part.
//!
//! The trees have as many levels for 1 GiB as for 32 TiB, and one more for each factor of 64
//! beyond. State of blocks is allocated for [`GROUP`] blocks at a time, when memory is first added
//! there.

use crate::mm::{
    device_alloc::{clear, set},
    once_box::OnceBox,
    word::load_u64, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::{Acquire, Full, Relaxed, Release},
        Atomic,
        AtomicFlag, //
    },
};

/// A moment, in turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn(u64);

/// Children of a node. The lowest nodes have blocks as children.
const FANOUT: usize = u64::BITS as usize;

/// Blocks whose state is allocated at once: 8 GiB.
pub(super) const GROUP: usize = FANOUT * FANOUT;

/// Least levels above the lowest nodes.
const LEVELS: usize = 3;

/// Lowest nodes that one search looks at in each tree, with all of their blocks. So a search is
/// bounded, and exact if no more nodes than that have bounds that are too low.
const MOST_NODES: usize = 64;

/// Turns count from here on. Lower bounds are tokens of searches, see [`Lru::explore`].
const FIRST_TURN: u64 = 1 << 20;

/// Bound of a node without candidates.
const NEVER: u64 = u64::MAX;

/// The two trees.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tree {
    /// Blocks of which some pages are in use.
    Used = 0,
    /// Those of which some are not.
    Partial = 1,
}

/// A value for each tree.
struct Both([Atomic<u64>; 2]);

impl Both {
    fn new(value: u64) -> Self {
        Self([Atomic::new(value), Atomic::new(value)])
    }

    fn of(&self, tree: Tree) -> &Atomic<u64> {
        let [used, partial] = &self.0;
        match tree {
            Tree::Used => used,
            Tree::Partial => partial,
        }
    }
}

/// What is known of a block.
struct Block {
    /// Turn of the last access.
    last: Atomic<u64>,
    /// Whether a task evicts the block, see [`Claim`].
    claimed: AtomicFlag,
}

/// A lowest node.
struct Node {
    /// A bit for each block that may be a candidate.
    blocks: Both,
    bounds: Both,
}

/// State of [`GROUP`] blocks, or of fewer at the end of the memory.
struct Group {
    blocks: KVVec<Block>,
    nodes: KVVec<Node>,
}

impl Group {
    fn new(blocks: usize) -> Result<Self> {
        let mut all = KVVec::with_capacity(blocks, GFP_KERNEL)?;
        for _ in 0..blocks {
            let block = Block {
                // Before the first turn.
                last: Atomic::new(FIRST_TURN - 1),
                claimed: AtomicFlag::new(false),
            };
            all.push(block, GFP_KERNEL)?;
        }
        let mut nodes = KVVec::with_capacity(FANOUT, GFP_KERNEL)?;
        for _ in 0..FANOUT {
            let node = Node {
                blocks: Both::new(0),
                bounds: Both::new(NEVER),
            };
            nodes.push(node, GFP_KERNEL)?;
        }
        Ok(Self { blocks: all, nodes })
    }
}

/// Times of access of all blocks.
pub(super) struct Lru {
    now: Atomic<u64>,
    /// Number of blocks.
    len: usize,
    groups: KVVec<OnceBox<Group>>,
    /// Bounds of the nodes above the lowest ones, by level; the first level has a node for each
    /// group, the last one the root.
    levels: KVec<KVVec<Both>>,
    /// Counts the nodes that searches have begun to look at.
    tokens: Atomic<u64>,
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

/// A search of one tree.
struct Search<'s> {
    tree: Tree,
    usage: &'s dyn Fn(usize) -> Usage,
    /// Blocks that were used after this turn are no candidates.
    before: u64,
    /// Turn and number of the coldest candidate found.
    best: Option<(u64, usize)>,
    /// Whether a candidate is claimed.
    busy: bool,
    /// Lowest nodes that may still be looked at.
    nodes: usize,
}

impl Search<'_> {
    /// Whether a block that was last used at `turn` would be chosen.
    fn wants(&self, turn: u64) -> bool {
        turn <= self.before && self.best.is_none_or(|(best, _)| turn < best)
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
        let mut levels = KVec::new();
        let mut nodes = count.max(1);
        while levels.len() < LEVELS || nodes > 1 {
            if !levels.is_empty() {
                nodes = nodes.div_ceil(FANOUT);
            }
            // Whole nodes of the level above, so that a search costs the same for any size.
            let len = nodes.next_multiple_of(FANOUT);
            let mut level = KVVec::with_capacity(len, GFP_KERNEL)?;
            for _ in 0..len {
                level.push(Both::new(NEVER), GFP_KERNEL)?;
            }
            levels.push(level, GFP_KERNEL)?;
        }
        Ok(Self {
            now: Atomic::new(FIRST_TURN),
            len: blocks,
            groups,
            levels,
            tokens: Atomic::new(0),
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
        if let Some(Block { last, .. }) = self.block(block) {
            if load_u64(last) != load_u64(&self.now) {
                self.advance(last);
            }
        }
    }

    /// Moves `block`, which could not be evicted, behind all others, even if it is the most
    /// recently used one. Context: any.
    pub(super) fn put_off(&self, block: usize) {
        if let Some(Block { last, .. }) = self.block(block) {
            self.advance(last);
        }
    }

    #[inline]
    fn advance(&self, last: &Atomic<u64>) {
        last.store(self.now.fetch_add(1, Relaxed) + 1, Relaxed);
    }

    /// Now. Blocks that are used from here on are not older.
    pub(super) fn now(&self) -> Turn {
        Turn(self.now.load(Relaxed))
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
        if load_u64(node.blocks.of(tree)) >> (block % FANOUT) & 1 == 0 {
            self.add(block, node, tree);
        }
    }

    #[cold]
    fn add(&self, block: usize, node: &Node, tree: Tree) {
        let Some(Block { last, .. }) = self.block(block) else {
            return;
        };
        let turn = last.load(Relaxed);
        set(node.blocks.of(tree), 1 << (block % FANOUT));
        lower(node.bounds.of(tree), turn);
        let mut index = block / GROUP;
        for level in &self.levels {
            if let Some(bounds) = level.get(index) {
                lower(bounds.of(tree), turn);
            }
            index /= FANOUT;
        }
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
        let now = self.now.load(Relaxed);
        let is_old = |last: u64| now.saturating_sub(last) > count as u64 / 2;
        let (partial, _) = self.search(Tree::Partial, usage, before);
        if let Some((_, block)) = partial.filter(|(last, _)| is_old(*last)) {
            return self.claim(block);
        }
        match self.search(Tree::Used, usage, before) {
            // Another task may be faster.
            (Some((_, block)), _) => self.claim(block),
            (None, true) => Err(NoClaim::Busy),
            (None, false) => Err(NoClaim::Nothing),
        }
    }

    /// The coldest candidate of a tree, and whether one is claimed.
    fn search(
        &self,
        tree: Tree,
        usage: &dyn Fn(usize) -> Usage,
        before: Turn,
    ) -> (Option<(u64, usize)>, bool) {
        let mut search = Search {
            tree,
            usage,
            before: before.0,
            best: None,
            busy: false,
            nodes: MOST_NODES,
        };
        self.explore(self.levels.len(), 0, &mut search);
        (search.best, search.busy)
    }

    /// Bounds of a node: level 0 are the lowest ones.
    fn bounds(&self, level: usize, index: usize) -> Option<&Both> {
        match level.checked_sub(1) {
            Some(level) => self.levels.get(level)?.get(index),
            None => {
                let group = self.groups.get(index / FANOUT)?.get()?;
                Some(&group.nodes.get(index % FANOUT)?.bounds)
            }
        }
    }

    /// Searches below a node. Returns its new bound.
    ///
    /// While a search looks at a node, the bound is a token that no other search has. A block that
    /// is added meanwhile replaces the token, so that the bound that the search has found, which
    /// may lack the block, is not stored.
    fn explore(&self, level: usize, index: usize, search: &mut Search<'_>) -> u64 {
        let Some(bounds) = self.bounds(level, index) else {
            return NEVER;
        };
        let bound = bounds.of(search.tree);
        // 0 is no token.
        let token = self.tokens.fetch_add(1, Relaxed) % (FIRST_TURN - 2) + 1;
        let old = bound.load(Relaxed);
        let is_ours = bound.cmpxchg(old, token, Full).is_ok();
        let least = match level {
            0 => self.scan(index, search),
            _ => self.descend(level, index, search),
        };
        if is_ours {
            let _ = bound.cmpxchg(token, least, Full);
        }
        least
    }

    /// Searches below the children of a node, those with the lowest bounds first.
    fn descend(&self, level: usize, index: usize, search: &mut Search<'_>) -> u64 {
        let (mut seen, mut least) = (0u64, NEVER);
        loop {
            let (next, lowest) = self.lowest_child(level, index, search.tree, seen);
            if lowest == NEVER || !search.wants(lowest) || search.nodes == 0 {
                return least.min(lowest);
            }
            seen |= 1 << next;
            least = least.min(self.explore(level - 1, index * FANOUT + next, search));
        }
    }

    /// The child of a node that has the lowest bound, of those that are not in `seen`, and the
    /// bound.
    fn lowest_child(&self, level: usize, index: usize, tree: Tree, seen: u64) -> (usize, u64) {
        fn lowest<'a>(all: impl Iterator<Item = &'a Both>, tree: Tree, seen: u64) -> (usize, u64) {
            let mut lowest = (0, NEVER);
            for (child, bounds) in all.enumerate().take(FANOUT) {
                let bound = load_u64(bounds.of(tree));
                if bound < lowest.1 && seen >> child & 1 == 0 {
                    lowest = (child, bound);
                }
            }
            lowest
        }
        let Some(below) = level.checked_sub(2) else {
            let group = self.groups.get(index).and_then(OnceBox::get);
            return group.map_or((0, NEVER), |group| {
                lowest(group.nodes.iter().map(|node| &node.bounds), tree, seen)
            });
        };
        let nodes = self.levels.get(below);
        let nodes = nodes.and_then(|nodes| nodes.get(index * FANOUT..));
        nodes.map_or((0, NEVER), |nodes| lowest(nodes.iter(), tree, seen))
    }

    /// Looks at the blocks of a lowest node.
    fn scan(&self, index: usize, search: &mut Search<'_>) -> u64 {
        let first = index * FANOUT;
        let Some(group) = self.group(first) else {
            return NEVER;
        };
        let Some(node) = group.nodes.get(index % FANOUT) else {
            return NEVER;
        };
        let blocks = group.blocks.get(first % GROUP..).unwrap_or(&[]);
        search.nodes = search.nodes.saturating_sub(1);
        let mut left = node.blocks.of(search.tree).load(Relaxed);
        let mut least = NEVER;
        loop {
            let (mut next, mut last) = (0, NEVER);
            let mut bits = left;
            while bits != 0 {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let turn = blocks.get(bit).map_or(NEVER, |block| load_u64(&block.last));
                if turn < last {
                    (next, last) = (bit, turn);
                }
            }
            if last == NEVER || !search.wants(last) {
                return least.min(last);
            }
            left &= !(1 << next);
            let block = first + next;
            if !(search.usage)(block).is_in(search.tree) {
                clear(node.blocks.of(search.tree), 1 << next);
                if !(search.usage)(block).is_in(search.tree) {
                    continue;
                }
                self.add(block, node, search.tree);
            }
            least = least.min(last);
            let claimed = blocks
                .get(next)
                .is_some_and(|block| block.claimed.load(Relaxed));
            if claimed {
                search.busy = true;
                continue;
            }
            search.best = Some((last, block));
        }
    }
}

/// Makes `bound` at most `turn`, and replaces the token of a search.
fn lower(bound: &Atomic<u64>, turn: u64) {
    let mut old = bound.load(Relaxed);
    // A bound of 0 was a token, and a bound that is low enough need not change.
    while old != 0 && (old < FIRST_TURN - 1 || old > turn) {
        let new = if old < FIRST_TURN - 1 { 0 } else { turn };
        match bound.cmpxchg(old, new, Full) {
            Ok(_) => return,
            Err(now) => old = now,
        }
    }
}

#[kunit_tests(rust_hmm_lru)]
mod tests {
    use super::*;

    fn lru(blocks: usize) -> Result<Lru> {
        let lru = Lru::new(blocks)?;
        for first in (0..blocks).step_by(GROUP) {
            lru.prepare(first)?;
        }
        Ok(lru)
    }

    /// Claims the coldest of `blocks`, of which `partly` is used in part.
    fn choose(
        lru: &Lru,
        blocks: core::ops::Range<usize>,
        partly: Option<usize>,
        before: Turn,
    ) -> Result<Claim<'_>, NoClaim> {
        for block in blocks.clone() {
            lru.allocated(block, partly != Some(block));
        }
        let usage = |block| match (blocks.contains(&block), partly == Some(block)) {
            (false, _) => Usage::Empty,
            (true, true) => Usage::Partial,
            (true, false) => Usage::Full,
        };
        lru.coldest(&usage, blocks.len(), before)
    }

    /// As [`choose`], without keeping the claim.
    fn coldest(
        lru: &Lru,
        blocks: core::ops::Range<usize>,
        partly: Option<usize>,
        before: Turn,
    ) -> Option<usize> {
        let claim = choose(lru, blocks, partly, before).ok()?;
        Some(claim.block())
    }

    #[test]
    fn concurrent_evictors_choose_different_blocks() -> Result {
        let lru = lru(3)?;
        for block in [1, 2, 0] {
            lru.touch(block);
        }
        let now = lru.now();
        let choose = || choose(&lru, 0..3, None, now);
        let mut claims = KVec::new();
        for expected in [1, 2, 0] {
            let claim = choose().map_err(|_| EINVAL)?;
            assert_eq!(claim.block(), expected);
            claims.push(claim, GFP_KERNEL)?;
        }
        assert_eq!(choose().err(), Some(NoClaim::Busy));
        assert_eq!(lru.claim(1).err(), Some(NoClaim::Busy));
        assert_eq!(lru.claim(3).err(), Some(NoClaim::Nothing));
        // Not evicted after all: it is as cold as before.
        claims.pop();
        assert!(choose().is_ok_and(|claim| claim.block() == 0));
        drop(claims);
        let claim = lru.claim(1);
        assert!(claim.is_ok());
        assert_eq!(coldest(&lru, 0..3, None, now), Some(2));
        drop(claim);
        assert_eq!(coldest(&lru, 0..3, None, now), Some(1));
        assert_eq!(lru.now(), now);
        Ok(())
    }

    #[test]
    fn order_is_that_of_accesses() -> Result {
        let lru = lru(4)?;
        for block in [2, 0, 3, 1, 2] {
            lru.touch(block);
        }
        let now = lru.now();
        assert_eq!(coldest(&lru, 0..4, None, now), Some(0));
        lru.touch(0);
        assert_eq!(coldest(&lru, 0..4, None, lru.now()), Some(3));
        // Of those only that are there.
        assert_eq!(coldest(&lru, 0..3, None, lru.now()), Some(1));
        assert_eq!(coldest(&lru, 0..0, None, lru.now()), None);
        // Nothing that was used since.
        lru.touch(3);
        lru.touch(1);
        assert_eq!(coldest(&lru, 0..4, None, now), Some(2));
        lru.touch(2);
        assert_eq!(coldest(&lru, 0..4, None, now), None);
        Ok(())
    }

    #[test]
    fn staying_in_a_block_passes_no_time() -> Result {
        let lru = lru(2)?;
        lru.touch(0);
        let now = lru.now();
        for _ in 0..100 {
            lru.touch(0);
        }
        assert_eq!(lru.now(), now);
        lru.touch(1);
        assert!(lru.now() > now);
        // Beyond the last block: nothing happens.
        lru.touch(2);
        Ok(())
    }

    #[test]
    fn what_is_used_in_part_goes_first() -> Result {
        let lru = lru(8)?;
        for block in 0..8 {
            lru.touch(block);
        }
        assert_eq!(coldest(&lru, 0..8, Some(2), lru.now()), Some(2));
        // But not what is being filled now.
        assert_eq!(coldest(&lru, 0..8, Some(7), lru.now()), Some(0));
        Ok(())
    }

    #[test]
    fn random_accesses_agree_with_a_list() -> Result {
        const BLOCKS: usize = 16;
        let lru = lru(BLOCKS)?;
        // The oldest first.
        let mut list: [usize; BLOCKS] = core::array::from_fn(|block| block);
        let mut random = 12345u64;
        for block in list {
            lru.touch(block);
        }
        for _ in 0..1000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            let block = (random >> 33) as usize % BLOCKS;
            lru.touch(block);
            let at = list
                .iter()
                .position(|other| *other == block)
                .ok_or(EINVAL)?;
            if let Some(rest) = list.get_mut(at..) {
                rest.rotate_left(1);
            }
            assert_eq!(
                coldest(&lru, 0..BLOCKS, None, lru.now()),
                list.first().copied()
            );
        }
        Ok(())
    }

    #[test]
    fn blocks_that_are_used_in_part_later_go_first() -> Result {
        let lru = lru(8)?;
        for block in 0..8 {
            lru.touch(block);
        }
        let full = |_| Usage::Full;
        for block in 0..8 {
            lru.allocated(block, true);
        }
        let first = lru.coldest(&full, 8, lru.now());
        assert!(first.is_ok_and(|claim| claim.block() == 0));
        // Some pages of it are freed.
        lru.freed(2);
        let usage = |block| match block {
            2 => Usage::Partial,
            _ => Usage::Full,
        };
        let second = lru.coldest(&usage, 8, lru.now());
        assert!(second.is_ok_and(|claim| claim.block() == 2));
        // It was filled again, and emptied.
        let third = lru.coldest(&full, 8, lru.now());
        assert!(third.is_ok_and(|claim| claim.block() == 0));
        let empty = |_| Usage::Empty;
        assert_eq!(
            lru.coldest(&empty, 8, lru.now()).err(),
            Some(NoClaim::Nothing)
        );
        Ok(())
    }

    #[test]
    fn order_is_the_same_for_16_tib() -> Result {
        // 16 TiB, of which three parts are in use.
        let lru = Lru::new(1 << 23)?;
        let blocks = [0, 70, 5000, 5001, (1 << 23) - 1];
        for block in blocks {
            lru.prepare(block)?;
            lru.touch(block);
            lru.allocated(block, true);
        }
        let full = |_| Usage::Full;
        for expected in [0, 70, 5000, 5001, (1 << 23) - 1, 0] {
            let claim = lru.coldest(&full, 5, lru.now());
            assert!(claim.is_ok_and(|claim| claim.block() == expected));
            lru.touch(expected);
        }
        // Where no memory is yet, nothing is known.
        assert_eq!(lru.claim(1 << 22).err(), Some(NoClaim::Nothing));
        lru.touch(1 << 22);
        Ok(())
    }
}

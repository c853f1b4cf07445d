// SPDX-License-Identifier: GPL-2.0

//! Search for the coldest candidate in a tree of bounds.

use super::{
    bounds::{
        lowest,
        LruTree,
        PerTree,
        FANOUT,
        NO_CANDIDATE, //
    },
    turns::LruStamp,
    BlockUsage,
    Lru,
    GROUP_BLOCKS, //
};
use crate::{
    kernel::{
        once_box::OnceBox,
        word::load_u64, //
    },
    mm::device_alloc::clear, //
};
use kernel::sync::atomic::ordering::Relaxed;

/// Number of lowest nodes that a search visits in each tree, with all of their blocks. It bounds
/// the search. The result is exact unless more nodes than that have bounds that are too low.
const SEARCH_MAX_NODES: usize = 64;

/// A search of one tree.
pub(super) struct Search<'s> {
    lru: &'s Lru,
    tree: LruTree,
    usage: &'s dyn Fn(usize) -> BlockUsage,
    /// Blocks that were used after this turn are not candidates.
    before: u64,
    /// Turn and number of the coldest candidate found.
    best: Option<(u64, usize)>,
    /// Whether another task has claimed a candidate.
    busy: bool,
    /// Number of lowest nodes that may still be visited.
    nodes: usize,
}

impl<'s> Search<'s> {
    /// Returns the coldest candidate of a tree, and whether another task has claimed one.
    pub(super) fn run(
        lru: &'s Lru,
        tree: LruTree,
        usage: &'s dyn Fn(usize) -> BlockUsage,
        before: LruStamp,
    ) -> (Option<(u64, usize)>, bool) {
        let mut search = Self {
            lru,
            tree,
            usage,
            before: before.0,
            best: None,
            busy: false,
            nodes: SEARCH_MAX_NODES,
        };
        search.explore(lru.bounds.levels(), 0);
        (search.best, search.busy)
    }

    /// Returns whether a block that was last used at `turn` would be chosen.
    fn wants(&self, turn: u64) -> bool {
        turn <= self.before && self.best.is_none_or(|(best, _)| turn < best)
    }

    /// Returns the bounds of a node. The lowest nodes have level 0.
    fn bounds(&self, level: usize, index: usize) -> Option<&'s PerTree> {
        match level.checked_sub(1) {
            Some(level) => self.lru.bounds.from(level, index)?.first(),
            None => {
                let group = self.lru.groups.get(index / FANOUT)?.get()?;
                Some(&group.nodes.get(index % FANOUT)?.bounds)
            }
        }
    }

    /// Searches below a node. Returns its new bound.
    fn explore(&mut self, level: usize, index: usize) -> u64 {
        let Some(bounds) = self.bounds(level, index) else {
            return NO_CANDIDATE;
        };
        let lru = self.lru;
        let bound = bounds.of(self.tree);
        lru.bounds.renew(bound, || match level {
            0 => self.scan(index),
            _ => self.descend(level, index),
        })
    }

    /// Searches below the children of a node, those with the lowest bounds first.
    fn descend(&mut self, level: usize, index: usize) -> u64 {
        let mut seen = 0u64;
        let mut least = NO_CANDIDATE;
        loop {
            let (next, lowest) = self.lowest_child(level, index, seen);
            if lowest == NO_CANDIDATE || !self.wants(lowest) || self.nodes == 0 {
                return least.min(lowest);
            }
            seen |= 1 << next;
            least = least.min(self.explore(level - 1, index * FANOUT + next));
        }
    }

    /// Returns the child of a node that has the lowest bound, among those that are not in `seen`,
    /// and its bound.
    fn lowest_child(&self, level: usize, index: usize, seen: u64) -> (usize, u64) {
        let Some(below) = level.checked_sub(2) else {
            let group = self.lru.groups.get(index).and_then(OnceBox::get);
            return group.map_or((0, NO_CANDIDATE), |group| {
                let nodes = group.nodes.iter().map(|node| &node.bounds);
                lowest(nodes, self.tree, seen)
            });
        };
        let nodes = self.lru.bounds.from(below, index * FANOUT);
        nodes.map_or((0, NO_CANDIDATE), |nodes| {
            lowest(nodes.iter(), self.tree, seen)
        })
    }

    /// Searches the blocks of a lowest node. Returns its new bound.
    fn scan(&mut self, index: usize) -> u64 {
        let first = index * FANOUT;
        let Some(group) = self.lru.group(first) else {
            return NO_CANDIDATE;
        };
        let Some(node) = group.nodes.get(index % FANOUT) else {
            return NO_CANDIDATE;
        };
        let blocks = group.blocks.get(first % GROUP_BLOCKS..).unwrap_or(&[]);
        self.nodes = self.nodes.saturating_sub(1);
        let mut left = node.blocks.of(self.tree).load(Relaxed);
        let mut least = NO_CANDIDATE;
        loop {
            let mut next = 0;
            let mut last = NO_CANDIDATE;
            let mut bits = left;
            while bits != 0 {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let turn = blocks
                    .get(bit)
                    .map_or(NO_CANDIDATE, |block| load_u64(&block.last));
                if turn < last {
                    (next, last) = (bit, turn);
                }
            }
            if last == NO_CANDIDATE || !self.wants(last) {
                return least.min(last);
            }
            left &= !(1 << next);
            let block = first + next;
            if !(self.usage)(block).is_in(self.tree) {
                clear(node.blocks.of(self.tree), 1 << next);
                if !(self.usage)(block).is_in(self.tree) {
                    continue;
                }
                self.lru.add(block, node, self.tree);
            }
            least = least.min(last);
            let claimed = blocks
                .get(next)
                .is_some_and(|block| block.claimed.load(Relaxed));
            if claimed {
                self.busy = true;
                continue;
            }
            self.best = Some((last, block));
        }
    }
}

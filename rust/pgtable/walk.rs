// SPDX-License-Identifier: GPL-2.0

//! Walks: from the root of a table to what it says of a page.

use super::{
    entry::{Entry, Leaf},
    format::{fan, last_address, shift, Format},
    pool::Pool,
    table::slot_of,
    tree::{self, Slot},
};
use kernel::{page::PAGE_SHIFT, sync::rcu};

/// The table in which a walk has ended. It is there as long as the table lock is held, and so are
/// the tables above it: walks of pages beside it need not begin at the root.
#[derive(Clone, Copy)]
pub(crate) struct Near {
    /// Addresses of the table, shifted by the bits that it translates and those below.
    block: usize,
    index: u32,
    /// Bits below those that it translates.
    shift: u32,
}

impl Near {
    /// None yet: no address has all bits.
    pub(crate) const NONE: Self = Self {
        block: usize::MAX,
        index: 0,
        shift: 0,
    };
}

impl<F: Format> Pool<F> {
    /// What the table with `root` says of the page at `addr`, and the table in which the walk has
    /// ended. Context: any.
    pub(super) fn walk(&self, root: u32, addr: usize) -> (Option<Leaf>, u32) {
        let mut index = root;
        if addr > last_address::<F>() {
            return (None, index);
        }
        let guard = rcu::read_lock();
        for level in (0..F::LEVELS).rev() {
            let word = self.load(&guard, index, slot_of::<F>(level, addr));
            match tree::decode(word) {
                Slot::Empty => break,
                Slot::Table(child) => index = child,
                Slot::Leaf(first) => return (Some(part(first, shift::<F>(level), addr)), index),
            }
        }
        (None, index)
    }

    /// As [`Self::walk`], after other walks of the same hold of the table lock, which have left
    /// `near`.
    #[inline]
    pub(super) fn walk_near(&self, root: u32, addr: usize, near: &mut Near) -> Option<Leaf> {
        let Near {
            block,
            index,
            shift,
        } = *near;
        if addr >> (shift + F::BITS) == block {
            let slot = addr >> shift & (fan::<F>() - 1);
            match tree::decode(self.load(&rcu::read_lock(), index, slot)) {
                Slot::Leaf(first) => return Some(part(first, shift, addr)),
                Slot::Empty => return None,
                Slot::Table(_) => {}
            }
        }
        let (leaf, index) = self.walk(root, addr);
        if let Some(leaf) = leaf {
            let shift = leaf.order + PAGE_SHIFT as u32;
            *near = Near {
                block: addr >> (shift + F::BITS),
                index,
                shift,
            };
        }
        leaf
    }
}

/// What a leaf that begins with `first`, and covers `1 << shift` bytes, says of the page at `addr`.
#[inline]
fn part(first: Entry, shift: u32, addr: usize) -> Leaf {
    Leaf {
        entry: first.plus((addr & ((1 << shift) - 1)) >> PAGE_SHIFT),
        order: shift - PAGE_SHIFT as u32,
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Walks: from the root of a table to what it says of a page.

use super::{
    entry::{Entry, Leaf},
    format::{fan, last_address, shift, Format},
    pool::Pool,
    table::slot_of,
    tree::{self, Slot},
};
use core::cell::Cell;
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
    /// These and those that it translates.
    above: u32,
}

impl Near {
    /// None yet: no address has all bits.
    pub(crate) const NONE: Self = Self {
        block: usize::MAX,
        index: 0,
        shift: 0,
        above: 0,
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
    #[inline(always)]
    pub(super) fn walk_near(&self, root: u32, addr: usize, near: &Cell<Near>) -> Option<Leaf> {
        let Near {
            block,
            index,
            shift,
            above,
        } = near.get();
        if addr.wrapping_shr(above) == block {
            let slot = addr.wrapping_shr(shift) & (fan::<F>() - 1);
            match tree::decode(self.load(&rcu::read_lock(), index, slot)) {
                Slot::Leaf(first) => return Some(part(first, shift, addr)),
                Slot::Empty => return None,
                Slot::Table(_) => {}
            }
        }
        self.walk_far(root, addr, near)
    }

    // Not in the way of the others.
    #[inline(never)]
    fn walk_far(&self, root: u32, addr: usize, near: &Cell<Near>) -> Option<Leaf> {
        let (leaf, index) = self.walk(root, addr);
        if let Some(leaf) = leaf {
            let shift = leaf.order + PAGE_SHIFT as u32;
            let above = shift + F::BITS;
            near.set(Near {
                block: addr >> above,
                index,
                shift,
                above,
            });
        }
        leaf
    }
}

/// What a leaf that begins with `first`, and covers `1 << shift` bytes, says of the page at `addr`.
#[inline]
fn part(first: Entry, shift: u32, addr: usize) -> Leaf {
    let within = addr & !usize::MAX.wrapping_shl(shift);
    Leaf {
        entry: first.plus(within >> PAGE_SHIFT),
        order: shift.wrapping_sub(PAGE_SHIFT as u32),
    }
}

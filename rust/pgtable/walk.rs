// SPDX-License-Identifier: GPL-2.0

//! Walks of a table, from the root to the translation of a page.

use super::{
    entry::{
        DevicePte,
        Leaf, //
    },
    format::{
        group_order,
        last_address,
        shift,
        slot_bits,
        slot_of,
        Format, //
    },
    pool::Pool,
    tree::{
        self,
        Slot, //
    }, //
};
use core::cell::Cell;
use kernel::{
    page::PAGE_SHIFT,
    sync::rcu, //
};

/// Cache of the table in which a walk has ended, so that walks of nearby pages need not begin at
/// the root. Tables are linked and removed with exclusive access to the whole table, by updates,
/// which forget the cached table.
#[derive(Clone, Copy)]
pub(super) struct WalkCache {
    /// Address of the table's range, shifted right by `above`.
    block: usize,
    index: u32,
    /// Number of address bits below the bits that the table translates.
    shift: u32,
    /// Number of address bits that the table translates, plus `shift`.
    above: u32,
}

impl WalkCache {
    /// The empty cache: no address has all bits set.
    pub(super) const NONE: Self = Self {
        block: usize::MAX,
        index: 0,
        shift: 0,
        above: 0,
    };

    /// Forgets the table.
    #[inline]
    pub(super) fn forget(&mut self) {
        self.block = Self::NONE.block;
    }
}

impl<F: Format> Pool<F> {
    /// Returns the translation of the page at `addr` in the table with `root`, and the index of the
    /// table page in which the walk has ended. Context: any.
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

    /// As [`Self::walk`]. `near` caches the table of the previous walk.
    #[inline(always)]
    pub(super) fn walk_near(&self, root: u32, addr: usize, near: &Cell<WalkCache>) -> Option<Leaf> {
        let WalkCache {
            block,
            index,
            shift,
            above,
        } = near.get();
        if addr.wrapping_shr(above) == block {
            let slot = addr.wrapping_shr(shift) & ((1 << slot_bits_of::<F>(shift)) - 1);
            match tree::decode(self.load(&rcu::read_lock(), index, slot)) {
                Slot::Leaf(first) => return Some(part(first, shift, addr)),
                Slot::Empty => return None,
                Slot::Table(_) => {}
            }
        }
        self.walk_far(root, addr, near)
    }

    // Not inlined, to keep the slow path out of the callers.
    #[inline(never)]
    fn walk_far(&self, root: u32, addr: usize, near: &Cell<WalkCache>) -> Option<Leaf> {
        let (leaf, index) = self.walk(root, addr);
        if let Some(leaf) = leaf {
            let shift = leaf.order + PAGE_SHIFT as u32;
            let above = shift + slot_bits_of::<F>(shift);
            near.set(WalkCache {
                block: addr >> above,
                index,
                shift,
                above,
            });
        }
        leaf
    }
}

/// Returns log2 of the number of slots of the tables whose slots cover `1 << shift` bytes each.
#[inline]
fn slot_bits_of<F: Format>(shift: u32) -> u32 {
    if group_order::<F>() != 0 && shift == PAGE_SHIFT as u32 {
        slot_bits::<F>(0)
    } else {
        F::BITS
    }
}

/// Returns the translation of the page at `addr` by a leaf that begins with `first` and covers
/// `1 << shift` bytes.
#[inline]
fn part(first: DevicePte, shift: u32, addr: usize) -> Leaf {
    let within = addr & !usize::MAX.wrapping_shl(shift);
    Leaf {
        entry: first.plus(within >> PAGE_SHIFT),
        order: shift.wrapping_sub(PAGE_SHIFT as u32),
    }
}

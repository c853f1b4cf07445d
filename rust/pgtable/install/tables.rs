// SPDX-License-Identifier: GPL-2.0

//! The tables above an entry: finds them, and links new ones.

use crate::pgtable::{
    flush::FlushBatch,
    format::{
        slot_of,
        Format, //
    },
    prealloc::Prealloc,
    table::Table,
    tree::{
        self,
        Slot, //
    }, //
};
use kernel::{
    prelude::*,
    sync::rcu, //
};

impl<F: Format> Table<F> {
    pub(super) fn decode(&self, index: u32, level: u32, addr: usize) -> Slot {
        let guard = rcu::read_lock();
        self.pool.page(&guard, index).map_or(Slot::Empty, |page| {
            tree::decode(page.load(slot_of::<F>(level, addr)))
        })
    }

    /// Returns the table of level 1 for `addr`, if there is one.
    pub(super) fn table_above(&self, addr: usize) -> Result<Option<u32>> {
        let mut index = self.root;
        for level in (2..F::LEVELS).rev() {
            match self.decode(index, level, addr) {
                Slot::Empty => return Ok(None),
                Slot::Table(child) => index = child,
                // Leaves are not installed at these levels.
                Slot::Leaf(_) => return Err(EINVAL),
            }
        }
        Ok(Some(index))
    }

    /// Returns the table of level 1 for `addr`, and creates it if necessary.
    pub(super) fn make_table_above(
        &mut self,
        addr: usize,
        prealloc: &mut Prealloc<F>,
        batch: &mut FlushBatch<F>,
    ) -> Result<u32> {
        let mut index = self.root;
        for level in (2..F::LEVELS).rev() {
            index = match self.decode(index, level, addr) {
                Slot::Table(child) => child,
                _ => self.make_table(index, level, addr, prealloc, batch)?,
            };
        }
        Ok(index)
    }

    /// Links an empty table from the empty entry for `addr` of table `above`.
    pub(super) fn make_table(
        &mut self,
        above: u32,
        level: u32,
        addr: usize,
        prealloc: &mut Prealloc<F>,
        batch: &mut FlushBatch<F>,
    ) -> Result<u32> {
        let guard = rcu::read_lock();
        let page = self.pool.page(&guard, above).ok_or(EINVAL)?;
        let list = prealloc.pages.of(level > 1);
        let child = self.pool.pop(list).ok_or(ENOMEM)?;
        let slot = slot_of::<F>(level, addr);
        page.store(slot, tree::table(child));
        page.set_used(page.used() + 1);
        page.widen(slot, slot);
        self.pool.linked(child, level - 1, addr);
        self.pool.publish(above, level, addr, slot..slot + 1, batch);
        Ok(child)
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Lockless lookups in the page table.

use super::{
    entry::Leaf,
    format::{
        last_address,
        order,
        slot_of,
        span_of,
        Format, //
    },
    pool::Pool,
    prealloc::Prealloc,
    tree::{
        self,
        Slot, //
    }, //
};
use crate::kernel::shrinker::{
    owner::ReclaimOwner,
    Shrink, //
};
use kernel::{
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    sync::{
        rcu,
        Arc, //
    }, //
};

/// Lockless walks of a table, concurrently with updates.
///
/// # Examples
///
/// ```
/// use rust_hmm::pgtable::Format;
/// use rust_hmm::pgtable::TableReader;
///
/// /// Whether a device that walks the table now may write to the page at `addr`.
/// fn is_writable<F: Format>(reader: &TableReader<F>, addr: usize) -> bool {
///     reader.walk(addr).is_some_and(|leaf| leaf.entry.is_writable())
/// }
/// ```
pub struct TableReader<F: Format> {
    pub(super) pool: Arc<Pool<F>>,
    pub(super) root: u32,
}

impl<F: Format> Clone for TableReader<F> {
    fn clone(&self) -> Self {
        Self {
            pool: self.pool.clone(),
            root: self.root,
        }
    }
}

impl<F: Format> TableReader<F> {
    /// Returns the translation of the page at `addr`.
    ///
    /// A concurrent update may make the result stale. A caller may use it only in a section that
    /// the end of a flush waits for.
    ///
    /// # Context
    ///
    /// Any.
    pub fn walk(&self, addr: usize) -> Option<Leaf> {
        self.pool.walk(self.root, addr).0
    }

    /// Returns the device address of the image of the root; `None` without table memory, or if the
    /// device is closed. Context: any.
    pub(crate) fn root_address(&self) -> Option<u64> {
        self.pool.address(&rcu::read_lock(), self.root)
    }

    /// Returns the object from which reclaim requests table pages, if it is registered. Context:
    /// any.
    pub(crate) fn owner(&self) -> &Arc<ReclaimOwner> {
        &self.pool.owner
    }

    /// Returns the number of table pages, including free ones. Context: any.
    pub(crate) fn table_pages(&self) -> usize {
        self.pool.pages()
    }

    /// Releases about `pages` free table pages, possibly a few more. Returns their number. Context:
    /// reclaim.
    // Not inlined, because reclaim has little stack left.
    #[inline(never)]
    pub(crate) fn free_tables(&self, pages: usize) -> usize {
        self.pool.scan(pages)
    }

    /// Returns the first page in `addr..=last` that has a translation, and the translation. Absent
    /// tables are skipped as a whole.
    pub(super) fn next(&self, mut addr: usize, last: usize) -> Option<(usize, Leaf)> {
        let last = last.min(last_address::<F>());
        while addr <= last {
            let mut index = self.root;
            let mut gap = addr | (PAGE_SIZE - 1);
            let guard = rcu::read_lock();
            for level in (0..F::LEVELS).rev() {
                let word = self.pool.load(&guard, index, slot_of::<F>(level, addr));
                let (start, end) = span_of::<F>(level, addr);
                match tree::decode(word) {
                    Slot::Empty => {
                        gap = end;
                        break;
                    }
                    Slot::Table(child) => index = child,
                    Slot::Leaf(first) => {
                        let leaf = Leaf {
                            entry: first.plus((addr - start) >> PAGE_SHIFT),
                            order: order::<F>(level),
                        };
                        return Some((addr, leaf));
                    }
                }
            }
            addr = gap.checked_add(1)?;
        }
        None
    }

    /// Creates empty [`Prealloc`]. The caller must refill them before it takes the table lock.
    ///
    /// # Context
    ///
    /// Any.
    pub fn prealloc(&self) -> Prealloc<F> {
        Prealloc::new(self.pool.clone())
    }
}

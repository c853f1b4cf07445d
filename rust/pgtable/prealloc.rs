// SPDX-License-Identifier: GPL-2.0

//! Table pages that are allocated before the table lock is taken.

use super::{
    entry::DevicePte,
    format::{
        order,
        slots,
        Format, //
    },
    list::PageLists,
    pool::Pool, //
};
use crate::mm::addr::PMD_PAGES;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Table pages and memory reserved for one [`Table::install`](super::Table::install).
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::mm::addr::PageRange;
/// use rust_hmm::pgtable::DevicePte;
/// use rust_hmm::pgtable::FlushBatch;
/// use rust_hmm::pgtable::Format;
/// use rust_hmm::pgtable::Prealloc;
/// use rust_hmm::pgtable::Table;
///
/// /// Maps the pages of `range` from frame `pfn` on, for reads. Call `refill()` before.
/// fn map<F: Format>(
///     table: &mut Table<F>,
///     prealloc: &mut Prealloc<F>,
///     batch: &mut FlushBatch<F>,
///     range: PageRange,
///     pfn: usize,
/// ) -> Result {
///     table.install(range, prealloc, batch, |addr, entry| {
///         if let Some(index) = range.index_of(addr) {
///             *entry = DevicePte::system(pfn + index, false);
///         }
///     })
/// }
/// ```
pub struct Prealloc<F: Format> {
    pool: Arc<Pool<F>>,
    pub(super) pages: PageLists,
    pub(super) scratch: KVec<DevicePte>,
}

impl<F: Format> Prealloc<F> {
    /// Creates an empty reserve for the tables of `pool`.
    pub(super) fn new(pool: Arc<Pool<F>>) -> Self {
        Self {
            pool,
            pages: PageLists::EMPTY,
            scratch: KVec::new(),
        }
    }

    pub(super) fn is_of(&self, pool: &Arc<Pool<F>>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }

    /// Allocates the missing table pages.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    ///
    /// # Context
    ///
    /// May sleep. No lock of this crate may be held.
    pub fn refill(&mut self) -> Result {
        // The tables of a block, and two more, because the tables of an install may be unlinked
        // before the next one.
        let leaves = const { tables_in_block::<F>(0) + 2 };
        let above = const { tables_above::<F>() };
        if self.scratch.is_empty() {
            self.scratch
                .resize(slots::<F>(0), DevicePte::NONE, GFP_KERNEL)?;
        }
        let enough = self.pages.leaves.len() >= leaves && self.pages.above.len() >= above;
        if enough && !self.pool.is_short() {
            return Ok(());
        }
        self.pool.reserve(&mut self.pages, leaves, above)
    }
}

impl<F: Format> Drop for Prealloc<F> {
    fn drop(&mut self) {
        self.pool.release(&mut self.pages.leaves);
        self.pool.release(&mut self.pages.above);
    }
}

/// Returns the number of tables of `level` that cover a block.
const fn tables_in_block<F: Format>(level: u32) -> usize {
    let tables = PMD_PAGES >> order::<F>(level + 1);
    if tables == 0 {
        1
    } else {
        tables
    }
}

/// Returns the number of tables between level 0 and the root that cover a block.
const fn tables_above<F: Format>() -> usize {
    let mut tables = 0;
    let mut level = 1;
    while level + 1 < F::LEVELS {
        tables += tables_in_block::<F>(level);
        level += 1;
    }
    tables
}

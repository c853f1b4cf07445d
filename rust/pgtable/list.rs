// SPDX-License-Identifier: GPL-2.0

//! Lists of table pages that are not in a tree: free, reserved for an update, or detached.

use super::{
    chunk::{
        TableChunk,
        NIL, //
    },
    format::Format, //
};

/// Two lists of table pages, by the level of the tables that they are for.
///
/// A chunk that reclaim finds cold must have no table above level 0, because that one has entries
/// for tables of other chunks. Therefore these tables have chunks of their own.
pub(super) struct PageLists {
    /// Pages for tables of level 0.
    pub(super) leaves: PageList,
    /// Pages for tables of the levels above.
    pub(super) above: PageList,
}

impl PageLists {
    pub(super) const EMPTY: Self = Self {
        leaves: PageList::EMPTY,
        above: PageList::EMPTY,
    };

    /// Returns the number of pages in both lists.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(super) fn len(&self) -> usize {
        self.leaves.len + self.above.len
    }

    /// Returns the list of pages for tables of level 0, or with `above` for those above.
    #[inline]
    pub(super) fn of(&mut self, above: bool) -> &mut PageList {
        if above {
            &mut self.above
        } else {
            &mut self.leaves
        }
    }
}

/// A list of table pages, linked through their metadata.
pub(super) struct PageList {
    pub(super) head: u32,
    pub(super) len: usize,
}

impl PageList {
    pub(super) const EMPTY: Self = Self { head: NIL, len: 0 };

    pub(super) fn is_empty(&self) -> bool {
        self.head == NIL
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds table page `index`, which must be in `chunk`.
    #[inline]
    pub(super) fn push<F: Format>(&mut self, chunk: &TableChunk<F>, index: u32) {
        if let Some(meta) = chunk.meta(index) {
            meta.set_next(self.head);
            self.head = index;
            self.len += 1;
        }
    }

    /// Removes the page that was added last, which must be in `chunk`.
    #[inline]
    pub(super) fn pop<F: Format>(&mut self, chunk: &TableChunk<F>) -> Option<u32> {
        let index = self.head;
        self.head = chunk.meta(index)?.next();
        self.len -= 1;
        Some(index)
    }
}

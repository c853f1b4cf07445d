// SPDX-License-Identifier: GPL-2.0

//! Lists of table pages that are not in a tree: free, reserved for an update, or detached.

use super::{
    chunk::{
        TableChunk,
        NIL, //
    },
    format::Format, //
};

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

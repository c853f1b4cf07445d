// SPDX-License-Identifier: GPL-2.0

//! Conversion between page frames, page numbers of one memory, and page numbers of an owner.

use super::{
    Memory,
    MemoryOps, //
};
use crate::mm::device_pages::DeviceRange;

impl<M: MemoryOps> Memory<M> {
    /// Converts `range`, whose numbers are those of the owner as in
    /// [`PageMemory::Device`](crate::mirror::PageMemory::Device), to numbers of this memory.
    /// Returns `None` if the pages belong to another memory.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn locate(&self, range: DeviceRange) -> Option<DeviceRange> {
        let first = self.local(range.first)?;
        Some(DeviceRange { first, ..range })
    }

    /// Converts the owner's number of a page to its number in this memory. Returns `None` if the
    /// page belongs to another memory.
    #[inline]
    pub(crate) fn local(&self, number: usize) -> Option<usize> {
        let local = number.checked_sub(self.pages().first())?;
        (local < self.limit()).then_some(local)
    }

    /// Returns the number in this memory of page frame `pfn`, or `None` if it belongs to another
    /// memory.
    pub(crate) fn lookup(&self, pfn: usize) -> Option<usize> {
        self.pages().lookup(pfn)
    }

    /// Returns the owner's number of the first page of this memory.
    #[inline]
    pub(crate) fn first_number(&self) -> usize {
        self.pages().first()
    }

    /// Returns the owner's number of page frame `pfn`, as device PTEs have it, or `None` if the
    /// page belongs to another memory.
    pub(crate) fn entry_number(&self, pfn: usize) -> Option<usize> {
        Some(self.pages().first() + self.pages().lookup(pfn)?)
    }

    /// Returns a function that does the same as [`Self::entry_number`], and is faster for page
    /// frames that are close together.
    pub(crate) fn numbers(&self) -> impl FnMut(usize) -> Option<usize> + '_ {
        let first = self.pages().first();
        let mut find = self.pages().pfn_lookup();
        move |pfn| Some(first + find(pfn)?)
    }

    /// Returns the page frame number of page `local` of this memory, or `None` if its chunk does
    /// not exist.
    pub(crate) fn pfn(&self, local: usize) -> Option<usize> {
        self.pages().pfn(local)
    }
}

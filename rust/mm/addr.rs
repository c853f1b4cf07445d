// SPDX-License-Identifier: GPL-2.0

//! Page-aligned ranges of virtual addresses.

use kernel::{
    page::{PAGE_MASK, PAGE_SHIFT, PAGE_SIZE},
    prelude::*, //
};

/// Order of a folio that one PMD maps: 2 MiB of 4 KiB pages.
pub const PMD_ORDER: u32 = 9;

/// Pages that one PMD maps, and the most that one range fault or migration handles.
pub const PMD_PAGES: usize = 1 << PMD_ORDER;

/// Bytes that one PMD maps.
pub const PMD_SIZE: usize = PMD_PAGES * PAGE_SIZE;

/// A range of virtual addresses in bytes, page-aligned and never empty.
///
/// # Invariants
///
/// `start < end`, and both are multiples of the page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRange {
    start: usize,
    end: usize,
}

impl PageRange {
    /// Creates the range `[start, end)`, both in bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is empty or not page-aligned.
    pub const fn new(start: usize, end: usize) -> Result<Self> {
        if start >= end || start & !PAGE_MASK != 0 || end & !PAGE_MASK != 0 {
            return Err(EINVAL);
        }
        // INVARIANT: Just checked.
        Ok(Self { start, end })
    }

    /// Creates the range of `pages` pages at `start`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is empty, not page-aligned, or goes beyond the largest address.
    pub fn from_pages(start: usize, pages: usize) -> Result<Self> {
        let len = pages.checked_mul(PAGE_SIZE).ok_or(EINVAL)?;
        Self::new(start, start.checked_add(len).ok_or(EINVAL)?)
    }

    /// The smallest range that holds `[start, end)`, which must not be empty.
    ///
    /// An end beyond the last whole page is cut: no page can be mapped there.
    pub(crate) fn covering(start: usize, end: usize) -> Option<Self> {
        let start = start & PAGE_MASK;
        let end = end.checked_add(PAGE_SIZE - 1).unwrap_or(usize::MAX) & PAGE_MASK;
        Self::new(start, end).ok()
    }

    /// First address.
    #[inline]
    pub const fn start(&self) -> usize {
        self.start
    }

    /// First address behind the range.
    #[inline]
    pub const fn end(&self) -> usize {
        self.end
    }

    /// Number of pages, at least 1.
    #[inline]
    pub const fn pages(&self) -> usize {
        // By the invariant `end` is the larger one.
        self.end.wrapping_sub(self.start) >> PAGE_SHIFT
    }

    /// The part that both ranges have in common.
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        Self::new(self.start.max(other.start), self.end.min(other.end)).ok()
    }

    /// The index of the page at `addr` within the range.
    #[inline]
    pub fn index_of(&self, addr: usize) -> Option<usize> {
        (self.start..self.end)
            .contains(&addr)
            .then(|| addr.wrapping_sub(self.start) >> PAGE_SHIFT)
    }

    /// The address of page `index` of the range; the last page if `index` is beyond it.
    #[inline]
    pub fn address(&self, index: usize) -> usize {
        // OVERFLOW: the sum stays below `end`.
        self.start + (index.min(self.pages() - 1) << PAGE_SHIFT)
    }

    /// Pieces in ascending order, none of which crosses a 2 MiB border.
    pub fn pmd_pieces(&self) -> impl Iterator<Item = PageRange> {
        let end = self.end;
        let mut next = Some(self.start);
        core::iter::from_fn(move || {
            let start = next.filter(|start| *start < end)?;
            // A border beyond the largest address is no border.
            let border = (start & !(PMD_SIZE - 1)).checked_add(PMD_SIZE);
            next = border;
            PageRange::new(start, border.map_or(end, |border| border.min(end))).ok()
        })
    }

    /// The part from `addr` on, if any.
    pub fn from_address(&self, addr: usize) -> Option<Self> {
        Self::new(self.start.max(addr & PAGE_MASK), self.end).ok()
    }

    /// Whether the range is exactly what one PMD maps.
    pub const fn is_pmd(&self) -> bool {
        self.start & (PMD_SIZE - 1) == 0 && self.pages() == PMD_PAGES
    }
}

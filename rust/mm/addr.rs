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
    #[inline]
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
    #[inline]
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

    /// The smallest range that holds both.
    #[inline]
    pub fn hull(&self, other: &Self) -> Self {
        // INVARIANT: As of the two.
        Self {
            start: self.start.min(other.start),
            end: self.end.max(other.end),
        }
    }

    /// The part that both ranges have in common.
    #[inline]
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        Self::new(self.start.max(other.start), self.end.min(other.end)).ok()
    }

    /// Whether `addr` is in one of the range's pages.
    #[inline]
    pub fn contains(&self, addr: usize) -> bool {
        self.index_of(addr).is_some()
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

#[kunit_tests(rust_hmm_addr)]
mod tests {
    use super::*;

    #[test]
    fn bad_ranges_are_refused() {
        assert_eq!(PageRange::new(0x1000, 0x1000), Err(EINVAL));
        assert_eq!(PageRange::new(0x2000, 0x1000), Err(EINVAL));
        assert_eq!(PageRange::new(0x1001, 0x3000), Err(EINVAL));
        assert_eq!(PageRange::new(0x1000, 0x3001), Err(EINVAL));
        assert_eq!(PageRange::from_pages(0x1000, 0), Err(EINVAL));
        assert_eq!(PageRange::from_pages(0x1000, usize::MAX), Err(EINVAL));
        assert_eq!(
            PageRange::from_pages(usize::MAX & PAGE_MASK, 2),
            Err(EINVAL)
        );
    }

    #[test]
    fn pieces_end_at_borders() -> Result {
        let range = PageRange::new(PMD_SIZE - 0x1000, 2 * PMD_SIZE + 0x2000)?;
        let mut pieces = range.pmd_pieces();
        assert_eq!(
            pieces.next(),
            PageRange::new(PMD_SIZE - 0x1000, PMD_SIZE).ok()
        );
        let middle = pieces.next();
        assert!(middle.is_some_and(|piece| piece.is_pmd()));
        assert_eq!(
            pieces.next(),
            PageRange::new(2 * PMD_SIZE, 2 * PMD_SIZE + 0x2000).ok()
        );
        assert_eq!(pieces.next(), None);
        // The last pages of the address space, behind which there is no border.
        let range = PageRange::new(usize::MAX & !(PMD_SIZE - 1), usize::MAX & PAGE_MASK)?;
        assert_eq!(range.pmd_pieces().count(), 1);
        Ok(())
    }

    #[test]
    fn parts_and_indices() -> Result {
        let range = PageRange::from_pages(0x10000, 16)?;
        assert_eq!(range.index_of(0x12000), Some(2));
        assert!(range.contains(0x12fff) && !range.contains(0x20000) && !range.contains(0));
        assert_eq!(range.index_of(0x20000), None);
        assert_eq!(range.address(3), 0x13000);
        assert_eq!(range.intersect(&PageRange::from_pages(0x20000, 1)?), None);
        let both = range.intersect(&PageRange::new(0, 0x11000)?);
        assert_eq!(both, PageRange::from_pages(0x10000, 1).ok());
        assert_eq!(range.from_address(0x20000), None);
        // What the kernel reports need not be page-aligned, nor end in a whole page.
        assert_eq!(
            PageRange::covering(0x10010, 0x10020),
            PageRange::from_pages(0x10000, 1).ok()
        );
        assert!(PageRange::covering(0, usize::MAX).is_some());
        Ok(())
    }
}

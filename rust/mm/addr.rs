// SPDX-License-Identifier: GPL-2.0

//! Page-aligned ranges of virtual addresses.

use crate::bindings;
use kernel::{
    page::{
        PAGE_MASK,
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*, //
};

/// Order of a folio that one PMD maps: 9 with pages of 4 KiB (2 MiB), 11 with pages of 16 KiB
/// (32 MiB).
pub const PMD_ORDER: u32 = bindings::RUST_HMM_PMD_ORDER;

/// Number of pages that one PMD maps, a *block*. One range fault or migration handles at most this
/// many.
///
/// A block is the unit of migration steps and their marks, of eviction, of notifier windows and of
/// DMA windows. It is not a number of bytes, because a PMD maps the largest folio. A huge folio is
/// faulted, migrated, evicted and mapped by one device leaf as a whole, and a smaller unit would
/// require that it is split. A larger unit would exceed what `migrate_vma_setup()` isolates as one
/// entry, and would hold locks for longer.
pub const PMD_PAGES: usize = 1 << PMD_ORDER;

/// Number of bytes that one PMD maps.
pub const PMD_SIZE: usize = PMD_PAGES * PAGE_SIZE;

/// A range of virtual addresses in bytes, page-aligned and never empty.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::mm::addr::PageRange;
///
/// let range = PageRange::from_pages(0x1000, 3)?;
/// assert_eq!(range.end(), 0x4000);
/// assert!(range.contains(0x3fff) && !range.contains(0x4000));
/// // The address of a device fault lies in one of the pages.
/// assert_eq!(range.index_of(0x2345), Some(1));
/// # Ok::<(), Error>(())
/// ```
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
    /// * `EINVAL`: the range is empty or not page-aligned.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub const fn new(start: usize, end: usize) -> Result<Self> {
        if start >= end || start & !PAGE_MASK != 0 || end & !PAGE_MASK != 0 {
            return Err(EINVAL);
        }
        // INVARIANT: Both conditions were checked above.
        Ok(Self { start, end })
    }

    /// Creates the range of `pages` pages that begins at `start`.
    ///
    /// # Errors
    ///
    /// * `EINVAL`: the range is empty, is not page-aligned, or ends beyond the largest address.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn from_pages(start: usize, pages: usize) -> Result<Self> {
        let len = pages.checked_mul(PAGE_SIZE).ok_or(EINVAL)?;
        Self::new(start, start.checked_add(len).ok_or(EINVAL)?)
    }

    /// Returns the smallest page range that contains the bytes `[start, end)`; `None` if they
    /// contain no whole page that can be mapped.
    ///
    /// The end is rounded down if it lies in the last page of the address space, because no page
    /// can be mapped there.
    pub(crate) fn covering(start: usize, end: usize) -> Option<Self> {
        let start = start & PAGE_MASK;
        let end = end.checked_add(PAGE_SIZE - 1).unwrap_or(usize::MAX) & PAGE_MASK;
        Self::new(start, end).ok()
    }

    /// First address.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub const fn start(&self) -> usize {
        self.start
    }

    /// First address after the range.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub const fn end(&self) -> usize {
        self.end
    }

    /// Number of pages, at least 1.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub const fn pages(&self) -> usize {
        // Cannot wrap: `start < end` by the type invariant.
        self.end.wrapping_sub(self.start) >> PAGE_SHIFT
    }

    /// Returns the smallest range that contains both ranges.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn union(&self, other: &Self) -> Self {
        // INVARIANT: Both ends are ends of valid ranges, and `start` did not grow nor `end` shrink.
        Self {
            start: self.start.min(other.start),
            end: self.end.max(other.end),
        }
    }

    /// Returns the intersection of both ranges; `None` if it is empty.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        Self::new(self.start.max(other.start), self.end.min(other.end)).ok()
    }

    /// Whether `addr` is in one of the range's pages.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn contains(&self, addr: usize) -> bool {
        self.index_of(addr).is_some()
    }

    /// Returns the index of the page that contains `addr`; `None` if `addr` is outside the range.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn index_of(&self, addr: usize) -> Option<usize> {
        (self.start..self.end)
            .contains(&addr)
            .then(|| addr.wrapping_sub(self.start) >> PAGE_SHIFT)
    }

    /// Returns the address of page `index` of the range, or of the last page if `index` is too
    /// large.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn address(&self, index: usize) -> usize {
        // OVERFLOW: the sum stays below `end`.
        self.start + (index.min(self.pages() - 1) << PAGE_SHIFT)
    }

    /// Splits the range at multiples of [`PMD_SIZE`]. The parts are in ascending order.
    ///
    /// # Context
    ///
    /// Any.
    pub fn pmd_pieces(&self) -> impl Iterator<Item = PageRange> {
        self.pieces(PMD_SIZE)
    }

    /// Splits the range at multiples of `size`, a power of two and at least a page. The parts are
    /// in ascending order.
    pub(crate) fn pieces(&self, size: usize) -> impl Iterator<Item = PageRange> {
        let end = self.end;
        let mut next = Some(self.start);
        core::iter::from_fn(move || {
            let start = next.filter(|start| *start < end)?;
            // There is no boundary beyond the largest address.
            let border = (start & !(size - 1)).checked_add(size);
            next = border;
            PageRange::new(start, border.map_or(end, |border| border.min(end))).ok()
        })
    }

    /// Returns the part of the range from the page of `addr` on; `None` if it is empty.
    ///
    /// # Context
    ///
    /// Any.
    pub fn from_address(&self, addr: usize) -> Option<Self> {
        Self::new(self.start.max(addr & PAGE_MASK), self.end).ok()
    }

    /// Returns whether one PMD can map the range: it is aligned to [`PMD_SIZE`] and has that size.
    ///
    /// # Context
    ///
    /// Any.
    pub const fn is_pmd(&self) -> bool {
        self.start & (PMD_SIZE - 1) == 0 && self.pages() == PMD_PAGES
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_addr)]
mod tests {
    use super::*;

    #[test]
    fn bad_ranges_are_refused() {
        const P: usize = PAGE_SIZE;
        assert!(PageRange::new(P, 3 * P).is_ok());
        assert_eq!(PageRange::new(P, P), Err(EINVAL));
        assert_eq!(PageRange::new(2 * P, P), Err(EINVAL));
        for bit in 0..PAGE_SHIFT {
            assert_eq!(PageRange::new(P | 1 << bit, 3 * P), Err(EINVAL));
            assert_eq!(PageRange::new(P, 3 * P | 1 << bit), Err(EINVAL));
        }
        assert_eq!(PageRange::from_pages(P, 0), Err(EINVAL));
        assert_eq!(PageRange::from_pages(P, usize::MAX), Err(EINVAL));
        assert_eq!(
            PageRange::from_pages(usize::MAX & PAGE_MASK, 2),
            Err(EINVAL)
        );
    }

    #[test]
    fn pieces_end_at_block_boundaries() -> Result {
        let range = PageRange::new(PMD_SIZE - PAGE_SIZE, 2 * PMD_SIZE + 2 * PAGE_SIZE)?;
        let mut pieces = range.pmd_pieces();
        assert_eq!(
            pieces.next(),
            PageRange::new(PMD_SIZE - PAGE_SIZE, PMD_SIZE).ok()
        );
        let middle = pieces.next();
        assert!(middle.is_some_and(|piece| piece.is_pmd()));
        assert_eq!(
            pieces.next(),
            PageRange::new(2 * PMD_SIZE, 2 * PMD_SIZE + 2 * PAGE_SIZE).ok()
        );
        assert_eq!(pieces.next(), None);
        // The last pages of the address space, after which there is no boundary.
        let range = PageRange::new(usize::MAX & !(PMD_SIZE - 1), usize::MAX & PAGE_MASK)?;
        assert_eq!(range.pmd_pieces().count(), 1);
        Ok(())
    }

    #[test]
    fn intersections_and_indices_stay_in_range() -> Result {
        let at = |page: usize| page << PAGE_SHIFT;
        let range = PageRange::from_pages(at(16), 16)?;
        assert_eq!(range.index_of(at(18)), Some(2));
        assert!(range.contains(at(19) - 1) && !range.contains(at(32)) && !range.contains(0));
        assert_eq!(
            (range.index_of(at(19) - 1), range.index_of(at(32))),
            (Some(2), None)
        );
        assert_eq!(range.address(3), at(19));
        assert_eq!(range.intersect(&PageRange::from_pages(at(32), 1)?), None);
        let both = range.intersect(&PageRange::new(0, at(17))?);
        assert_eq!(both, PageRange::from_pages(at(16), 1).ok());
        assert_eq!(range.from_address(at(32)), None);
        // The ranges that the kernel reports need not be page-aligned.
        assert_eq!(
            PageRange::covering(at(16) + 0x10, at(16) + 0x20),
            PageRange::from_pages(at(16), 1).ok()
        );
        assert!(PageRange::covering(0, usize::MAX).is_some());
        Ok(())
    }
}

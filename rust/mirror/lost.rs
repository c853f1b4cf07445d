// SPDX-License-Identifier: GPL-2.0

//! Ranges in which a device has lost entries that it must always have.

use crate::mm::addr::PageRange;

/// Number of ranges. An invalidation must not allocate, so that there is room for a fixed number.
const MAX_LOST_RANGES: usize = 8;

/// Disjoint ranges in which entries were invalidated.
///
/// The ranges are exact as long as there are at most [`MAX_LOST_RANGES`]. Then a range is extended
/// to the next one that is lost, at the smallest gap between two of them.
#[derive(Clone, Copy, Default)]
pub(crate) struct LostRanges([Option<PageRange>; MAX_LOST_RANGES]);

/// Returns the number of bytes between two ranges, or `None` if they touch or overlap.
fn gap(one: &PageRange, other: &PageRange) -> Option<usize> {
    let (first, second) = if one.start() <= other.start() {
        (one, other)
    } else {
        (other, one)
    };
    let bytes = second.start().checked_sub(first.end())?;
    (bytes != 0).then_some(bytes)
}

impl LostRanges {
    /// Adds `range`.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn add(&mut self, range: PageRange) {
        let mut new = Some(range);
        while let Some(range) = new.take() {
            let range = self.absorb(range);
            if let Some(free) = self.0.iter_mut().find(|slot| slot.is_none()) {
                *free = Some(range);
            } else {
                new = self.join_nearest(range);
            }
        }
    }

    /// Removes all ranges that `range` touches or overlaps, and returns the union with them.
    fn absorb(&mut self, mut range: PageRange) -> PageRange {
        let mut last = None;
        while last != Some(range) {
            last = Some(range);
            for slot in &mut self.0 {
                if let Some(other) = slot.filter(|other| gap(other, &range).is_none()) {
                    range = range.union(&other);
                    *slot = None;
                }
            }
        }
        range
    }

    /// Makes one range of the two that are nearest to each other, among `range` and the others.
    /// Returns `range`, or its union with the other one, for another attempt to add it.
    fn join_nearest(&mut self, range: PageRange) -> Option<PageRange> {
        let new = Some(range);
        let mut nearest = (usize::MAX, None);
        for (index, one) in self.0.iter().enumerate() {
            let others = self.0.iter().skip(index + 1).chain([&new]);
            for other in others.flatten() {
                let bytes = one.and_then(|one| gap(&one, other)).unwrap_or(usize::MAX);
                if bytes < nearest.0 {
                    nearest = (bytes, Some((index, *other)));
                }
            }
        }
        let (index, other) = nearest.1?;
        let one = self.0.get_mut(index)?.take()?;
        let joined = one.union(&other);
        if other == range {
            return Some(joined);
        }
        for slot in &mut self.0 {
            if *slot == Some(other) {
                *slot = Some(joined);
            }
        }
        Some(range)
    }

    /// Removes and returns all ranges.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = PageRange> {
        core::mem::take(self).0.into_iter().flatten()
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[::kernel::prelude::kunit_tests(rust_hmm_lost)]
mod tests {
    use super::*;
    use kernel::{
        page::PAGE_SIZE,
        prelude::*, //
    };

    fn pages(first: usize, count: usize) -> Result<PageRange> {
        PageRange::from_pages(first * PAGE_SIZE, count)
    }

    /// Returns the ranges in the order of their addresses, as first page and number of pages.
    fn sorted(mut lost: LostRanges) -> [Option<(usize, usize)>; MAX_LOST_RANGES] {
        let mut all = [None; MAX_LOST_RANGES];
        let found = lost.take();
        for (slot, range) in all.iter_mut().zip(found) {
            *slot = Some((range.start() / PAGE_SIZE, range.pages()));
        }
        all.sort_unstable_by_key(|range| range.map_or(usize::MAX, |(first, _)| first));
        all
    }

    #[test]
    fn far_ranges_stay_apart() -> Result {
        let mut lost = LostRanges::default();
        for number in (1..=MAX_LOST_RANGES).rev() {
            lost.add(pages(number << 20, 1)?);
            lost.add(pages(number << 20, 1)?);
        }
        for (found, number) in sorted(lost).into_iter().zip(1..) {
            assert_eq!(found, Some((number << 20, 1)));
        }
        assert_eq!(lost.take().count(), MAX_LOST_RANGES);
        assert_eq!(lost.take().count(), 0);
        Ok(())
    }

    #[test]
    fn touching_ranges_are_merged() -> Result {
        let mut lost = LostRanges::default();
        for first in [10, 30, 20, 40] {
            lost.add(pages(first, 5)?);
        }
        lost.add(pages(15, 15)?);
        let found = sorted(lost);
        assert_eq!(
            found.get(..3),
            Some([Some((10, 25)), Some((40, 5)), None].as_slice())
        );
        Ok(())
    }

    #[test]
    fn nearest_ranges_are_merged_when_full() -> Result {
        let mut lost = LostRanges::default();
        // The second and the third are nearest to each other.
        let firsts = [100, 200, 210, 400, 500, 600, 700, 800];
        for first in firsts {
            lost.add(pages(first, 1)?);
        }
        lost.add(pages(1000, 1)?);
        let found = sorted(lost);
        assert!(found.contains(&Some((200, 11))));
        assert!(found.contains(&Some((1000, 1))));
        // The new range is nearest to another one.
        lost.add(pages(1003, 1)?);
        assert!(sorted(lost).contains(&Some((1000, 4))));
        Ok(())
    }

    #[test]
    fn no_lost_page_is_left_out() -> Result {
        let mut lost = LostRanges::default();
        let mut random = 7u64;
        let mut added = KVec::new();
        for _ in 0..500 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            let range = pages((random >> 40) as usize + 1, (random >> 33 & 7) as usize + 1)?;
            lost.add(range);
            added.push(range, GFP_KERNEL)?;
            let mut all = lost;
            let found = all.0;
            for range in &added {
                let has = |other: &PageRange| other.intersect(range) == Some(*range);
                assert!(found.iter().flatten().any(has));
            }
            assert!(all.take().count() <= MAX_LOST_RANGES);
        }
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Numbered places for chunks, of which there can be as many as memory allows.
//!
//! A walk looks up a chunk at each level. So the first places are part of the directory; those that
//! follow are in segments, each of which has twice as many as the one before it. A segment is
//! allocated with its first chunk and stays.

use crate::mm::rcu_slot::RcuSlot;
use kernel::{
    prelude::*,
    sync::rcu::{self, Guard}, //
};

/// Places in the directory, and as many in the first segment, as a power of two.
const FIRST: u32 = 6;

/// Most segments: with places for all numbers that tables can have.
const SEGMENTS: usize = 21;

struct Segment<T: Send + Sync>(KVVec<RcuSlot<T>>);

/// The places.
pub(super) struct Directory<T: Send + Sync> {
    first: [RcuSlot<T>; 1 << FIRST],
    segments: [RcuSlot<Segment<T>>; SEGMENTS],
}

/// The segment with place `number`, which is not one of the first, and its index there.
fn split(number: usize) -> (usize, usize) {
    // OVERFLOW: The number is at least 1 << FIRST.
    let order = (usize::BITS - 1).wrapping_sub(number.leading_zeros());
    // CAST: From 32 bits to more.
    (
        order.wrapping_sub(FIRST) as usize,
        number & !(usize::MAX << order),
    )
}

impl<T: Send + Sync> Directory<T> {
    /// No places.
    pub(super) const fn new() -> Self {
        Self {
            first: [const { RcuSlot::new() }; 1 << FIRST],
            segments: [const { RcuSlot::new() }; SEGMENTS],
        }
    }

    /// Place `number`; `None` if there is none yet. Context: any.
    #[inline]
    pub(super) fn place<'g>(&'g self, guard: &'g Guard, number: usize) -> Option<&'g RcuSlot<T>> {
        match self.first.get(number) {
            Some(place) => Some(place),
            None => self.late_place(guard, number),
        }
    }

    // Not in the walks of small tables.
    #[cold]
    #[inline(never)]
    fn late_place<'g>(&'g self, guard: &'g Guard, number: usize) -> Option<&'g RcuSlot<T>> {
        let (segment, index) = split(number);
        self.segments.get(segment)?.get(guard)?.0.get(index)
    }

    /// What is in place `number`. Context: any.
    #[inline]
    pub(super) fn get<'g>(&'g self, guard: &'g Guard, number: usize) -> Option<&'g T> {
        self.place(guard, number)?.get(guard)
    }

    /// Sees to it that there is a place `number`. Context: may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, also if there are as many as there can be.
    pub(super) fn extend_to(&self, number: usize) -> Result {
        if number < self.first.len() {
            return Ok(());
        }
        let (segment, _) = split(number);
        let slot = self.segments.get(segment).ok_or(ENOMEM)?;
        if !slot.is_empty() {
            return Ok(());
        }
        let count = 1 << FIRST << segment;
        let mut places = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..count {
            places.push(RcuSlot::new(), GFP_KERNEL_ACCOUNT)?;
        }
        let new = KBox::new(Segment(places), GFP_KERNEL_ACCOUNT)?;
        // Another task may have been faster: its segment is as good.
        let _mine = slot.put(new);
        Ok(())
    }

    /// Puts `object` into an empty place, the first one from `from` on. Returns its number. Context:
    /// may sleep.
    ///
    /// # Errors
    ///
    /// As [`Self::extend_to`].
    pub(super) fn add(&self, from: usize, mut object: KBox<T>) -> Result<usize> {
        for number in from..usize::MAX {
            self.extend_to(number)?;
            let guard = rcu::read_lock();
            let place = self.place(&guard, number).ok_or(ENOMEM)?;
            if place.is_empty() {
                match place.put(object) {
                    Ok(()) => return Ok(number),
                    Err(back) => object = back,
                }
            }
        }
        Err(ENOMEM)
    }
}

#[kunit_tests(rust_hmm_pgtable_directory)]
mod tests {
    use super::*;
    use crate::mm::rcu_slot::Retired;

    #[test]
    fn numbers_lead_to_segments_of_doubling_size() {
        let numbers = [64, 127, 128, 255, 256];
        assert_eq!(
            numbers.map(split),
            [(0, 0), (0, 63), (1, 0), (1, 127), (2, 0)]
        );
        let end = 1usize << FIRST << SEGMENTS;
        assert_eq!(split(end - 1), (SEGMENTS - 1, end / 2 - 1));
        // Beyond the last segment, but not astray.
        assert_eq!(split(end).0, SEGMENTS);
        assert!(split(usize::MAX).0 > SEGMENTS);
    }

    #[test]
    fn objects_stay_where_they_are_and_empty_places_are_used_again() -> Result {
        let all = Directory::new();
        for number in 0..200 {
            assert_eq!(
                all.add(number, KBox::new(number * 10, GFP_KERNEL)?)?,
                number
            );
        }
        for gone in [9, 130] {
            {
                let guard = rcu::read_lock();
                assert!((0..200).all(|number| all.get(&guard, number) == Some(&(number * 10))));
                assert!(all.get(&guard, 200).is_none() && all.place(&guard, 200).is_some());
                assert!(all.place(&guard, 256).is_none());
                assert!(all.place(&guard, usize::MAX).is_none());
            }
            let mut retired = Retired::<_, 1>::new();
            {
                let guard = rcu::read_lock();
                assert!(all
                    .place(&guard, gone)
                    .is_some_and(|place| retired.take(place)));
                assert!(all.get(&guard, gone).is_none());
            }
            drop(retired);
            assert_eq!(all.add(0, KBox::new(gone * 10, GFP_KERNEL)?)?, gone);
        }
        assert_eq!(all.add(0, KBox::new(1, GFP_KERNEL)?)?, 200);
        assert!(all.add(1 << 30, KBox::new(1, GFP_KERNEL)?).is_err());
        assert!(all.add(usize::MAX, KBox::new(1, GFP_KERNEL)?).is_err());
        Ok(())
    }
}

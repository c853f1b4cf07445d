// SPDX-License-Identifier: GPL-2.0

//! A growable array of chunks with lockless lookup, bounded only by memory.
//!
//! A walk looks up a chunk at each level. Therefore the first places are part of the directory
//! itself. The following places are in segments, each twice as large as the one before. A segment
//! is allocated together with its first chunk, and is not freed before the directory.

use crate::kernel::rcu_slot::RcuSlot;
use kernel::{
    prelude::*,
    sync::rcu::{
        self,
        Guard, //
    }, //
};

/// Log2 of the number of places in the directory itself, and in the first segment.
const FIRST_SEGMENT_BITS: u32 = 6;

/// Maximum number of segments, enough for all numbers that chunks can have.
const MAX_SEGMENTS: usize = 21;

struct Segment<T: Send + Sync>(KVVec<RcuSlot<T>>);

/// Chunks by number.
pub(super) struct ChunkDirectory<T: Send + Sync> {
    first: [RcuSlot<T>; 1 << FIRST_SEGMENT_BITS],
    segments: [RcuSlot<Segment<T>>; MAX_SEGMENTS],
}

/// Returns the segment that contains place `number`, which must not be one of the first places, and
/// the index within the segment.
fn split(number: usize) -> (usize, usize) {
    // OVERFLOW: `number` is at least `1 << FIRST_SEGMENT_BITS`, so that it has fewer leading zeros
    // than bits.
    let order = (usize::BITS - 1).wrapping_sub(number.leading_zeros());
    // CAST: `usize` has at least 32 bits.
    (
        order.wrapping_sub(FIRST_SEGMENT_BITS) as usize,
        number & !(usize::MAX << order),
    )
}

impl<T: Send + Sync> ChunkDirectory<T> {
    /// Creates an empty directory.
    pub(super) const fn new() -> Self {
        Self {
            first: [const { RcuSlot::empty() }; 1 << FIRST_SEGMENT_BITS],
            segments: [const { RcuSlot::empty() }; MAX_SEGMENTS],
        }
    }

    /// Returns place `number`, or `None` if its segment was not allocated. Callable from any
    /// context.
    #[inline]
    pub(super) fn place<'g>(&'g self, guard: &'g Guard, number: usize) -> Option<&'g RcuSlot<T>> {
        match self.first.get(number) {
            Some(place) => Some(place),
            None => self.late_place(guard, number),
        }
    }

    // Not inlined into the walks: small tables do not use segments.
    #[cold]
    #[inline(never)]
    fn late_place<'g>(&'g self, guard: &'g Guard, number: usize) -> Option<&'g RcuSlot<T>> {
        let (segment, index) = split(number);
        self.segments.get(segment)?.get(guard)?.0.get(index)
    }

    /// Returns the chunk at place `number`. Callable from any context.
    #[inline]
    pub(super) fn get<'g>(&'g self, guard: &'g Guard, number: usize) -> Option<&'g T> {
        self.place(guard, number)?.get(guard)
    }

    /// Allocates the segment that contains place `number`, unless it exists.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`: memory allocation failed, or `number` exceeds the maximum.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn extend_to(&self, number: usize) -> Result {
        if number < self.first.len() {
            return Ok(());
        }
        let (segment, _) = split(number);
        let slot = self.segments.get(segment).ok_or(ENOMEM)?;
        if !slot.is_empty() {
            return Ok(());
        }
        let count = 1 << FIRST_SEGMENT_BITS << segment;
        let mut places = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..count {
            places.push(RcuSlot::empty(), GFP_KERNEL_ACCOUNT)?;
        }
        let new = KBox::new(Segment(places), GFP_KERNEL_ACCOUNT)?;
        // If another task has stored a segment concurrently, that one is used.
        let _mine = slot.put(new);
        Ok(())
    }

    /// Stores `object` at the first empty place at or after `from`. Returns the number of the
    /// place.
    ///
    /// # Errors
    ///
    /// As for [`Self::extend_to`].
    ///
    /// # Context
    ///
    /// May sleep.
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

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_pgtable_directory)]
mod tests {
    use super::*;
    use crate::kernel::rcu_slot::Retired;

    #[test]
    fn numbers_beyond_the_last_segment_are_refused() -> Result {
        let directory = ChunkDirectory::<u32>::new();
        assert_eq!(directory.extend_to(usize::MAX / 2), Err(ENOMEM));
        for from in [usize::MAX / 2, usize::MAX] {
            let added = directory.add(from, KBox::new(7, GFP_KERNEL)?);
            assert_eq!(added, Err(ENOMEM));
        }
        assert_eq!(directory.add(0, KBox::new(7, GFP_KERNEL)?), Ok(0));
        Ok(())
    }

    #[test]
    fn segments_double_in_size() {
        let numbers = [64, 127, 128, 255, 256];
        assert_eq!(
            numbers.map(split),
            [(0, 0), (0, 63), (1, 0), (1, 127), (2, 0)]
        );
        let end = 1usize << FIRST_SEGMENT_BITS << MAX_SEGMENTS;
        assert_eq!(split(end - 1), (MAX_SEGMENTS - 1, end / 2 - 1));
        // Numbers beyond the last segment do not yield a valid segment.
        assert_eq!(split(end).0, MAX_SEGMENTS);
        assert!(split(usize::MAX).0 > MAX_SEGMENTS);
    }

    #[test]
    fn objects_do_not_move_and_free_slots_are_reused() -> Result {
        let all = ChunkDirectory::new();
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
            let mut retired = Retired::<_, 1>::empty();
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

// SPDX-License-Identifier: GPL-2.0

//! A map from ranges of indices to numbers, in a maple tree.
//!
//! [`kernel::maple_tree`] cannot overwrite existing ranges, which is needed to split a range when a
//! part of it changes. Therefore this is a separate type. It stores numbers only, so that values
//! need no allocation.
//!
//! C header: [`include/linux/maple_tree.h`](srctree/include/linux/maple_tree.h)

use crate::{
    bindings,
    inject::{
        fails,
        FailPoint, //
    }, //
};
use core::{
    num::NonZeroU64,
    ops::RangeInclusive, //
};
use kernel::{
    error::to_result,
    prelude::*,
    types::Opaque, //
};

/// Largest value that can be stored.
pub const MAX_VALUE: u64 = (1 << 62) - 1;

/// A range of indices with one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeEntry {
    /// First index.
    pub first: usize,
    /// Last index.
    pub last: usize,
    /// Value of the range.
    pub value: NonZeroU64,
}

/// A map from ranges to numbers. The tree's internal spinlock protects each operation.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use core::num::NonZero;
/// use rust_hmm::mm::range_map::RangeMap;
/// use rust_hmm::mm::range_map::Wait;
///
/// let map = KBox::pin_init(RangeMap::new(), GFP_KERNEL)?;
/// map.store(0..=9, NonZero::new(7), Wait::Yes)?;
/// map.store(3..=4, None, Wait::Yes)?;
/// assert_eq!(map.find(3, 100).map(|entry| (entry.first, entry.last)), Some((5, 9)));
/// assert_eq!(map.at(0), (0..=2, NonZero::new(7)));
/// # Ok::<(), Error>(())
/// ```
///
/// # Invariants
///
/// The tree is initialized, and holds values only, no pointers.
#[pin_data(PinnedDrop)]
pub struct RangeMap {
    #[pin]
    tree: Opaque<bindings::maple_tree>,
}

// SAFETY: The tree has a lock, and its values are numbers.
unsafe impl Send for RangeMap {}
// SAFETY: The tree's lock serializes concurrent operations.
unsafe impl Sync for RangeMap {}

/// Whether an allocation may wait for memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// May sleep and reclaim.
    Yes,
    /// Uses memory that is available immediately.
    No,
}

impl RangeMap {
    /// Creates an empty map.
    ///
    /// # Context
    ///
    /// Any.
    pub fn new() -> impl PinInit<Self> {
        // INVARIANT: The helper initializes the tree.
        pin_init!(Self {
            tree <- Opaque::ffi_init(|slot| {
                // SAFETY: `slot` is valid for writes, and the tree is pinned.
                unsafe { bindings::rust_hmm_ranges_init(slot) };
            }),
        })
    }

    /// Stores `value` for all of `range`, and overwrites existing values. `None` removes them.
    ///
    /// # Errors
    ///
    /// * `EINVAL`: the value is larger than [`MAX_VALUE`], or the range is empty.
    /// * `ENOMEM`: memory allocation failed. The map is unchanged.
    ///
    /// # Context
    ///
    /// May sleep if `wait` is [`Wait::Yes`].
    pub fn store(
        &self,
        range: RangeInclusive<usize>,
        value: Option<NonZeroU64>,
        wait: Wait,
    ) -> Result {
        let value = value.map_or(0, NonZeroU64::get);
        if value > MAX_VALUE || range.is_empty() {
            return Err(EINVAL);
        }
        if fails(FailPoint::Attributes) {
            return Err(ENOMEM);
        }
        // SAFETY: The tree is initialized by the type invariant.
        to_result(unsafe {
            bindings::rust_hmm_ranges_set(
                self.tree.get(),
                *range.start(),
                *range.end(),
                value as usize,
                wait == Wait::Yes,
            )
        })
    }

    /// Returns the first range with a value that overlaps `from..=to`.
    ///
    /// # Context
    ///
    /// Any but interrupts. Takes the map's spinlock.
    pub fn find(&self, from: usize, to: usize) -> Option<RangeEntry> {
        if from > to {
            return None;
        }
        let mut first = 0;
        let mut last = 0;
        // SAFETY: The tree is initialized by the type invariant. `first` and `last` may be written.
        let value = unsafe {
            bindings::rust_hmm_ranges_find(self.tree.get(), from, to, &mut first, &mut last)
        };
        let value = NonZeroU64::new(value as u64)?;
        Some(RangeEntry { first, last, value })
    }

    /// Returns the value at `number`, and a range around `number` in which all indices have this
    /// value, or none has a value. The range extends at least to the next stored range.
    ///
    /// # Context
    ///
    /// Any but interrupts. Takes the map's spinlock.
    pub fn at(&self, number: usize) -> (RangeInclusive<usize>, Option<NonZeroU64>) {
        let mut first = 0;
        let mut last = 0;
        // SAFETY: The tree is initialized by the type invariant. `first` and `last` may be written.
        let value =
            unsafe { bindings::rust_hmm_ranges_at(self.tree.get(), number, &mut first, &mut last) };
        (first..=last, NonZeroU64::new(value as u64))
    }

    /// Removes all ranges.
    ///
    /// # Context
    ///
    /// Any but interrupts. Takes the map's spinlock.
    pub fn clear(&self) {
        // SAFETY: The tree is initialized by the type invariant.
        unsafe { bindings::rust_hmm_ranges_clear(self.tree.get()) };
    }
}

#[pinned_drop]
impl PinnedDrop for RangeMap {
    fn drop(self: Pin<&mut Self>) {
        self.clear();
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_range_map)]
mod tests {
    use super::*;

    #[test]
    fn random_use_agrees_with_an_array() -> Result {
        const LEN: usize = 300;
        let map = KBox::pin_init(RangeMap::new(), GFP_KERNEL)?;
        let mut model = [0u64; LEN];
        let mut random = 42u64;
        for step in 0..400 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            let first = (random >> 33) as usize % LEN;
            let last = (first + (random >> 45) as usize % 30).min(LEN - 1);
            let value = (random >> 58) % 5;
            let wait = if step % 2 == 0 { Wait::Yes } else { Wait::No };
            map.store(first..=last, NonZeroU64::new(value), wait)?;
            model
                .iter_mut()
                .take(last + 1)
                .skip(first)
                .for_each(|slot| *slot = value);

            let mut seen = [0u64; LEN];
            let mut from = 0;
            while let Some(piece) = map.find(from, LEN - 1) {
                assert!(piece.first <= piece.last && piece.last >= from);
                let count = piece.last + 1 - piece.first;
                seen.iter_mut()
                    .skip(piece.first)
                    .take(count)
                    .for_each(|slot| *slot = piece.value.get());
                from = piece.last + 1;
            }
            assert_eq!(seen, model);
            for (number, value) in model.iter().enumerate() {
                let (same, found) = map.at(number);
                assert_eq!(found, NonZeroU64::new(*value));
                assert!(same.contains(&number));
                let same = model.iter().skip(*same.start()).zip(same.clone());
                assert!(same.fold(true, |all, (other, _)| all && other == value));
            }
        }
        map.clear();
        assert_eq!(map.at(7), (0..=usize::MAX, None));
        assert_eq!(map.find(0, usize::MAX), None);
        Ok(())
    }

    #[test]
    fn values_and_indices_at_the_limits_are_handled() -> Result {
        let map = KBox::pin_init(RangeMap::new(), GFP_KERNEL)?;
        assert_eq!(
            map.store(0..=0, NonZeroU64::new(MAX_VALUE + 1), Wait::Yes),
            Err(EINVAL)
        );
        map.store(0..=usize::MAX >> 12, NonZeroU64::new(MAX_VALUE), Wait::Yes)?;
        map.store(5..=5, None, Wait::Yes)?;
        assert_eq!(map.find(5, 5), None);
        let value = NonZeroU64::new(MAX_VALUE).ok_or(EINVAL)?;
        assert_eq!(
            map.find(0, 10),
            Some(RangeEntry {
                first: 0,
                last: 4,
                value
            })
        );
        Ok(())
    }
}

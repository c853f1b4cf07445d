// SPDX-License-Identifier: GPL-2.0

//! A map from ranges of pages to numbers: a maple tree.
//!
//! [`kernel::maple_tree`] cannot store over what is there, which is what splits a range when a part of it
//! changes; so this is a type of its own, for numbers only. Nothing is allocated for them.
//!
//! C header: [`include/linux/maple_tree.h`](srctree/include/linux/maple_tree.h)

use crate::{
    bindings,
    inject::{fails, Point},
};
use core::{num::NonZeroU64, ops::RangeInclusive};
use kernel::{error::to_result, prelude::*, types::Opaque};

/// Most that a value can be.
pub const MAX_VALUE: u64 = (1 << 62) - 1;

/// A piece of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First index.
    pub first: usize,
    /// Last index.
    pub last: usize,
    /// Its value.
    pub value: NonZeroU64,
}

/// A map of ranges. It has a spinlock of its own for each operation.
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
// SAFETY: As above.
unsafe impl Sync for RangeMap {}

/// Whether an operation may wait for memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// It may sleep and reclaim.
    Yes,
    /// It takes what is there.
    No,
}

impl RangeMap {
    /// An empty map.
    pub fn new() -> impl PinInit<Self> {
        // INVARIANT: Initialized by the helper.
        pin_init!(Self {
            tree <- Opaque::ffi_init(|slot| {
                // SAFETY: It may be written, and is pinned.
                unsafe { bindings::rust_hmm_ranges_init(slot) };
            }),
        })
    }

    /// Stores `value` over all of `range`, whatever is there; `None` removes.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the value is too large, or the range empty. `ENOMEM`: nothing has changed. Context: may sleep
    /// with [`Wait::Yes`].
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
        if fails(Point::Attributes) {
            return Err(ENOMEM);
        }
        // SAFETY: Initialized by the type invariant.
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

    /// The first piece that ends at or after `from` and begins at or before `to`.
    pub fn find(&self, from: usize, to: usize) -> Option<Piece> {
        if from > to {
            return None;
        }
        let (mut first, mut last) = (0, 0);
        // SAFETY: Initialized by the type invariant; both may be written.
        let value = unsafe {
            bindings::rust_hmm_ranges_find(self.tree.get(), from, to, &mut first, &mut last)
        };
        let value = NonZeroU64::new(value as u64)?;
        Some(Piece { first, last, value })
    }

    /// The value at `number`, and around it the numbers that have the same one, or none: at least those up to
    /// the next piece.
    pub fn at(&self, number: usize) -> (RangeInclusive<usize>, Option<NonZeroU64>) {
        let (mut first, mut last) = (0, 0);
        // SAFETY: Initialized by the type invariant; both may be written.
        let value =
            unsafe { bindings::rust_hmm_ranges_at(self.tree.get(), number, &mut first, &mut last) };
        (first..=last, NonZeroU64::new(value as u64))
    }

    /// Removes all pieces. Context: does not sleep.
    pub fn clear(&self) {
        // SAFETY: Initialized by the type invariant.
        unsafe { bindings::rust_hmm_ranges_clear(self.tree.get()) };
    }
}

#[pinned_drop]
impl PinnedDrop for RangeMap {
    fn drop(self: Pin<&mut Self>) {
        self.clear();
    }
}

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
    fn limits() -> Result {
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
            Some(Piece {
                first: 0,
                last: 4,
                value
            })
        );
        Ok(())
    }
}

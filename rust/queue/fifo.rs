// SPDX-License-Identifier: GPL-2.0

//! FIFO of fixed size.

use kernel::prelude::*;

/// A FIFO of fixed size.
pub(super) struct Fifo<T> {
    places: KVVec<Option<T>>,
    first: usize,
    len: usize,
}

/// A free slot at the end of the FIFO.
pub(super) struct VacantSlot<'a, T> {
    place: &'a mut Option<T>,
    len: &'a mut usize,
}

impl<T> VacantSlot<'_, T> {
    /// Stores `value` in the slot.
    pub(super) fn put(self, value: T) {
        *self.place = Some(value);
        *self.len += 1;
    }
}

impl<T> Fifo<T> {
    /// Creates a FIFO with `depth` slots.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    /// - `EINVAL` if `depth` is 0.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn new(depth: usize) -> Result<Self> {
        if depth == 0 {
            return Err(EINVAL);
        }
        let mut places = KVVec::with_capacity(depth, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..depth {
            places.push(None, GFP_KERNEL_ACCOUNT)?;
        }
        Ok(Self {
            places,
            first: 0,
            len: 0,
        })
    }

    /// Returns the free slot at the end, if there is one.
    pub(super) fn vacant_slot(&mut self) -> Option<VacantSlot<'_, T>> {
        let depth = self.places.len();
        if self.len >= depth {
            return None;
        }
        let place = self.places.get_mut((self.first + self.len) % depth)?;
        Some(VacantSlot {
            place,
            len: &mut self.len,
        })
    }

    /// Removes and returns the first value.
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.len == 0 {
            return None;
        }
        let depth = self.places.len();
        let value = self.places.get_mut(self.first)?.take();
        self.first = (self.first + 1) % depth;
        self.len -= 1;
        value
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_ring)]
mod tests {
    use super::*;

    #[test]
    fn first_in_first_out() -> Result {
        assert!(Fifo::<u32>::new(0).is_err());
        let mut ring = Fifo::new(3)?;
        for round in 0..4u32 {
            for value in 0..3 {
                ring.vacant_slot().ok_or(EBUSY)?.put(10 * round + value);
            }
            assert!(ring.vacant_slot().is_none());
            for value in 0..3 {
                assert_eq!(ring.pop(), Some(10 * round + value));
            }
            assert_eq!(ring.pop(), None);
            // The next round begins at another slot.
            ring.vacant_slot().ok_or(EBUSY)?.put(0);
            assert_eq!(ring.pop(), Some(0));
        }
        Ok(())
    }
}

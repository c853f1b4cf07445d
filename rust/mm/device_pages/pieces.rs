// SPDX-License-Identifier: GPL-2.0

//! The pieces of a device memory by number.
//!
//! A table of two levels, whose lower one is allocated for [`GROUP`] pieces at a time. So a lookup
//! costs the same for any size, takes no lock, and is possible in any context. An XArray would have
//! one level for 16 GiB and three for 16 TiB.

use super::{
    super::once_box::OnceBox,
    piece::Piece,
    DevicePageOps, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::{Acquire, Release},
        Atomic, //
    },
};

/// Pieces of one table of the lower level: 128 GiB of memory.
const GROUP: usize = 512;

type Group<T> = KVVec<OnceBox<Piece<T>>>;

/// The pieces of one memory.
///
/// # Invariants
///
/// Places are only ever filled, in the order of their numbers.
pub(super) struct Pieces<T: DevicePageOps> {
    groups: KVVec<OnceBox<Group<T>>>,
    /// Pieces that were made.
    made: Atomic<usize>,
    /// Most that there can be.
    most: usize,
}

impl<T: DevicePageOps> Pieces<T> {
    /// Places for `most` pieces. Context: may sleep. `ENOMEM`.
    pub(super) fn new(most: usize) -> Result<Self> {
        let count = most.div_ceil(GROUP);
        let mut groups = KVVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            groups.push(OnceBox::new(), GFP_KERNEL)?;
        }
        Ok(Self {
            groups,
            made: Atomic::new(0),
            most,
        })
    }

    /// Pieces that were made.
    pub(super) fn made(&self) -> usize {
        self.made.load(Acquire)
    }

    /// Piece `index`, if it was made. Context: any.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&Piece<T>> {
        self.groups
            .get(index / GROUP)?
            .get()?
            .get(index % GROUP)?
            .get()
    }

    /// All pieces that were made, in the order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Piece<T>> + Clone {
        (0..self.made()).map_while(|index| self.get(index))
    }

    /// Puts piece `index` into its place, which is the next one. One task may do this at a time.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINVAL` if it is not the next one, or one too many. Context: may sleep.
    pub(super) fn put(&self, index: usize, piece: Pin<KBox<Piece<T>>>) -> Result<&Piece<T>> {
        if index != self.made() {
            return Err(EINVAL);
        }
        let group = self.groups.get(index / GROUP).ok_or(EINVAL)?;
        let places = match group.get() {
            Some(places) => places,
            None => {
                let len = (self.most - index).min(GROUP);
                let mut places = KVVec::with_capacity(len, GFP_KERNEL)?;
                for _ in 0..len {
                    places.push(OnceBox::new(), GFP_KERNEL)?;
                }
                group.put(KBox::pin(places, GFP_KERNEL)?)
            }
        };
        let piece = places.get(index % GROUP).ok_or(EINVAL)?.put(piece);
        // INVARIANT: The next one. Release: whoever sees the number finds the piece.
        self.made.store(index + 1, Release);
        Ok(piece)
    }
}

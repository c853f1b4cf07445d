// SPDX-License-Identifier: GPL-2.0

//! Table of the chunks of a device memory, by number.
//!
//! The table has two levels. The lower level is allocated for [`GROUP_CHUNKS`] chunks at a time. A
//! lookup takes no lock, is possible in any context, and costs the same for any size of memory. An
//! XArray would have one level for 16 GiB and three for 16 TiB.

use super::{
    chunk::Chunk,
    DevicePageOps, //
};
use crate::kernel::once_box::OnceBox;
use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::{
            Acquire,
            Release, //
        },
        Atomic, //
    }, //
};

/// Number of chunks in one table of the lower level (128 GiB of memory).
const GROUP_CHUNKS: usize = 512;

type ChunkGroup<T> = KVVec<OnceBox<Chunk<T>>>;

/// The chunks of one memory.
///
/// # Invariants
///
/// Places are only ever filled, in the order of their numbers.
pub(super) struct Chunks<T: DevicePageOps> {
    groups: KVVec<OnceBox<ChunkGroup<T>>>,
    /// Number of chunks that were created.
    made: Atomic<usize>,
    /// Maximum number of chunks.
    most: usize,
}

impl<T: DevicePageOps> Chunks<T> {
    /// Creates an empty table for at most `most` chunks.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`: memory allocation failed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn new(most: usize) -> Result<Self> {
        let count = most.div_ceil(GROUP_CHUNKS);
        let mut groups = KVVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            groups.push(OnceBox::empty(), GFP_KERNEL)?;
        }
        Ok(Self {
            groups,
            made: Atomic::new(0),
            most,
        })
    }

    /// Returns the number of chunks that were created.
    pub(super) fn made(&self) -> usize {
        self.made.load(Acquire)
    }

    /// Returns chunk `index`, if it was created. Callable from any context.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&Chunk<T>> {
        self.groups
            .get(index / GROUP_CHUNKS)?
            .get()?
            .get(index % GROUP_CHUNKS)?
            .get()
    }

    /// Iterates over the created chunks in the order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Chunk<T>> + Clone {
        (0..self.made()).map_while(|index| self.get(index))
    }

    /// Stores chunk `index`, which must be the next one. The caller excludes concurrent calls.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`: memory allocation failed.
    /// * `EINVAL`: `index` is not the next one, or the table is full.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn put(&self, index: usize, chunk: Pin<KBox<Chunk<T>>>) -> Result<&Chunk<T>> {
        if index != self.made() {
            return Err(EINVAL);
        }
        let group = self.groups.get(index / GROUP_CHUNKS).ok_or(EINVAL)?;
        let places = match group.get() {
            Some(places) => places,
            None => {
                let len = (self.most - index).min(GROUP_CHUNKS);
                let mut places = KVVec::with_capacity(len, GFP_KERNEL)?;
                for _ in 0..len {
                    places.push(OnceBox::empty(), GFP_KERNEL)?;
                }
                group.put(KBox::pin(places, GFP_KERNEL)?)
            }
        };
        let chunk = places.get(index % GROUP_CHUNKS).ok_or(EINVAL)?.put(chunk);
        // INVARIANT: `index` is the next number. Release: pairs with `made()`, so that a reader
        // that sees the new count finds the chunk.
        self.made.store(index + 1, Release);
        Ok(chunk)
    }
}

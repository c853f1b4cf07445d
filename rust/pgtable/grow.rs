// SPDX-License-Identifier: GPL-2.0

//! Adds chunks of table pages to a pool: first the chunk of the root, then larger ones.

use super::{
    chunk::{
        TableChunk,
        CHUNK, //
    },
    format::Format,
    pool::{
        account,
        Pool, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::ordering::Relaxed,
        rcu, //
    }, //
};

/// Table page of the root. Without table memory it is allocated together with the first other page,
/// because most mirrors of a process that opens a device are never used.
pub(super) const ROOT_PAGE: u32 = 0;

/// Number of pages in the first chunks, so that a table with few pages is small. The first chunk
/// has only the root, and is not freed before the pool.
const FIRST_GROUP_PAGES: [usize; 3] = [1, 8, 16];

/// Number of pages in the further chunks for tables above level 0, of which there are few.
const ABOVE_PAGES: usize = 8;

impl<F: Format> Pool<F> {
    /// Allocates the root, unless it exists.
    ///
    /// # Errors
    ///
    /// Those of [`TableChunk::new`].
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn make_root(&self) -> Result {
        let guard = rcu::read_lock();
        let is_there = self.chunk(&guard, ROOT_PAGE).is_some();
        drop(guard);
        if is_there {
            return Ok(());
        }
        let [pages, ..] = FIRST_GROUP_PAGES;
        let chunk = KBox::new(
            TableChunk::new(&self.memory, &self.owner, pages, false)?,
            GFP_KERNEL_ACCOUNT,
        )?;
        let bytes = chunk.bytes();
        let guard = rcu::read_lock();
        let place = self.chunks.place(&guard, 0).ok_or(ENOMEM)?;
        // If another task has stored a root concurrently, that one is used.
        let mine = place.put(chunk);
        drop(guard);
        if mine.is_ok() {
            self.count.fetch_add(1, Relaxed);
            // Leave `top` alone if a task that has seen the root has already added another chunk.
            let _ = self.top.cmpxchg(0, 1, Relaxed);
            self.pages.fetch_add(pages, Relaxed);
            account(pages, bytes, 1);
        }
        Ok(())
    }

    /// Adds a chunk, with all its pages free. After the first chunks, which are for tables of all
    /// levels, `above` selects one for tables above level 0, otherwise one for tables of level 0.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`: memory allocation failed, or the maximum number of pages is reached.
    /// * Those of [`TableChunk::new`].
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn grow(&self, above: bool) -> Result {
        let (pages, above) = match FIRST_GROUP_PAGES.get(self.count.load(Relaxed)) {
            Some(pages) => (*pages, false),
            None if above => (ABOVE_PAGES, true),
            None => (CHUNK, false),
        };
        let chunk = KBox::new(
            TableChunk::new(&self.memory, &self.owner, pages, above)?,
            GFP_KERNEL_ACCOUNT,
        )?;
        let bytes = chunk.bytes();
        // Count the chunk before it is stored, because it may be freed as soon as it is.
        chunk.reclaimable.add();
        let number = self.add(chunk)?;
        self.pages.fetch_add(pages, Relaxed);
        account(pages, bytes, 1);
        let first = u32::try_from(number * CHUNK)?;
        let guard = rcu::read_lock();
        let mut free = self.free.lock();
        for index in (first..).take(pages) {
            self.push_free(&guard, &mut free, index);
        }
        Ok(())
    }

    /// Stores `chunk` at an empty place. Returns the number of the place. Fails with `ENOMEM`.
    fn add(&self, chunk: KBox<TableChunk<F>>) -> Result<usize> {
        // Relaxed: `top` and `count` are hints where to search. The place publishes the chunk.
        let top = self.top.load(Relaxed);
        // If a chunk was freed, search for its place, otherwise append.
        let from = if self.count.load(Relaxed) < top {
            1
        } else {
            top
        };
        let number = self.chunks.add(from, chunk)?;
        self.count.fetch_add(1, Relaxed);
        let mut top = self.top.load(Relaxed);
        while top <= number {
            match self.top.cmpxchg(top, number + 1, Relaxed) {
                Ok(_) => break,
                Err(now) => top = now,
            }
        }
        Ok(number)
    }
}

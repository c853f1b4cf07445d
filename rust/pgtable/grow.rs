// SPDX-License-Identifier: GPL-2.0

//! Chunks of table pages are added to a pool: first that of the root, then larger ones.

use super::{
    chunk::{Chunk, CHUNK},
    format::Format,
    pool::{account, Pool}, //
};
use kernel::{
    prelude::*,
    sync::{atomic::ordering::Relaxed, rcu}, //
};

/// Table page of the root. Without table memory it is made with the first other page: most mirrors
/// of a process that opens a device are never used.
pub(super) const ROOT: u32 = 0;

/// Pages of the first chunks, so that a table with few pages is small. The first one has the root
/// only, and stays.
const FIRST: [usize; 3] = [1, 8, 16];

impl<F: Format> Pool<F> {
    /// Makes the root, if there is none. Context: may sleep. Errors: those of [`Chunk::new`].
    pub(super) fn make_root(&self) -> Result {
        let guard = rcu::read_lock();
        let is_there = self.chunk(&guard, ROOT).is_some();
        drop(guard);
        if is_there {
            return Ok(());
        }
        let [pages, ..] = FIRST;
        let chunk = KBox::new(
            Chunk::new(&self.memory, &self.owner, pages)?,
            GFP_KERNEL_ACCOUNT,
        )?;
        let guard = rcu::read_lock();
        let place = self.chunks.place(&guard, 0).ok_or(ENOMEM)?;
        // Another task may have been faster: its root is as good.
        let mine = place.put(chunk);
        drop(guard);
        if mine.is_ok() {
            self.count.fetch_add(1, Relaxed);
            // Unless a task that has seen the root has added a chunk behind it already.
            let _ = self.top.cmpxchg(0, 1, Relaxed);
            self.pages.fetch_add(pages, Relaxed);
            account::<F>(pages, self.has_images(), 1);
        }
        Ok(())
    }

    /// Adds a chunk, with all its pages free. Context: may sleep. Errors: `ENOMEM`, also if there are as
    /// many pages as there can be; those of [`Chunk::new`].
    pub(super) fn grow(&self) -> Result {
        let pages = FIRST.get(self.count.load(Relaxed)).unwrap_or(&CHUNK);
        let pages = *pages;
        let chunk = KBox::new(
            Chunk::new(&self.memory, &self.owner, pages)?,
            GFP_KERNEL_ACCOUNT,
        )?;
        // Before it has a place: from there it may be given back.
        chunk.reclaimable.add();
        let number = self.add(chunk)?;
        self.pages.fetch_add(pages, Relaxed);
        account::<F>(pages, self.has_images(), 1);
        let first = u32::try_from(number * CHUNK)?;
        let guard = rcu::read_lock();
        let mut free = self.free.lock();
        for index in (first..).take(pages) {
            self.push_free(&guard, &mut free, index);
        }
        Ok(())
    }

    /// Puts `chunk` into an empty place. Returns its number. `ENOMEM`.
    fn add(&self, chunk: KBox<Chunk<F>>) -> Result<usize> {
        let top = self.top.load(Relaxed);
        // Where one has gone, else at the end.
        let from = match self.count.load(Relaxed) < top {
            true => 1,
            false => top,
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

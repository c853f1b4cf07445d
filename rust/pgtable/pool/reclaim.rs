// SPDX-License-Identifier: GPL-2.0

//! Reclaim of table pages: the kernel's shrinker frees the chunks whose pages are all free.

use super::{
    account,
    Pool, //
};
use crate::{
    kernel::{
        rcu_slot::Retired,
        shrinker::Shrink, //
    },
    pgtable::{
        chunk::TableChunk,
        format::Format,
        list::PageList, //
    }, //
};
use kernel::sync::{
    atomic::ordering::Relaxed,
    rcu, //
};

/// Maximum number of chunks that are freed at a time.
const GOING: usize = 16;

impl<F: Format> Pool<F> {
    /// Frees chunks whose pages are all free, until `want` pages or slightly more were freed.
    /// Keeps the pages reserved for splits. Returns the number of freed pages.
    ///
    /// # Context
    ///
    /// May sleep, because it waits for concurrent walks. May be called from reclaim.
    fn free_whole_chunks(&self, want: usize) -> usize {
        let mut gone = Retired::<_, GOING>::empty();
        let mut going = 0;
        let mut bytes = 0;
        {
            let guard = rcu::read_lock();
            // Relaxed from here on: `free`, `going` and `whole` are changed under this lock. `top`
            // is a hint how many places there are.
            let mut free = self.free.lock();
            let mut spare = free.leaves.len.saturating_sub(self.kept());
            if want == 0 || self.whole.load(Relaxed) == 0 {
                return 0;
            }
            // Skip the first chunk, which has the root.
            let used = 1..self.top.load(Relaxed);
            let used = used.filter_map(|number| self.chunks.place(&guard, number));
            let mut chosen = 0;
            for chunk in used.clone().filter_map(|place| place.get(&guard)) {
                let pages = chunk.pages();
                if chosen == GOING || going >= want {
                    break;
                }
                let counted = if chunk.above { 0 } else { pages };
                if counted <= spare && chunk.free.load(Relaxed) == pages {
                    chunk.going.store(true, Relaxed);
                    chunk.reclaimable.remove();
                    chosen += 1;
                    going += pages;
                    bytes += chunk.bytes();
                    spare -= counted;
                }
            }
            let goes = |chunk: &TableChunk<F>| chunk.going.load(Relaxed);
            for above in [false, true] {
                let list = free.of(above);
                let mut rest = PageList::EMPTY;
                while let Some(index) = self.pop(list) {
                    if !self.chunk(&guard, index).is_some_and(goes) {
                        self.push(&mut rest, index);
                    }
                }
                *list = rest;
            }
            for place in used {
                if place.get(&guard).is_some_and(goes) {
                    // There is room.
                    gone.take(place);
                }
            }
            self.whole.fetch_sub(going, Relaxed);
        }
        let count = gone.count();
        drop(gone);
        // Relaxed: statistics.
        self.count.fetch_sub(count, Relaxed);
        self.pages.fetch_sub(going, Relaxed);
        account(going, bytes, -1);
        going
    }
}

impl<F: Format> Shrink for Pool<F> {
    fn count(&self) -> usize {
        self.whole.load(Relaxed)
    }

    fn scan(&self, objects: usize) -> usize {
        self.free_whole_chunks(objects)
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Attributes whose VMA was unmapped or moved: they are set aside, and stored again where their
//! pages are found.

use super::{
    numbers,
    Map,
    MAX_ORPHANS, //
};
use crate::{
    attributes::anchor::{
        pack,
        unpack,
        Relocated, //
    },
    mm::{
        addr::PageRange,
        range_map::{
            RangeEntry,
            Wait, //
        }, //
    }, //
};
use kernel::{
    page::PAGE_SHIFT,
    prelude::*,
    sync::atomic::ordering::{
        Acquire,
        Relaxed,
        Release, //
    }, //
};

impl Map {
    /// Sets the attributes of `range` aside, which is being unmapped or moved.
    ///
    /// # Context
    ///
    /// Invalidation callbacks; does not allocate with reclaim. Takes a mutex that is below the
    /// table lock in the lock order.
    pub(crate) fn orphan(&self, range: PageRange) {
        let (first, last) = numbers(range);
        if self.ranges.find(first, last).is_none() {
            return;
        }
        let mut inside = self.inside.lock();
        let orphans = &mut inside.orphans;
        let mut at = first;
        while let Some(piece) = self.ranges.find(at, last) {
            if orphans.len() >= MAX_ORPHANS {
                let _oldest = orphans.remove(0);
            }
            let part = RangeEntry {
                first: piece.first.max(first),
                last: piece.last.min(last),
                value: piece.value,
            };
            // Cannot fail: the capacity is `MAX_ORPHANS`.
            let _full = orphans.push_within_capacity(part);
            if part.last == usize::MAX {
                break;
            }
            at = part.last + 1;
        }
        // Set before the attributes are removed from the tree: a task that does not find them there
        // must see that they are set aside. The tree's spinlock orders it, too.
        self.unsettled.store(true, Release);
        if self.ranges.store(first..=last, None, Wait::No).is_err() {
            // The node for the split of a range could not be allocated. Drop all attributes,
            // because stale ones would be wrong.
            self.ranges.clear();
        }
    }

    /// Searches the pages whose attributes were set aside, and stores the attributes at their new
    /// addresses. `find(offset, from)` returns the first anonymous VMA that ends behind page `from`
    /// and has the page with that offset. Attributes are stored only within `watched`, where events
    /// report further moves of the pages.
    ///
    /// # Errors
    ///
    /// - The range of a VMA that must be watched, too. The caller then calls this again.
    ///
    /// # Context
    ///
    /// May sleep; the mmap lock is held.
    pub(crate) fn resolve_orphans(
        &self,
        watched: Option<PageRange>,
        find: impl Fn(usize, usize) -> Option<Relocated>,
    ) -> Result<(), PageRange> {
        let _changing = self.changing.lock();
        loop {
            let piece = {
                let mut inside = self.inside.lock();
                let Some(piece) = inside.orphans.pop() else {
                    // Cleared only now, because all attributes that were found are in the tree. The
                    // tree's spinlock, which `any` takes after it has loaded this, orders it.
                    self.unsettled.store(false, Relaxed);
                    return Ok(());
                };
                piece
            };
            let (set, anchor) = unpack(piece.value);
            if anchor.tag == 0 {
                continue;
            }
            let mut number = piece.first;
            while number <= piece.last {
                let offset = anchor.offset(number);
                let mut from = 0;
                let mut step = 1;
                while let Some(found) = find(offset, from) {
                    let left = found.pages - (offset - found.offset);
                    let at = found.first + (offset - found.offset);
                    if found.anchor.tag == anchor.tag && at != number {
                        let pages = left.min(piece.last - number + 1);
                        let to = PageRange::from_pages(at << PAGE_SHIFT, pages).ok();
                        if let Some(to) = to.filter(|to| !is_within(to, watched)) {
                            let rest = RangeEntry {
                                first: number,
                                ..piece
                            };
                            // If concurrent events have used the room, the piece is dropped.
                            let _ = self.inside.lock().orphans.push_within_capacity(rest);
                            // The whole VMA, because its other pieces have moved, too.
                            let all = PageRange::from_pages(found.first << PAGE_SHIFT, found.pages);
                            return Err(all.unwrap_or(to));
                        }
                        // If memory cannot be allocated, the piece is dropped.
                        let to = at..=at + pages - 1;
                        let _ = self.ranges.store(to, pack(set, found.anchor), Wait::Yes);
                        step = pages;
                        break;
                    }
                    from = found.first + found.pages;
                }
                number += step;
            }
        }
    }

    /// Returns whether pieces are set aside. Context: any.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsettled.load(Acquire)
    }

    /// Drops the pieces that are set aside. Context: may sleep.
    pub(crate) fn forget_aside(&self) {
        let _changing = self.changing.lock();
        let mut inside = self.inside.lock();
        inside.orphans.truncate(0);
        self.unsettled.store(false, Relaxed);
    }
}

/// Returns whether all of `range` is watched.
fn is_within(range: &PageRange, watched: Option<PageRange>) -> bool {
    watched.is_some_and(|watched| watched.intersect(range) == Some(*range))
}

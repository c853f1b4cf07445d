// SPDX-License-Identifier: GPL-2.0

//! The attributes of an address space: a map of page ranges to the number of an attribute set
//! ([`Sets`]).
//!
//! A notifier event does not distinguish whether a range was unmapped or moved, and does not report
//! the new address. Therefore [`Map::orphan`] sets the attributes of the range aside, and before
//! the next use [`Map::resolve_orphans`] searches their pages: anonymous pages keep their offset
//! when they are moved, and a VMA keeps its reverse mapping (`anon_vma`). Attributes of pages that
//! are not found are dropped.

use super::{
    anchor::{
        number_of,
        pack,
        unpack,
        Relocated,
        VmaAnchor, //
    },
    sets::{
        SetError,
        SetNumber,
        Sets, //
    },
    AttributeUpdate,
    Attributes,
    CommonAttributes, //
};
use crate::{
    kernel::{
        identity::DeviceId,
        lock_classes, //
    },
    mm::{
        addr::PageRange,
        range_map::{
            RangeEntry,
            RangeMap,
            Wait, //
        }, //
    }, //
};
use kernel::{
    page::PAGE_SHIFT,
    prelude::*,
    sync::{
        atomic::{
            ordering::{
                Acquire,
                Relaxed,
                Release, //
            },
            AtomicFlag, //
        },
        Mutex, //
    }, //
};

/// Most pieces that are set aside. Of more pieces, the oldest are dropped.
const MAX_ORPHANS: usize = 64;

/// Returns the first and last page number of a range.
fn numbers(range: PageRange) -> (usize, usize) {
    (range.start() >> PAGE_SHIFT, (range.end() >> PAGE_SHIFT) - 1)
}

/// State under a mutex that invalidation callbacks take. Therefore no task that holds it allocates
/// with reclaim.
struct MapState {
    /// Pieces whose VMA was unmapped or moved, the oldest first. The capacity is [`MAX_ORPHANS`] as
    /// soon as there is a set.
    orphans: KVec<RangeEntry>,
    sets: Sets,
}

/// The attributes of one address space, shared by all its mirrors. A mirror passes the identity of
/// its device to each function.
#[pin_data]
pub(crate) struct Map {
    #[pin]
    ranges: RangeMap,
    /// Sets and pieces set aside. A number that was read from `ranges` under this lock refers to
    /// the same set until the lock is released.
    #[pin]
    inside: Mutex<MapState>,
    /// Serializes changes and moves of attributes, so that a set number that a task is about to
    /// store is not freed. Taken before `inside`. Not taken in callbacks, so that allocations under
    /// it may reclaim.
    #[pin]
    changing: Mutex<()>,
    /// Whether pieces are set aside whose pages have not been searched yet.
    unsettled: AtomicFlag,
    /// Whether `accessed_by` was ever set, for any device.
    accessed: AtomicFlag,
    /// Whether attributes were ever changed.
    used: AtomicFlag,
}

impl Map {
    /// Creates a map without attributes.
    pub(crate) fn new() -> impl PinInit<Self> {
        let (name, key) = lock_classes::attributes();
        let (changing, changing_key) = lock_classes::attribute_changes();
        let inside = MapState {
            orphans: KVec::new(),
            sets: Sets::new(),
        };
        pin_init!(Self {
            ranges <- RangeMap::new(),
            inside <- Mutex::new(inside, name, key),
            changing <- Mutex::new((), changing, changing_key),
            unsettled: AtomicFlag::new(false),
            accessed: AtomicFlag::new(false),
            used: AtomicFlag::new(false),
        })
    }

    /// Changes the attributes of `range` for `device`. `range` lies in a VMA with this `anchor`.
    ///
    /// # Errors
    ///
    /// After `ENOSPC` or `ENOMEM`, a part of the range may have changed.
    ///
    /// - `EINVAL` if the change is invalid.
    /// - `ENOSPC` if there are too many sets or devices, see [`Sets::MAX_SETS`] and
    ///   [`Sets::MAX_DEVICES`].
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn change(
        &self,
        range: PageRange,
        anchor: VmaAnchor,
        change: &AttributeUpdate,
        device: DeviceId,
    ) -> Result {
        change.apply(Attributes::DEFAULT)?;
        let _changing = self.changing.lock();
        self.used.store(true, Relaxed);
        if change.accessed_by == Some(true) {
            self.accessed.store(true, Relaxed);
        }
        let (first, last) = numbers(range);
        // First page and new set of a run of pages. The run is stored when a page with another set
        // follows, so that the tree gets one range for it.
        let mut same = None;
        let store =
            |(start, new), end: usize| self.ranges.store(start..=end, pack(new, anchor), Wait::Yes);
        let mut at = first;
        while at <= last {
            let found = self.ranges.find(at, last);
            let (end, old) = match found {
                Some(piece) if piece.first <= at => (piece.last.min(last), Some(piece.value)),
                Some(piece) => (piece.first - 1, None),
                None => (last, None),
            };
            let old = number_of(old);
            let changed = self.inside.lock().sets.changed(old, change, device);
            let new = match changed {
                Ok(new) => new,
                Err(SetError::Error(error)) => return Err(error),
                Err(SetError::Full) => {
                    // Store the pending run first: making room frees set numbers that no page has.
                    if let Some(same) = same.take() {
                        store(same, at - 1)?;
                    }
                    self.changed(old, change, device)?
                }
            };
            if same.is_none_or(|(_, number)| number != new) {
                if let Some(same) = same.replace((at, new)) {
                    store(same, at - 1)?;
                }
            }
            at = end + 1;
        }
        same.map_or(Ok(()), |same| store(same, last))
    }

    /// Calls [`Sets::changed`], and makes room for a new set if needed. Context: may sleep;
    /// `changing` is held.
    #[cold]
    fn changed(
        &self,
        number: Option<SetNumber>,
        change: &AttributeUpdate,
        device: DeviceId,
    ) -> Result<Option<SetNumber>> {
        loop {
            let places = {
                let mut inside = self.inside.lock();
                match inside.sets.changed(number, change, device) {
                    Ok(number) => return Ok(number),
                    Err(SetError::Error(error)) => return Err(error),
                    Err(SetError::Full) => inside.sets.places(),
                }
            };
            self.make_room(places)?;
        }
    }

    /// Makes room for one more set than the current `places`.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    /// - `ENOSPC` if all sets are used.
    ///
    /// # Context
    ///
    /// May sleep; `changing` is held.
    #[cold]
    fn make_room(&self, places: usize) -> Result {
        let Some(larger) = Sets::larger(places)? else {
            return self.sweep();
        };
        let orphans = match places {
            0 => KVec::with_capacity(MAX_ORPHANS, GFP_KERNEL_ACCOUNT)?,
            _ => KVec::new(),
        };
        let mut inside = self.inside.lock();
        let former = inside.sets.grow(larger);
        if places == 0 {
            // No piece could be set aside before.
            inside.orphans = orphans;
        }
        drop(inside);
        drop(former);
        Ok(())
    }

    /// Frees the numbers of sets that no page has.
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if there are none.
    ///
    /// # Context
    ///
    /// May sleep; `changing` is held.
    fn sweep(&self) -> Result {
        let mut used = [0u64; Sets::MAX_SETS / u64::BITS as usize + 1];
        let mut inside = self.inside.lock();
        let mut note = |piece: &RangeEntry| {
            let number = unpack(piece.value).0.unwrap_or(0);
            if let Some(word) = used.get_mut(number / 64) {
                *word |= 1 << (number % 64);
            }
        };
        inside.orphans.iter().for_each(&mut note);
        let mut at = 0;
        while let Some(piece) = self.ranges.find(at, usize::MAX) {
            note(&piece);
            let Some(next) = piece.last.checked_add(1) else {
                break;
            };
            at = next;
        }
        let is_used = |number: SetNumber| {
            let word = used.get(number / 64).copied().unwrap_or(0);
            word & 1 << (number % 64) != 0
        };
        inside.sets.retain(is_used)
    }

    /// Returns the attributes that `device` has in all of `range`.
    pub(crate) fn common(&self, range: PageRange, device: DeviceId) -> CommonAttributes {
        let (first, last) = numbers(range);
        let inside = self.inside.lock();
        let mut common: Option<CommonAttributes> = None;
        let mut add = |attributes| {
            common = Some(common.map_or(CommonAttributes::of(attributes), |common| {
                common.and(attributes)
            }));
        };
        let mut at = first;
        while at <= last {
            let Some(piece) = self.ranges.find(at, last) else {
                add(Attributes::DEFAULT);
                break;
            };
            if piece.first > at {
                add(Attributes::DEFAULT);
            }
            add(inside.sets.seen_by(unpack(piece.value).0, device));
            at = piece.last + 1;
        }
        common.unwrap_or(CommonAttributes::of(Attributes::DEFAULT))
    }

    /// Returns the attributes of `device` at `addr`, and a range within `limits` in which they are
    /// the same. The attributes beyond that range may be the same, too.
    pub(crate) fn at(
        &self,
        addr: usize,
        limits: PageRange,
        device: DeviceId,
    ) -> (Attributes, PageRange) {
        let number = addr >> PAGE_SHIFT;
        let (first, last) = numbers(limits);
        let same = |first: usize, last: usize| {
            PageRange::from_pages(first << PAGE_SHIFT, last - first + 1).unwrap_or(limits)
        };
        let inside = self.inside.lock();
        let (range, value) = self.ranges.at(number);
        let attributes = inside.sets.seen_by(number_of(value), device);
        (
            attributes,
            same(first.max(*range.start()), last.min(*range.end())),
        )
    }

    /// Returns whether attributes were ever changed. Context: any.
    pub(crate) fn was_used(&self) -> bool {
        self.used.load(Relaxed)
    }

    /// Returns whether `accessed_by` was ever set, for any device. Context: any.
    #[inline]
    pub(crate) fn any_accessed(&self) -> bool {
        self.accessed.load(Relaxed)
    }

    /// Returns whether a part of `range` may have attributes, including those that are set aside.
    pub(crate) fn any(&self, range: PageRange) -> bool {
        // Before the search: attributes that another task finds meanwhile are already in the tree
        // when this is cleared.
        if self.is_unsettled() {
            return true;
        }
        // And after it: attributes that are set aside meanwhile leave the tree after this is set.
        let (first, last) = numbers(range);
        self.ranges.find(first, last).is_some() || self.is_unsettled()
    }

    /// Removes the attributes of `device`, whose last mirror is being closed. Context: may sleep.
    pub(crate) fn remove_device(&self, device: DeviceId) {
        if self.was_used() {
            self.inside.lock().sets.remove_device(device);
        }
    }

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

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
mod tests;

// SPDX-License-Identifier: GPL-2.0

//! The attributes of an address space, by page number: the number of a set ([`Sets`]) for each
//! range.
//!
//! An event tells that a range is unmapped *or* moved, and not where to. So the pieces of it are put aside
//! ([`Map::lose`]), and who asks next looks where their pages are now ([`Map::settle`]): anonymous pages keep
//! their offset when they are moved, and a mapping keeps its reverse mapping (`anon_vma`). What is not found
//! elsewhere is lost.

use super::{
    home::{number_of, pack, unpack, Found, Home},
    sets::{Number, Refused, Sets},
    Attributes, Change, Common,
};
use crate::{
    locks,
    mm::{
        addr::PageRange,
        notifier::Cookie,
        range_map::{Piece, RangeMap, Wait},
    },
};
use kernel::{
    page::PAGE_SHIFT,
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Relaxed, Release},
            AtomicFlag, //
        },
        Mutex, //
    },
};

/// Pieces that can be put aside; of more, the oldest are lost.
const ASIDE: usize = 64;

/// Page numbers of a range: first and last.
fn numbers(range: PageRange) -> (usize, usize) {
    (range.start() >> PAGE_SHIFT, (range.end() >> PAGE_SHIFT) - 1)
}

/// State under the short mutex, which is taken in invalidation callbacks. Nothing is allocated with
/// reclaim under it.
struct Inside {
    /// Pieces whose mapping has gone, the oldest first. Room for [`ASIDE`] is there once there are
    /// attributes.
    aside: KVec<Piece>,
    sets: Sets,
}

/// The attributes of one address space, for all its mirrors. A mirror names its device in all that
/// it asks.
#[pin_data]
pub(crate) struct Map {
    #[pin]
    ranges: RangeMap,
    /// A number that was read from `ranges` under this lock names the same set until the lock is
    /// released.
    #[pin]
    inside: Mutex<Inside>,
    /// Serializes changes and moves of attributes, so that no number in hand is freed. Taken before
    /// `inside`. Not taken in callbacks, so that memory can be waited for under it.
    #[pin]
    changing: Mutex<()>,
    /// Something was put aside, and has not been found yet.
    unsettled: AtomicFlag,
    /// Something was ever to be mapped always, by any device.
    accessed: AtomicFlag,
    /// Something was ever said.
    used: AtomicFlag,
}

impl Map {
    /// A map in which nothing is said.
    pub(crate) fn new() -> impl PinInit<Self> {
        let (name, key) = locks::attributes();
        let (changing, changing_key) = locks::attribute_changes();
        let inside = Inside {
            aside: KVec::new(),
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

    /// Changes the attributes of `range`, which lies in a mapping with this `home`, as `device`
    /// says.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the change makes no sense. `ENOSPC`: too many sets, or too many devices, see
    /// [`Sets::MOST`] and [`Sets::DEVICES`]; `ENOMEM`: then a part may have changed. Context: may
    /// sleep.
    pub(crate) fn change(
        &self,
        range: PageRange,
        home: Home,
        change: &Change,
        device: Cookie,
    ) -> Result {
        change.apply(Attributes::DEFAULT)?;
        let _changing = self.changing.lock();
        self.used.store(true, Relaxed);
        if change.accessed_by == Some(true) {
            self.accessed.store(true, Relaxed);
        }
        let (first, last) = numbers(range);
        // Pages from the first number on get the second: stored when others follow.
        let mut same = None;
        let store =
            |(start, new), end: usize| self.ranges.store(start..=end, pack(new, home), Wait::Yes);
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
                Err(Refused::Error(error)) => return Err(error),
                Err(Refused::Full) => {
                    // A number that no page has is freed to make room.
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

    /// See [`Sets::changed`], with room made for a new set. Context: `changing` is held.
    #[cold]
    fn changed(
        &self,
        number: Option<Number>,
        change: &Change,
        device: Cookie,
    ) -> Result<Option<Number>> {
        loop {
            let places = {
                let mut inside = self.inside.lock();
                match inside.sets.changed(number, change, device) {
                    Ok(number) => return Ok(number),
                    Err(Refused::Error(error)) => return Err(error),
                    Err(Refused::Full) => inside.sets.places(),
                }
            };
            self.make_room(places)?;
        }
    }

    /// Makes room for one more set, of which there are `places`. `ENOMEM`; `ENOSPC`. Context:
    /// `changing` is held.
    #[cold]
    fn make_room(&self, places: usize) -> Result {
        let Some(larger) = Sets::larger(places)? else {
            return self.sweep();
        };
        let aside = match places {
            0 => KVec::with_capacity(ASIDE, GFP_KERNEL_ACCOUNT)?,
            _ => KVec::new(),
        };
        let mut inside = self.inside.lock();
        let former = inside.sets.grow(larger);
        if places == 0 {
            // Nothing could be put aside yet.
            inside.aside = aside;
        }
        drop(inside);
        drop(former);
        Ok(())
    }

    /// Frees the numbers of sets that no page has. `ENOSPC`: there are none. Context: `changing` is
    /// held.
    fn sweep(&self) -> Result {
        let mut used = [0u64; Sets::MOST / u64::BITS as usize + 1];
        let mut inside = self.inside.lock();
        let mut note = |piece: &Piece| {
            let number = unpack(piece.value).0.unwrap_or(0);
            if let Some(word) = used.get_mut(number / 64) {
                *word |= 1 << (number % 64);
            }
        };
        inside.aside.iter().for_each(&mut note);
        let mut at = 0;
        while let Some(piece) = self.ranges.find(at, usize::MAX) {
            note(&piece);
            let Some(next) = piece.last.checked_add(1) else {
                break;
            };
            at = next;
        }
        let is_used = |number: Number| {
            let word = used.get(number / 64).copied().unwrap_or(0);
            word & 1 << (number % 64) != 0
        };
        inside.sets.retain(is_used)
    }

    /// What `device` sees in all of `range`.
    pub(crate) fn common(&self, range: PageRange, device: Cookie) -> Common {
        let (first, last) = numbers(range);
        let inside = self.inside.lock();
        let mut common: Option<Common> = None;
        let mut add = |attributes| {
            common = Some(common.map_or(Common::of(attributes), |common| common.and(attributes)));
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
        common.unwrap_or(Common::of(Attributes::DEFAULT))
    }

    /// The attributes at `addr` that `device` sees, and how far within `limits` they are the same,
    /// at least.
    pub(crate) fn at(
        &self,
        addr: usize,
        limits: PageRange,
        device: Cookie,
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

    /// Whether anything was ever said. Context: any.
    pub(crate) fn was_used(&self) -> bool {
        self.used.load(Relaxed)
    }

    /// Whether anything was ever to be mapped always, by any device. Context: any.
    #[inline]
    pub(crate) fn any_accessed(&self) -> bool {
        self.accessed.load(Relaxed)
    }

    /// Whether anything may be said of a part of `range`, here or aside.
    pub(crate) fn any(&self, range: PageRange) -> bool {
        let (first, last) = numbers(range);
        self.ranges.find(first, last).is_some() || self.is_unsettled()
    }

    /// Removes what was said of `device`, whose last mirror closes. Context: may sleep.
    pub(crate) fn forget(&self, device: Cookie) {
        if self.was_used() {
            self.inside.lock().sets.forget(device);
        }
    }

    /// `range` is unmapped or moved. Context: must not wait for memory; takes a mutex below the table lock.
    pub(crate) fn lose(&self, range: PageRange) {
        let (first, last) = numbers(range);
        if self.ranges.find(first, last).is_none() {
            return;
        }
        let mut inside = self.inside.lock();
        let aside = &mut inside.aside;
        let mut at = first;
        while let Some(piece) = self.ranges.find(at, last) {
            if aside.len() >= ASIDE {
                let _oldest = aside.remove(0);
            }
            let part = Piece {
                first: piece.first.max(first),
                last: piece.last.min(last),
                value: piece.value,
            };
            // There is room.
            let _full = aside.push_within_capacity(part);
            if part.last == usize::MAX {
                break;
            }
            at = part.last + 1;
        }
        // Before they leave the tree: who finds them there no more looks here.
        self.unsettled.store(true, Release);
        if self.ranges.store(first..=last, None, Wait::No).is_err() {
            // Not even a few bytes to split a range: better none than wrong ones.
            self.ranges.clear();
        }
    }

    /// Finds what was put aside. `find(offset, from)` says which anonymous mapping that ends behind
    /// page `from` has a page of that offset. Attributes move only within `watched`, where it is
    /// told if the pages move again.
    ///
    /// # Errors
    ///
    /// The range of a mapping that has to be watched, too; then to be called again. Context: the
    /// mmap lock is held; may sleep.
    pub(crate) fn settle(
        &self,
        watched: Option<PageRange>,
        find: impl Fn(usize, usize) -> Option<Found>,
    ) -> Result<(), PageRange> {
        let _changing = self.changing.lock();
        loop {
            let piece = {
                let mut inside = self.inside.lock();
                let Some(piece) = inside.aside.pop() else {
                    // Only now: all that was found is in the tree.
                    self.unsettled.store(false, Relaxed);
                    return Ok(());
                };
                piece
            };
            let (set, home) = unpack(piece.value);
            if home.tag == 0 {
                continue;
            }
            let mut number = piece.first;
            while number <= piece.last {
                let offset = home.offset(number);
                let mut from = 0;
                let mut step = 1;
                while let Some(found) = find(offset, from) {
                    let left = found.pages - (offset - found.offset);
                    let at = found.first + (offset - found.offset);
                    if found.home.tag == home.tag && at != number {
                        let pages = left.min(piece.last - number + 1);
                        let to = PageRange::from_pages(at << PAGE_SHIFT, pages).ok();
                        if let Some(to) = to.filter(|to| !is_within(to, watched)) {
                            let rest = Piece {
                                first: number,
                                ..piece
                            };
                            // Without room, which others have used meanwhile, it is lost.
                            let _ = self.inside.lock().aside.push_within_capacity(rest);
                            // The whole mapping, because its other pieces have moved, too.
                            let all = PageRange::from_pages(found.first << PAGE_SHIFT, found.pages);
                            return Err(all.unwrap_or(to));
                        }
                        // Without memory it is lost.
                        let to = at..=at + pages - 1;
                        let _ = self.ranges.store(to, pack(set, found.home), Wait::Yes);
                        step = pages;
                        break;
                    }
                    from = found.first + found.pages;
                }
                number += step;
            }
        }
    }

    /// Whether something was put aside. Context: any.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsettled.load(Acquire)
    }

    /// Forgets what was put aside. Context: may sleep.
    pub(crate) fn forget_aside(&self) {
        let _changing = self.changing.lock();
        let mut inside = self.inside.lock();
        inside.aside.truncate(0);
        self.unsettled.store(false, Relaxed);
    }
}

/// Whether all of `range` is watched.
fn is_within(range: &PageRange, watched: Option<PageRange>) -> bool {
    watched.is_some_and(|watched| watched.intersect(range) == Some(*range))
}

#[cfg(CONFIG_KUNIT = "y")]
mod tests;

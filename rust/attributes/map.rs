// SPDX-License-Identifier: GPL-2.0

//! The attributes of an address space, by page number.
//!
//! An event tells that a range is unmapped *or* moved, and not where to. So the pieces of it are put aside
//! ([`Map::lose`]), and who asks next looks where their pages are now ([`Map::settle`]): anonymous pages keep
//! their offset when they are moved, and a mapping keeps its reverse mapping (`anon_vma`). What is not found
//! elsewhere is lost.

use super::{Attributes, Change, Common};
use crate::{
    locks,
    mm::{
        addr::PageRange,
        range_map::{Piece, RangeMap, Wait},
    },
};
use core::num::NonZeroU64;
use kernel::{
    page::PAGE_SHIFT,
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, AtomicFlag},
        Mutex, //
    },
};

/// Pieces that can be put aside; of more, the oldest are lost.
const ASIDE: usize = 64;

/// What a page belongs to: the difference between its number and its offset, and a few bits that tell
/// mappings apart. Both stay what they are when it is moved, but for the difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    /// Page number minus offset, modulo 2^[`Home::DIFFERENCE`].
    pub(crate) difference: u64,
    /// Of the mapping; 0 if there is nothing to tell it by, so that it is not followed.
    pub(crate) tag: u8,
}

impl Home {
    const DIFFERENCE: u32 = 44;
    const TAG: u32 = 7;
    const MASK: u64 = (1 << Self::DIFFERENCE) - 1;

    /// The home of a mapping whose first page has the number `first` and the offset `offset`; `anon` names its
    /// reverse mapping.
    pub(crate) fn new(first: usize, offset: usize, anon: usize) -> Self {
        let hash = (anon as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - Self::TAG);
        Self {
            difference: (first as u64).wrapping_sub(offset as u64) & Self::MASK,
            tag: if anon == 0 { 0 } else { hash.max(1) as u8 },
        }
    }

    /// The offset of page `number`.
    fn offset(self, number: usize) -> usize {
        ((number as u64).wrapping_sub(self.difference) & Self::MASK) as usize
    }
}

// Attributes, one bit so that the value is not 0, and the home.
const _: () = assert!(Attributes::BITS + 1 + Home::DIFFERENCE + Home::TAG <= 62);

fn pack(attributes: Attributes, home: Home) -> Option<NonZeroU64> {
    let high = u64::from(home.tag) << Home::DIFFERENCE | home.difference;
    // What is the default need not be kept.
    (attributes != Attributes::DEFAULT)
        .then(|| NonZeroU64::new(high << (Attributes::BITS + 1) | attributes.to_bits() << 1 | 1))?
}

fn unpack(value: NonZeroU64) -> (Attributes, Home) {
    let value = value.get();
    let attributes = Attributes::from_bits(value >> 1 & ((1 << Attributes::BITS) - 1));
    let high = value >> (Attributes::BITS + 1);
    let home = Home {
        difference: high & Home::MASK,
        tag: (high >> Home::DIFFERENCE) as u8,
    };
    (attributes, home)
}

/// Page numbers of a range: first and last.
fn numbers(range: PageRange) -> (usize, usize) {
    (range.start() >> PAGE_SHIFT, (range.end() >> PAGE_SHIFT) - 1)
}

/// Where pages are now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Number of the first page of the mapping.
    pub(crate) first: usize,
    /// Its pages.
    pub(crate) pages: usize,
    /// Its offset.
    pub(crate) offset: usize,
    /// See [`Home`].
    pub(crate) home: Home,
}

/// The attributes of one address space.
#[pin_data]
pub(crate) struct Map {
    #[pin]
    ranges: RangeMap,
    /// Pieces whose mapping has gone, the oldest first. Room for [`ASIDE`] is there.
    #[pin]
    aside: Mutex<KVec<Piece>>,
    /// Something was ever to be mapped always.
    accessed: AtomicFlag,
    /// Something was ever said.
    used: AtomicFlag,
}

impl Map {
    /// Context: may sleep. `ENOMEM`.
    pub(crate) fn new() -> Result<Pin<KBox<Self>>> {
        let (name, key) = locks::attributes();
        let aside = KVec::with_capacity(ASIDE, GFP_KERNEL)?;
        KBox::pin_init(
            pin_init!(Self {
                ranges <- RangeMap::new(),
                aside <- Mutex::new(aside, name, key),
                accessed: AtomicFlag::new(false),
                used: AtomicFlag::new(false),
            }),
            GFP_KERNEL,
        )
    }

    /// Changes the attributes of `range`, which lies in a mapping with this `home`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the change makes no sense; `ENOMEM`: then a part may have changed.
    pub(crate) fn change(&self, range: PageRange, home: Home, change: &Change) -> Result {
        change.apply(Attributes::DEFAULT)?;
        self.used.store(true, Relaxed);
        if change.accessed_by == Some(true) {
            self.accessed.store(true, Relaxed);
        }
        let (first, last) = numbers(range);
        let mut at = first;
        while at <= last {
            let found = self.ranges.find(at, last);
            let (end, old) = match found {
                Some(piece) if piece.first <= at => (piece.last.min(last), unpack(piece.value).0),
                Some(piece) => (piece.first - 1, Attributes::DEFAULT),
                None => (last, Attributes::DEFAULT),
            };
            self.ranges
                .store(at..=end, pack(change.apply(old)?, home), Wait::Yes)?;
            at = end + 1;
        }
        Ok(())
    }

    /// What holds for all of `range`.
    pub(crate) fn common(&self, range: PageRange) -> Common {
        let (first, last) = numbers(range);
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
            add(unpack(piece.value).0);
            at = piece.last + 1;
        }
        common.unwrap_or(Common::of(Attributes::DEFAULT))
    }

    /// The attributes at `addr`, and how far within `limits` they are the same.
    pub(crate) fn at(&self, addr: usize, limits: PageRange) -> (Attributes, PageRange) {
        let number = addr >> PAGE_SHIFT;
        let (first, last) = numbers(limits);
        let same = |first: usize, last: usize| {
            PageRange::from_pages(first << PAGE_SHIFT, last - first + 1).unwrap_or(limits)
        };
        let (range, value) = self.ranges.at(number);
        let attributes = value.map_or(Attributes::DEFAULT, |value| unpack(value).0);
        (
            attributes,
            same(first.max(*range.start()), last.min(*range.end())),
        )
    }

    /// Whether anything was ever said. Context: any.
    pub(crate) fn was_used(&self) -> bool {
        self.used.load(Relaxed)
    }

    /// Whether anything was ever to be mapped always. Context: any.
    pub(crate) fn any_accessed(&self) -> bool {
        self.accessed.load(Relaxed)
    }

    /// Whether there are attributes other than the default within `range`.
    pub(crate) fn any(&self, range: PageRange) -> bool {
        let (first, last) = numbers(range);
        self.ranges.find(first, last).is_some()
    }

    /// `range` is unmapped or moved. Context: must not wait for memory; takes a mutex below the table lock.
    pub(crate) fn lose(&self, range: PageRange) {
        let (first, last) = numbers(range);
        if self.ranges.find(first, last).is_none() {
            return;
        }
        let mut aside = self.aside.lock();
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
        if self.ranges.store(first..=last, None, Wait::No).is_err() {
            // Not even a few bytes to split a range: better none than wrong ones.
            self.ranges.clear();
        }
    }

    /// Finds what was put aside. `find(offset, from)` says which anonymous mapping that ends behind page `from`
    /// has a page of that offset. Context: the mmap lock is held.
    pub(crate) fn settle(&self, find: impl Fn(usize, usize) -> Option<Found>) {
        loop {
            let Some(piece) = self.aside.lock().pop() else {
                return;
            };
            let (attributes, home) = unpack(piece.value);
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
                        let to = at..=at + pages - 1;
                        // Without memory it is lost.
                        let _ = self
                            .ranges
                            .store(to, pack(attributes, found.home), Wait::Yes);
                        step = pages;
                        break;
                    }
                    from = found.first + found.pages;
                }
                number += step;
            }
        }
    }

    /// Whether something was put aside.
    pub(crate) fn is_unsettled(&self) -> bool {
        !self.aside.lock().is_empty()
    }
}

#[cfg(CONFIG_KUNIT = "y")]
mod tests;

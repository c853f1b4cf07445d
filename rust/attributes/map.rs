// SPDX-License-Identifier: GPL-2.0

//! The attributes of an address space: a map of page ranges to the number of an attribute set
//! ([`Sets`]).
//!
//! A notifier event does not distinguish whether a range was unmapped or moved, and does not report
//! the new address. Therefore [`Map::orphan`] sets the attributes of the range aside, and before
//! the next use [`Map::resolve_orphans`] searches their pages: anonymous pages keep their offset
//! when they are moved, and a VMA keeps its reverse mapping (`anon_vma`). Attributes of pages that
//! are not found are dropped.
//!
//! `change` has the changes of attributes, and `orphans` the attributes that are set aside.

use super::{
    anchor::{
        number_of,
        unpack, //
    },
    sets::Sets,
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
            RangeMap, //
        }, //
    }, //
};
use kernel::{
    page::PAGE_SHIFT,
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            AtomicFlag, //
        },
        Mutex, //
    }, //
};

mod change;
mod orphans;

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
use super::{
    anchor::{
        Relocated,
        VmaAnchor, //
    },
    AttributeUpdate, //
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
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
mod tests;

// SPDX-License-Identifier: GPL-2.0

//! Changes of attributes, and room for new sets.

use super::{
    numbers,
    Map,
    MAX_ORPHANS, //
};
use crate::{
    attributes::{
        anchor::{
            number_of,
            pack,
            unpack,
            VmaAnchor, //
        },
        sets::{
            SetError,
            SetNumber,
            Sets, //
        },
        AttributeUpdate,
        Attributes, //
    },
    kernel::identity::DeviceId,
    mm::{
        addr::PageRange,
        range_map::{
            RangeEntry,
            Wait, //
        }, //
    }, //
};
use kernel::{
    prelude::*,
    sync::atomic::ordering::Relaxed, //
};

impl Map {
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
}

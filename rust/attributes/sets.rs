// SPDX-License-Identifier: GPL-2.0

//! The distinct sets of attributes of an address space, by number.
//!
//! A range of pages has the number of its set ([`super::Map`]). A set holds what was said for all
//! devices of the process. A device sees what concerns it: [`Set::seen_by`].

use super::{Attributes, Change, Location};
use crate::mm::notifier::Cookie;
use kernel::prelude::*;

/// Number of a set: from 1 to [`Sets::MOST`].
pub(super) type Number = usize;

/// Number of a device in [`Set::accessed_by`].
type Index = u8;

/// Where memory should be, for all devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Preferred {
    #[default]
    Any,
    System,
    Device(Index),
}

/// The attributes of a page, for all devices of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Set {
    preferred: Preferred,
    /// A bit for each device.
    accessed_by: u64,
    /// The rest, which is the same for all devices. Its preferred location and `accessed_by` are
    /// those of the default.
    common: Attributes,
}

fn bit(device: Option<Index>) -> u64 {
    device.map_or(0, |device| 1 << device)
}

impl Set {
    /// The attributes that `device` sees. `None` is a device of which nothing was said.
    fn seen_by(&self, device: Option<Index>) -> Attributes {
        Attributes {
            preferred: match self.preferred {
                Preferred::Any => Location::Any,
                Preferred::System => Location::System,
                Preferred::Device(other) if Some(other) == device => Location::Device,
                Preferred::Device(_) => Location::Other,
            },
            accessed_by: self.accessed_by & bit(device) != 0,
            ..self.common
        }
    }

    /// The set after `change` by `device`, which has a number if the change needs one. `EINVAL`: a
    /// value makes no sense.
    fn changed(&self, change: &Change, device: Option<Index>) -> Result<Self> {
        let seen = change.apply(self.seen_by(device))?;
        let preferred = match change.preferred {
            None => self.preferred,
            Some(Location::Any) => Preferred::Any,
            Some(Location::System) => Preferred::System,
            Some(Location::Device) => Preferred::Device(device.ok_or(EINVAL)?),
            Some(Location::Other) => return Err(EINVAL),
        };
        let accessed_by = match seen.accessed_by {
            true => self.accessed_by | bit(device),
            false => self.accessed_by & !bit(device),
        };
        Ok(Self {
            preferred,
            accessed_by,
            common: Attributes {
                preferred: Location::Any,
                accessed_by: false,
                ..seen
            },
        })
    }

    /// Removes what was said of `device`.
    fn forget(&mut self, device: Index) {
        if self.preferred == Preferred::Device(device) {
            self.preferred = Preferred::Any;
        }
        self.accessed_by &= !bit(Some(device));
    }
}

/// Why a change found no number for its set.
pub(super) enum Refused {
    /// [`Sets::grow`] or [`Sets::retain`] may make room for it.
    Full,
    /// For this reason.
    Error(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Sets with numbers, and the devices that they name.
pub(super) struct Sets {
    /// A set has its place plus 1 as its number. `None` is a number that is not in use.
    sets: KVec<Option<Set>>,
    /// The names of devices by index; [`Cookie::NONE`] is an index that is not in use.
    devices: [Cookie; Self::DEVICES],
    /// No index from this one on is in use.
    end: usize,
}

impl Sets {
    /// Most sets that differ.
    pub(super) const MOST: usize = 1023;
    /// Most devices of which something was said.
    pub(super) const DEVICES: usize = u64::BITS as usize;
    /// Places at first.
    const FIRST: usize = 16;

    pub(super) const fn new() -> Self {
        Self {
            sets: KVec::new(),
            devices: [Cookie::NONE; Self::DEVICES],
            end: 0,
        }
    }

    fn index_of(&self, device: Cookie) -> Option<Index> {
        let mut devices = self.devices.iter().take(self.end);
        let index = devices.position(|other| *other == device && device != Cookie::NONE)?;
        // CAST: Below 64.
        Some(index as Index)
    }

    /// The index of `device`, which gets one if it has none. `ENOSPC`: too many devices have one.
    fn claim(&mut self, device: Cookie) -> Result<Index> {
        if let Some(index) = self.index_of(device) {
            return Ok(index);
        }
        let mut places = self.devices.iter_mut().enumerate();
        let (index, place) = places
            .find(|(_, place)| **place == Cookie::NONE)
            .ok_or(ENOSPC)?;
        *place = device;
        self.end = self.end.max(index + 1);
        // CAST: Below 64.
        Ok(index as Index)
    }

    fn get(&self, number: Option<Number>) -> Set {
        let place = number.and_then(|number| self.sets.get(number.checked_sub(1)?));
        place.copied().flatten().unwrap_or_default()
    }

    /// The attributes of the set `number` that `device` sees; `None` is the set of memory of which
    /// nothing was said.
    pub(super) fn seen_by(&self, number: Option<Number>, device: Cookie) -> Attributes {
        match number {
            None => Attributes::DEFAULT,
            number => self.get(number).seen_by(self.index_of(device)),
        }
    }

    /// The number of the set that `change` by `device` makes of the set `number`. `None`: nothing
    /// is said any more.
    ///
    /// # Errors
    ///
    /// `EINVAL`: a value makes no sense. `ENOSPC`: too many devices. [`Refused::Full`]: the set is
    /// a new one.
    pub(super) fn changed(
        &mut self,
        number: Option<Number>,
        change: &Change,
        device: Cookie,
    ) -> Result<Option<Number>, Refused> {
        let names_device =
            change.preferred == Some(Location::Device) || change.accessed_by == Some(true);
        let index = match names_device {
            true => Some(self.claim(device)?),
            false => self.index_of(device),
        };
        let set = self.get(number).changed(change, index)?;
        if set == Set::default() {
            return Ok(None);
        }
        let place = self.sets.iter().position(|other| *other == Some(set));
        if let Some(place) = place {
            return Ok(Some(place + 1));
        }
        if self.sets.len() < self.sets.capacity().min(Self::MOST) {
            // There is room.
            let _ = self.sets.push_within_capacity(Some(set));
            return Ok(Some(self.sets.len()));
        }
        let mut places = self.sets.iter_mut().enumerate();
        let (place, unused) = places
            .find(|(_, place)| place.is_none())
            .ok_or(Refused::Full)?;
        *unused = Some(set);
        Ok(Some(place + 1))
    }

    /// Places for more sets, to be filled by [`Self::grow`]; `None` if there are as many as can be.
    /// Context: may sleep; not under the lock of `self`. `ENOMEM`.
    pub(super) fn larger(places: usize) -> Result<Option<Larger>> {
        if places >= Self::MOST {
            return Ok(None);
        }
        let places = (2 * places).clamp(Self::FIRST, Self::MOST);
        Ok(Some(Larger(KVec::with_capacity(
            places,
            GFP_KERNEL_ACCOUNT,
        )?)))
    }

    /// Places that there are.
    pub(super) fn places(&self) -> usize {
        self.sets.capacity()
    }

    /// Moves all sets to the places of `larger`. Returns the former places, to be freed without the
    /// lock.
    pub(super) fn grow(&mut self, mut larger: Larger) -> Larger {
        if larger.0.capacity() > self.sets.capacity() {
            for set in self.sets.iter() {
                // There is room.
                let _ = larger.0.push_within_capacity(*set);
            }
            core::mem::swap(&mut self.sets, &mut larger.0);
        }
        larger
    }

    /// Frees the numbers for which `used` is false. `ENOSPC` if there are none.
    pub(super) fn retain(&mut self, used: impl Fn(Number) -> bool) -> Result {
        let mut any = false;
        for (place, set) in self.sets.iter_mut().enumerate() {
            if !used(place + 1) {
                *set = None;
                any = true;
            }
        }
        any.then_some(()).ok_or(ENOSPC)
    }

    /// Removes what was said of `device`. Its index may be another device's then. Two sets may
    /// become the same, which does no harm.
    pub(super) fn forget(&mut self, device: Cookie) {
        let Some(index) = self.index_of(device) else {
            return;
        };
        self.sets
            .iter_mut()
            .flatten()
            .for_each(|set| set.forget(index));
        if let Some(place) = self.devices.get_mut(usize::from(index)) {
            *place = Cookie::NONE;
        }
        while self.end > 0 && self.devices.get(self.end - 1) == Some(&Cookie::NONE) {
            self.end -= 1;
        }
    }
}

/// Places for sets.
pub(super) struct Larger(KVec<Option<Set>>);

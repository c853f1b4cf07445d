// SPDX-License-Identifier: GPL-2.0

//! The distinct sets of attributes of an address space, each with a number.
//!
//! Each range of pages refers to a set by its number ([`super::Map`]). A set holds the attributes
//! for all devices of the process. [`Set::seen_by`] returns the part that concerns one device.

use super::{
    AttributeUpdate,
    Attributes,
    PreferredLocation, //
};
use crate::kernel::identity::DeviceId;
use kernel::prelude::*;

/// Number of a set: from 1 to [`Sets::MAX_SETS`].
pub(super) type SetNumber = usize;

/// Number of a device in [`Set::accessed_by`].
type DeviceIndex = u8;

/// Preferred location of memory, for all devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Preferred {
    #[default]
    Any,
    System,
    Device(DeviceIndex),
}

/// The attributes of a page, for all devices of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Set {
    preferred: Preferred,
    /// A bit for each device that accesses the memory.
    accessed_by: u64,
    /// Attributes that are the same for all devices. `preferred` and `accessed_by` in it have the
    /// default values.
    common: Attributes,
}

fn bit(device: Option<DeviceIndex>) -> u64 {
    device.map_or(0, |device| 1 << device)
}

impl Set {
    /// Returns the attributes as `device` sees them. `None` is a device that no attribute names.
    fn seen_by(&self, device: Option<DeviceIndex>) -> Attributes {
        Attributes {
            preferred: match self.preferred {
                Preferred::Any => PreferredLocation::Any,
                Preferred::System => PreferredLocation::System,
                Preferred::Device(other) if Some(other) == device => PreferredLocation::Device,
                Preferred::Device(_) => PreferredLocation::Other,
            },
            accessed_by: self.accessed_by & bit(device) != 0,
            ..self.common
        }
    }

    /// Returns the set after `change` by `device`. `device` must have an index if the change names
    /// a device.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if a value is invalid.
    fn changed(&self, change: &AttributeUpdate, device: Option<DeviceIndex>) -> Result<Self> {
        let seen = change.apply(self.seen_by(device))?;
        let preferred = match change.preferred {
            None => self.preferred,
            Some(PreferredLocation::Any) => Preferred::Any,
            Some(PreferredLocation::System) => Preferred::System,
            Some(PreferredLocation::Device) => Preferred::Device(device.ok_or(EINVAL)?),
            Some(PreferredLocation::Other) => return Err(EINVAL),
        };
        let accessed_by = if seen.accessed_by {
            self.accessed_by | bit(device)
        } else {
            self.accessed_by & !bit(device)
        };
        Ok(Self {
            preferred,
            accessed_by,
            common: Attributes {
                preferred: PreferredLocation::Any,
                accessed_by: false,
                ..seen
            },
        })
    }

    /// Removes attributes that name `device`.
    fn remove_device(&mut self, device: DeviceIndex) {
        if self.preferred == Preferred::Device(device) {
            self.preferred = Preferred::Any;
        }
        self.accessed_by &= !bit(Some(device));
    }
}

/// Reason why a change has no number for its set.
pub(super) enum SetError {
    /// No number is free. [`Sets::grow`] or [`Sets::retain`] may free one.
    Full,
    /// An error.
    Error(Error),
}

impl From<Error> for SetError {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Sets with their numbers, and the devices that they name.
pub(super) struct Sets {
    /// The set with number `n` is at index `n - 1`. `None` is an unused number.
    sets: KVec<Option<Set>>,
    /// Identities of devices by index. [`DeviceId::NONE`] is an unused index.
    devices: [DeviceId; Self::MAX_DEVICES],
    /// Indices from this one on are unused.
    end: usize,
}

impl Sets {
    /// Maximum number of distinct sets.
    pub(super) const MAX_SETS: usize = 1023;
    /// Maximum number of devices that attributes name.
    pub(super) const MAX_DEVICES: usize = u64::BITS as usize;
    /// Initial capacity.
    const INITIAL_CAPACITY: usize = 16;

    pub(super) const fn new() -> Self {
        Self {
            sets: KVec::new(),
            devices: [DeviceId::NONE; Self::MAX_DEVICES],
            end: 0,
        }
    }

    fn index_of(&self, device: DeviceId) -> Option<DeviceIndex> {
        let mut devices = self.devices.iter().take(self.end);
        let index = devices.position(|other| *other == device && device != DeviceId::NONE)?;
        // CAST: An index is below 64.
        Some(index as DeviceIndex)
    }

    /// Returns the index of `device`, and assigns one if it has none.
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if all indices are in use.
    fn claim(&mut self, device: DeviceId) -> Result<DeviceIndex> {
        if let Some(index) = self.index_of(device) {
            return Ok(index);
        }
        let mut places = self.devices.iter_mut().enumerate();
        let (index, place) = places
            .find(|(_, place)| **place == DeviceId::NONE)
            .ok_or(ENOSPC)?;
        *place = device;
        self.end = self.end.max(index + 1);
        // CAST: An index is below 64.
        Ok(index as DeviceIndex)
    }

    fn get(&self, number: Option<SetNumber>) -> Set {
        let place = number.and_then(|number| self.sets.get(number.checked_sub(1)?));
        place.copied().flatten().unwrap_or_default()
    }

    /// Returns the attributes of the set `number` as `device` sees them. `None` stands for the
    /// default attributes.
    pub(super) fn seen_by(&self, number: Option<SetNumber>, device: DeviceId) -> Attributes {
        match number {
            None => Attributes::DEFAULT,
            number => self.get(number).seen_by(self.index_of(device)),
        }
    }

    /// Returns the number of the set that results from `change` by `device` of the set `number`.
    /// `None` stands for the default attributes.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if a value is invalid.
    /// - `ENOSPC` if the change names a device and all device indices are in use.
    /// - [`SetError::Full`] if the set is a new one and no number is free.
    pub(super) fn changed(
        &mut self,
        number: Option<SetNumber>,
        change: &AttributeUpdate,
        device: DeviceId,
    ) -> Result<Option<SetNumber>, SetError> {
        let names_device =
            change.preferred == Some(PreferredLocation::Device) || change.accessed_by == Some(true);
        let index = if names_device {
            Some(self.claim(device)?)
        } else {
            self.index_of(device)
        };
        let set = self.get(number).changed(change, index)?;
        if set == Set::default() {
            return Ok(None);
        }
        let place = self.sets.iter().position(|other| *other == Some(set));
        if let Some(place) = place {
            return Ok(Some(place + 1));
        }
        if self.sets.len() < self.sets.capacity().min(Self::MAX_SETS) {
            // Cannot fail, because there is capacity.
            let _ = self.sets.push_within_capacity(Some(set));
            return Ok(Some(self.sets.len()));
        }
        let mut places = self.sets.iter_mut().enumerate();
        let (place, unused) = places
            .find(|(_, place)| place.is_none())
            .ok_or(SetError::Full)?;
        *unused = Some(set);
        Ok(Some(place + 1))
    }

    /// Allocates a larger array than one of capacity `places`, for [`Self::grow`]. Returns `None`
    /// if that has the maximum capacity.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep. The lock of `self` must not be held.
    pub(super) fn larger(places: usize) -> Result<Option<LargerArray>> {
        if places >= Self::MAX_SETS {
            return Ok(None);
        }
        let places = (2 * places).clamp(Self::INITIAL_CAPACITY, Self::MAX_SETS);
        Ok(Some(LargerArray(KVec::with_capacity(
            places,
            GFP_KERNEL_ACCOUNT,
        )?)))
    }

    /// Returns the capacity.
    pub(super) fn places(&self) -> usize {
        self.sets.capacity()
    }

    /// Moves all sets to the array `larger`. Returns the previous array, to be freed after the lock
    /// was released.
    pub(super) fn grow(&mut self, mut larger: LargerArray) -> LargerArray {
        if larger.0.capacity() > self.sets.capacity() {
            for set in self.sets.iter() {
                // Cannot fail, because `larger` has the greater capacity.
                let _ = larger.0.push_within_capacity(*set);
            }
            core::mem::swap(&mut self.sets, &mut larger.0);
        }
        larger
    }

    /// Frees the numbers for which `used` returns `false`.
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if there are none.
    pub(super) fn retain(&mut self, used: impl Fn(SetNumber) -> bool) -> Result {
        let mut any = false;
        for (place, set) in self.sets.iter_mut().enumerate() {
            if !used(place + 1) {
                *set = None;
                any = true;
            }
        }
        any.then_some(()).ok_or(ENOSPC)
    }

    /// Removes attributes that name `device`. Its index may be reused for another device. Two sets
    /// may become equal, which is harmless.
    pub(super) fn remove_device(&mut self, device: DeviceId) {
        let Some(index) = self.index_of(device) else {
            return;
        };
        self.sets
            .iter_mut()
            .flatten()
            .for_each(|set| set.remove_device(index));
        if let Some(place) = self.devices.get_mut(usize::from(index)) {
            *place = DeviceId::NONE;
        }
        while self.end > 0 && self.devices.get(self.end - 1) == Some(&DeviceId::NONE) {
            self.end -= 1;
        }
    }
}

/// A preallocated array of sets.
pub(super) struct LargerArray(KVec<Option<Set>>);

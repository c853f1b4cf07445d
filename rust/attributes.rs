// SPDX-License-Identifier: GPL-2.0

//! Attributes of ranges of an address space: what a program knows of how its memory will be used.
//!
//! They belong to the process and to the mapping, not to its pages: they hold before anything is
//! there and after pages were swapped out. What is unmapped loses them, what is moved by `mremap`
//! takes them along, and a child of `fork` has none. All mirrors of the process set and ask for the
//! same ones; a preferred device and [`Attributes::accessed_by`] name the mirror's device. See
//! `Documentation/memory.rst`.

use crate::mm::addr::PMD_ORDER;
use kernel::prelude::*;

mod home;
mod map;
mod sets;

pub(crate) use home::{Found, Home};
pub(crate) use map::Map;

/// Where memory should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Location {
    /// The policy decides.
    #[default]
    Any,
    /// In the memory of the mirror's device.
    Device,
    /// In system memory.
    System,
    /// In the memory of another device of the process: this one maps it where it is. Only reported,
    /// and cannot be set.
    Other,
}

/// The attributes of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    preferred: Location,
    accessed_by: bool,
    read_mostly: bool,
    never_migrate: bool,
    /// Order plus one.
    granularity: u8,
}

impl Attributes {
    /// Those of memory for which nothing was said.
    pub const DEFAULT: Self = Self {
        preferred: Location::Any,
        accessed_by: false,
        read_mostly: false,
        never_migrate: false,
        granularity: 0,
    };

    /// Those of memory that should be at `location`, and goes there in huge pages.
    pub(crate) const fn preferring(location: Location) -> Self {
        Self {
            preferred: location,
            granularity: PMD_ORDER as u8 + 1,
            ..Self::DEFAULT
        }
    }

    /// Where it should be.
    pub fn preferred(&self) -> Location {
        self.preferred
    }

    /// Whether the mirror's device should always have it mapped, wherever it is.
    pub fn accessed_by(&self) -> bool {
        self.accessed_by
    }

    /// Whether it is mostly read. A device that reads it maps it where it is; a read moves nothing.
    /// The policy decides on a write fault.
    pub fn read_mostly(&self) -> bool {
        self.read_mostly
    }

    /// Whether it never moves to any device.
    pub fn never_migrate(&self) -> bool {
        self.never_migrate
    }

    /// Order of the folios in which it moves on faults; `None`: the policy decides.
    pub fn granularity(&self) -> Option<u32> {
        u32::from(self.granularity).checked_sub(1)
    }

    /// Sets the granularity, 0 to 9. `EINVAL`.
    pub fn set_granularity(&mut self, order: Option<u32>) -> Result {
        if order.is_some_and(|order| order > PMD_ORDER) {
            return Err(EINVAL);
        }
        self.granularity = order.map_or(0, |order| order as u8 + 1);
        Ok(())
    }
}

/// Which attributes to change. Of other devices than the mirror's own, `accessed_by` stays as it
/// is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Where it should be.
    pub preferred: Option<Location>,
    /// See [`Attributes::accessed_by`].
    pub accessed_by: Option<bool>,
    /// See [`Attributes::read_mostly`].
    pub read_mostly: Option<bool>,
    /// See [`Attributes::never_migrate`].
    pub never_migrate: Option<bool>,
    /// See [`Attributes::granularity`]; `Some(None)` leaves it to the policy.
    pub granularity: Option<Option<u32>>,
}

impl Change {
    /// Changes `old`. `EINVAL` if an order is too large, or the location is [`Location::Other`].
    pub fn apply(&self, mut old: Attributes) -> Result<Attributes> {
        if self.preferred == Some(Location::Other) {
            return Err(EINVAL);
        }
        old.preferred = self.preferred.unwrap_or(old.preferred);
        old.accessed_by = self.accessed_by.unwrap_or(old.accessed_by);
        old.read_mostly = self.read_mostly.unwrap_or(old.read_mostly);
        old.never_migrate = self.never_migrate.unwrap_or(old.never_migrate);
        if let Some(order) = self.granularity {
            old.set_granularity(order)?;
        }
        Ok(old)
    }
}

/// What holds for the whole of a range: `None` is what differs in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Common {
    /// Where it should be.
    pub preferred: Option<Location>,
    /// See [`Attributes::accessed_by`].
    pub accessed_by: Option<bool>,
    /// See [`Attributes::read_mostly`].
    pub read_mostly: Option<bool>,
    /// See [`Attributes::never_migrate`].
    pub never_migrate: Option<bool>,
    /// See [`Attributes::granularity`].
    pub granularity: Option<Option<u32>>,
}

impl Common {
    /// What holds where there is only `all`.
    pub fn of(all: Attributes) -> Self {
        Self {
            preferred: Some(all.preferred),
            accessed_by: Some(all.accessed_by),
            read_mostly: Some(all.read_mostly),
            never_migrate: Some(all.never_migrate),
            granularity: Some(all.granularity()),
        }
    }

    /// What holds where there is `other`, too.
    pub fn and(self, other: Attributes) -> Self {
        Self {
            preferred: self.preferred.filter(|value| *value == other.preferred),
            accessed_by: self.accessed_by.filter(|value| *value == other.accessed_by),
            read_mostly: self.read_mostly.filter(|value| *value == other.read_mostly),
            never_migrate: self
                .never_migrate
                .filter(|value| *value == other.never_migrate),
            granularity: self
                .granularity
                .filter(|value| *value == other.granularity()),
        }
    }
}

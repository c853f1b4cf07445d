// SPDX-License-Identifier: GPL-2.0

//! Attributes of ranges of an address space: hints of a program how its memory will be used.
//!
//! Attributes belong to a mapping of a process and not to its pages. They are valid before the
//! range is populated and after its pages were swapped out. Unmapping a range removes its
//! attributes, `mremap()` moves them with the mapping, and a child of `fork()` does not inherit
//! them. All mirrors of a process share one set of attributes. A preferred device and
//! [`Attributes::accessed_by`] refer to the device of the mirror through which they are set or
//! read. See `Documentation/placement.rst`.

use crate::mm::addr::PMD_ORDER;
use kernel::prelude::*;

mod anchor;
#[cfg(CONFIG_RUST_HMM_MANAGED)]
pub(crate) mod managed;
mod map;
mod sets;

pub(crate) use anchor::{
    Relocated,
    VmaAnchor, //
};
pub(crate) use map::Map;

/// Preferred location of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreferredLocation {
    /// The policy decides.
    #[default]
    Any,
    /// In the memory of the mirror's device.
    Device,
    /// In system memory.
    System,
    /// In the memory of another device of the process; this device maps the pages in place. This
    /// value is only reported and cannot be set.
    Other,
}

/// The attributes of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    preferred: PreferredLocation,
    accessed_by: bool,
    read_mostly: bool,
    never_migrate: bool,
    /// Order plus one; 0: the policy decides.
    granularity: u8,
}

impl Attributes {
    /// Attributes of a range for which none were set.
    pub const DEFAULT: Self = Self {
        preferred: PreferredLocation::Any,
        accessed_by: false,
        read_mostly: false,
        never_migrate: false,
        granularity: 0,
    };

    /// Attributes that prefer `location` and a migration in huge pages.
    #[cfg(CONFIG_RUST_HMM_MANAGED)]
    pub(crate) const fn preferring(location: PreferredLocation) -> Self {
        Self {
            preferred: location,
            granularity: PMD_ORDER as u8 + 1,
            ..Self::DEFAULT
        }
    }

    /// Returns where the memory should be.
    ///
    /// # Context
    ///
    /// Any.
    pub fn preferred(&self) -> PreferredLocation {
        self.preferred
    }

    /// Returns whether the mirror's device should have the memory mapped at all times, wherever its
    /// pages are.
    ///
    /// # Context
    ///
    /// Any.
    pub fn accessed_by(&self) -> bool {
        self.accessed_by
    }

    /// Returns whether the memory is mostly read. A read fault of a device maps the pages in place
    /// and does not migrate them. On a write fault the policy decides.
    ///
    /// # Context
    ///
    /// Any.
    pub fn read_mostly(&self) -> bool {
        self.read_mostly
    }

    /// Returns whether the memory must not be migrated to any device.
    ///
    /// # Context
    ///
    /// Any.
    pub fn never_migrate(&self) -> bool {
        self.never_migrate
    }

    /// Returns the order of the folios in which a device fault migrates the memory; `None`: the
    /// policy decides.
    ///
    /// # Context
    ///
    /// Any.
    pub fn granularity(&self) -> Option<u32> {
        u32::from(self.granularity).checked_sub(1)
    }

    /// Sets the granularity.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: `order` is larger than that of a huge page, [`PMD_ORDER`].
    ///
    /// # Context
    ///
    /// Any.
    pub fn set_granularity(&mut self, order: Option<u32>) -> Result {
        if order.is_some_and(|order| order > PMD_ORDER) {
            return Err(EINVAL);
        }
        self.granularity = order.map_or(0, |order| order as u8 + 1);
        Ok(())
    }
}

/// A change of attributes; `None` keeps an attribute. `accessed_by` is changed for the mirror's
/// device only.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::attributes::AttributeUpdate;
/// use rust_hmm::attributes::PreferredLocation;
/// use rust_hmm::mirror::Device;
/// use rust_hmm::mirror::Mirror;
/// use rust_hmm::mm::addr::PageRange;
///
/// /// Keeps a range of input data on the device. The other attributes do not change.
/// fn pin_input<D: Device>(mirror: &Mirror<D>, range: PageRange) -> Result {
///     let update = AttributeUpdate {
///         preferred: Some(PreferredLocation::Device),
///         read_mostly: Some(true),
///         ..AttributeUpdate::default()
///     };
///     mirror.set_attributes(range, &update)
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeUpdate {
    /// See [`Attributes::preferred`].
    pub preferred: Option<PreferredLocation>,
    /// See [`Attributes::accessed_by`].
    pub accessed_by: Option<bool>,
    /// See [`Attributes::read_mostly`].
    pub read_mostly: Option<bool>,
    /// See [`Attributes::never_migrate`].
    pub never_migrate: Option<bool>,
    /// See [`Attributes::granularity`]; `Some(None)` leaves it to the policy.
    pub granularity: Option<Option<u32>>,
}

impl AttributeUpdate {
    /// Returns `old` with the changes.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the granularity is too large, or the location is [`PreferredLocation::Other`].
    ///
    /// # Context
    ///
    /// Any.
    pub fn apply(&self, mut old: Attributes) -> Result<Attributes> {
        if self.preferred == Some(PreferredLocation::Other) {
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

/// Attributes that all pages of a range have in common; `None` for an attribute that differs.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::attributes::Attributes;
/// use rust_hmm::attributes::CommonAttributes;
/// use rust_hmm::mm::addr::PMD_ORDER;
///
/// let mut huge = Attributes::DEFAULT;
/// huge.set_granularity(Some(PMD_ORDER))?;
/// let both = CommonAttributes::of(Attributes::DEFAULT).and(huge);
/// assert_eq!(both.read_mostly, Some(false));
/// // The two differ in this one.
/// assert_eq!(both.granularity, None);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommonAttributes {
    /// See [`Attributes::preferred`].
    pub preferred: Option<PreferredLocation>,
    /// See [`Attributes::accessed_by`].
    pub accessed_by: Option<bool>,
    /// See [`Attributes::read_mostly`].
    pub read_mostly: Option<bool>,
    /// See [`Attributes::never_migrate`].
    pub never_migrate: Option<bool>,
    /// See [`Attributes::granularity`].
    pub granularity: Option<Option<u32>>,
}

impl CommonAttributes {
    /// Returns the attributes of a range in which all pages have `all`.
    ///
    /// # Context
    ///
    /// Any.
    pub fn of(all: Attributes) -> Self {
        Self {
            preferred: Some(all.preferred),
            accessed_by: Some(all.accessed_by),
            read_mostly: Some(all.read_mostly),
            never_migrate: Some(all.never_migrate),
            granularity: Some(all.granularity()),
        }
    }

    /// Returns the common attributes of this range and of pages with `other`.
    ///
    /// # Context
    ///
    /// Any.
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

// SPDX-License-Identifier: GPL-2.0

//! The decision of a device fault: which pages migrate to the device, and which are mapped in
//! place.
//!
//! The attributes of the memory decide first, then the cache of immovable memory, then the policy.

use crate::{
    attributes::{
        Attributes,
        PreferredLocation, //
    },
    mirror::{
        AttributesAt,
        Device,
        Mirror, //
    },
    mm::{
        addr::PageRange,
        range_fault::{
            Access,
            AddressSpace, //
        }, //
    },
    policy::{
        block,
        Decision,
        FaultInfo,
        PageSet,
        Policy, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

/// Action for a fault.
pub(super) enum FaultAction {
    /// As the policy decided.
    Policy(Decision),
    /// Map these pages in place, because they are cached as immovable.
    MapInPlace(PageRange),
    /// Migrate these pages to the device from wherever they are, because of their attributes.
    Migrate(PageRange),
}

impl<D: Device> Mirror<D> {
    /// Decides on a fault on `range`, whose pages have the same attributes. `cached` is whether the
    /// cache of immovable memory is used.
    ///
    /// # Errors
    ///
    /// - `EFAULT` if nothing is mapped there.
    /// - `EINTR` if a fatal signal is pending.
    /// - `ENODEV` if the device has no memory, or the mirror is being dropped.
    pub(super) fn place(
        &self,
        space: &AddressSpace,
        range: PageRange,
        access: Access,
        policy: &dyn Policy,
        cached: bool,
    ) -> Result<FaultAction> {
        let memory = self.device().memory().ok_or(ENODEV)?;
        let AttributesAt {
            attributes,
            limits,
            whole,
            movable,
        } = self.attributes_at(space, range.start())?;
        let write = access == Access::Write;
        if !movable || stays(attributes, write) {
            let around = block(range.start()).and_then(|block| block.intersect(&limits));
            return Ok(FaultAction::Policy(Decision::InPlace(
                around.map_or(range, |all| all.union(&range)),
            )));
        }
        if let Some(around) = self.known_immovable(range).filter(|_| cached) {
            let around = around.intersect(&limits).unwrap_or(range);
            return Ok(FaultAction::MapInPlace(around.union(&range)));
        }
        if whole || attributes.preferred() == PreferredLocation::Device {
            self.inner().set_prefers();
        }
        if whole {
            return Ok(FaultAction::Migrate(limits.union(&range)));
        }
        let bounces = self.bounces()?;
        let (used, _) = memory.usage();
        let total = memory.limit();
        let placement = policy.place(&FaultInfo {
            range,
            write,
            limits,
            attributes,
            free: total.saturating_sub(used),
            total,
            now: self.now(),
            resident: &|start| self.resident(start),
            bounces,
        });
        Ok(match placement {
            // Policies that never migrate (`is_idle`) do not handle attributes.
            Decision::InPlace(_)
                if attributes.preferred() == PreferredLocation::Device && policy.is_idle() =>
            {
                FaultAction::Migrate(by_granularity(range, attributes, limits))
            }
            placement => FaultAction::Policy(placement),
        })
    }

    /// Returns the pages of the block at `start` that are in the mirror's own memory. Only pages
    /// for which a mirror of this device and process has an entry count.
    fn resident(&self, start: usize) -> PageSet {
        let mut mask = PageSet::EMPTY;
        let Some(block) = block(start) else {
            return mask;
        };
        let inner = self.inner();
        inner.each_resident(block, |index, pages| mask.add(index..index + pages));
        let device = Some(inner.device_name());
        let here = self.place_in_space();
        let others = inner.space.mirrors().entered_of(device, here);
        others.for_each(|mirror| mirror.add_resident(inner.own_memory(), block, &mut mask));
        mask
    }
}

/// Returns whether the attributes require that the memory is mapped in place.
fn stays(attributes: Attributes, write: bool) -> bool {
    attributes.never_migrate()
        || matches!(
            attributes.preferred(),
            PreferredLocation::System | PreferredLocation::Other
        )
        || (attributes.read_mostly() && !write)
}

/// Extends `range` to its granularity, within `limits`.
fn by_granularity(range: PageRange, attributes: Attributes, limits: PageRange) -> PageRange {
    let size = PAGE_SIZE << attributes.granularity().unwrap_or(0);
    let end = range.end().checked_next_multiple_of(size);
    PageRange::new(range.start() & !(size - 1), end.unwrap_or(range.end()))
        .ok()
        .and_then(|all| all.intersect(&limits))
        .map_or(range, |all| all.union(&range))
}

// SPDX-License-Identifier: GPL-2.0

//! Device faults that may move memory: attributes decide, else the policy.

use super::{Device, Inner, Mirror};
use crate::{
    attributes::{Attributes, Location},
    mm::{
        addr::PageRange,
        range_fault::{Access, AddressSpace},
    },
    policy::{block, Mask, Placement, Policy, Wanted},
    within,
};
use kernel::prelude::*;

/// What became of a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Pages that moved to the device.
    pub moved: usize,
    /// Whether the memory was left where it is on purpose.
    pub in_place: bool,
}

impl<D: Device> Mirror<D> {
    /// Serves a device fault as attributes and `policy` want it: moves memory to the device, or not, and
    /// makes `range`, within 2 MiB, accessible as [`Self::fault`] does. Moving is best effort: what
    /// cannot move is mapped in place.
    ///
    /// # Errors
    ///
    /// As [`Self::fault`]. Context: may sleep; no lock may be held.
    pub fn serve(&self, range: PageRange, access: Access, policy: &dyn Policy) -> Result<Served> {
        within::may_wait()?;
        let mut served = Served::default();
        let space = self.space()?;
        let placement = match self.device().memory() {
            Some(_) => self.place(&space, range, access, policy),
            None => Ok(Placement::InPlace(range)),
        };
        let around = match placement {
            Ok(Placement::Move { range: all, evict }) => {
                // What it cannot do is the fault's to say.
                match self.migrate(all).evict(evict).to_device() {
                    Ok(outcome) => served.moved = outcome.moved,
                    Err(error) if error == EINTR => return Err(error),
                    Err(_) => {}
                }
                if served.moved != 0 {
                    policy.moved(all, self.now());
                }
                None
            }
            Ok(Placement::InPlace(all)) => {
                served.in_place = true;
                Some(all)
            }
            // Nothing is mapped there: the fault says it as it is to be said.
            Err(error) if error == EFAULT => None,
            Err(error) => return Err(error),
        };
        self.fault(range, access)?;
        if let Some(all) = around.filter(|all| *all != range) {
            self.map_present(&space, all)?;
        }
        Ok(served)
    }

    /// The time in ms.
    fn now(&self) -> u64 {
        u64::try_from(self.inner().born.elapsed().as_millis()).unwrap_or(0)
    }

    fn place(
        &self,
        space: &AddressSpace<'_, Inner<D>>,
        range: PageRange,
        access: Access,
        policy: &dyn Policy,
    ) -> Result<Placement> {
        let memory = self.device().memory().ok_or(ENODEV)?;
        let (attributes, limits) = self.attributes_at(space, range.start())?;
        let write = access == Access::Write;
        if stays(attributes, write) {
            let around = block(range.start()).and_then(|block| block.intersect(&limits));
            return Ok(Placement::InPlace(
                around.map_or(range, |all| all.hull(&range)),
            ));
        }
        let (used, _) = memory.usage();
        let total = memory.limit();
        Ok(policy.place(&Wanted {
            range,
            write,
            limits,
            attributes,
            free: total.saturating_sub(used),
            total,
            now: self.now(),
            resident: &|start| self.resident(start),
        }))
    }

    /// The pages of the block at `start` that are in the device's memory.
    fn resident(&self, start: usize) -> Mask {
        let mut mask = Mask::EMPTY;
        if let Some(block) = block(start) {
            self.each_on_device(block, |index, pages| mask.add(index..index + pages));
        }
        mask
    }
}

/// Whether the attributes say that memory is to be mapped where it is.
fn stays(attributes: Attributes, write: bool) -> bool {
    attributes.never_migrate()
        || attributes.preferred() == Location::System
        || (attributes.read_mostly() && !write)
}

// SPDX-License-Identifier: GPL-2.0

//! Device faults that may move memory: attributes decide, else the policy.

use super::{attributes::Known, fault::Tiles, Device, Mirror};
use crate::{
    attributes::{Attributes, Location},
    events::{Event, Trigger},
    memory::Memory,
    migrate::{Outcome, PageOutcome},
    mm::{
        addr::PageRange,
        range_fault::{Access, AddressSpace},
        space::sleep_killable,
    },
    policy::{block, Bounces, Immovable, Mask, Placement, Policy, Wanted},
    within,
};
use kernel::{page::PAGE_SIZE, prelude::*};

/// What became of a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Pages that moved to the device.
    pub moved: usize,
    /// Whether the memory was left where it is on purpose.
    pub in_place: bool,
}

/// Pages whose outcomes need no allocation. A larger move pays for one.
const FEW: usize = 32;

/// Naps in a row that a policy gets; then the memory is mapped where it is.
const NAPS: usize = 4;

/// Time after which a nap looks whether the process has ended, in ms.
const SLICE: u64 = 10;

/// What a migration for a fault has done to a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arrival {
    /// It is in the memory at home.
    There,
    /// There, if there is an entry for it.
    Perhaps,
    /// It is elsewhere.
    Stayed,
}

/// What became of a part.
enum Asked {
    Served(Served),
    /// Ask again after so many ms.
    Later(u64),
}

/// What to do about a fault.
enum Plan {
    /// What a policy says.
    Place(Placement),
    /// Move these pages to the device, where they should be, from wherever they are.
    Bring(PageRange),
}

impl<D: Device> Mirror<D> {
    /// Serves a device fault as attributes and `policy` want it: moves memory to the device, or not, and
    /// makes `range`, within 2 MiB, accessible as [`Self::fault`] does. Moving is best effort: what
    /// cannot move is mapped in place.
    ///
    /// Others may have taken pages away again when this returns, and the longer it takes, the likelier: who finds
    /// the first page missing then asks for fewer.
    ///
    /// # Errors
    ///
    /// As [`Self::fault`]. Context: may sleep; no lock may be held.
    pub fn serve(&self, range: PageRange, access: Access, policy: &dyn Policy) -> Result<Served> {
        within::may_wait()?;
        let mut served = Served::default();
        let mut rest = Some(range);
        let mut naps = 0;
        while let Some(range) = rest {
            let space = self.space()?;
            let part = self.alike(&space, range);
            let done = match self.serve_part(&space, part, access, policy, naps < NAPS)? {
                Asked::Served(done) => done,
                Asked::Later(ms) => {
                    naps += 1;
                    // Who waits keeps no process from its end.
                    drop(space);
                    self.nap(ms)?;
                    continue;
                }
            };
            naps = 0;
            served.moved += done.moved;
            served.in_place |= done.in_place;
            rest = range.from_address(part.end());
        }
        Ok(served)
    }

    /// Sleeps for `ms` ms. `EINTR`: killed; `EFAULT`: the process has ended; `ENODEV`: the device is gone.
    fn nap(&self, ms: u64) -> Result {
        let mut left = ms;
        while left != 0 {
            let slice = left.min(SLICE);
            sleep_killable(slice)?;
            left -= slice;
            if !self.is_alive() {
                return Err(EFAULT);
            }
            if self.device().memory().is_some_and(Memory::is_gone) {
                return Err(ENODEV);
            }
        }
        Ok(())
    }

    /// The first part of `range` in which attributes are the same.
    fn alike(&self, space: &AddressSpace, range: PageRange) -> PageRange {
        if !self.has_attributes() {
            return range;
        }
        let limits = self.attributes_at(space, range.start());
        limits
            .ok()
            .and_then(|known| range.intersect(&known.limits))
            .unwrap_or(range)
    }

    fn serve_part(
        &self,
        space: &AddressSpace,
        range: PageRange,
        access: Access,
        policy: &dyn Policy,
        may_wait: bool,
    ) -> Result<Asked> {
        let mut served = Served::default();
        let mut again = None;
        let mut tiles = Tiles::Pull;
        let plan = match self.device().memory() {
            Some(_) => self.place(space, range, access, policy),
            None => Ok(Plan::Place(Placement::InPlace(range))),
        };
        let around = match plan {
            Ok(Plan::Place(Placement::Move { range: all, evict })) => {
                return self
                    .serve_moved(range, access, policy, (all, evict))
                    .map(Asked::Served);
            }
            Ok(Plan::Bring(all)) => {
                let outcome = self.attract(all, true, &mut [])?;
                served.moved = outcome.moved;
                if outcome.no_memory + outcome.copy_failed == 0 {
                    again = Some(all);
                }
                None
            }
            Ok(Plan::Place(Placement::Later(ms))) if may_wait => {
                self.inner().tell(&Event::Thrash {
                    range,
                    ms: Some(ms),
                });
                return Ok(Asked::Later(ms));
            }
            Ok(Plan::Place(Placement::Later(_))) => {
                served.in_place = true;
                tiles = Tiles::ToSystem;
                None
            }
            Ok(Plan::Place(Placement::InPlace(all))) => {
                served.in_place = true;
                Some(all)
            }
            Ok(Plan::Place(Placement::Stay(all))) => {
                self.inner().tell(&Event::Thrash {
                    range: all,
                    ms: None,
                });
                served.in_place = true;
                tiles = Tiles::ToSystem;
                Some(all)
            }
            // Nothing is mapped there: the fault says it as it is to be said.
            Err(error) if error == EFAULT => None,
            Err(error) => return Err(error),
        };
        self.fault_from(range, access, tiles, &mut 0)?;
        if let Some(all) = again.filter(|_| !self.is_here(range.start())) {
            // Another device had it, or it was shared after a fork: the fault has brought it back. At last comes
            // a fault again: else two devices could take the entry from each other for ever.
            served.moved += self.attract(all, true, &mut [])?.moved;
            self.fault(range, access)?;
        }
        if let Some(all) = around.filter(|all| *all != range) {
            self.map_present(space, all)?;
        }
        Ok(Asked::Served(served))
    }

    /// Serves a fault on `range` by moving all of `all` to the device; `evict` says whether other
    /// memory may leave for it.
    fn serve_moved(
        &self,
        range: PageRange,
        access: Access,
        policy: &dyn Policy,
        (all, evict): (PageRange, bool),
    ) -> Result<Served> {
        let (mut few, mut many) = ([PageOutcome::None; FEW], KVVec::new());
        let pages = match few.get_mut(..all.pages()) {
            Some(few) => few,
            None => {
                // Without memory for the outcomes no page counts as one that may bounce.
                many = KVVec::from_elem(PageOutcome::None, all.pages(), GFP_KERNEL).unwrap_or(many);
                &mut many
            }
        };
        let outcome = self.attract(all, evict, pages)?;
        let mut pulled = 0;
        let result = self.fault_from(range, access, Tiles::Pull, &mut pulled);
        let moved = outcome.moved + pulled;
        if moved != 0 {
            self.report_moved(policy, all, pages);
        }
        result.map(|()| Served {
            moved,
            in_place: false,
        })
    }

    /// Moves memory to the device, as far as it can be. What it cannot do is the fault's to say: `EINTR` only.
    /// `pages` gets what became of each page.
    fn attract(&self, range: PageRange, evict: bool, pages: &mut [PageOutcome]) -> Result<Outcome> {
        let migration = self.migrate(range).evict(evict).outcomes(pages);
        match migration.because(Trigger::Fault).to_device() {
            Ok(outcome) => Ok(outcome),
            Err(error) if error == EINTR => Err(error),
            Err(_) => Ok(Outcome::default()),
        }
    }

    /// Reports to `policy` which pages of `range` are on the device now. A page that stays, such as one of a file, is not:
    /// if it counted as moved, its next fault would look like a bounce.
    fn report_moved(&self, policy: &dyn Policy, range: PageRange, pages: &[PageOutcome]) {
        let now = self.now();
        let report = |from: usize, count: usize| {
            let Ok(run) = PageRange::from_pages(range.address(from), count) else {
                return;
            };
            if let Ok(bounces) = self.bounces() {
                bounces.moved(run, now);
            }
            policy.moved(run, now);
        };
        // Of pages in another tile it is not said whether they have come from there.
        let has_tiles = self.device().memory().is_some_and(Memory::shares_owner);
        let kind = |page: PageOutcome| match page {
            page if page.has_moved() => Arrival::There,
            _ if has_tiles => Arrival::Perhaps,
            PageOutcome::None => Arrival::There,
            _ => Arrival::Stayed,
        };
        let mut next = 0;
        for run in pages.chunk_by(|page, other| kind(*page) == kind(*other)) {
            let first = next;
            next += run.len();
            match run.first().map_or(Arrival::Stayed, |page| kind(*page)) {
                Arrival::There => report(first, run.len()),
                Arrival::Perhaps => {
                    if let Ok(run) = PageRange::from_pages(range.address(first), run.len()) {
                        let report = |index, count| report(first + index, count);
                        self.inner().each_at_home(run, report);
                    }
                }
                Arrival::Stayed => {}
            }
        }
    }

    /// Remembers, until something changes there or a while has passed, where no page can move: in the block of
    /// `range`, unless that has been looked at lately, else in `range`, which lies within a block. `look` calls its
    /// second argument for such runs of pages within its first one.
    pub(crate) fn learn(
        &self,
        range: PageRange,
        look: impl FnOnce(PageRange, &mut dyn FnMut(PageRange)) -> Result,
    ) -> Result {
        let now = self.now();
        let known = self.inner().lock().immovable.has_block(range.start(), now);
        let all = block(range.start()).filter(|_| !known);
        look(all.unwrap_or(range), &mut |run: PageRange| {
            // Not during the look: that takes locks of the CPU's page table.
            if run.pages() >= Immovable::LEAST {
                self.inner().lock().immovable.add(run, now);
            }
        })
    }

    /// Whether the page at `addr` is in the device's memory.
    fn is_here(&self, addr: usize) -> bool {
        self.inner().lock().table.get(addr).is_device()
    }

    /// What bounces between the device and others. `ENODEV`: the mirror is being dropped.
    fn bounces(&self) -> Result<&Bounces> {
        let membership = self.0.membership.as_ref().ok_or(ENODEV)?;
        Ok(membership.bounces())
    }

    /// The time in ms.
    fn now(&self) -> u64 {
        self.inner().space.now()
    }

    fn place(
        &self,
        space: &AddressSpace,
        range: PageRange,
        access: Access,
        policy: &dyn Policy,
    ) -> Result<Plan> {
        let memory = self.device().memory().ok_or(ENODEV)?;
        let Known {
            attributes,
            limits,
            whole,
            movable,
        } = self.attributes_at(space, range.start())?;
        let write = access == Access::Write;
        if !movable || stays(attributes, write) {
            let around = block(range.start()).and_then(|block| block.intersect(&limits));
            return Ok(Plan::Place(Placement::InPlace(
                around.map_or(range, |all| all.hull(&range)),
            )));
        }
        let known = self.inner().lock().immovable.around(range, self.now());
        if let Some(around) = known {
            let around = around.intersect(&limits).unwrap_or(range);
            return Ok(Plan::Place(Placement::InPlace(around.hull(&range))));
        }
        if whole {
            return Ok(Plan::Bring(limits.hull(&range)));
        }
        let bounces = self.bounces()?;
        let (used, _) = memory.usage();
        let total = memory.limit();
        let placement = policy.place(&Wanted {
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
            // A policy that moves nothing by itself need not know of attributes.
            Placement::InPlace(_)
                if attributes.preferred() == Location::Device && policy.is_idle() =>
            {
                Plan::Bring(by_granularity(range, attributes, limits))
            }
            placement => Plan::Place(placement),
        })
    }

    /// The pages of the block at `start` that are in the device's memory at home, as far as its
    /// mirrors of the process have entries for them.
    fn resident(&self, start: usize) -> Mask {
        let mut mask = Mask::EMPTY;
        let Some(block) = block(start) else {
            return mask;
        };
        let inner = self.inner();
        inner.each_at_home(block, |index, pages| mask.add(index..index + pages));
        let (device, here) = (Some(inner.device_name()), self.place_in_space());
        let others = inner.space.mirrors().entered_of(device, here);
        others.for_each(|mirror| mirror.add_at_home(inner.home_name(), block, &mut mask));
        mask
    }
}

/// Whether the attributes say that memory is to be mapped where it is.
fn stays(attributes: Attributes, write: bool) -> bool {
    attributes.never_migrate()
        || matches!(attributes.preferred(), Location::System | Location::Other)
        || (attributes.read_mostly() && !write)
}

/// `range`, and what belongs to it by its granularity.
fn by_granularity(range: PageRange, attributes: Attributes, limits: PageRange) -> PageRange {
    let size = PAGE_SIZE << attributes.granularity().unwrap_or(0);
    let end = range.end().checked_next_multiple_of(size);
    PageRange::new(range.start() & !(size - 1), end.unwrap_or(range.end()))
        .ok()
        .and_then(|all| all.intersect(&limits))
        .map_or(range, |all| all.hull(&range))
}

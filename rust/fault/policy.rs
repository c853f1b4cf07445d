// SPDX-License-Identifier: GPL-2.0

//! Device faults that may migrate memory, as attributes or the policy decide.
//!
//! The decision is made without locks, from state that may be stale, so that it only affects
//! performance. In the end [`Mirror::fault`] maps the pages at the location that they have by then.
//!
//! A policy can delay a fault on memory that thrashes. The task then sleeps killably and without a
//! reference to the mm, at most [`POLICY_MAX_DELAYS`] times in a row.

use super::{
    place::FaultAction,
    TilePages, //
};
use crate::{
    debug::events::{
        Event,
        MigrateReason, //
    },
    kernel::reentry,
    memory::Memory,
    mirror::{
        Device,
        Mirror,
        Outcome,
        PageOutcome, //
    },
    mm::{
        addr::PageRange,
        range_fault::{
            Access,
            AddressSpace, //
        },
        vma::msleep_killable, //
    },
    policy::{
        Decision,
        Policy, //
    }, //
};
use kernel::prelude::*;

/// Result of a fault.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::mirror::Device;
/// use rust_hmm::mirror::Mirror;
/// use rust_hmm::mm::addr::PageRange;
/// use rust_hmm::mm::range_fault::Access;
/// use rust_hmm::policy::Density;
///
/// /// Handles a write fault. The policy and the attributes decide what migrates. Returns whether
/// /// all pages did.
/// fn write_fault<D: Device>(
///     mirror: &Mirror<D>,
///     range: PageRange,
///     policy: &Density,
/// ) -> Result<bool> {
///     let outcome = mirror.fault_with_policy(range, Access::Write, policy)?;
///     Ok(outcome.moved == range.pages())
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultOutcome {
    /// Pages that moved to the device.
    pub moved: usize,
    /// Whether the memory was deliberately left in place.
    pub in_place: bool,
}

/// Number of pages up to which no allocation is needed for their outcomes.
const INLINE_OUTCOMES: usize = 32;

/// Maximum number of consecutive delays that a policy can request. After that, the memory is mapped
/// in place.
const POLICY_MAX_DELAYS: usize = 4;

/// Interval in ms at which a delayed fault checks whether the process has exited.
const DELAY_SLICE_MS: u64 = 10;

/// Location of a page after a migration for a fault.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PageArrival {
    /// In the mirror's own memory.
    OwnMemory,
    /// In its own memory, if the device has an entry for it.
    OwnMemoryIfMapped,
    /// Elsewhere.
    Elsewhere,
}

/// Result of a part of a fault.
enum PolicyResult {
    Served(FaultOutcome),
    /// The policy requires to retry after this time in ms.
    Later(u64),
    /// The page was cached as immovable, but the fault itself has moved it: to system memory, from
    /// where it can move to the device. Decide again without the cache.
    Again,
}

impl<D: Device> Mirror<D> {
    /// Handles a device fault as the attributes and `policy` decide: migrates memory to the device,
    /// or not, and makes `range` accessible like [`Self::fault`]. `range` must lie within a block,
    /// the memory that one PMD maps. Migration is best effort: pages that do not move are mapped in
    /// place.
    ///
    /// Concurrent events may have removed entries again when this returns, which is likelier the
    /// longer it takes. A caller that finds no entry for the first page should retry with a smaller
    /// range.
    ///
    /// # Errors
    ///
    /// - Those of [`Self::fault`].
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    pub fn fault_with_policy(
        &self,
        range: PageRange,
        access: Access,
        policy: &dyn Policy,
    ) -> Result<FaultOutcome> {
        reentry::may_wait()?;
        let has_memory = self.device().memory().is_some();
        self.inner().set_places(has_memory && !policy.is_idle());
        let mut served = FaultOutcome::default();
        let mut rest = Some(range);
        let mut delays = 0;
        let mut cached = true;
        while let Some(range) = rest {
            let space = self.space()?;
            let part = self.uniform_prefix(&space, range);
            let may_wait = delays < POLICY_MAX_DELAYS;
            let done = match self.serve_part(&space, part, access, policy, may_wait, cached)? {
                PolicyResult::Served(done) => done,
                PolicyResult::Later(ms) => {
                    delays += 1;
                    // Drop the reference to the mm, so that the wait does not delay exit_mmap().
                    drop(space);
                    self.delay(ms)?;
                    continue;
                }
                PolicyResult::Again => {
                    cached = false;
                    continue;
                }
            };
            delays = 0;
            cached = true;
            served.moved += done.moved;
            served.in_place |= done.in_place;
            rest = range.from_address(part.end());
        }
        Ok(served)
    }

    /// Sleeps for `ms` ms.
    ///
    /// # Errors
    ///
    /// - `EINTR` if a fatal signal is pending.
    /// - `EFAULT` if the process has exited.
    /// - `ENODEV` if the device was unplugged.
    fn delay(&self, ms: u64) -> Result {
        let mut left = ms;
        while left != 0 {
            let slice = left.min(DELAY_SLICE_MS);
            msleep_killable(slice)?;
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

    /// Returns the first part of `range` that has the same attributes.
    fn uniform_prefix(&self, space: &AddressSpace, range: PageRange) -> PageRange {
        if !self.has_attributes() {
            return range;
        }
        let limits = self.attributes_at(space, range.start());
        limits
            .ok()
            .and_then(|found| range.intersect(&found.limits))
            .unwrap_or(range)
    }

    /// Handles a fault on `range`, whose pages have the same attributes. `may_wait` is whether the
    /// policy may delay it. `cached` is whether the cache of immovable memory is used; without it,
    /// [`PolicyResult::Again`] is not returned.
    fn serve_part(
        &self,
        space: &AddressSpace,
        range: PageRange,
        access: Access,
        policy: &dyn Policy,
        may_wait: bool,
        cached: bool,
    ) -> Result<PolicyResult> {
        let mut served = FaultOutcome::default();
        let mut again = None;
        let mut kept = false;
        let mut tiles = TilePages::Pull;
        let plan = match self.device().memory() {
            Some(_) => self.place(space, range, access, policy, cached),
            None => Ok(FaultAction::Policy(Decision::InPlace(range))),
        };
        let around = match plan {
            Ok(FaultAction::Policy(Decision::Move { range: all, evict })) => {
                return self
                    .serve_moved(range, access, policy, (all, evict))
                    .map(PolicyResult::Served);
            }
            Ok(FaultAction::Migrate(all)) => {
                let outcome = self.attract(all, true, &mut [])?;
                served.moved = outcome.moved;
                if outcome.no_memory + outcome.copy_failed == 0 {
                    again = Some(all);
                }
                None
            }
            Ok(FaultAction::Policy(Decision::Later(ms))) if may_wait => {
                self.inner().emit(&Event::Thrash {
                    range,
                    ms: Some(ms),
                });
                return Ok(PolicyResult::Later(ms));
            }
            Ok(FaultAction::Policy(Decision::Later(_))) => {
                served.in_place = true;
                tiles = TilePages::ToSystem;
                None
            }
            Ok(FaultAction::Policy(Decision::InPlace(all))) => {
                served.in_place = true;
                Some(all)
            }
            Ok(FaultAction::Policy(Decision::Stay(all))) => {
                self.inner().emit(&Event::Thrash {
                    range: all,
                    ms: None,
                });
                served.in_place = true;
                tiles = TilePages::ToSystem;
                Some(all)
            }
            Ok(FaultAction::MapInPlace(all)) => {
                served.in_place = true;
                kept = true;
                Some(all)
            }
            // Nothing is mapped: `fault_from()` returns the proper error.
            Err(error) if error == EFAULT => None,
            Err(error) => return Err(error),
        };
        self.fault_from(range, access, tiles, &mut 0)?;
        // A page in the memory of another device does not migrate directly, and is cached as
        // immovable. But the fault has moved it to system memory, and the notifier event of that
        // has removed it from the cache. Without a new decision, this page and all that moved with
        // it would be mapped in place, so that no further fault migrates them.
        if kept && self.known_immovable(range).is_none() && !self.is_here(range.start()) {
            return Ok(PolicyResult::Again);
        }
        if let Some(all) = again.filter(|_| !self.is_here(range.start())) {
            // The pages were on another device, or shared after a fork, and the fault has moved
            // them to system memory. Migrate them again. End with a fault, because two devices
            // could otherwise take the pages from each other forever.
            served.moved += self.attract(all, true, &mut [])?.moved;
            self.fault(range, access)?;
        }
        if let Some(all) = around.filter(|all| *all != range) {
            self.map_present(space, all)?;
        }
        Ok(PolicyResult::Served(served))
    }

    /// Handles a fault on `range` by migrating `all` to the device. `evict` is whether other memory
    /// may be evicted for it.
    fn serve_moved(
        &self,
        range: PageRange,
        access: Access,
        policy: &dyn Policy,
        (all, evict): (PageRange, bool),
    ) -> Result<FaultOutcome> {
        let mut few = [PageOutcome::None; INLINE_OUTCOMES];
        let mut many = KVVec::new();
        let pages = match few.get_mut(..all.pages()) {
            Some(few) => few,
            None => {
                // Without memory for the outcomes, the pages are not reported to the policy.
                many = KVVec::from_elem(PageOutcome::None, all.pages(), GFP_KERNEL).unwrap_or(many);
                &mut many
            }
        };
        let outcome = self.attract(all, evict, pages)?;
        let mut pulled = 0;
        let result = self.fault_from(range, access, TilePages::Pull, &mut pulled);
        let moved = outcome.moved + pulled;
        if moved != 0 {
            self.report_moved(policy, all, pages);
        }
        result.map(|()| FaultOutcome {
            moved,
            in_place: false,
        })
    }

    /// Migrates pages to the device, best effort, and stores the outcome of each page in `pages`.
    ///
    /// # Errors
    ///
    /// - `EINTR` if a fatal signal is pending. Other errors are left to the fault to report.
    fn attract(&self, range: PageRange, evict: bool, pages: &mut [PageOutcome]) -> Result<Outcome> {
        let migration = self.migrate(range).evict(evict).outcomes(pages);
        match migration.reason(MigrateReason::Fault).to_device() {
            Ok(outcome) => Ok(outcome),
            Err(error) if error == EINTR => Err(error),
            Err(_) => Ok(Outcome::default()),
        }
    }

    /// Reports the pages of `range` that are on the device now to `policy`. Pages that did not
    /// move, such as file-backed ones, are left out. Otherwise their next fault would count as
    /// thrashing.
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
        // The outcome of a page in another tile does not say whether it moved.
        let has_tiles = self.device().memory().is_some_and(Memory::shares_owner);
        let kind = |page: PageOutcome| match page {
            page if page.has_moved() => PageArrival::OwnMemory,
            _ if has_tiles => PageArrival::OwnMemoryIfMapped,
            PageOutcome::None => PageArrival::OwnMemory,
            _ => PageArrival::Elsewhere,
        };
        let mut next = 0;
        for run in pages.chunk_by(|page, other| kind(*page) == kind(*other)) {
            let first = next;
            next += run.len();
            match run
                .first()
                .map_or(PageArrival::Elsewhere, |page| kind(*page))
            {
                PageArrival::OwnMemory => report(first, run.len()),
                PageArrival::OwnMemoryIfMapped => {
                    if let Ok(run) = PageRange::from_pages(range.address(first), run.len()) {
                        let report = |index, count| report(first + index, count);
                        self.inner().each_resident(run, report);
                    }
                }
                PageArrival::Elsewhere => {}
            }
        }
    }

    /// Returns whether the page at `addr` is in the device's memory.
    fn is_here(&self, addr: usize) -> bool {
        self.inner().lock().table.get(addr).is_device()
    }
}

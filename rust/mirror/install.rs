// SPDX-License-Identifier: GPL-2.0

//! Installation of entries: collect, validate, commit.
//!
//! `hmm_range_fault()` collects the pages under the mmap lock, which is released before the table
//! lock is taken. If the notifier sequence has not changed until then, no invalidation of the range
//! has begun, and one that begins now waits for the table lock. So the entries can be installed.
//! Otherwise the caller retries, for a limited time.
//!
//! A page that an in-flight migration has marked gets no new entry. A fault that needs it waits for
//! the end of the migration, killably and without a lock.
//!
//! Table pages and DMA windows are allocated, and the connections of tiles looked up, before the
//! table lock is taken, because nothing is allocated with reclaim under it.

use super::{
    retry::RetryBudget,
    tiles::Unreached,
    Device,
    Mirror,
    MirrorShared,
    MirrorState, //
};
use crate::{
    debug::{
        events::{
            self,
            Event, //
        },
        stats::Counter,
        timing::{
            Phase,
            Stopwatch, //
        }, //
    },
    kernel::identity::PgmapOwner,
    memory::Memory,
    mm::{
        addr::{
            PageRange,
            PMD_ORDER,
            PMD_PAGES, //
        },
        range_fault::{
            Access,
            AddressSpace,
            HmmPfn,
            PfnBuffer, //
        },
        vma::fatal_signal_pending, //
    },
    pgtable::{
        has_leaves,
        reaches,
        DevicePte,
        Flushing,
        Prealloc,
        Table, //
    },
    policy,
    space::{
        Space,
        WindowUser, //
    }, //
};
use kernel::{
    prelude::*,
    sync::CondVarTimeoutResult,
    time::{
        delay::fsleep,
        Delta,
        Jiffies, //
    }, //
};

/// Maximum number of times that a fault waits for migrations of its range.
const FAULT_MAX_WAITS: usize = 1000;

/// Time between two checks where waiting is not possible.
const FAULT_POLL_INTERVAL: Delta = Delta::from_millis(1);

/// Time after which a wait for a migration is interrupted for a check, in jiffies.
const FAULT_RECHECK_JIFFIES: Jiffies = 10;

/// Result of one attempt.
enum FaultTry {
    Done,
    /// The range was invalidated after the collection, or a page must become writable first.
    Retry,
    /// An in-flight migration has marked a page of the range.
    Held,
    /// Pages are in memory that the device cannot reach.
    Unreached(Unreached),
}

/// Pages that a fault installs, and CPU faults that it may take for them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultRequest {
    /// All pages. Missing pages are faulted in.
    FaultIn(Access),
    /// As [`Self::FaultIn`], and pages in device-private memory are migrated to system memory.
    FaultInSystem(Access),
    /// Present pages only.
    Present(InstallFilter),
}

/// Selection of present pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum InstallFilter {
    /// All pages.
    All,
    /// Pages in this device's memory.
    Own,
}

/// Calls `f` without inlining it, so that rare cases in a loop over pages use no registers there.
#[inline(never)]
fn out_of_line<R>(f: impl FnOnce() -> R) -> R {
    f()
}

impl FaultRequest {
    fn access(self) -> Access {
        match self {
            Self::FaultIn(access) | Self::FaultInSystem(access) => access,
            Self::Present(_) => Access::Snapshot,
        }
    }
}

impl<D: Device> Mirror<D> {
    /// Checks that the device page table supports the addresses of `piece`, which lies within one
    /// block. Addresses that are not mapped are no error here, because callers return a different
    /// error for them.
    ///
    /// # Errors
    ///
    /// - `ERANGE` if the table does not support them, and memory is mapped there.
    /// - `EINTR` if a fatal signal is pending.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    #[inline]
    pub(crate) fn check_reach(&self, space: &AddressSpace, piece: PageRange) -> Result {
        if reaches::<D::Format>(piece) {
            return Ok(());
        }
        let mmap = space.mmap_lock_here()?;
        match mmap.vma_lookup(piece.start()) {
            Some(_) => Err(ERANGE),
            None => Ok(()),
        }
    }
}

// These are methods of `MirrorShared`, because an eviction has no [`Mirror`].
impl<D: Device> MirrorShared<D> {
    /// Installs the entries that `what` selects for `piece`, which lies within one block. Retries
    /// while the range is invalidated, and waits for in-flight migrations. Returns pages that the
    /// device cannot reach, if there are any.
    pub(crate) fn fault_piece(
        &self,
        space: &AddressSpace,
        piece: PageRange,
        what: FaultRequest,
        buffer: &mut PfnBuffer,
        prealloc: &mut Prealloc<D::Format>,
    ) -> Result<Option<Unreached>> {
        let mut budget = RetryBudget::new();
        let mut waits = 0;
        let mut retrying = None;
        let window = Space::window(&self.space, space, piece.start())?;
        loop {
            prealloc.refill()?;
            self.prepare(piece)?;
            let why = match self.try_piece(space, &window, piece, what, buffer, prealloc) {
                Ok(FaultTry::Done) => return Ok(None),
                Ok(FaultTry::Unreached(pages)) => return Ok(Some(pages)),
                Ok(FaultTry::Retry) => {
                    budget.again(EBUSY)?;
                    events::RetryReason::Invalidated
                }
                Ok(FaultTry::Held) => {
                    waits += 1;
                    if waits > FAULT_MAX_WAITS {
                        return Err(EBUSY);
                    }
                    self.wait_for_migrations(piece)?;
                    budget = RetryBudget::new();
                    events::RetryReason::Migration
                }
                Err(error) => {
                    budget.again(error)?;
                    events::RetryReason::Busy
                }
            };
            self.emit(&Event::Retry { range: piece, why });
            retrying.get_or_insert_with(|| self.space.retry());
            self.stats.add(Counter::Retries, 1);
        }
    }

    /// Waits until a migration of `piece` ends, or for at most [`FAULT_RECHECK_JIFFIES`].
    fn wait_for_migrations(&self, piece: PageRange) -> Result {
        let mut stopwatch = Stopwatch::start();
        let begun = stopwatch;
        let mut guard = self.lock();
        let signal = guard.in_flight.overlap(piece)
            && matches!(
                self.ended
                    .wait_interruptible_timeout(&mut guard, FAULT_RECHECK_JIFFIES),
                CondVarTimeoutResult::Signal { .. }
            );
        drop(guard);
        if signal {
            // A pending signal that is not fatal makes each interruptible wait return at once.
            fsleep(FAULT_POLL_INTERVAL);
        }
        stopwatch.end(Phase::Wait);
        self.stats.add(Counter::FaultNs, stopwatch.since(begun));
        if fatal_signal_pending() {
            return Err(EINTR);
        }
        Ok(())
    }

    /// Returns the block around `range`, if one PMD maps all of it. `pfn` is the first page of
    /// `range`. The device then gets one huge leaf, also if its leaf was split before.
    ///
    /// In a table of DMA addresses, a page that is mapped for the device keeps its address, because
    /// each page has its place in the window of the block (`mm/dma/iova.rs`). Only missing pages
    /// are mapped.
    fn whole_block(range: PageRange, pfn: HmmPfn, access: Access) -> Option<PageRange> {
        let may_access = pfn.is_valid() && (access != Access::Write || pfn.is_writable());
        if !const { has_leaves::<D::Format>(1) } || !may_access || pfn.map_order() != PMD_ORDER {
            return None;
        }
        let block = policy::block(range.start()).filter(|block| *block != range)?;
        // Virtual and physical address of a huge page have the same offset in their block. Hugetlb
        // pages of 1 GiB have a different order.
        (pfn.pfn() % PMD_PAGES == block.index_of(range.start())?).then_some(block)
    }

    /// Returns whether the device may access all pages of `range` as requested.
    fn allows(table: &Table<D::Format>, range: PageRange, access: Access) -> bool {
        table.present(range) == range.pages()
            && !(access == Access::Write && table.any(range, |entry| !entry.may_be_dirty()))
    }

    /// Attempts once to install the entries of `piece`: collects the pages from the CPU page table,
    /// takes the table lock, validates the notifier sequence, and commits the entries.
    fn try_piece(
        &self,
        space: &AddressSpace,
        window: &WindowUser,
        piece: PageRange,
        what: FaultRequest,
        buffer: &mut PfnBuffer,
        prealloc: &mut Prealloc<D::Format>,
    ) -> Result<FaultTry> {
        let memory = self.device.memory();
        let owner = match what {
            FaultRequest::FaultInSystem(_) => PgmapOwner::NONE,
            _ => memory.map_or(PgmapOwner::NONE, |memory| memory.owner()),
        };
        let access = what.access();
        let reach = self.reach();
        let mut stopwatch = Stopwatch::start();
        let begun = stopwatch;
        let collected = space.collect(window, piece, access, owner, buffer)?;
        stopwatch.end(Phase::Collect);
        let Ok(mut valid) = collected.lock(self) else {
            return Ok(FaultTry::Retry);
        };
        // Recheck under the table lock: `is_gone()` returns true before unplug removes the entries,
        // so that no entry is installed after that.
        if memory.is_some_and(Memory::is_gone) {
            return Err(ENODEV);
        }
        let has_tiles = memory.is_some_and(Memory::shares_owner);
        let first = memory.map_or(0, Memory::first_number);
        let page = valid.first().unwrap_or_default();
        let (state, range, mut entry_at) = valid.parts();
        let MirrorState {
            table, in_flight, ..
        } = state;
        let requested = range;
        let whole =
            Self::whole_block(range, page, access).filter(|block| !in_flight.overlap(*block));
        let range = whole.unwrap_or(range);
        let migrating = in_flight.overlap(range);

        // A read-only page in this device's memory, shared after fork(). hmm_range_fault() does not
        // fault it in for writing.
        let mut read_only = None;
        let mut held = false;
        let mut unreached = None;
        let mut installed = 0u64;
        let is_write = access == Access::Write;
        // One condition for each page of a read.
        let is_checked = is_write || migrating;
        // Most pages of system memory need no lookup of other tiles.
        let own_only = what == FaultRequest::Present(InstallFilter::Own);
        let is_plain = !own_only && !has_tiles;
        let mut unwritten = None;
        let (result, flush) = self.change(table, None, |table, batch| {
            let result = table.install(range, prealloc, batch, |addr, entry| {
                let pfn = entry_at(addr);
                if !pfn.is_valid() {
                    return;
                }
                if is_checked {
                    if is_write && !pfn.is_writable() {
                        read_only = read_only.or(Some(addr));
                        return;
                    }
                    if migrating && out_of_line(|| in_flight.holds(addr)) {
                        held |= is_write || !entry.is_valid();
                        return;
                    }
                }
                let local = memory.and_then(|memory| memory.lookup(pfn.pfn()));
                let new = match local {
                    None if is_plain => DevicePte::system(pfn.pfn(), pfn.is_writable()),
                    Some(local) => DevicePte::device(first + local, pfn.is_writable()),
                    None if own_only => return,
                    None => {
                        match out_of_line(|| self.elsewhere(addr, pfn, reach, &mut unreached)) {
                            Some(new) => new,
                            None => return,
                        }
                    }
                };
                if *entry != new {
                    *entry = new;
                    // OVERFLOW: The range has at most `PMD_PAGES`.
                    installed = installed.wrapping_add(1);
                    if let (Some(memory), Some(local)) = (memory, local) {
                        out_of_line(|| memory.touch_page(local));
                    }
                }
            });
            unwritten = table.unwritten(range, batch);
            // A failure of the other pages of a block is none of this fault: their DMA mappings of
            // before may not be removed yet, or they have no address.
            match whole {
                Some(_) if result.is_err() && Self::allows(table, requested, access) => Ok(()),
                _ => result,
            }
        });
        drop(entry_at);
        drop(valid);
        stopwatch.end(Phase::Switch);
        if flush.is_some() {
            Flushing::end(flush, self);
            stopwatch.end(Phase::Flush);
        }
        self.write_sizes(unwritten);
        self.stats.add(Counter::FaultNs, stopwatch.since(begun));
        result?;

        self.stats.add(Counter::MappedPages, installed);
        if let (Some(unreached), FaultRequest::FaultIn(_)) = (unreached, what) {
            return Ok(FaultTry::Unreached(unreached));
        }
        if let Some(addr) = read_only {
            space.make_writable(piece.from_address(addr).unwrap_or(piece))?;
            return Ok(FaultTry::Retry);
        }
        Ok(if held && access != Access::Snapshot {
            FaultTry::Held
        } else {
            FaultTry::Done
        })
    }
}

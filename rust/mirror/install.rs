// SPDX-License-Identifier: GPL-2.0

//! Device faults: collect, validate, commit.
//!
//! `hmm_range_fault()` collects the pages under the mmap lock, which is released before the table
//! lock is taken. If the notifier sequence has not changed until then, no invalidation of the range
//! has begun, and one that begins now waits for the table lock. So the entries can be installed.
//! Otherwise the fault retries, for a limited time.
//!
//! A page that an in-flight migration has marked gets no new entry. A fault that needs it waits for
//! the end of the migration, killably and without a lock.
//!
//! Table pages and DMA windows are allocated, and the connections of tiles looked up, before the
//! table lock is taken, because nothing is allocated with reclaim under it.

use super::{
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
    kernel::{
        identity::PgmapOwner,
        reentry, //
    },
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
    page::PAGE_SHIFT,
    prelude::*,
    sync::CondVarTimeoutResult,
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Jiffies,
        Monotonic, //
    }, //
};

/// Time for which a fault that collides with invalidations is retried. The value is that of
/// `HMM_RANGE_DEFAULT_TIMEOUT`.
const FAULT_TIMEOUT: Delta = Delta::from_millis(1000);

/// Minimum number of attempts of a fault, regardless of [`FAULT_TIMEOUT`].
const FAULT_MIN_ATTEMPTS: usize = 100;

/// Maximum number of times that a fault waits for migrations of its range.
const FAULT_MAX_WAITS: usize = 1000;

/// Maximum number of pulls from other tiles for one fault on a block. A block has at most half as
/// many runs of pages.
const FAULT_MAX_PULLS: usize = 2 * PMD_PAGES;

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

/// Limit for the retries of a fault: [`FAULT_TIMEOUT`] has elapsed and more than
/// [`FAULT_MIN_ATTEMPTS`] attempts failed. The second condition is for a loaded machine, on which
/// one attempt takes long.
pub(super) struct RetryBudget {
    since: Instant<Monotonic>,
    tries: usize,
}

impl RetryBudget {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            tries: 0,
        }
    }

    /// Decides on a retry after `error`. Returns `Ok` if the caller must retry.
    ///
    /// # Errors
    ///
    /// - `error` if it is not `EBUSY`.
    /// - `EINTR` if a fatal signal is pending.
    /// - `EBUSY` if the limit was reached.
    pub(super) fn again(&mut self, error: Error) -> Result {
        if error != EBUSY {
            return Err(error);
        }
        if fatal_signal_pending() {
            return Err(EINTR);
        }
        self.tries += 1;
        if self.since.elapsed() > FAULT_TIMEOUT && self.tries > FAULT_MIN_ATTEMPTS {
            return Err(EBUSY);
        }
        Ok(())
    }
}

/// Selection of present pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum InstallFilter {
    /// All pages.
    All,
    /// Pages in this device's memory.
    Own,
}

/// Handling of pages of another tile that the device cannot reach but can pull.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TilePages {
    /// The fault pulls them to the mirror's own memory.
    Pull,
    /// The fault migrates them to system memory, which both tiles can reach. Used for pages that
    /// bounce between tiles.
    ToSystem,
}

/// Pages that a fault installs, and CPU faults that it may take for them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultRequest {
    /// All pages. Missing pages are faulted in.
    FaultIn(Access),
    /// As [`Self::FaultIn`], and pages in device-private memory are migrated to system memory.
    FaultInSystem(Access),
    /// Present pages only.
    Present(InstallFilter),
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
    /// Makes `range` accessible to the device, and faults in missing pages as a CPU access would.
    ///
    /// Each page is mapped with the access rights of its CPU PTE. A read fault does not break COW.
    ///
    /// # Errors
    ///
    /// Entries that were installed before the error stay.
    ///
    /// - `EFAULT` if memory is not mapped, not readable, or special (`VM_IO`, `VM_PFNMAP`), if the
    ///   device lost its contents, or if the address space was torn down.
    /// - `ERANGE` if memory is mapped beyond the addresses that the device page table supports.
    ///   Nothing is faulted in there.
    /// - `EPERM` if memory is not writable and `access` is a write.
    /// - `EBUSY` if the range was invalidated repeatedly, for a second and 100 attempts.
    /// - `EINTR` if a fatal signal is pending.
    /// - `ENOMEM`
    /// - `ENODEV` if the device memory was unplugged, or the DMA device was closed.
    /// - `EDEADLK` within a callback.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kernel::prelude::*;
    /// use rust_hmm::mirror::Device;
    /// use rust_hmm::mirror::Mirror;
    /// use rust_hmm::mm::addr::PageRange;
    /// use rust_hmm::mm::range_fault::Access;
    ///
    /// /// Handles a fault, and reports to the device whether it may replay the access.
    /// fn replay<D: Device>(mirror: &Mirror<D>, range: PageRange) -> Result<bool> {
    ///     match mirror.fault(range, Access::Read) {
    ///         Ok(()) => Ok(true),
    ///         // The range changes too often: the access faults again.
    ///         Err(error) if error == EBUSY => Ok(true),
    ///         Err(error) if error == EFAULT => Ok(false),
    ///         Err(error) => Err(error),
    ///     }
    /// }
    /// ```
    pub fn fault(&self, range: PageRange, access: Access) -> Result {
        self.fault_from(range, access, TilePages::Pull, &mut 0)
    }

    /// As [`Self::fault`]. Adds the number of pages that were pulled from other tiles to `pulled`,
    /// also if an error is returned.
    pub(crate) fn fault_from(
        &self,
        range: PageRange,
        access: Access,
        tiles: TilePages,
        pulled: &mut usize,
    ) -> Result {
        let write = access == Access::Write;
        let inner = self.inner();
        inner.emit(&Event::FaultBegin { range, write });
        let result = self.fault_all(range, access, tiles, pulled);
        self.stats().add(Counter::Faults, 1);
        inner.emit(&Event::FaultEnd {
            range,
            write,
            result,
        });
        result
    }

    fn fault_all(
        &self,
        range: PageRange,
        access: Access,
        tiles: TilePages,
        pulled: &mut usize,
    ) -> Result {
        reentry::may_wait()?;
        let mut buffer = PfnBuffer::new()?;
        let mut prealloc = self.prealloc();
        let space = self.space()?;
        let _charge = space.charge();
        for piece in range.pmd_pieces() {
            self.check_reach(&space, piece)?;
            let buffers = (&mut buffer, &mut prealloc);
            self.fault_block(&space, piece, access, (tiles, &mut *pulled), buffers)?;
        }
        Ok(())
    }

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

    fn fault_block(
        &self,
        space: &AddressSpace,
        piece: PageRange,
        access: Access,
        (tiles, pulled): (TilePages, &mut usize),
        (buffer, prealloc): (&mut PfnBuffer, &mut Prealloc<D::Format>),
    ) -> Result {
        let inner = self.inner();
        for _ in 0..FAULT_MAX_PULLS {
            let asked = FaultRequest::FaultIn(access);
            let Some(unreached) = inner.fault_piece(space, piece, asked, buffer, prealloc)? else {
                return Ok(());
            };
            let tile = unreached.tile().filter(|_| tiles == TilePages::Pull);
            let moved = tile.map_or(Ok(0), |tile| self.pull_from(unreached.range(), tile))?;
            *pulled += moved;
            if moved == 0 {
                let brought = FaultRequest::FaultInSystem(access);
                inner
                    .fault_piece(space, unreached.range(), brought, buffer, prealloc)
                    .map(drop)?;
            }
        }
        Err(EBUSY)
    }
}

// These are methods of `MirrorShared`, because an eviction has no [`Mirror`].
impl<D: Device> MirrorShared<D> {
    /// Installs entries for the present pages of `piece` that `which` selects. Does not fault in
    /// any page.
    ///
    /// # Errors
    ///
    /// As for [`Mirror::fault`].
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    // Not inlined, so that its variables do not enlarge the stack frames of the callers.
    #[inline(never)]
    pub(crate) fn install_present(
        &self,
        space: &AddressSpace,
        piece: PageRange,
        which: InstallFilter,
        prealloc: &mut Prealloc<D::Format>,
    ) -> Result {
        let mut buffer = PfnBuffer::new()?;
        self.fault_piece(
            space,
            piece,
            FaultRequest::Present(which),
            &mut buffer,
            prealloc,
        )
        .map(drop)
    }

    /// As [`Self::install_present`], for pages that were migrated and whose entries were not
    /// replaced. Failures are ignored, because the device can fault the pages later.
    ///
    /// # Errors
    ///
    /// - `EINTR` if a fatal signal is pending.
    pub(crate) fn try_install_present(
        &self,
        space: &AddressSpace,
        piece: PageRange,
        which: InstallFilter,
        prealloc: &mut Prealloc<D::Format>,
    ) -> Result {
        match self.install_present(space, piece, which, prealloc) {
            Err(error) if error == EINTR => Err(error),
            _ => Ok(()),
        }
    }

    /// Installs the entries that `what` selects for `piece`, which lies within one block. Retries
    /// while the range is invalidated, and waits for in-flight migrations. Returns pages that the
    /// device cannot reach, if there are any.
    pub(super) fn fault_piece(
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
        let signal = guard.transactions.overlap(piece)
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
        let (state, range, mut pfns) = valid.parts();
        let MirrorState {
            table,
            transactions,
            ..
        } = state;
        let requested = range;
        let whole =
            Self::whole_block(range, page, access).filter(|block| !transactions.overlap(*block));
        let range = whole.unwrap_or(range);
        let migrating = transactions.overlap(range);

        // A read-only page in this device's memory, shared after fork(). hmm_range_fault() does not
        // fault it in for writing.
        let mut read_only = None;
        let mut held = false;
        let mut unreached = None;
        let mut installed = 0u64;
        let is_write = access == Access::Write;
        // Most pages of system memory need no lookup of other tiles.
        let own_only = what == FaultRequest::Present(InstallFilter::Own);
        let is_plain = !own_only && !has_tiles;
        let mut unwritten = None;
        let (result, flush) = self.change(table, None, |table, batch| {
            let result = table.install(range, prealloc, batch, |addr, entry| {
                let pfn = match whole {
                    Some(_) => page.of_page(addr >> PAGE_SHIFT),
                    None => pfns.next().unwrap_or_default(),
                };
                if !pfn.is_valid() {
                    return;
                }
                if is_write && !pfn.is_writable() {
                    read_only = read_only.or(Some(addr));
                    return;
                }
                if migrating && out_of_line(|| transactions.holds(addr)) {
                    held |= is_write || !entry.is_valid();
                    return;
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
        drop(pfns);
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

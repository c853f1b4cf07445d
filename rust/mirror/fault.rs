// SPDX-License-Identifier: GPL-2.0

//! Device faults: collect, validate, commit.

use super::{
    tiles::Unreached,
    Device,
    Inner,
    Mirror,
    State, //
};
use crate::{
    events::{self, Event},
    memory::Memory,
    mm::{
        addr::{PageRange, PMD_ORDER, PMD_PAGES},
        notifier::Cookie,
        range_fault::{Access, AddressSpace, HmmPfn, PfnBuffer},
        space::fatal_signal_pending,
    },
    pgtable::{has_leaves, reaches, Entry, Flushing, Format, Spares},
    phases::{Lap, Phase},
    policy,
    space::{Space, WindowUser},
    stats::Counter,
    within,
};
use kernel::{
    page::PAGE_SHIFT,
    prelude::*,
    sync::CondVarTimeoutResult,
    time::{delay::fsleep, Delta, Instant, Jiffies, Monotonic}, //
};

/// How long a fault that keeps colliding with invalidations is tried again, as in the kernel's
/// `HMM_RANGE_DEFAULT_TIMEOUT`.
const TIMEOUT: Delta = Delta::from_millis(1000);

/// Tries that a fault has in any case.
const LEAST: usize = 100;

/// Migrations of the range that a fault waits for before it gives up.
const WAITS: usize = 1000;

/// Moves of pages from other tiles for one fault of 2 MiB: more than there can be runs of pages.
const MOVES: usize = 2 * PMD_PAGES;

/// Time between two looks where waiting is not possible.
const PAUSE: Delta = Delta::from_millis(1);

/// Time after which a wait for a migration looks again, in jiffies.
const LOOK_AGAIN: Jiffies = 10;

/// What became of one try.
enum Tried {
    Done,
    /// Something changed meanwhile.
    Again,
    /// A migration is about to switch one of the entries.
    Held,
    /// Pages are in memory that the device does not reach.
    Unreached(Unreached),
}

/// How long a fault goes on trying: for [`TIMEOUT`], and where one try takes long, because the machine
/// has much else to do, for [`LEAST`] tries.
pub(super) struct Patience {
    since: Instant<Monotonic>,
    tries: usize,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            tries: 0,
        }
    }

    /// Whether another try makes sense after `error`.
    pub(super) fn again(&mut self, error: Error) -> Result {
        if error != EBUSY {
            return Err(error);
        }
        if fatal_signal_pending() {
            return Err(EINTR);
        }
        self.tries += 1;
        if self.since.elapsed() > TIMEOUT && self.tries > LEAST {
            return Err(EBUSY);
        }
        Ok(())
    }
}

/// Which of the pages that are there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Present {
    /// All.
    All,
    /// Those in this device's memory.
    Own,
}

/// What a fault does about pages of another tile that the device does not reach and can pull.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tiles {
    /// It moves them to the memory at home.
    Pull,
    /// They bounce: it brings them to system memory, where both tiles reach them.
    ToSystem,
}

/// What is to be installed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// All pages, brought in as needed.
    Asked(Access),
    /// The same, and pages of device-private memory are brought to system memory.
    Brought(Access),
    /// What is there.
    There(Present),
}

/// Calls `f`, which is not inlined: what is rare in a loop for each page needs no registers there.
#[inline(never)]
fn out_of_line<R>(f: impl FnOnce() -> R) -> R {
    f()
}

impl What {
    fn access(self) -> Access {
        match self {
            Self::Asked(access) | Self::Brought(access) => access,
            Self::There(_) => Access::Snapshot,
        }
    }
}

impl<D: Device> Mirror<D> {
    /// Makes `range` accessible to the device, bringing in pages as a CPU access would.
    ///
    /// Each page is mapped with the rights that it has; reading breaks no sharing.
    ///
    /// # Errors
    ///
    /// `EFAULT`: not mapped, not readable, special (`VM_IO`, `VM_PFNMAP`), lost by the device, or
    /// the process is gone.
    /// `ERANGE`: mapped beyond the addresses that the device's page table has; nothing was faulted in
    /// there.
    /// `EPERM`: not writable. `EBUSY`: it kept changing, for a second and 100 tries. `EINTR`: killed. `ENOMEM`.
    /// `EDEADLK`: within a callback. What was installed before stays. Context: may sleep; no lock may be held.
    pub fn fault(&self, range: PageRange, access: Access) -> Result {
        self.fault_from(range, access, Tiles::Pull, &mut 0)
    }

    /// As [`Self::fault`]. Adds to `pulled` the pages that came from other tiles, also before an
    /// error.
    pub(super) fn fault_from(
        &self,
        range: PageRange,
        access: Access,
        tiles: Tiles,
        pulled: &mut usize,
    ) -> Result {
        let write = access == Access::Write;
        let inner = self.inner();
        inner.tell(&Event::FaultBegin { range, write });
        let result = self.fault_all(range, access, tiles, pulled);
        self.stats().add(Counter::Faults, 1);
        inner.tell(&Event::FaultEnd {
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
        tiles: Tiles,
        pulled: &mut usize,
    ) -> Result {
        within::may_wait()?;
        let mut buffer = PfnBuffer::new()?;
        let mut spares = self.spares();
        let space = self.space()?;
        let _charge = space.charge();
        for piece in range.pmd_pieces() {
            self.check_reach(&space, piece)?;
            let buffers = (&mut buffer, &mut spares);
            self.fault_block(&space, piece, access, (tiles, &mut *pulled), buffers)?;
        }
        Ok(())
    }

    /// Whether the device's page table has the addresses of `piece`, which lies within 2 MiB.
    ///
    /// # Errors
    ///
    /// `ERANGE`: it has not, and memory is mapped there. What is not mapped is left to the caller,
    /// who has an error of its own for that. `EINTR`: killed. Context: may sleep; no lock may be
    /// held.
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
        (tiles, pulled): (Tiles, &mut usize),
        (buffer, spares): (&mut PfnBuffer, &mut Spares<D::Format>),
    ) -> Result {
        let inner = self.inner();
        for _ in 0..MOVES {
            let asked = What::Asked(access);
            let Some(unreached) = inner.fault_piece(space, piece, asked, buffer, spares)? else {
                return Ok(());
            };
            let tile = unreached.tile().filter(|_| tiles == Tiles::Pull);
            let moved = tile.map_or(Ok(0), |tile| self.pull_from(unreached.range(), tile))?;
            *pulled += moved;
            if moved == 0 {
                let brought = What::Brought(access);
                inner
                    .fault_piece(space, unreached.range(), brought, buffer, spares)
                    .map(drop)?;
            }
        }
        Err(EBUSY)
    }
}

// Without a [`Mirror`], which an eviction does not have.
impl<D: Device> Inner<D> {
    /// Installs what is there of `piece`, without faulting anything in.
    // Rare, and its variables need not be on the stacks of those who call it.
    #[inline(never)]
    pub(crate) fn install_present(
        &self,
        space: &AddressSpace,
        piece: PageRange,
        which: Present,
        spares: &mut Spares<D::Format>,
    ) -> Result {
        let mut buffer = PfnBuffer::new()?;
        self.fault_piece(space, piece, What::There(which), &mut buffer, spares)
            .map(drop)
    }

    /// As [`Self::install_present`], best effort: for pages that were migrated but could not be switched. Where it
    /// fails the device will fault, which is no error. `EINTR`: killed.
    pub(crate) fn try_install_present(
        &self,
        space: &AddressSpace,
        piece: PageRange,
        which: Present,
        spares: &mut Spares<D::Format>,
    ) -> Result {
        match self.install_present(space, piece, which, spares) {
            Err(error) if error == EINTR => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) fn fault_piece(
        &self,
        space: &AddressSpace,
        piece: PageRange,
        what: What,
        buffer: &mut PfnBuffer,
        spares: &mut Spares<D::Format>,
    ) -> Result<Option<Unreached>> {
        let mut patience = Patience::new();
        let mut waits = 0;
        let mut retrying = None;
        let window = Space::window(&self.space, space, piece.start())?;
        loop {
            spares.refill()?;
            self.prepare(piece)?;
            let why = match self.try_piece(space, &window, piece, what, buffer, spares) {
                Ok(Tried::Done) => return Ok(None),
                Ok(Tried::Unreached(pages)) => return Ok(Some(pages)),
                Ok(Tried::Again) => {
                    patience.again(EBUSY)?;
                    events::Again::Invalidated
                }
                Ok(Tried::Held) => {
                    waits += 1;
                    if waits > WAITS {
                        return Err(EBUSY);
                    }
                    self.wait_for_migrations(piece)?;
                    patience = Patience::new();
                    events::Again::Migration
                }
                Err(error) => {
                    patience.again(error)?;
                    events::Again::Busy
                }
            };
            self.tell(&Event::Retry { range: piece, why });
            retrying.get_or_insert_with(|| self.space.retry());
            self.stats.add(Counter::Retries, 1);
        }
    }

    /// Waits until a migration of `piece` has ended.
    fn wait_for_migrations(&self, piece: PageRange) -> Result {
        let mut lap = Lap::start();
        let begun = lap;
        let mut guard = self.lock();
        let signal = guard.transactions.overlap(piece)
            && matches!(
                self.ended
                    .wait_interruptible_timeout(&mut guard, LOOK_AGAIN),
                CondVarTimeoutResult::Signal { .. }
            );
        drop(guard);
        if signal {
            // One that does not kill: it would not let us wait.
            fsleep(PAUSE);
        }
        lap.end(Phase::Wait);
        self.stats.add(Counter::FaultNs, lap.since(begun));
        if fatal_signal_pending() {
            return Err(EINTR);
        }
        Ok(())
    }

    /// The block of 2 MiB around `range`, if the CPU maps all of it by one entry, of which `pfn` is the first page of
    /// `range`. Then the device gets one huge leaf, also where a change of some pages has split it.
    ///
    /// Not for DMA addresses: pages of the block that were just removed may still be mapped, and keep a fault waiting that
    /// has not asked for them.
    fn whole_block(range: PageRange, pfn: HmmPfn, access: Access) -> Option<PageRange> {
        let may_access = pfn.is_valid() && (access != Access::Write || pfn.is_writable());
        if D::Format::DMA
            || !const { has_leaves::<D::Format>(1) }
            || !may_access
            || pfn.map_order() != PMD_ORDER
        {
            return None;
        }
        let block = policy::block(range.start()).filter(|block| *block != range)?;
        // What is huge is aligned alike in both. Hugetlb pages of 1 GiB have another order.
        (pfn.pfn() % PMD_PAGES == block.index_of(range.start())?).then_some(block)
    }

    fn try_piece(
        &self,
        space: &AddressSpace,
        window: &WindowUser,
        piece: PageRange,
        what: What,
        buffer: &mut PfnBuffer,
        spares: &mut Spares<D::Format>,
    ) -> Result<Tried> {
        let memory = self.device.memory();
        let owner = match what {
            What::Brought(_) => Cookie::NONE,
            _ => memory.map_or(Cookie::NONE, |memory| memory.owner()),
        };
        let access = what.access();
        let reach = self.reach();
        let mut lap = Lap::start();
        let begun = lap;
        let collected = space.collect(window, piece, access, owner, buffer)?;
        lap.end(Phase::Collect);
        let Ok(mut valid) = collected.lock(self) else {
            return Ok(Tried::Again);
        };
        // Under the lock: who takes all entries away, has set this before.
        if memory.is_some_and(Memory::is_gone) {
            return Err(ENODEV);
        }
        let has_tiles = memory.is_some_and(Memory::shares_owner);
        let first = memory.map_or(0, Memory::first_number);
        let page = valid.first().unwrap_or_default();
        let (state, range, mut pfns) = valid.parts();
        let State {
            table,
            transactions,
            ..
        } = state;
        let whole =
            Self::whole_block(range, page, access).filter(|block| !transactions.overlap(*block));
        let range = whole.unwrap_or(range);
        let migrating = transactions.overlap(range);

        // A page of ours that is read-only, shared after a fork: the range fault does not care.
        let mut read_only = None;
        let mut held = false;
        let mut unreached = None;
        let mut installed = 0u64;
        let is_write = access == Access::Write;
        // Most pages of the system become entries without a look elsewhere.
        let own_only = what == What::There(Present::Own);
        let is_plain = !own_only && !has_tiles;
        let mut unwritten = None;
        let (result, flush) = self.change(table, None, |table, batch| {
            let result = table.install(range, spares, batch, |addr, entry| {
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
                    None if is_plain => Entry::system(pfn.pfn(), pfn.is_writable()),
                    Some(local) => Entry::device(first + local, pfn.is_writable()),
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
                    // OVERFLOW: The range has at most 512 pages.
                    installed = installed.wrapping_add(1);
                    if let (Some(memory), Some(local)) = (memory, local) {
                        out_of_line(|| memory.touch_page(local));
                    }
                }
            });
            unwritten = table.unwritten(range, batch);
            result
        });
        drop(pfns);
        drop(valid);
        lap.end(Phase::Switch);
        if flush.is_some() {
            Flushing::end(flush, self);
            lap.end(Phase::Flush);
        }
        self.write_sizes(unwritten);
        self.stats.add(Counter::FaultNs, lap.since(begun));
        result?;

        self.stats.add(Counter::MappedPages, installed);
        if let (Some(unreached), What::Asked(_)) = (unreached, what) {
            return Ok(Tried::Unreached(unreached));
        }
        if let Some(addr) = read_only {
            space.make_writable(piece.from_address(addr).unwrap_or(piece))?;
            return Ok(Tried::Again);
        }
        Ok(match held && access != Access::Snapshot {
            true => Tried::Held,
            false => Tried::Done,
        })
    }
}

// A piece never has more pages than a buffer has room.
const _: () = assert!(PMD_PAGES == 512);

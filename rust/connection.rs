// SPDX-License-Identifier: GPL-2.0

//! Memory connections: how what is in the memory of one device reaches another one, and migration
//! from device to device along them.
//!
//! The drivers say what their hardware can; of two answers the lesser counts, so that both ends of
//! a connection agree.

use crate::{
    events::{Event, Trigger},
    memory::{Copies, Memory, MemoryOps},
    migrate::Outcome,
    mirror::{Announced, Device, Mirror, Present, Switched, Tries},
    mm::{
        addr::{PageRange, PMD_ORDER, PMD_PAGES},
        migrate::{Batch, Isolated, Pages, Source},
        notifier::Cookie,
        range_fault::AddressSpace,
        space::{MmapGuard, Vma},
    },
    pgtable::Spares,
    space::{Destination, Identity, Joined, Readers, Request},
    stats::Counter,
    within,
};
use kernel::{mm::virt::flags, prelude::*};

/// How memory of one (device, mirror) pair reaches another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Connection {
    /// Not at all: it is copied through system memory.
    None,
    /// The library moves it directly, by a copy of the source's engine.
    Migratable,
    /// It is used in place; nothing is copied.
    Unified,
}

/// What steps use again.
struct Room<'m, D: Device> {
    batch: Batch,
    copies: Copies,
    spares: Spares<D::Format>,
    outcome: &'m mut Outcome,
}

/// How an attempt ended.
enum Attempt {
    Done,
    /// A huge page could not be had. Nothing has moved.
    NoHuge,
}

/// The first pages of `piece`, within its mapping, that are in device memory `tile`, and the end
/// of the walk that has found them, or none. `piece` must lie within 2 MiB.
///
/// # Errors
///
/// `EINVAL`: nothing is mapped there, or it may not be read, or it is special or hugetlb. Context: may
/// sleep.
fn first_of_tile(
    mmap: &MmapGuard<'_>,
    piece: PageRange,
    tile: Cookie,
) -> Result<(usize, Option<PageRange>)> {
    let vma = mmap
        .vma_lookup(piece.start())
        .filter(|vma| vma.flags() & flags::READ != 0)
        .ok_or(EINVAL)?;
    let piece = PageRange::new(piece.start(), piece.end().min(vma.end()))?;
    let mut rest = Some(piece);
    while let Some(left) = rest {
        let (kind, part) = vma.alike(left, tile)?;
        if kind == Pages::Device {
            return Ok((part.end(), Some(part)));
        }
        rest = left.from_address(part.end());
    }
    Ok((piece.end(), None))
}

impl<D: Device> Mirror<D> {
    /// How memory of `other`'s device reaches this one. The same in both directions, and for as
    /// long as both devices are there. Mirrors of different address spaces have no connection.
    pub fn connection(&self, other: &Self) -> Connection {
        if self.space_name() != other.space_name() {
            return Connection::None;
        }
        match (self.device().memory(), other.device().memory()) {
            (Some(mine), Some(theirs)) => mine.connection(theirs),
            _ => Connection::None,
        }
    }

    /// Moves pages of `range` that are in the memory of `source`'s device to this device, along
    /// their [connection](Self::connection): through system memory, directly, or, where they are
    /// used in place, not at all; then this device gets entries for them.
    ///
    /// Directly, both devices go on reading: `source`'s reads the pages until they have moved.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the mirrors are of different address spaces; else as
    /// [`Migrate::to_device`](crate::migrate::Migrate::to_device). Context: as there.
    pub fn pull(&self, range: PageRange, source: &Self) -> Result<Outcome> {
        within::may_wait()?;
        if self.space_name() != source.space_name() {
            return Err(EINVAL);
        }
        match self.connection(source) {
            Connection::None => self.pull_through_system(range, source),
            Connection::Migratable => {
                let (inner, to_device, trigger) = (self.inner(), true, Trigger::Pull);
                inner.tell(&Event::MigrateBegin {
                    range,
                    to_device,
                    trigger,
                });
                let mut outcome = Outcome::default();
                let theirs = source.device().memory().ok_or(ENODEV)?;
                let result = self.pull_directly(range, theirs, true, &mut outcome);
                let stayed = outcome.no_memory + outcome.copy_failed;
                inner.tell(&Event::MigrateEnd {
                    to_device,
                    trigger,
                    moved: outcome.moved,
                    switched: outcome.switched,
                    stayed,
                    result,
                });
                result.map(|()| outcome)
            }
            Connection::Unified => {
                let space = self.space()?;
                let mut spares = self.spares();
                let mut rest = Some(range);
                while let Some(left) = rest {
                    let piece = left.pmd_pieces().next().ok_or(EINVAL)?;
                    // As of all that moves memory: the first hole ends it, however long the range
                    // is.
                    let end = {
                        let mmap = space.mmap_lock_here()?;
                        let vma = mmap.vma_lookup(piece.start());
                        let vma = vma.filter(|vma| vma.flags() & flags::READ != 0);
                        vma.ok_or(EINVAL)?.end().min(piece.end())
                    };
                    let piece = PageRange::new(piece.start(), end)?;
                    self.inner()
                        .install_present(&space, piece, Present::All, &mut spares)?;
                    rest = left.from_address(end);
                }
                Ok(Outcome::default())
            }
        }
    }

    /// As [`Self::pull`], for devices that do not reach each other's memory.
    fn pull_through_system(&self, range: PageRange, source: &Self) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        // A device without memory holds no page.
        let Some(memory) = source.device().memory() else {
            return Ok(outcome);
        };
        let tile = memory.tile();
        let space = self.space()?;
        let mut rest = Some(range);
        while let Some(left) = rest {
            let piece = left.pmd_pieces().next().ok_or(EINVAL)?;
            let (end, run) = first_of_tile(&space.mmap_lock_here()?, piece, tile)?;
            // Pages of system memory are not migrated.
            if let Some(run) = run {
                source.migrate(run).because(Trigger::Pull).to_system()?;
                outcome += self.migrate(run).because(Trigger::Pull).to_device()?;
            }
            rest = left.from_address(end);
        }
        Ok(outcome)
    }

    /// Moves pages of `range` that are in `theirs` to this device's memory, by a copy of the engine
    /// of `theirs`. With `evict` other memory may leave the device to make room.
    pub(crate) fn pull_directly(
        &self,
        range: PageRange,
        theirs: &Memory<D::Memory>,
        evict: bool,
        outcome: &mut Outcome,
    ) -> Result {
        let mine = self.device().memory().ok_or(ENODEV)?;
        let space = self.space()?;
        let mut room = Room {
            batch: Batch::with_room(range.pages().min(PMD_PAGES))?,
            copies: Copies::new(true)?,
            spares: self.spares(),
            outcome,
        };
        // What this brings does not make room for more of it.
        let before = mine.turn();
        let tile = theirs.tile();
        let mut rest = Some(range);
        while let Some(left) = rest {
            let piece = left.pmd_pieces().next().ok_or(EINVAL)?;
            let (end, run) = first_of_tile(&space.mmap_lock_here()?, piece, tile)?;
            let Some(run) = run else {
                rest = left.from_address(end);
                continue;
            };
            // Before any lock. What is missing then shows in the outcome.
            match mine.grow(run.pages()) {
                Err(error) if error != ENOMEM => return Err(error),
                _ => {}
            }
            if evict {
                match mine.make_room(run.pages(), before) {
                    Err(error) if error != ENOMEM => return Err(error),
                    _ => {}
                }
            }
            let (mut end, attempt) = self.pull_run(&space, &mut room, run, theirs, true)?;
            if let Attempt::NoHuge = attempt {
                (end, _) = self.pull_run(&space, &mut room, run, theirs, false)?;
            }
            rest = left.from_address(end);
        }
        self.stats()
            .add(Counter::ToDevice, room.outcome.moved as u64);
        self.stats()
            .add(Counter::Switched, room.outcome.switched as u64);
        Ok(())
    }

    /// One attempt to move the first pages of `run` that are on the source's device still: only these
    /// are announced. Returns their end.
    fn pull_run(
        &self,
        space: &AddressSpace,
        room: &mut Room<'_, D>,
        run: PageRange,
        theirs: &Memory<D::Memory>,
        compound: bool,
    ) -> Result<(usize, Attempt)> {
        room.spares.refill()?;
        let mut tries = Tries::new();
        let mut lost = false;
        let mut window = self.window(space, run.start())?;
        let (part, result) = loop {
            let seq = tries.next(self, &window)?;
            let mmap = space.mmap_lock_here()?;
            let (end, part) = first_of_tile(&mmap, run, theirs.tile())?;
            let Some(part) = part else {
                return Ok((end, Attempt::Done));
            };
            let request = Request {
                // Nothing else has this address while the step runs.
                name: Cookie::of(&room.batch),
                // The kernel compares the owner with that of the pages.
                identity: Identity::current(theirs.owner()),
                range: part,
                faultless: true,
                destination: Destination::Any,
            };
            // The walk counts as long as the lock is held.
            match self.announce(window, seq, &mut tries, request)? {
                Ok(announced) => {
                    let vma = mmap.vma_lookup(part.start()).ok_or(EINVAL)?;
                    let result =
                        self.pull_announced(room, vma, announced, theirs, compound, &mut lost);
                    break (part, result);
                }
                Err(again) => window = again,
            }
        };
        if lost {
            // Somebody else's event took the marks: ask what is there now.
            self.inner()
                .try_install_present(space, part, Present::All, &mut room.spares)?;
        }
        result.map(|attempt| (part.end(), attempt))
    }

    /// Isolates, copies and moves the pages of what was announced. Sets `lost` if this device lost
    /// entries of pages that moved.
    // A stack frame of its own.
    #[inline(never)]
    fn pull_announced(
        &self,
        room: &mut Room<'_, D>,
        vma: Vma<'_>,
        announced: Announced<'_, D>,
        theirs: &Memory<D::Memory>,
        compound: bool,
        lost: &mut bool,
    ) -> Result<Attempt> {
        let Room {
            batch,
            copies,
            spares,
            outcome,
        } = room;
        let mine = self.device().memory().ok_or(ENODEV)?;
        let piece = announced.range();
        let huge = compound && piece.is_pmd();
        let whole = huge && theirs.is_private() && mine.is_private();
        let request = Request {
            name: announced.name(),
            identity: Identity::current(theirs.owner()),
            range: piece,
            faultless: true,
            destination: Destination::Any,
        };
        let mut joined = Joined::new();
        let readers = joined.join(vma.space(), request, self.place_in_space());
        // Dropped after the destinations.
        let arrival = mine.arrive()?;
        let _departure = theirs.depart();
        let origin = theirs.origin();
        let mut isolated = Isolated::read_by((announced, readers), || {
            Isolated::new(vma, piece, origin, whole, None, batch)
        })?;
        let mut no_huge = false;
        let mut short = 0;
        let mut allocator = mine.allocator(isolated.count());
        isolated.fill(|entry| {
            if entry.source == Source::Hole {
                // The core offers these, too, but there is nothing to move.
                return None;
            }
            let folio = allocator.alloc(&arrival, entry.order());
            if folio.is_none() {
                no_huge |= entry.order() == PMD_ORDER;
                short += entry.pages;
            }
            folio
        });
        drop(allocator);
        if no_huge {
            return Ok(Attempt::NoHuge);
        }
        outcome.no_memory += short;
        let failed = theirs.copy_to(mine, &mut isolated, copies);
        if arrival.is_late() {
            // Puts everything back.
            return Err(ENODEV);
        }
        for entry in isolated.entries().filter(|entry| failed.has(entry.index)) {
            outcome.copy_failed += entry.pages;
        }
        let writable = vma.flags() & flags::WRITE != 0;
        self.finish_pull(isolated, writable, spares, outcome, lost)?;
        Ok(Attempt::Done)
    }

    /// Moves what was isolated and copied. Sets `lost` if this device lost entries of pages that moved.
    // A stack frame of its own: the states of a migration are large.
    #[inline(never)]
    fn finish_pull(
        &self,
        isolated: Isolated<'_, (Announced<'_, D>, Readers<'_>)>,
        writable: bool,
        spares: &mut Spares<D::Format>,
        outcome: &mut Outcome,
        lost: &mut bool,
    ) -> Result {
        let mine = self.device().memory().ok_or(ENODEV)?;
        let migrated = isolated.migrate();
        for entry in migrated.moved().entries() {
            outcome.moved += entry.pages;
            outcome.entries += 1;
        }
        let mut result = Ok(());
        migrated.finalize(|(announced, readers), moved| {
            let each = |_, what| match what {
                Switched::Yes { was_valid } => {
                    outcome.switched += usize::from(was_valid);
                }
                Switched::Lost => *lost = true,
                Switched::NoEntry | Switched::Stays { .. } => {}
            };
            // The source's entries go before this device gets its own: what it writes at once, the
            // source must not read as it was before.
            let gone = readers.switch(moved);
            let here;
            (here, result) =
                announced.switch_to_device(moved, mine.numbers(), writable, spares, each);
            (here, gone)
        });
        result
    }
}

impl<M: MemoryOps> Memory<M> {
    /// How this memory and `other` reach each other.
    pub(crate) fn connection(&self, other: &Self) -> Connection {
        if core::ptr::eq(self, other) {
            return Connection::Unified;
        }
        // Kept at both ends, so that each can tell without the other.
        let ask = || {
            let _within = within::Within::enter();
            let there = self.driver().connection(other.driver(), other.kind());
            let back = other.driver().connection(self.driver(), self.kind());
            // In place is for what the CPU can address, and for memories of one owner: no entry
            // could name a page of other memory.
            let addressable = !self.is_private() && !other.is_private();
            match there.min(back) {
                Connection::Unified if !addressable && self.owner() != other.owner() => {
                    Connection::Migratable
                }
                connection => connection,
            }
        };
        self.known()
            .get(other.tile(), || other.known().get(self.tile(), ask))
    }
}

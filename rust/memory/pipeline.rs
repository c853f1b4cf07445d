// SPDX-License-Identifier: GPL-2.0

//! The sequence of states of a migration, for requests, pulls, CPU faults and evictions.
//!
//! A caller announces its step, or makes mirrors join. From there on the states follow each other,
//! and each consumes the one before it:
//!
//! 1. [`Migration`]: the mirrors keep their entries, and no page is isolated.
//! 2. [`InFlight`]: [`Migration::submit`] has isolated the pages, has had their destinations
//!    chosen, and has submitted the copies. Another block may be submitted meanwhile.
//! 3. [`Migrated`](crate::mm::migrate::Migrated): [`finish`] has waited for the copies, and has
//!    migrated the pages. The mirrors replace their entries and flush, before the core finalizes.
//!
//! Callers differ in their [`MigrationOps`]. None of these can finalize: an operation only returns
//! the proofs of the mirrors, which it gets for the mirrors themselves.
//!
//! Dropping any state waits for the copies, restores the pages, ends the migration for the mirrors,
//! and then drops the operations, which own the [`Arrival`] for which an unplug waits. `Migrated`
//! also removes the entries of pages that have moved before it frees the sources.
//!
//! The mmap lock is held throughout. A task with a block in flight must not wait for an
//! invalidation or for an mmap lock, because their holders may wait for its folios.

use super::{
    Arrival,
    Copier,
    CopyContext,
    Copying,
    MemoryOps, //
};
use crate::{
    debug::timing::{
        Phase,
        Stopwatch, //
    },
    mm::{
        folio::LockedFolio,
        migrate::{
            Isolated,
            MigrateEntry,
            MigrationReader,
            Moved,
            Source, //
        },
        page_set::PageSet,
        vma::Vma, //
    }, //
};
use kernel::prelude::*;

/// Operations in which the callers of the pipeline differ. Called in the order of their
/// declaration, each at most once, with the mmap lock and the folio locks held.
///
/// An implementation owns the objects that must last until the pages are mapped or freed, such as
/// an [`Arrival`].
///
/// # Context
///
/// May sleep. Must not wait for an invalidation or for an mmap lock.
pub(crate) trait MigrationOps<R: MigrationReader> {
    /// Chooses destinations. Entries without one stay. Returns whether the migration continues. If
    /// not, all pages are restored.
    fn fill(&mut self, isolated: &mut Isolated<'_, R>) -> bool;

    /// Returns the step of the device memory from which the destinations are, if any. If the device
    /// was unplugged by the end of the copies, all pages are restored.
    fn arrival(&self) -> Option<&Arrival<'_>> {
        None
    }

    /// Records the entries of which the copy failed, by their indices. They have lost their
    /// destinations.
    fn copied(&mut self, _isolated: &Isolated<'_, R>, _failed: &PageSet) {}

    /// Records the pages that have moved.
    fn moved(&mut self, moved: &Moved<'_>);

    /// Replaces the entries of the readers, which return their proofs.
    fn switch(&mut self, readers: R, moved: &Moved<'_>) -> R::Done;
}

/// A migration whose readers have been announced, before its pages are isolated.
#[must_use = "dropping it ends the migration"]
pub(crate) struct Migration<'c, M: MemoryOps, R: MigrationReader, O> {
    pub(crate) copier: Copier<'c, M>,
    pub(crate) copies: &'c mut CopyContext,
    pub(crate) readers: R,
    pub(crate) ops: O,
    /// Started before the isolation.
    pub(crate) stopwatch: Stopwatch,
}

/// Isolated pages whose copies were submitted. Dropping it waits for the copies and restores the
/// pages.
#[must_use = "dropping it restores the pages"]
pub(crate) struct InFlight<'c, 'a, R: MigrationReader, O> {
    copying: Copying<'c, 'a, R>,
    stopwatch: Stopwatch,
    // Dropped after the destinations, so that an unplug waits for them.
    ops: O,
}

/// Result of [`Migration::submit`].
pub(crate) enum Submitted {
    /// Copies are outstanding or completed.
    InFlight,
    /// [`MigrationOps::fill`] has ended the migration. The pages were restored.
    Restored,
}

/// Isolates pages that `readers` keep reading, and stores them in `place`.
// Not inlined: the states of a migration are large and need a stack frame of their own. For the
// same reason the result is written in place.
#[inline(never)]
fn isolate<'p, 'c, 'a, R: MigrationReader, O>(
    readers: R,
    isolate: impl FnOnce() -> Result<Isolated<'a>>,
    ops: O,
    stopwatch: Stopwatch,
    place: &'p mut Option<InFlight<'c, 'a, R, O>>,
) -> Result<&'p mut InFlight<'c, 'a, R, O>> {
    let copying = Copying::new(Isolated::read_by(readers, isolate)?);
    let in_flight = place.insert(InFlight {
        copying,
        stopwatch,
        ops,
    });
    in_flight.stopwatch.end(Phase::Unmap);
    Ok(in_flight)
}

impl<'c, M: MemoryOps, R: MigrationReader, O: MigrationOps<R>> Migration<'c, M, R, O> {
    /// Isolates pages with `isolated`, has their destinations chosen, and submits their copies.
    /// Stores the migration in `place`, which must be empty. After an error the caller must drop
    /// `place`, because it may contain pages.
    ///
    /// # Errors
    ///
    /// - Those of `isolated` and of [`Copier::submit`].
    ///
    /// # Context
    ///
    /// May sleep. The mmap lock is held.
    // Not inlined, as the functions below: the states of a migration are large and need stack
    // frames of their own.
    #[inline(never)]
    pub(crate) fn submit<'a>(
        self,
        isolated: impl FnOnce() -> Result<Isolated<'a>>,
        place: &mut Option<InFlight<'c, 'a, R, O>>,
    ) -> Result<Submitted> {
        let Self {
            copier,
            copies,
            readers,
            ops,
            stopwatch,
        } = self;
        let InFlight {
            copying,
            stopwatch,
            ops,
        } = isolate(readers, isolated, ops, stopwatch, place)?;
        let proceeds = ops.fill(copying.isolated_mut().ok_or(EINVAL)?);
        stopwatch.end(Phase::Allocate);
        if !proceeds {
            // Restores the pages.
            *place = None;
            return Ok(Submitted::Restored);
        }
        copier.submit(copying, copies)?;
        Ok(Submitted::InFlight)
    }

    /// Migrates pages as [`Self::submit`] and [`finish`]. Returns the operations, or `None` if the
    /// pages were restored.
    ///
    /// # Errors
    ///
    /// - Those of [`Self::submit`] and [`finish`].
    ///
    /// # Context
    ///
    /// May sleep. The mmap lock is held.
    #[inline]
    pub(crate) fn run<'a>(
        self,
        isolated: impl FnOnce() -> Result<Isolated<'a>>,
    ) -> Result<Option<O>> {
        let mut place = None;
        match self.submit(isolated, &mut place)? {
            Submitted::InFlight => finish(&mut place).map(Some),
            Submitted::Restored => Ok(None),
        }
    }
}

impl<R: MigrationReader, O> InFlight<'_, '_, R, O> {
    /// Stops the measurement of the copy phase until [`Self::resume`].
    pub(crate) fn pause(&mut self) {
        self.stopwatch.end(Phase::Copy);
    }

    /// Continues the measurement of the copy phase.
    pub(crate) fn resume(&mut self) {
        self.stopwatch = Stopwatch::start();
    }

    /// Returns whether a copy is outstanding.
    pub(crate) fn is_outstanding(&self) -> bool {
        self.copying.is_outstanding()
    }

    /// Returns the operations of the caller.
    pub(crate) fn ops(&self) -> &O {
        &self.ops
    }
}

/// Waits for the copies of the pages in `place`, migrates the pages, has the entries of the readers
/// replaced, and finalizes. Returns the operations.
///
/// # Errors
///
/// - `ENODEV` if the device memory of the destinations was unplugged. The pages were restored.
/// - `EINVAL` if `place` is empty.
///
/// # Context
///
/// May sleep. The mmap lock is held.
#[inline(never)]
pub(crate) fn finish<R: MigrationReader, O: MigrationOps<R>>(
    place: &mut Option<InFlight<'_, '_, R, O>>,
) -> Result<O> {
    let InFlight {
        copying,
        stopwatch,
        ops,
    } = place.as_mut().ok_or(EINVAL)?;
    let failed = copying.complete();
    stopwatch.end(Phase::Copy);
    if ops.arrival().is_some_and(Arrival::is_late) {
        // Restores the pages.
        *place = None;
        return Err(ENODEV);
    }
    ops.copied(copying.isolated(), &failed);
    let InFlight {
        copying,
        stopwatch,
        ops,
    } = place.take().ok_or(EINVAL)?;
    Ok(migrate_and_switch(copying.into_isolated(), stopwatch, ops))
}

/// Migrates `isolated`, whose copies have completed. Returns the operations.
#[inline(never)]
fn migrate_and_switch<R: MigrationReader, O: MigrationOps<R>>(
    isolated: Isolated<'_, R>,
    mut stopwatch: Stopwatch,
    mut ops: O,
) -> O {
    let migrated = isolated.migrate();
    stopwatch.end(Phase::Switch);
    ops.moved(migrated.moved());
    migrated.finalize(|readers, moved| {
        let done = ops.switch(readers, moved);
        // The time until here is part of other phases.
        stopwatch = Stopwatch::start();
        done
    });
    // From here on, CPUs can access the pages.
    stopwatch.end(Phase::Finalize);
    ops
}

/// Chooses system memory as destinations of `isolated`: in bulk for the small pages that `select`
/// accepts, and with `choose` for all others but holes.
///
/// migrate_vma_setup() also collects holes, which have no page to migrate.
///
/// # Context
///
/// May sleep. The mmap lock of `vma` is held.
#[inline]
pub(crate) fn fill_from_system<R>(
    isolated: &mut Isolated<'_, R>,
    vma: Option<Vma<'_>>,
    select: impl FnMut(usize) -> bool,
    mut choose: impl FnMut(&MigrateEntry) -> Option<LockedFolio>,
) {
    if isolated.alloc_small(vma, select) {
        isolated.fill(|entry| match entry.source {
            Source::Hole => None,
            Source::Page(_) => choose(entry),
        });
    }
}

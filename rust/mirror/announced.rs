// SPDX-License-Identifier: GPL-2.0

//! An announced step, until its migration is over.

use super::{
    commit::{
        forget_moved,
        switch_present,
        WriteAccess, //
    },
    CommitResult,
    Device,
    Mirror, //
};
use crate::{
    kernel::identity::MigrationId,
    mm::{
        addr::PageRange,
        migrate::{
            MigrationReader,
            Moved, //
        }, //
    },
    pgtable::{
        Flushed,
        Prealloc, //
    },
    space::{
        FlushedReaders,
        JoinedMirrors,
        MigrationDesc,
        Readers,
        WindowUser, //
    }, //
};
use kernel::prelude::*;

/// Announced step of a migration, see [`Mirror::begin`]. The device keeps its marked entries during
/// the migration's own event.
///
/// Dropping it ends the step: it removes the marks, and wakes up faults that wait for them.
///
/// # Context
///
/// The drop may sleep. It takes the table lock.
#[must_use = "dropping it ends the step"]
pub(crate) struct Announced<'m, D: Device> {
    mirror: &'m Mirror<D>,
    /// Keeps the window registered during the step.
    _window: WindowUser,
    request: MigrationDesc,
}

impl<'m, D: Device> Announced<'m, D> {
    /// Creates the step of the migration `request`, which [`Mirror::announce`] has announced.
    pub(super) fn new(mirror: &'m Mirror<D>, window: WindowUser, request: MigrationDesc) -> Self {
        Self {
            mirror,
            _window: window,
            request,
        }
    }

    /// Returns the name of the migration.
    pub(crate) fn name(&self) -> MigrationId {
        self.request.name
    }

    /// Returns the range of the step, which lies within one VMA.
    pub(crate) fn range(&self) -> PageRange {
        self.request.range
    }

    /// Makes the other mirrors of the process join the migration. See [`JoinedMirrors::join`].
    ///
    /// # Context
    ///
    /// May sleep. Does not wait for invalidations.
    pub(crate) fn join<'a>(self, joined: &'a mut JoinedMirrors) -> StepReaders<'m, 'a, D> {
        let Self {
            mirror, request, ..
        } = &self;
        let others = joined.join(mirror.mm_id(), *request, mirror.place_in_space());
        StepReaders {
            announced: self,
            others,
        }
    }

    /// As [`Mirror::switch_to_device`]. Returns the step with the proof of its flush.
    pub(crate) fn switch_to_device(
        self,
        moved: &Moved<'_>,
        number: impl FnMut(usize) -> Option<usize>,
        hole_writable: bool,
        prealloc: &mut Prealloc<D::Format>,
        each: impl FnMut(usize, CommitResult),
    ) -> (FlushedStep<'m, D>, Result) {
        let (flushed, result) = self.mirror.switch_to_device(
            self.request.name,
            moved,
            number,
            hole_writable,
            prealloc,
            each,
        );
        (self.settled(flushed, moved), result)
    }

    /// Replaces the present entries of pages that moved to system memory, and waits for the flush.
    /// Calls `each` for pages that had an entry.
    ///
    /// # Context
    ///
    /// May sleep. Takes the table lock.
    pub(crate) fn switch_to_system(
        self,
        moved: &Moved<'_>,
        each: impl FnMut(usize, CommitResult),
    ) -> FlushedStep<'m, D> {
        let write = WriteAccess::AfterFlush;
        let flushed = switch_present(self.mirror.inner(), self.request.name, moved, write, each);
        self.settled(flushed, moved)
    }

    /// Adds the proof of the flush. The proof of another mirror or range is not accepted: the
    /// entries of the pages that have moved are removed instead.
    fn settled(self, flushed: Flushed<'m>, moved: &Moved<'_>) -> FlushedStep<'m, D> {
        let inner = self.mirror.inner();
        let own = Some(flushed).filter(|flushed| flushed.covers(inner, moved.range()));
        FlushedStep {
            _flushed: own.unwrap_or_else(|| forget_moved(inner, moved)),
            _announced: self,
        }
    }
}

impl<D: Device> Drop for Announced<'_, D> {
    fn drop(&mut self) {
        let mut guard = self.mirror.inner().lock();
        let MigrationDesc { name, range, .. } = self.request;
        guard.in_flight.end(name, range.start());
        drop(guard);
        self.mirror.inner().ended.notify_all();
    }
}

/// Step whose commit was flushed, so that the device no longer uses the source pages. Dropping it
/// ends the step.
pub(crate) struct FlushedStep<'m, D: Device> {
    _announced: Announced<'m, D>,
    _flushed: Flushed<'m>,
}

impl<'m, D: Device> MigrationReader for Announced<'m, D> {
    type Done = FlushedStep<'m, D>;

    fn remove_moved(self, moved: &Moved<'_>) -> FlushedStep<'m, D> {
        let flushed = forget_moved(self.mirror.inner(), moved);
        self.settled(flushed, moved)
    }
}

/// An announced step, and the other mirrors that have joined its migration. Dropping it ends the
/// step, and then the migration for the others.
#[must_use = "dropping it ends the step"]
pub(crate) struct StepReaders<'m, 'a, D: Device> {
    announced: Announced<'m, D>,
    others: Readers<'a>,
}

impl<'m, 'a, D: Device> StepReaders<'m, 'a, D> {
    /// Replaces the entries of pages that have moved: first those of the other mirrors, then with
    /// `own` those of the mirror that has announced the step. Otherwise its device could write to
    /// the new page while another device still reads the old one.
    pub(crate) fn switch(
        self,
        moved: &Moved<'_>,
        own: impl FnOnce(Announced<'m, D>) -> FlushedStep<'m, D>,
    ) -> (FlushedStep<'m, D>, FlushedReaders<'a>) {
        let others = self.others.switch(moved);
        (own(self.announced), others)
    }
}

impl<'m, 'a, D: Device> MigrationReader for StepReaders<'m, 'a, D> {
    type Done = (FlushedStep<'m, D>, FlushedReaders<'a>);

    fn remove_moved(self, moved: &Moved<'_>) -> Self::Done {
        let own = self.announced.remove_moved(moved);
        (own, self.others.remove_moved(moved))
    }
}

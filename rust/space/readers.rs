// SPDX-License-Identifier: GPL-2.0

//! Mirrors whose devices keep reading pages while these migrate.
//!
//! A mirror may join a migration while folios of another block are locked. Therefore it waits for
//! no invalidation, whose task may wait for these folios; it only takes its table lock. A joined
//! mirror is not closed until it leaves. [`Readers`] leaves when it is dropped, also after an
//! error, so that no marks of an ended migration remain.

use super::{
    find,
    EnteredMirror,
    MigrationDesc,
    MirrorOps, //
};
use crate::{
    inject::{
        fails,
        FailPoint, //
    },
    kernel::identity::{
        MigrationId,
        MmId, //
    },
    mm::{
        addr::PageRange,
        flush::FlushedAll,
        migrate::{
            MigrationReader,
            Moved, //
        }, //
    },
    pgtable::Flushed, //
};
use kernel::prelude::*;

/// Number of mirrors of a process for which no allocation is needed.
const INLINE_MIRRORS: usize = 4;

/// The mirrors that have joined a migration. Reused from one migration to the next.
///
/// The owner keeps it until the migration has ended. A caller with two migrations in flight has
/// two.
pub(crate) struct JoinedMirrors {
    /// Name and range of the migration. `None` if no mirror has joined.
    step: Option<(MigrationId, PageRange)>,
    /// Whether the mirrors have replaced their entries.
    switched: bool,
    few: [Option<EnteredMirror>; INLINE_MIRRORS],
    more: KVec<EnteredMirror>,
}

impl JoinedMirrors {
    /// Creates an empty set.
    pub(crate) const fn new() -> Self {
        Self {
            step: None,
            switched: false,
            few: [const { None }; INLINE_MIRRORS],
            more: KVec::new(),
        }
    }

    /// Makes mirrors of the address space `mm` join the migration `request`, before its pages are
    /// isolated. All mirrors that have entries of the pages join, except the one with index
    /// `except` and those for which there is no memory. They keep the entries until the returned
    /// value is dropped.
    ///
    /// # Context
    ///
    /// May sleep. Does not wait for invalidations, so that folio locks may be held.
    // Not inlined, so that its stack frame is free while pages are copied.
    #[inline(never)]
    pub(crate) fn join(
        &mut self,
        mm: MmId,
        request: MigrationDesc,
        except: Option<usize>,
    ) -> Readers<'_> {
        // Mirrors are left here only if the readers of a previous migration were leaked.
        self.leave();
        if let Some(space) = find(mm).filter(|_| request.faultless) {
            for mirror in space.mirrors().entered(except) {
                if !fails(FailPoint::Join) && self.has_room() && mirror.join(request) {
                    self.step = Some((request.name, request.range));
                    self.add(mirror);
                }
            }
        }
        Readers(self)
    }

    /// Ends the migration for all mirrors that have joined. They get write access back if they have
    /// replaced their entries.
    fn leave(&mut self) {
        let switched = core::mem::take(&mut self.switched);
        let Some((name, range)) = self.step.take() else {
            return;
        };
        for mirror in self.each() {
            if switched {
                mirror.permit_writes(name, range);
            }
            mirror.leave(name, range);
        }
        self.few = [const { None }; INLINE_MIRRORS];
        self.more.clear();
    }

    /// Reserves an element for another mirror. Returns whether there is one.
    ///
    /// # Context
    ///
    /// May sleep.
    fn has_room(&mut self) -> bool {
        self.few.iter().any(Option::is_none) || self.more.reserve(1, GFP_KERNEL).is_ok()
    }

    /// Adds a mirror. [`Self::has_room`] must have returned `true`.
    fn add(&mut self, mirror: EnteredMirror) {
        let rest = match self.few.iter_mut().find(|place| place.is_none()) {
            Some(place) => {
                *place = Some(mirror);
                return;
            }
            None => mirror,
        };
        // Cannot fail, because `has_room` has reserved the element.
        let _ = self.more.push_within_capacity(rest);
    }

    fn each(&self) -> impl Iterator<Item = &dyn MirrorOps> {
        Iterator::chain(self.few.iter().flatten(), &self.more).map(|mirror| &**mirror)
    }
}

impl Drop for JoinedMirrors {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Mirrors that have joined a migration and keep their entries of its pages. Dropping it ends the
/// migration for all of them.
#[must_use = "dropping it ends the step"]
// Holds a reference, because a migration moves this from state to state, each of which has a stack
// slot.
pub(crate) struct Readers<'p>(&'p mut JoinedMirrors);

impl<'p> Readers<'p> {
    /// Replaces the entries of pages that have moved in each mirror. A mirror that cannot use the
    /// new page loses its entry.
    pub(crate) fn switch(self, moved: &Moved<'_>) -> FlushedReaders<'p> {
        let step = self.0.step;
        self.0.switched = step.is_some();
        self.flushed(moved, |mirror| match step {
            Some((name, _)) => mirror.switch(name, moved),
            None => mirror.forget_moved(moved),
        })
    }

    /// Calls `flush` for each mirror, which returns the mirror's proof for the range of `moved`.
    fn flushed(
        self,
        moved: &Moved<'_>,
        flush: impl for<'m> Fn(&'m dyn MirrorOps) -> Flushed<'m>,
    ) -> FlushedReaders<'p> {
        let _proofs = FlushedAll::of(self.0.each(), moved.range(), flush, |mirror| {
            mirror.forget_moved(moved)
        });
        FlushedReaders {
            _proofs,
            _readers: self,
        }
    }
}

impl Drop for Readers<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Proof that no mirror uses the source of a page that has moved.
pub(crate) struct FlushedReaders<'p> {
    /// The proofs of all mirrors.
    _proofs: FlushedAll,
    _readers: Readers<'p>,
}

impl<'p> MigrationReader for Readers<'p> {
    type Done = FlushedReaders<'p>;

    fn remove_moved(self, moved: &Moved<'_>) -> FlushedReaders<'p> {
        self.flushed(moved, |mirror| mirror.forget_moved(moved))
    }
}

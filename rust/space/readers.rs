// SPDX-License-Identifier: GPL-2.0

//! The mirrors that keep their entries of pages while these migrate.

use super::{find, Entered, Request};
use crate::{
    inject::{fails, Point},
    mm::{
        addr::PageRange,
        migrate::{Moved, Reader},
        notifier::Cookie, //
    },
    pgtable::Flushed,
};
use kernel::prelude::*;

/// Mirrors of a process for which a migration needs no memory.
const FEW: usize = 4;

/// Room for the mirrors that join one migration at a time.
///
/// Its owner keeps it until the migration is over. A caller with two migrations in flight has two.
pub(crate) struct Joined {
    /// Name and range of the migration that was joined. `None` without mirrors.
    step: Option<(Cookie, PageRange)>,
    few: [Option<Entered>; FEW],
    more: KVec<Entered>,
}

impl Joined {
    /// Without mirrors.
    pub(crate) const fn new() -> Self {
        Self {
            step: None,
            few: [const { None }; FEW],
            more: KVec::new(),
        }
    }

    /// Has mirrors of the address space `mm` join the migration that `request` describes, before
    /// its pages are isolated. These are all mirrors that have entries of the pages, except the one
    /// in place `except` and those for which there is no memory. They keep the entries as long as
    /// the returned value exists.
    ///
    /// Context: may sleep. Does not wait for invalidations, so that folio locks may be held.
    // Its variables are not on the stack while pages are copied.
    #[inline(never)]
    pub(crate) fn join(
        &mut self,
        mm: Cookie,
        request: Request,
        except: Option<usize>,
    ) -> Readers<'_> {
        // Mirrors are left here only if the readers of a previous migration were leaked.
        self.leave();
        if let Some(space) = find(mm).filter(|_| request.faultless) {
            for mirror in space.mirrors().entered(except) {
                if !fails(Point::Peer) && self.has_room() && mirror.join(request) {
                    self.step = Some((request.name, request.range));
                    self.add(mirror);
                }
            }
        }
        Readers(self)
    }

    /// Ends the migration for all mirrors that have joined it.
    fn leave(&mut self) {
        let Some((name, range)) = self.step.take() else {
            return;
        };
        for mirror in self.each() {
            mirror.leave(name, range);
        }
        self.few = [const { None }; FEW];
        self.more.clear();
    }

    /// Whether there is room for one more. Context: may sleep.
    fn has_room(&mut self) -> bool {
        self.few.iter().any(Option::is_none) || self.more.reserve(1, GFP_KERNEL).is_ok()
    }

    /// Adds a mirror, for which there is room.
    fn add(&mut self, mirror: Entered) {
        let rest = match self.few.iter_mut().find(|place| place.is_none()) {
            Some(place) => {
                *place = Some(mirror);
                return;
            }
            None => mirror,
        };
        // There is room.
        let _ = self.more.push_within_capacity(rest);
    }

    fn each(&self) -> impl Iterator<Item = &Entered> {
        Iterator::chain(self.few.iter().flatten(), &self.more)
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Mirrors that have joined a migration, and keep their entries of its pages. Dropping it ends that for all.
#[must_use = "dropping it ends the step"]
// By reference: a migration moves its readers from state to state, each of which has a stack slot.
pub(crate) struct Readers<'p>(&'p mut Joined);

impl<'p> Readers<'p> {
    /// Lets each device use what has moved, as far as it can.
    pub(crate) fn switch(self, moved: &Moved<'_>) -> Settled<'p> {
        if let Some((name, _)) = self.0.step {
            for mirror in self.0.each() {
                let _flushed: Flushed = mirror.switch(name, moved);
            }
        }
        Settled { _readers: self }
    }
}

impl Drop for Readers<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// The mirrors use no source of a page that has moved.
pub(crate) struct Settled<'p> {
    _readers: Readers<'p>,
}

impl<'p> Reader for Readers<'p> {
    type Done = Settled<'p>;

    fn forget(self, moved: &Moved<'_>) -> Settled<'p> {
        for mirror in self.0.each() {
            let _flushed: Flushed = mirror.forget_moved(moved);
        }
        Settled { _readers: self }
    }
}

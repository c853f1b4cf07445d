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

/// Mirrors that have joined a migration.
struct Joined {
    name: Cookie,
    range: PageRange,
    few: [Option<Entered>; FEW],
    more: KVec<Entered>,
}

impl Joined {
    /// Has all mirrors of `mm` join that can, but for the one in place `except`.
    // Its variables are not on the stack while pages are copied.
    #[inline(never)]
    fn join(&mut self, mm: Cookie, request: Request, except: Option<usize>) {
        let Some(space) = find(mm).filter(|_| request.faultless) else {
            return;
        };
        for mirror in space.mirrors().entered(except) {
            if !fails(Point::Peer) && self.has_room() && mirror.join(request) {
                self.add(mirror);
            }
        }
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

/// Calls `migrate`, which does what `request` says in the address space `mm`: isolates, copies and moves pages. It gets the
/// mirrors that keep their entries meanwhile: all that have some, but for the one in place `except`, and those for which
/// there is no memory.
///
/// Context: may sleep; waits for no invalidation, so that folio locks may be held.
pub(crate) fn keep_reading<T>(
    mm: Cookie,
    request: Request,
    except: Option<usize>,
    migrate: impl FnOnce(Readers<'_>) -> T,
) -> T {
    let mut joined = Joined {
        name: request.name,
        range: request.range,
        few: [const { None }; FEW],
        more: KVec::new(),
    };
    joined.join(mm, request, except);
    migrate(Readers(&joined))
}

/// Mirrors that have joined a migration, and keep their entries of its pages. Dropping it ends that for all.
#[must_use = "dropping it ends the step"]
// By reference: a migration moves its readers from state to state, each of which has a stack slot.
pub(crate) struct Readers<'p>(&'p Joined);

impl<'p> Readers<'p> {
    /// Lets each device use what has moved, as far as it can.
    pub(crate) fn switch(self, moved: &Moved<'_>) -> Settled<'p> {
        for mirror in self.0.each() {
            let _flushed: Flushed = mirror.switch(self.0.name, moved);
        }
        Settled { _readers: self }
    }
}

impl Drop for Readers<'_> {
    fn drop(&mut self) {
        for mirror in self.0.each() {
            mirror.leave(self.0.name, self.0.range);
        }
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

// SPDX-License-Identifier: GPL-2.0

//! An announced step, until its migration is over.

use super::{
    switch::{forget_moved, switch_present},
    Device, Mirror, Switched,
};
use crate::{
    mm::{
        addr::PageRange,
        migrate::{Moved, Reader},
        notifier::Cookie, //
    },
    pgtable::{Flushed, Spares},
    space::WindowUser,
};
use kernel::prelude::*;

/// A step that a mirror was told of, by [`Mirror::begin`]: the device keeps its entries of the pages. Dropping it ends the
/// step.
#[must_use = "dropping it ends the step"]
pub(crate) struct Announced<'m, D: Device> {
    mirror: &'m Mirror<D>,
    /// Stays as long as the step.
    _window: WindowUser,
    name: Cookie,
    range: PageRange,
}

impl<'m, D: Device> Announced<'m, D> {
    /// For [`Mirror::begin`], which has registered the transaction `name`.
    pub(super) fn new(
        mirror: &'m Mirror<D>,
        window: WindowUser,
        name: Cookie,
        range: PageRange,
    ) -> Self {
        Self {
            mirror,
            _window: window,
            name,
            range,
        }
    }

    /// Name of the transaction.
    pub(crate) fn name(&self) -> Cookie {
        self.name
    }

    /// What the step is about: within one mapping.
    pub(crate) fn range(&self) -> PageRange {
        self.range
    }

    /// As [`Mirror::switch_to_device`].
    pub(crate) fn switch_to_device(
        self,
        moved: &Moved<'_>,
        number: impl FnMut(usize) -> Option<usize>,
        hole_writable: bool,
        spares: &mut Spares<D::Format>,
        each: impl FnMut(usize, Switched),
    ) -> (Settled<'m, D>, Result) {
        let (flushed, result) =
            self.mirror
                .switch_to_device(self.name, moved, number, hole_writable, spares, each);
        (self.settled(flushed), result)
    }

    /// Lets the device use what moved to system memory, where it had an entry. Calls `each` for
    /// pages that had one.
    pub(crate) fn switch_to_system(
        self,
        moved: &Moved<'_>,
        each: impl FnMut(usize, Switched),
    ) -> Settled<'m, D> {
        let flushed = switch_present(self.mirror.inner(), self.name, moved, true, each);
        self.settled(flushed)
    }

    fn settled(self, flushed: Flushed) -> Settled<'m, D> {
        Settled {
            _announced: self,
            _flushed: flushed,
        }
    }
}

impl<D: Device> Drop for Announced<'_, D> {
    fn drop(&mut self) {
        let mut guard = self.mirror.inner().lock();
        guard.transactions.end(self.name, self.range.start());
        drop(guard);
        self.mirror.inner().ended.notify_all();
    }
}

/// The device uses no source of a page that has moved. Dropping it ends the step.
pub(crate) struct Settled<'m, D: Device> {
    _announced: Announced<'m, D>,
    _flushed: Flushed,
}

impl<'m, D: Device> Reader for Announced<'m, D> {
    type Done = Settled<'m, D>;

    fn forget(self, moved: &Moved<'_>) -> Settled<'m, D> {
        let flushed = forget_moved(self.mirror.inner(), moved);
        self.settled(flushed)
    }
}

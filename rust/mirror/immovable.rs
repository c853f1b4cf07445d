// SPDX-License-Identifier: GPL-2.0

//! Cache of the pages that cannot move to the device, so that faults do not look for them again.

use super::{
    Device,
    Mirror, //
};
use crate::{
    mm::addr::PageRange,
    policy::{
        block,
        Immovable, //
    }, //
};
use kernel::prelude::*;

impl<D: Device> Mirror<D> {
    /// Caches the runs of pages that cannot move, until an invalidation or a timeout.
    ///
    /// Surveys the block of `range`, unless it was surveyed recently. Otherwise surveys only
    /// `range`, which lies within a block. `look` calls its second argument for each such run
    /// within its first argument.
    pub(crate) fn learn(
        &self,
        range: PageRange,
        look: impl FnOnce(PageRange, &mut dyn FnMut(PageRange)) -> Result,
    ) -> Result {
        let now = self.now();
        let is_cached = self.inner().lock().immovable.has_block(range.start(), now);
        let all = block(range.start()).filter(|_| !is_cached);
        look(all.unwrap_or(range), &mut |run: PageRange| {
            // Take the table lock after the survey of a run, which takes page-table locks of the
            // CPU.
            if run.pages() >= Immovable::MIN_PAGES {
                self.inner().lock().immovable.add(run, now);
            }
        })
    }

    /// Returns the pages around `range` that are cached as immovable. Returns `None` if a page of
    /// `range` is not.
    pub(crate) fn known_immovable(&self, range: PageRange) -> Option<PageRange> {
        self.inner().lock().immovable.around(range, self.now())
    }

    /// Returns the time of the space in ms.
    pub(crate) fn now(&self) -> u64 {
        self.inner().space.now()
    }
}

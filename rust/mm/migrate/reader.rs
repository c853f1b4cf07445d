// SPDX-License-Identifier: GPL-2.0

//! Device page tables that keep entries of pages while these migrate.

use super::Moved;

/// Device page tables that were told of a migration, and keep their entries of its pages until these have moved.
///
/// A migration owns its readers. It gives them back only to get [`Self::Done`] for each, the proof that the device uses
/// none of the sources any more, and frees the sources after that. A pair of readers is one, too.
pub trait Reader: Sized {
    /// Proof that no entry names a source of a page that has moved, and that the device's TLBs were flushed since. It
    /// can be had only for the reader that was consumed. Dropped when the migration is over.
    type Done;

    /// Removes the entries of the pages that have moved, and waits for the flush.
    ///
    /// Context: the mmap lock is held and the pages are locked; must not wait for an invalidation.
    fn forget(self, moved: &Moved<'_>) -> Self::Done;
}

impl Reader for () {
    type Done = ();

    fn forget(self, _moved: &Moved<'_>) {}
}

impl<A: Reader, B: Reader> Reader for (A, B) {
    type Done = (A::Done, B::Done);

    fn forget(self, moved: &Moved<'_>) -> Self::Done {
        (self.0.forget(moved), self.1.forget(moved))
    }
}

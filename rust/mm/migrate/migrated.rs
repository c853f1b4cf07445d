// SPDX-License-Identifier: GPL-2.0

//! Pages that have moved, and the end of their migration.

use super::{batch::Inner, Entry, Reader};
use crate::mm::addr::PageRange;

/// What has moved, for the readers of the pages.
pub struct Moved<'a>(Inner<'a>);

impl Moved<'_> {
    /// The range that was isolated; indices count from its start.
    #[inline]
    pub fn range(&self) -> PageRange {
        self.0.range
    }

    /// The entries that moved to their destination.
    #[inline]
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.0.entries().filter(|entry| entry.destination != 0)
    }

    /// Number of pages that moved.
    pub(crate) fn pages(&self) -> usize {
        self.entries().map(|entry| entry.pages).sum()
    }

    /// Whether the CPU can address what `entry` has moved to.
    #[inline]
    pub fn is_addressable(&self, entry: &Entry) -> bool {
        self.0.is_addressable(entry)
    }

    /// As [`Self::at`], of a small page that moved to new system memory: its page frame, and whether the CPU
    /// may write it.
    #[inline]
    pub(crate) fn small_at(&self, index: usize) -> Option<(usize, bool)> {
        self.0.small(index)
    }

    /// The entry that moved page `index` of the range.
    #[inline]
    pub fn at(&self, index: usize) -> Option<Entry> {
        // A huge one begins with the range.
        let huge = || self.0.entry(0).filter(|entry| entry.pages > index);
        let entry = self.0.entry(index).or_else(huge)?;
        (entry.destination != 0).then_some(entry)
    }
}

/// Pages that have moved, or stay; CPU faults on them wait. [`Self::finalize`] maps them for the CPU again and frees their
/// sources, when the readers have given proof that they use none of these.
///
/// Dropping it does the same with [`Reader::forget`]: the readers lose their entries, and fault.
#[must_use = "dropped, it costs the readers their entries"]
pub struct Migrated<'a, R: Reader = ()> {
    moved: Moved<'a>,
    /// Taken by [`Self::finalize`].
    readers: Option<R>,
}

impl<'a, R: Reader> Migrated<'a, R> {
    pub(super) fn new(inner: Inner<'a>, readers: R) -> Self {
        Self {
            moved: Moved(inner),
            readers: Some(readers),
        }
    }

    /// What has moved.
    #[inline]
    pub fn moved(&self) -> &Moved<'a> {
        &self.moved
    }

    /// Lets `switch` replace the readers' entries by those of the new places. After that, maps the pages for the CPU
    /// again, frees their sources, and drops what `switch` has returned.
    pub fn finalize(mut self, switch: impl FnOnce(R, &Moved<'a>) -> R::Done) {
        let done = self
            .readers
            .take()
            .map(|readers| switch(readers, &self.moved));
        drop(self);
        drop(done);
    }
}

impl<R: Reader> Drop for Migrated<'_, R> {
    fn drop(&mut self) {
        let readers = self.readers.take();
        let done = readers.map(|readers| readers.forget(&self.moved));
        self.moved.0.finalize();
        drop(done);
    }
}

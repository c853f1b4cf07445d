// SPDX-License-Identifier: GPL-2.0

//! The second state of a migration: its result, and finalization.

use super::{
    batch::MigrateState,
    MigrateEntry,
    MigrationReader, //
};
use crate::mm::addr::PageRange;

/// Result of a migration, as passed to the readers of the pages.
pub struct Moved<'a>(MigrateState<'a>);

impl Moved<'_> {
    /// Returns the range that was isolated; indices count from its start.
    ///
    /// # Context
    ///
    /// The mmap lock is held and the pages are locked, as the lifetime ensures. Does not sleep.
    #[inline]
    pub fn range(&self) -> PageRange {
        self.0.range
    }

    /// Returns the entries that moved to their destination.
    ///
    /// # Context
    ///
    /// The mmap lock is held and the pages are locked, as the lifetime ensures. Does not sleep.
    #[inline]
    pub fn entries(&self) -> impl Iterator<Item = MigrateEntry> + '_ {
        self.0.entries().filter(|entry| entry.destination != 0)
    }

    /// Returns the number of pages that moved.
    pub(crate) fn pages(&self) -> usize {
        self.0.filled_pages()
    }

    /// Returns whether the CPU can address the destination of `entry`.
    ///
    /// # Context
    ///
    /// The mmap lock is held and the pages are locked, as the lifetime ensures. Does not sleep.
    #[inline]
    pub fn is_addressable(&self, entry: &MigrateEntry) -> bool {
        self.0.is_addressable(entry)
    }

    /// As [`Self::at`], for a small page that moved to new system memory: returns its page frame,
    /// and whether the CPU may write it.
    #[inline]
    pub(crate) fn small_at(&self, index: usize) -> Option<(usize, bool)> {
        self.0.small(index)
    }

    /// Returns the entry that moved page `index` of the range.
    ///
    /// # Context
    ///
    /// The mmap lock is held and the pages are locked, as the lifetime ensures. Does not sleep.
    #[inline]
    pub fn at(&self, index: usize) -> Option<MigrateEntry> {
        let entry = self.0.entry_with(index)?;
        (entry.destination != 0).then_some(entry)
    }
}

/// Pages whose migration has succeeded or failed, but is not finalized; CPU faults on them wait.
///
/// [`Self::finalize`] maps the pages for the CPU again and frees the sources, after the readers
/// have proved that they no longer use the sources. Dropping the object finalizes with
/// [`MigrationReader::remove_moved`] instead: the readers' entries are removed, so that the readers
/// fault.
///
/// # Examples
///
/// ```
/// use rust_hmm::mm::migrate::Migrated;
/// use rust_hmm::mm::migrate::MigrationReader;
///
/// /// Finalizes a migration, and returns the number of pages that moved.
/// fn finalize<R: MigrationReader>(migrated: Migrated<'_, R>) -> usize {
///     let moved = migrated.moved().entries().map(|entry| entry.pages).sum();
///     migrated.finalize(|readers, moved| readers.remove_moved(moved));
///     moved
/// }
/// ```
#[must_use = "dropped, it costs the readers their entries"]
pub struct Migrated<'a, R: MigrationReader = ()> {
    moved: Moved<'a>,
    /// Taken by [`Self::finalize`].
    readers: Option<R>,
}

impl<'a, R: MigrationReader> Migrated<'a, R> {
    pub(super) fn new(inner: MigrateState<'a>, readers: R) -> Self {
        Self {
            moved: Moved(inner),
            readers: Some(readers),
        }
    }

    /// Returns the result of the migration.
    ///
    /// # Context
    ///
    /// The mmap lock is held and the pages are locked, as the lifetime ensures. Does not sleep.
    #[inline]
    pub fn moved(&self) -> &Moved<'a> {
        &self.moved
    }

    /// Calls `switch` to replace the readers' entries of the moved pages. After that, maps the
    /// pages for the CPU again, frees the sources, and drops the return value of `switch`.
    ///
    /// # Context
    ///
    /// May sleep. The mmap lock is held and the pages are locked, as the lifetime ensures. `switch`
    /// must not wait for an invalidation or allocate with reclaim.
    pub fn finalize(mut self, switch: impl FnOnce(R, &Moved<'a>) -> R::Done) {
        let done = self
            .readers
            .take()
            .map(|readers| switch(readers, &self.moved));
        drop(self);
        drop(done);
    }
}

impl<R: MigrationReader> Drop for Migrated<'_, R> {
    fn drop(&mut self) {
        let readers = self.readers.take();
        let done = readers.map(|readers| readers.remove_moved(&self.moved));
        self.moved.0.finalize();
        drop(done);
    }
}

// SPDX-License-Identifier: GPL-2.0

//! The second state of a migration, which finalizes it.

use super::{
    batch::MigrateState,
    moved::Moved,
    MigrationReader, //
};

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

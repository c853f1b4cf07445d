// SPDX-License-Identifier: GPL-2.0

//! Mirrors that keep their entries while pages migrate.

use super::moved::Moved;

/// Mirrors to which a migration was announced. They keep their entries of its pages until the pages
/// have moved.
///
/// A migration owns its readers. It consumes them to get a [`Self::Done`] from each, which proves
/// that the device does not use the sources, and frees the sources only after that. A pair of
/// readers is a reader, too.
///
/// # Examples
///
/// ```
/// use kernel::sync::Mutex;
/// use rust_hmm::mm::migrate::MigrationReader;
/// use rust_hmm::mm::migrate::Moved;
///
/// /// A reader that translates one range only.
/// struct Window<'m>(&'m Mutex<Option<usize>>);
///
/// impl MigrationReader for Window<'_> {
///     // No TLB has to be flushed.
///     type Done = ();
///
///     fn remove_moved(self, moved: &Moved<'_>) {
///         if moved.entries().next().is_some() {
///             self.0.lock().take();
///         }
///     }
/// }
/// ```
pub trait MigrationReader: Sized {
    /// Proof that no entry refers to a source page that has moved, and that the TLBs of the device
    /// were flushed since. Only consuming the reader yields it. Dropped when the migration has
    /// ended.
    type Done;

    /// Removes the entries of the pages that have moved, and waits for the flush.
    ///
    /// # Context
    ///
    /// The mmap lock is held and the pages are locked. Must not wait for an invalidation.
    fn remove_moved(self, moved: &Moved<'_>) -> Self::Done;
}

impl MigrationReader for () {
    type Done = ();

    fn remove_moved(self, _moved: &Moved<'_>) {}
}

impl<A: MigrationReader, B: MigrationReader> MigrationReader for (A, B) {
    type Done = (A::Done, B::Done);

    fn remove_moved(self, moved: &Moved<'_>) -> Self::Done {
        (self.0.remove_moved(moved), self.1.remove_moved(moved))
    }
}

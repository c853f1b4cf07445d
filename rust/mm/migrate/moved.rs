// SPDX-License-Identifier: GPL-2.0

//! Result of a migration that is not finalized.

use super::{
    batch::MigrateState,
    MigrateEntry, //
};
use crate::mm::addr::PageRange;

/// Result of a migration, as passed to the readers of the pages.
///
/// # Examples
///
/// ```
/// use rust_hmm::mm::migrate::Moved;
///
/// /// Returns the number of entries whose destination only the device can address.
/// fn of_the_device(moved: &Moved<'_>) -> usize {
///     let entries = moved.entries();
///     entries.filter(|entry| !moved.is_addressable(entry)).count()
/// }
/// ```
pub struct Moved<'a>(pub(super) MigrateState<'a>);

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

// SPDX-License-Identifier: GPL-2.0

//! Outcomes of a migration: per page, and in total.

use core::ops::AddAssign;

/// Outcome of a migration for one page.
///
/// # Examples
///
/// ```
/// use rust_hmm::migrate::PageOutcome;
///
/// assert!(PageOutcome::Moved.has_moved());
/// // The device memory is full, for example: the page can still be mapped where it is.
/// assert!(!PageOutcome::NoMemory.has_moved());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum PageOutcome {
    /// The page was at the destination already, or the address had no page.
    #[default]
    None = 0,
    /// The page could not move: it is pinned, shared, file-backed, merged (KSM), or was changed
    /// concurrently.
    Skipped = 1,
    /// No memory was available at the destination.
    NoMemory = 2,
    /// The copy of the page failed.
    CopyFailed = 3,
    /// The page moved. The device had no entry for it.
    Moved = 4,
    /// The page moved, and the device's entry was replaced without a device fault.
    Switched = 5,
    /// The page moved, and the device lost its entry.
    Lost = 6,
}

impl PageOutcome {
    /// Returns whether the page moved.
    ///
    /// # Context
    ///
    /// Any.
    pub fn has_moved(self) -> bool {
        matches!(self, Self::Moved | Self::Switched | Self::Lost)
    }

    /// Returns whether the page has not moved and may move in another attempt.
    pub(crate) fn may_still_move(self) -> bool {
        matches!(self, Self::None | Self::Skipped)
    }
}

/// Outcome of a migration in total. Partial success is success.
///
/// # Examples
///
/// ```
/// use rust_hmm::migrate::Outcome;
///
/// /// Returns whether the device ran out of memory, so that pages stay in system memory.
/// fn is_full(outcome: &Outcome) -> bool {
///     outcome.no_memory != 0
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Pages that moved.
    pub moved: usize,
    /// Pages that moved and whose device entry was replaced without a device fault.
    pub switched: usize,
    /// Entries that moved and had contents. A huge page counts as one.
    pub entries: usize,
    /// Pages that could not move: pinned, shared, file-backed, merged (KSM), or changed
    /// concurrently.
    pub skipped: usize,
    /// Pages that could not move for lack of memory at the destination.
    pub no_memory: usize,
    /// Pages whose copy failed.
    pub copy_failed: usize,
}

impl Outcome {
    pub(crate) fn count(&mut self, pages: &[PageOutcome]) {
        let mut counts = [0; PageOutcome::Lost as usize + 1];
        for page in pages {
            if let Some(count) = counts.get_mut(*page as usize) {
                *count += 1;
            }
        }
        let [_, skipped, no_memory, copy_failed, moved, switched, lost] = counts;
        self.moved += moved + switched + lost;
        self.switched += switched;
        self.skipped += skipped;
        self.no_memory += no_memory;
        self.copy_failed += copy_failed;
    }
}

impl AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.moved += other.moved;
        self.switched += other.switched;
        self.entries += other.entries;
        self.skipped += other.skipped;
        self.no_memory += other.no_memory;
        self.copy_failed += other.copy_failed;
    }
}

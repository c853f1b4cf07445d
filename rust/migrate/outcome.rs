// SPDX-License-Identifier: GPL-2.0

//! What a migration did: of each page, and altogether.

use core::ops::AddAssign;

/// What became of one page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum PageOutcome {
    /// There was nothing to move: it is there already, or nowhere.
    #[default]
    None = 0,
    /// It could not move: pinned, shared, of a file, merged, or changed meanwhile.
    Skipped = 1,
    /// There was no memory at the destination.
    NoMemory = 2,
    /// Its copy failed.
    CopyFailed = 3,
    /// It moved, and the device had no entry for it.
    Moved = 4,
    /// It moved, and the device's entry was switched: the device noticed nothing.
    Switched = 5,
    /// It moved, and the device lost its entry.
    Lost = 6,
}

impl PageOutcome {
    /// Whether the page moved.
    pub fn has_moved(self) -> bool {
        matches!(self, Self::Moved | Self::Switched | Self::Lost)
    }

    /// Whether nothing is known of the page but that it has not moved.
    pub(super) fn may_still_move(self) -> bool {
        matches!(self, Self::None | Self::Skipped)
    }
}

/// What a migration did. Partial success is success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Pages that moved.
    pub moved: usize,
    /// Of these, pages whose device entry was switched.
    pub switched: usize,
    /// Entries that moved and had contents; a huge page counts once.
    pub entries: usize,
    /// Pages that could not move: pinned, shared, of a file, merged, or changed meanwhile.
    pub skipped: usize,
    /// Pages that could not move for lack of memory at the destination.
    pub no_memory: usize,
    /// Pages whose copy failed.
    pub copy_failed: usize,
}

impl Outcome {
    pub(super) fn count(&mut self, pages: &[PageOutcome]) {
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

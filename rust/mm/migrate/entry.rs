// SPDX-License-Identifier: GPL-2.0

//! Entries of a migration, and the device memory that their pages come from.

#[cfg(doc)]
use crate::mm::addr::PMD_PAGES;
use crate::{
    kernel::identity::{
        MemoryId,
        PgmapOwner, //
    },
    mm::addr::PMD_ORDER, //
};

/// Type of the device pages to isolate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// Pages in device-private memory of the owner.
    Private,
    /// Pages in device-coherent memory of the owner.
    Coherent,
}

/// The device memory from which pages are isolated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Type of the memory.
    pub select: Select,
    /// Owner of the memory. The core isolates pages of all memories of this owner.
    pub owner: PgmapOwner,
    /// The memory. A huge page is isolated as a whole only if it is in this memory.
    pub tile: MemoryId,
}

/// Source of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A hole or the zero page: the destination must be cleared.
    Hole,
    /// This page frame.
    Page(usize),
}

/// An entry that can migrate.
///
/// # Examples
///
/// ```
/// use rust_hmm::mm::migrate::MigrateEntry;
/// use rust_hmm::mm::migrate::Source;
///
/// /// Returns the number of pages whose destination has to be cleared.
/// fn cleared(entries: impl Iterator<Item = MigrateEntry>) -> usize {
///     entries.filter(|entry| entry.source == Source::Hole).map(|entry| entry.pages).sum()
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrateEntry {
    /// Index of its first page in the range.
    pub index: usize,
    /// Number of pages: 1 or [`PMD_PAGES`].
    pub pages: usize,
    /// Source of the entry.
    pub source: Source,
    /// Whether the CPU may write the page without a fault.
    pub writable: bool,
    /// Page frame of the destination, 0 if it has none.
    pub destination: usize,
}

impl MigrateEntry {
    /// Returns the order of the destination folio that the entry requires.
    ///
    /// # Context
    ///
    /// Any.
    pub fn order(&self) -> u32 {
        if self.pages == 1 {
            0
        } else {
            PMD_ORDER
        }
    }
}

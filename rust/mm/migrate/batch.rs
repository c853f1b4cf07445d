// SPDX-License-Identifier: GPL-2.0

//! The source and destination arrays of one migration, and the state of each entry.

use super::{
    thp::ThpIsolation,
    MigrateEntry,
    Source,
    MIGRATE_PFN_COMPOUND,
    MIGRATE_PFN_MIGRATE,
    MIGRATE_PFN_SHIFT,
    MIGRATE_PFN_VALID,
    MIGRATE_PFN_WRITE, //
};
use crate::{
    bindings,
    mm::{
        addr::{
            PageRange,
            PMD_ORDER,
            PMD_PAGES, //
        },
        folio::LockedFolio,
        page_set::PageSet, //
    }, //
};
use core::{
    mem::ManuallyDrop,
    ptr, //
};
use kernel::prelude::*;

/// Buffers for one migration. Callers should reuse them.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::kernel::identity::MigrationId;
/// use rust_hmm::mm::addr::PageRange;
/// use rust_hmm::mm::migrate::Batch;
/// use rust_hmm::mm::migrate::Isolated;
/// use rust_hmm::mm::vma::Vma;
///
/// /// Splits the huge pages of two ranges, with one batch.
/// fn split(vma: Vma<'_>, ranges: [PageRange; 2], id: MigrationId) -> Result {
///     let mut batch = Batch::new()?;
///     for range in ranges {
///         // Dropping the result ends the migration, and the pages stay.
///         drop(Isolated::of_system(vma, range, false, id, &mut batch)?);
///     }
///     Ok(())
/// }
/// ```
pub struct Batch {
    pub(super) src: KVec<usize>,
    pub(super) dst: KVec<usize>,
    /// Pages whose entry has a destination with the contents of the source.
    pub(super) filled: PageSet,
    /// Number of elements that a migration has used. The elements of `dst` after them are 0.
    used: usize,
    /// Whether a fatal signal ended a wait for an mmap lock.
    was_killed: bool,
}

impl Batch {
    /// Allocates a batch for up to [`PMD_PAGES`] pages.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new() -> Result<Self> {
        Self::with_capacity(PMD_PAGES)
    }

    /// Allocates a batch for up to `pages` pages.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn with_capacity(pages: usize) -> Result<Self> {
        Ok(Self {
            src: KVec::from_elem(0, pages, GFP_KERNEL)?,
            dst: KVec::from_elem(0, pages, GFP_KERNEL)?,
            filled: PageSet::EMPTY,
            used: 0,
            was_killed: false,
        })
    }

    /// Records that a fatal signal ended a wait for an mmap lock, so that pages were left out.
    pub(in crate::mm) fn set_killed(&mut self) {
        self.was_killed = true;
    }

    /// Returns whether pages were left out because a fatal signal ended the wait for an mmap lock.
    /// Only waits for the lock of any process count, those with `MmapLocks::All`.
    pub(crate) fn was_killed(&self) -> bool {
        self.was_killed
    }

    /// Clears the destinations of the first `pages` pages. `migrate_vma_setup()` clears the
    /// sources.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: `pages` exceeds the capacity of the batch.
    pub(super) fn clear(&mut self, pages: usize) -> Result {
        let destinations = self.dst.get_mut(..pages).ok_or(EINVAL)?;
        // Most batches are new.
        for destination in destinations.iter_mut().take(self.used) {
            *destination = 0;
        }
        self.used = self.used.max(pages);
        self.filled = PageSet::EMPTY;
        Ok(())
    }
}

/// State of a migration, common to both typestates.
///
/// # Invariants
///
/// `batch` holds what setup and the calls since then have left there. With `vma`, `raw` describes
/// it and the mmap lock is held for `'a`. Without `chosen` all destinations are new system memory.
pub(super) struct MigrateState<'a> {
    pub(super) raw: bindings::migrate_vma,
    /// Range of the migration.
    pub(super) range: PageRange,
    /// Whether the sources are memory that the CPU can address.
    pub(super) cpu_sources: bool,
    /// Whether a caller chose some of the destinations.
    pub(super) chosen: bool,
    pub(super) batch: &'a mut Batch,
    pub(super) pages: usize,
    /// The huge page of private device memory that is isolated as a whole, if any. Dropped last.
    pub(super) whole: Option<ThpIsolation<'a>>,
}

impl MigrateState<'_> {
    #[inline]
    pub(super) fn entry(&self, index: usize) -> Option<MigrateEntry> {
        let src = *self.batch.src.get(..self.pages)?.get(index)?;
        // Only for an entry that can migrate.
        if src & MIGRATE_PFN_MIGRATE == 0 {
            return None;
        }
        Self::entry_of(index, src, *self.batch.dst.get(index)?)
    }

    /// Decodes `src` and `dst` at `index`.
    #[inline]
    fn entry_of(index: usize, src: usize, dst: usize) -> Option<MigrateEntry> {
        let pages = if src & MIGRATE_PFN_COMPOUND != 0 {
            PMD_PAGES
        } else {
            1
        };
        (src & MIGRATE_PFN_MIGRATE != 0).then_some(MigrateEntry {
            index,
            pages,
            source: if src & MIGRATE_PFN_VALID != 0 {
                Source::Page(src >> MIGRATE_PFN_SHIFT)
            } else {
                Source::Hole
            },
            writable: src & MIGRATE_PFN_WRITE != 0,
            destination: dst >> MIGRATE_PFN_SHIFT,
        })
    }

    /// Returns the page frame of the new system memory of the small entry at `index`, and whether
    /// the CPU may write it. Returns `None` also if a caller chose destinations.
    #[inline]
    pub(super) fn small(&self, index: usize) -> Option<(usize, bool)> {
        let src = *self.batch.src.get(index)?;
        let pfn = *self.batch.dst.get(index)? >> MIGRATE_PFN_SHIFT;
        let found = index < self.pages
            && !self.chosen
            && src & (MIGRATE_PFN_MIGRATE | MIGRATE_PFN_COMPOUND) == MIGRATE_PFN_MIGRATE;
        (found && pfn != 0).then_some((pfn, src & MIGRATE_PFN_WRITE != 0))
    }

    /// Returns the first entry at or after page `index`.
    #[inline]
    pub(super) fn entry_from(&self, index: usize) -> Option<MigrateEntry> {
        let rest = self.batch.src.get(index..self.pages)?;
        let found = rest.iter().position(|src| src & MIGRATE_PFN_MIGRATE != 0)?;
        self.entry(index + found)
    }

    /// Returns the number of array elements that may have entries. A huge entry begins with the
    /// range and is the only one.
    #[inline]
    fn places(&self) -> usize {
        match self.batch.src.first() {
            Some(src) if src & MIGRATE_PFN_COMPOUND != 0 => 1,
            _ => self.pages,
        }
    }

    /// Returns the elements that may have entries: of the sources, and of the destinations.
    // Slices, because the iterator of two slices has one bound.
    #[inline]
    fn elements(&self) -> (&[usize], &[usize]) {
        let places = self.places();
        let Batch { src, dst, .. } = &*self.batch;
        let src = src.get(..places).unwrap_or_default();
        let dst = dst.get(..places).unwrap_or_default();
        (src, dst)
    }

    #[inline]
    pub(super) fn entries(&self) -> impl Iterator<Item = MigrateEntry> + '_ {
        let (src, dst) = self.elements();
        src.iter()
            .zip(dst)
            .enumerate()
            .filter_map(|(index, (src, dst))| Self::entry_of(index, *src, *dst))
    }

    /// Returns the entry of which page `index` of the range is a part.
    #[inline]
    pub(super) fn entry_with(&self, index: usize) -> Option<MigrateEntry> {
        // A huge entry begins with the range.
        let huge = || self.entry(0).filter(|entry| entry.pages > index);
        self.entry(index).or_else(huge)
    }

    /// Returns the number of pages of entries that have a destination.
    pub(super) fn filled_pages(&self) -> usize {
        let (src, dst) = self.elements();
        let has_both = |(src, dst): &(&usize, &usize)| {
            *src & MIGRATE_PFN_MIGRATE != 0 && *dst >> MIGRATE_PFN_SHIFT != 0
        };
        let count = src.iter().zip(dst).filter(has_both).count();
        match src.first() {
            // The only entry, see `places`.
            Some(src) if src & MIGRATE_PFN_COMPOUND != 0 => count * PMD_PAGES,
            _ => count,
        }
    }

    /// Marks the small pages without a destination for whose index `select` returns true. Returns
    /// their number, and whether any entry that is not a hole remains without a destination.
    #[inline]
    pub(super) fn mark_small(&mut self, mut select: impl FnMut(usize) -> bool) -> (usize, bool) {
        let mut marked = 0;
        let mut left = false;
        let places = self.places();
        let Batch { src, dst, .. } = &mut *self.batch;
        let src = src.get(..places).unwrap_or_default();
        let dst = dst.get_mut(..places).unwrap_or_default();
        for index in 0..places {
            let (Some(src), Some(dst)) = (src.get(index), dst.get_mut(index)) else {
                break;
            };
            let is_page = src & (MIGRATE_PFN_MIGRATE | MIGRATE_PFN_VALID)
                == MIGRATE_PFN_MIGRATE | MIGRATE_PFN_VALID;
            if !is_page || *dst != 0 {
                continue;
            }
            if src & MIGRATE_PFN_COMPOUND == 0 && select(index) {
                *dst = usize::MAX;
                marked += 1;
            } else {
                left = true;
            }
        }
        (marked, left)
    }

    /// Returns whether `entry` has a destination that the CPU can address.
    #[inline]
    pub(super) fn is_addressable(&self, entry: &MigrateEntry) -> bool {
        // SAFETY: Called only if there is a destination. Its folio is alive: the batch owns it, or
        // the source has migrated to it.
        let is_private = || unsafe { bindings::rust_hmm_pfn_is_private(entry.destination) };
        entry.destination != 0 && !(self.chosen && is_private())
    }

    /// Frees the destination of the entry at `index`, which has not migrated. Does nothing if the
    /// entry has no destination.
    pub(super) fn skip(&mut self, index: usize) {
        if let Some(dst) = self.batch.dst.get_mut(index) {
            let raw = core::mem::take(dst);
            if raw != 0 {
                let order = if raw & MIGRATE_PFN_COMPOUND != 0 {
                    PMD_ORDER
                } else {
                    0
                };
                self.batch.filled.remove(index..index + (1 << order));
                // SAFETY: `fill` has stored the folio, and passed its lock and reference to the
                // batch.
                drop(unsafe { LockedFolio::from_raw(raw >> MIGRATE_PFN_SHIFT, order) });
            }
        }
    }

    /// Records that the destination of the entry at `index` was filled. Does nothing if the entry
    /// has no destination.
    pub(super) fn set_filled(&mut self, index: usize) {
        if let Some(entry) = self.entry(index).filter(|entry| entry.destination != 0) {
            self.batch.filled.add(index..index + entry.pages);
        }
    }

    /// As [`Self::set_filled`], for all indices in `entries`, which have destinations.
    pub(super) fn set_all_filled(&mut self, entries: &PageSet) {
        match self.entry(0) {
            Some(entry) if entry.pages != 1 => self.set_filled(0),
            _ => self.batch.filled.insert_words(entries.words()),
        }
    }

    /// Frees the destinations that were not filled, so that their entries do not migrate.
    pub(super) fn abandon_unfilled(&mut self) {
        for index in self.batch.filled.missing(self.pages) {
            self.skip(index);
        }
    }

    pub(super) fn pages(&mut self) {
        let Self { raw, whole, .. } = self;
        // SAFETY: Set up by the type invariant; every destination is a locked new folio.
        let mut all = || unsafe { bindings::migrate_vma_pages(raw) };
        match whole {
            Some(whole) => whole.without_reference(all),
            None => all(),
        }
    }

    pub(super) fn finalize(&mut self) {
        // SAFETY: Set up by the type invariant.
        unsafe { bindings::migrate_vma_finalize(&mut self.raw) };
    }
}

/// Isolated pages. Dropping it restores them.
pub(super) struct Restored<'a>(pub(super) MigrateState<'a>);

impl<'a> Restored<'a> {
    /// Returns the pages without restoring them, to be migrated.
    pub(super) fn into_inner(self) -> MigrateState<'a> {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used again and not dropped.
        unsafe { ptr::read(&this.0) }
    }
}

impl Drop for Restored<'_> {
    fn drop(&mut self) {
        // Free the destinations first: no entry has migrated to them, and finalizing with them
        // would lose the pages.
        for index in 0..self.0.pages {
            self.0.skip(index);
        }
        self.0.finalize();
    }
}

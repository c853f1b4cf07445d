// SPDX-License-Identifier: GPL-2.0

//! Wrapper of `migrate_vma_*()` as a typestate.
//!
//! In the state [`Isolated`] destinations are allocated and filled; in the state [`Migrated`] the
//! result is read and the migration finalized. Both own the [readers](MigrationReader): device page
//! tables that keep entries of the pages during the migration. Dropping either state finalizes:
//! pages that did not move are restored, and the readers' entries of moved pages are removed before
//! a source is freed.
//!
//! An entry migrates only if the library has filled its destination.
//!
//! Paths on which the kernel is known to fail are excluded here: merged (KSM) pages are not
//! isolated, and a huge source requires a huge destination.
//!
//! - `entry` has the entries of a migration, `batch` their arrays.
//! - `isolate` classifies and isolates pages of system memory, `setup` those of a device.
//! - `migrated` and `moved` have the second state, `reader` the readers.
//! - `thp` has huge pages.
//!
//! C header: [`include/linux/migrate.h`](srctree/include/linux/migrate.h)

use super::{
    addr::PageRange,
    folio::{
        CpuPages,
        CpuPagesMut,
        LockedFolio, //
    },
    page_set::PageSet,
    vma::Vma, //
};
use crate::{
    bindings,
    inject::is_injecting, //
};
use core::ptr;
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
use kernel::prelude::*;

mod batch;
mod entry;
mod isolate;
mod migrated;
mod moved;
mod reader;
mod setup;
mod thp;

pub use batch::Batch;
use batch::{
    MigrateState,
    Restored, //
};
pub use entry::{
    MigrateEntry,
    Origin,
    Select,
    Source, //
};
pub use isolate::System;
pub(crate) use isolate::{
    PageClass,
    SystemPages, //
};
pub use migrated::Migrated;
pub use moved::Moved;
pub use reader::MigrationReader;
use thp::{
    ThpIsolation,
    ThpLookup, //
};

const MIGRATE_PFN_VALID: usize = bindings::MIGRATE_PFN_VALID as usize;
const MIGRATE_PFN_MIGRATE: usize = bindings::MIGRATE_PFN_MIGRATE as usize;
const MIGRATE_PFN_WRITE: usize = bindings::MIGRATE_PFN_WRITE as usize;
const MIGRATE_PFN_COMPOUND: usize = bindings::MIGRATE_PFN_COMPOUND as usize;
const MIGRATE_PFN_SHIFT: u32 = bindings::MIGRATE_PFN_SHIFT;

/// Pages that are locked and unmapped from all CPUs. CPU faults on them wait.
///
/// `R` are the device page tables that keep their entries during the migration; `()` if there are
/// none. Dropping the object restores the pages, and then drops the readers.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::mm::folio::Effort;
/// use rust_hmm::mm::folio::LockedFolio;
/// use rust_hmm::mm::migrate::Isolated;
///
/// /// Migrates pages to other pages of system memory.
/// fn move_all(mut isolated: Isolated<'_>) -> Result {
///     isolated.fill(|_| LockedFolio::alloc_system(None, 0, 0, Effort::Try).ok());
///     let mut next = 0;
///     while let Some(entry) = isolated.entry_from(next) {
///         match (isolated.source(entry.index), isolated.destination(entry.index)) {
///             (Some(from), Some(to)) => to.copy_from(&from)?,
///             _ => isolated.skip(entry.index),
///         }
///         next = entry.index + entry.pages;
///     }
///     isolated.migrate().finalize(|(), _| ());
///     Ok(())
/// }
/// ```
#[must_use = "dropping it puts the pages back"]
pub struct Isolated<'a, R = ()> {
    // Declared first: the pages are restored before the readers are dropped.
    pages: Restored<'a>,
    readers: R,
}

impl<'a, R> Isolated<'a, R> {
    /// Returns the entries that can migrate.
    ///
    /// # Context
    ///
    /// The mmap lock is held and the pages are locked, as the lifetime ensures. Does not sleep.
    #[inline]
    pub fn entries(&self) -> impl Iterator<Item = MigrateEntry> + '_ {
        self.pages.0.entries()
    }

    /// Returns whether the sources are memory that the CPU can address.
    pub(crate) fn has_cpu_sources(&self) -> bool {
        self.pages.0.cpu_sources
    }

    /// Returns the range that was isolated.
    pub(crate) fn range(&self) -> PageRange {
        self.pages.0.range
    }

    /// Returns the ID of the process, or 0 if it has exited.
    pub(crate) fn pid(&self) -> i32 {
        // SAFETY: The VMA is valid, because its mmap lock is held as long as `self` exists.
        unsafe { bindings::rust_hmm_mm_pid(bindings::rust_hmm_vma_mm(self.pages.0.raw.vma)) }
    }

    /// Returns the maximum number of entries: the number of pages of the range.
    pub(crate) fn capacity(&self) -> usize {
        self.pages.0.pages
    }

    /// Returns the number of pages that the core has isolated, an upper bound of those that
    /// migrate.
    pub(crate) fn count(&self) -> usize {
        self.pages.0.raw.cpages
    }

    /// Returns whether the CPU can address the destination of `entry`, which must have one.
    #[inline]
    pub(crate) fn is_addressable(&self, entry: &MigrateEntry) -> bool {
        self.pages.0.is_addressable(entry)
    }

    /// Returns the first entry at or after page `index` of the range.
    ///
    /// # Context
    ///
    /// The mmap lock is held and the pages are locked, as the lifetime ensures. Does not sleep.
    #[inline]
    pub fn entry_from(&self, index: usize) -> Option<MigrateEntry> {
        self.pages.0.entry_from(index)
    }

    /// Returns the entry of which page `index` of the range is a part.
    pub(crate) fn entry_with(&self, index: usize) -> Option<MigrateEntry> {
        self.pages.0.entry_with(index)
    }

    /// Allocates system memory in bulk as destinations of the small pages for whose index `select`
    /// returns true, except holes. As in [`LockedFolio::alloc_system`] the folios are marked dirty.
    ///
    /// Returns whether any entry that is not a hole still has no destination, for example because a
    /// memory policy applies. The caller handles these with [`Self::fill`].
    ///
    /// # Context
    ///
    /// May sleep. No lock that a notifier takes may be held.
    pub fn alloc_small(&mut self, vma: Option<Vma<'_>>, select: impl FnMut(usize) -> bool) -> bool {
        if is_injecting() {
            // Leave all entries to `fill`, so that a fault can be injected for each allocation.
            return true;
        }
        // Drops `select` before the allocation, because it may hold a lock.
        let (marked, left) = self.pages.0.mark_small(select);
        if marked == 0 {
            return left;
        }
        let vma = vma.map_or(ptr::null_mut(), |vma| vma.as_ptr());
        let dst = self.pages.0.batch.dst.as_mut_ptr();
        let pages = self.pages.0.pages;
        // SAFETY: The array is that long; `vma` is null or valid, with its mmap lock held.
        let filled = unsafe { bindings::rust_hmm_fill_marked(vma, dst, pages, marked) };
        left || !filled
    }

    /// Calls `choose` for the destination of each entry that has none. An entry without a
    /// destination does not migrate.
    ///
    /// A destination whose order differs from that of the entry is dropped. A new destination
    /// counts as not filled until the contents of its entry were copied to it.
    ///
    /// # Context
    ///
    /// As for `choose`. The mmap lock is held and the pages are locked, as the lifetime ensures.
    pub fn fill(&mut self, mut choose: impl FnMut(&MigrateEntry) -> Option<LockedFolio>) {
        let mut index = 0;
        while index < self.pages.0.pages {
            let Some(entry) = self.pages.0.entry(index) else {
                index += 1;
                continue;
            };
            index += entry.pages;
            if entry.destination != 0 {
                continue;
            }
            let Some(folio) = choose(&entry).filter(|folio| folio.order() == entry.order()) else {
                continue;
            };
            self.pages.0.chosen = true;
            if let Some(dst) = self.pages.0.batch.dst.get_mut(entry.index) {
                let (pfn, order) = folio.into_raw();
                *dst = (pfn << MIGRATE_PFN_SHIFT) | MIGRATE_PFN_VALID;
                if order != 0 {
                    *dst |= MIGRATE_PFN_COMPOUND;
                }
            }
        }
    }

    /// Returns the source pages of the entry at `index`; `None` for a hole and for memory that the
    /// CPU cannot address.
    ///
    /// # Context
    ///
    /// The mmap lock is held and the pages are locked, as the lifetime ensures. Does not sleep.
    #[inline]
    pub fn source(&self, index: usize) -> Option<CpuPages<'_>> {
        let entry = self.pages.0.entry(index)?;
        let Source::Page(pfn) = entry.source else {
            return None;
        };
        if !self.pages.0.cpu_sources {
            return None;
        }
        // SAFETY: The page is isolated, so it stays alive as long as `self`. The sources are memory
        // that the CPU can address: the core isolates only pages of the selected type.
        Some(unsafe { CpuPages::new(pfn, entry.pages) })
    }

    /// Returns the destination pages of the entry at `index`; `None` if it has no destination, and
    /// for memory that the CPU cannot address.
    ///
    /// # Context
    ///
    /// The mmap lock is held and the pages are locked, as the lifetime ensures. Does not sleep.
    #[inline]
    pub fn destination(&self, index: usize) -> Option<CpuPagesMut<'_>> {
        let entry = self.pages.0.entry(index)?;
        if !self.pages.0.is_addressable(&entry) {
            return None;
        }
        // SAFETY: `self` owns the destination folio. It is freed only by `skip`, which requires
        // a mutable borrow of `self`.
        Some(unsafe { CpuPagesMut::new(entry.destination, entry.pages) })
    }

    /// Records that the contents of the entry at `index`, or zeros for a hole, were written to its
    /// whole destination. Only such an entry [migrates](Self::migrate), because the process must
    /// not see stale contents of a new page.
    ///
    /// Not public, because a driver could call it for a destination that it has not written.
    #[inline]
    pub(crate) fn set_filled(&mut self, index: usize) {
        self.pages.0.set_filled(index);
    }

    /// As [`Self::set_filled`], for all indices in `entries`, which have destinations.
    pub(crate) fn set_all_filled(&mut self, entries: &PageSet) {
        self.pages.0.set_all_filled(entries);
    }

    /// Frees the destination of the entry at `index`, which could not be filled.
    ///
    /// # Context
    ///
    /// The mmap lock is held and the pages are locked, as the lifetime ensures. Does not sleep.
    pub fn skip(&mut self, index: usize) {
        self.pages.0.skip(index);
    }
}

impl<'a, R: MigrationReader> Isolated<'a, R> {
    /// Migrates the entries whose destination was filled. CPU faults on them still wait.
    /// Destinations that were not filled are freed.
    ///
    /// # Context
    ///
    /// May sleep. Calls notifiers: no lock that a notifier takes may be held.
    pub fn migrate(mut self) -> Migrated<'a, R> {
        // Before the state is moved, so that it is moved once.
        self.pages.0.abandon_unfilled();
        self.pages.0.pages();
        Migrated::new(self.pages.into_inner(), self.readers)
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_migrate_pfn)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_matches_the_c_headers() {
        for pfn in [0usize, 1, 0x12_3456, 1 << 40] {
            // SAFETY: Arithmetic only.
            let c = unsafe { bindings::rust_hmm_kunit_migrate_pfn(pfn) };
            assert_eq!((pfn << MIGRATE_PFN_SHIFT) | MIGRATE_PFN_VALID, c);
            assert_eq!(c >> MIGRATE_PFN_SHIFT, pfn);
        }
    }
}

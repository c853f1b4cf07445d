// SPDX-License-Identifier: GPL-2.0

//! Page migration in two states: [`Isolated`], where destinations are chosen and filled, and
//! [`Migrated`], where the outcome is read. Both own the [readers](Reader): device page tables that keep
//! entries of the pages meanwhile. Dropping either finalizes, so that an early return restores the pages
//! that have not moved; of those that have, the readers lose their entries before a source is freed.
//!
//! Only destinations that the library has filled are migrated into.
//!
//! Paths on which the kernel breaks are closed here: merged (KSM) pages are not isolated, and a
//! huge source only gets a huge destination.
//!
//! C header: [`include/linux/migrate.h`](srctree/include/linux/migrate.h)

use super::{
    addr::{PageRange, PMD_ORDER, PMD_PAGES},
    device_pages::CpuFault,
    mask::Mask,
    notifier::Cookie,
    page::{CpuPages, CpuPagesMut, LockedFolio},
    space::Vma, //
};
use crate::{
    bindings,
    inject::{fails, is_injecting, Point}, //
};
use core::ptr;
use kernel::{error::to_result, prelude::*};

mod batch;
mod migrated;
mod reader;
mod system;
mod whole;

pub use batch::Batch;
use batch::{Inner, Restored};
pub use migrated::{Migrated, Moved};
pub use reader::Reader;
pub use system::System;
pub(crate) use system::{Pages, SystemPages};
use whole::{Found, Whole};

const VALID: usize = bindings::MIGRATE_PFN_VALID as usize;
const MIGRATE: usize = bindings::MIGRATE_PFN_MIGRATE as usize;
const WRITE: usize = bindings::MIGRATE_PFN_WRITE as usize;
const COMPOUND: usize = bindings::MIGRATE_PFN_COMPOUND as usize;
const SHIFT: u32 = bindings::MIGRATE_PFN_SHIFT;

/// Which device pages of a range to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// Those in device-private memory of the owner.
    Private,
    /// Those in device-coherent memory of the owner.
    Coherent,
}

/// Device memory, as pages are isolated from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its kind.
    pub select: Select,
    /// Its owner: the core takes pages of all memories of this owner.
    pub owner: Cookie,
    /// Its name. A huge page is taken whole only if it is of this memory.
    pub tile: Cookie,
}

/// What a page comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nothing was ever there, or the zero page: the destination is to be cleared.
    Hole,
    /// This page frame.
    Page(usize),
}

/// An entry that can migrate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Index of its first page in the range.
    pub index: usize,
    /// Number of pages: 1 or [`PMD_PAGES`].
    pub pages: usize,
    /// Where it comes from.
    pub source: Source,
    /// Whether the CPU may write it without a fault.
    pub writable: bool,
    /// Page frame of the destination, 0 if it has none.
    pub destination: usize,
}

impl Entry {
    /// Order of the folio that the entry needs.
    pub fn order(&self) -> u32 {
        if self.pages == 1 {
            0
        } else {
            PMD_ORDER
        }
    }
}

/// Pages that are unmapped from all CPUs and locked. CPU faults on them wait.
///
/// `R` are the device page tables that keep their entries meanwhile; `()` if there are none. Dropping it restores the
/// pages, and drops the readers after that.
#[must_use = "dropping it puts the pages back"]
pub struct Isolated<'a, R = ()> {
    // Restored before the readers go.
    pages: Restored<'a>,
    readers: R,
}

impl<'a> Isolated<'a> {
    /// Isolates the pages of `range` that are in a device's memory, best effort.
    ///
    /// `range` must lie in `vma` and within 2 MiB. `compound` takes a huge page of private memory as
    /// one entry, else it is split; the core collects no huge page of coherent memory. `fault` is the
    /// CPU fault being handled, if any. Small pages of other memories of the owner are isolated, too.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `range` is not so, or the mapping is special or hugetlb. Context: may sleep;
    /// calls notifiers, so that no lock which one of them takes can be held.
    pub fn new(
        vma: Vma<'a>,
        range: PageRange,
        origin: Origin,
        compound: bool,
        fault: Option<&CpuFault<'a>>,
        batch: &'a mut Batch,
    ) -> Result<Self> {
        Self::check(vma, range)?;
        let huge = compound && range.is_pmd() && origin.select == Select::Private;
        let select = match origin.select {
            Select::Private => bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_DEVICE_PRIVATE,
            Select::Coherent => bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_DEVICE_COHERENT,
        };
        let in_one = bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_COMPOUND;
        let (flags, whole) = if huge {
            // One that is not found now may be there when the core looks; it is not to be taken whole.
            match Whole::find(vma, range, origin.tile, fault) {
                Found::Nothing => (in_one, None),
                Found::Whole(whole) => (select | in_one, Some(whole)),
                Found::Other => (select, None),
            }
        } else {
            (select, None)
        };
        Self::set_up(vma, range, flags, origin.owner, fault, whole, batch)
    }

    fn check(vma: Vma<'a>, range: PageRange) -> Result {
        if range.pages() > PMD_PAGES || range.start() < vma.start() || range.end() > vma.end() {
            return Err(EINVAL);
        }
        if fails(Point::Isolate) {
            return Err(ENOMEM);
        }
        Ok(())
    }

    fn set_up(
        vma: Vma<'a>,
        range: PageRange,
        flags: u32,
        cookie: Cookie,
        fault: Option<&CpuFault<'a>>,
        whole: Option<Whole<'a>>,
        batch: &'a mut Batch,
    ) -> Result<Self> {
        let of_cpu = bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_SYSTEM
            | bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_DEVICE_COHERENT;
        let pages = range.pages();
        batch.clear(pages)?;
        let held = || whole.as_ref().map_or(ptr::null_mut(), Whole::page);
        let mut raw = bindings::migrate_vma {
            vma: vma.as_ptr(),
            src: batch.src.as_mut_ptr(),
            dst: batch.dst.as_mut_ptr(),
            start: range.start(),
            end: range.end(),
            pgmap_owner: cookie.as_ptr(),
            flags: flags as usize,
            fault_page: fault.map_or_else(held, CpuFault::page),
            ..Default::default()
        };
        // SAFETY: The mmap lock is held for `'a`, the arrays are as long as the range.
        to_result(unsafe { bindings::migrate_vma_setup(&mut raw) })?;
        // INVARIANT: Just set up.
        let pages = Restored(Inner {
            raw,
            range,
            cpu_sources: flags & of_cpu != 0,
            chosen: false,
            batch,
            pages,
            whole,
        });
        Ok(Self { pages, readers: () })
    }

    /// Isolates pages, by `isolate`, that `readers` keep reading. Taken before, so that a reader cannot be left behind.
    ///
    /// # Errors
    ///
    /// Those of `isolate`; then the readers are dropped.
    pub fn read_by<R>(
        readers: R,
        isolate: impl FnOnce() -> Result<Self>,
    ) -> Result<Isolated<'a, R>> {
        let Self { pages, readers: () } = isolate()?;
        Ok(Isolated { pages, readers })
    }
}

impl<'a, R> Isolated<'a, R> {
    /// The entries that can migrate.
    #[inline]
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.pages.0.entries()
    }

    /// Whether the sources are memory that the CPU can address.
    pub(crate) fn has_cpu_sources(&self) -> bool {
        self.pages.0.cpu_sources
    }

    /// Most entries that there can be.
    pub(crate) fn room(&self) -> usize {
        self.pages.0.pages
    }

    /// Pages that can migrate, at most: those that the core has isolated.
    pub(crate) fn count(&self) -> usize {
        self.pages.0.raw.cpages
    }

    /// Whether the CPU can address the destination of `entry`, which has one.
    #[inline]
    pub(crate) fn is_addressable(&self, entry: &Entry) -> bool {
        self.pages.0.is_addressable(entry)
    }

    /// The first entry at or after page `index` of the range.
    #[inline]
    pub fn entry_from(&self, index: usize) -> Option<Entry> {
        self.pages.0.entry_from(index)
    }

    /// Gives new system memory to the small pages for which `wanted` says so of their index, many at
    /// once. Holes get none. As with [`LockedFolio::alloc_system`] they are dirty.
    ///
    /// Returns whether entries that are no holes have no destination by now, also for the sake of a
    /// memory policy: these are left to [`Self::fill`].
    ///
    /// Context: may sleep; the notifier's lock must not be held.
    pub fn fill_small(&mut self, vma: Option<Vma<'_>>, wanted: impl FnMut(usize) -> bool) -> bool {
        if is_injecting() {
            // One by one, each of which may fail.
            return true;
        }
        // `wanted` is dropped: it may hold what must not be held over an allocation.
        let (marked, left) = self.pages.0.mark_small(wanted);
        if marked == 0 {
            return left;
        }
        let vma = vma.map_or(ptr::null_mut(), |vma| vma.as_ptr());
        let (dst, pages) = (self.pages.0.batch.dst.as_mut_ptr(), self.pages.0.pages);
        // SAFETY: The array is that long; `vma` is null or valid, with its mmap lock held.
        let filled = unsafe { bindings::rust_hmm_fill_marked(vma, dst, pages, marked) };
        left || !filled
    }

    /// Asks `choose` for the destination of each entry. An entry without one stays where it is.
    ///
    /// A destination whose order is not the entry's is dropped. Entries that have one are not asked for
    /// again. A destination is not filled until the contents of its entry were copied to it.
    pub fn fill(&mut self, mut choose: impl FnMut(&Entry) -> Option<LockedFolio>) {
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
                *dst = (pfn << SHIFT) | VALID;
                if order != 0 {
                    *dst |= COMPOUND;
                }
            }
        }
    }

    /// The pages that the entry at `index` comes from; `None` for a hole and for memory that the
    /// CPU cannot address.
    #[inline]
    pub fn source(&self, index: usize) -> Option<CpuPages<'_>> {
        let entry = self.pages.0.entry(index)?;
        let Source::Page(pfn) = entry.source else {
            return None;
        };
        if !self.pages.0.cpu_sources {
            return None;
        }
        // SAFETY: The page is isolated: it stays alive as long as `self`. The core gives what was selected.
        Some(unsafe { CpuPages::new(pfn, entry.pages) })
    }

    /// The pages that the entry at `index` goes to; `None` if it has none, and for memory that the
    /// CPU cannot address.
    #[inline]
    pub fn destination(&self, index: usize) -> Option<CpuPagesMut<'_>> {
        let entry = self.pages.0.entry(index)?;
        if !self.pages.0.is_addressable(&entry) {
            return None;
        }
        // SAFETY: The destination is a folio of ours, alive as long as it is not abandoned, for
        // which `self` would have to be borrowed mutably.
        Some(unsafe { CpuPagesMut::new(entry.destination, entry.pages) })
    }

    /// Notes that the contents of the entry at `index`, or zeros for a hole, were written to all of its destination. Only
    /// such an entry [moves](Self::migrate): the process must not see what a new page held before.
    ///
    /// Not public: a driver could note it of a destination that it has not written.
    #[inline]
    pub(crate) fn set_filled(&mut self, index: usize) {
        self.pages.0.set_filled(index);
    }

    /// As [`Self::set_filled`], for all indices in `entries`, which have destinations.
    pub(crate) fn set_all_filled(&mut self, entries: &Mask) {
        self.pages.0.set_all_filled(entries);
    }

    /// Takes the destination of the entry at `index` back: it could not be filled.
    pub fn abandon(&mut self, index: usize) {
        self.pages.0.abandon(index);
    }
}

impl<'a, R: Reader> Isolated<'a, R> {
    /// Moves the pages whose destination was filled. CPU faults on them still wait. Other destinations are taken back.
    pub fn migrate(self) -> Migrated<'a, R> {
        let mut inner = self.pages.into_inner();
        inner.abandon_unfilled();
        inner.pages();
        Migrated::new(inner, self.readers)
    }
}

#[kunit_tests(rust_hmm_migrate_pfn)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_is_that_of_the_headers() {
        for pfn in [0usize, 1, 0x12_3456, 1 << 40] {
            // SAFETY: Arithmetic only.
            let c = unsafe { bindings::rust_hmm_kunit_migrate_pfn(pfn) };
            assert_eq!((pfn << SHIFT) | VALID, c);
            assert_eq!(c >> SHIFT, pfn);
        }
    }
}

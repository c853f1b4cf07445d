// SPDX-License-Identifier: GPL-2.0

//! Page migration in two states: [`Isolated`], where destinations are chosen and filled, and
//! [`Migrated`], where the outcome is read. Dropping either always finalizes, so that an early
//! return restores the pages that have not moved.
//!
//! Paths on which the kernel breaks are closed here: merged (KSM) pages are not isolated, and a
//! huge source only gets a huge destination.
//!
//! C header: [`include/linux/migrate.h`](srctree/include/linux/migrate.h)

use super::{
    addr::{PageRange, PMD_ORDER, PMD_PAGES},
    device_pages::CpuFault,
    flush::Flushed,
    notifier::Cookie,
    page::{CpuPages, CpuPagesMut, LockedFolio},
    space::Vma, //
};
use crate::{
    bindings,
    inject::{fails, is_injecting, Point}, //
};
use core::{mem::ManuallyDrop, ptr};
use kernel::{error::to_result, prelude::*};

mod batch;
mod replica;
mod system;
mod whole;

pub use batch::Batch;
use batch::Inner;
pub use replica::{Constant, Replica};
pub(crate) use system::Pages;
pub use system::System;
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
#[must_use = "dropping it puts the pages back"]
pub struct Isolated<'a>(Inner<'a>);

impl<'a> Isolated<'a> {
    /// Isolates the pages of `range` that are in a device's memory, best effort.
    ///
    /// `range` must lie in `vma` and within 2 MiB. `owner` must be that of the memory. `compound` takes a huge
    /// page of private memory as one entry, else it is split; the core collects no huge page of coherent memory.
    /// `fault` is the CPU fault being handled, if any.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `range` is not so, or the mapping is special or hugetlb. Context: may sleep;
    /// calls notifiers, so that no lock which one of them takes can be held.
    pub fn new(
        vma: Vma<'a>,
        range: PageRange,
        select: Select,
        compound: bool,
        owner: Cookie,
        fault: Option<&CpuFault<'a>>,
        batch: &'a mut Batch,
    ) -> Result<Self> {
        Self::check(vma, range)?;
        let huge = compound && range.is_pmd() && select == Select::Private;
        let select = match select {
            Select::Private => bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_DEVICE_PRIVATE,
            Select::Coherent => bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_DEVICE_COHERENT,
        };
        let in_one = bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_COMPOUND;
        let (flags, whole) = if huge {
            // One that is not found now may be there when the core looks; it is not to be taken whole.
            match Whole::find(vma, range, owner, fault) {
                Found::Nothing => (in_one, None),
                Found::Whole(whole) => (select | in_one, Some(whole)),
                Found::Other => (select, None),
            }
        } else {
            (select, None)
        };
        Self::set_up(vma, range, flags, owner, fault, whole, batch)
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
        Ok(Self(Inner {
            raw,
            cpu_sources: flags & of_cpu != 0,
            chosen: false,
            batch,
            pages,
            whole,
        }))
    }

    /// The entries that can migrate.
    #[inline]
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.0.entries()
    }

    /// Whether the sources are memory that the CPU can address.
    pub(crate) fn has_cpu_sources(&self) -> bool {
        self.0.cpu_sources
    }

    /// Most entries that there can be.
    pub(crate) fn room(&self) -> usize {
        self.0.pages
    }

    /// The first entry at or after page `index` of the range.
    #[inline]
    pub fn entry_from(&self, index: usize) -> Option<Entry> {
        self.0.entry_from(index)
    }

    /// Gives new system memory to the small pages among the entries for which `wanted` says so, many at
    /// once. Best effort: those that get none, also for the sake of a memory policy, are left to
    /// [`Self::fill`]. Holes get none. As with [`LockedFolio::alloc_system`] they are dirty.
    ///
    /// Context: may sleep; the notifier's lock must not be held.
    pub fn fill_small(&mut self, vma: Option<Vma<'_>>, mut wanted: impl FnMut(&Entry) -> bool) {
        if is_injecting() {
            // One by one, each of which may fail.
            return;
        }
        let mut any = false;
        let mut index = 0;
        while let Some(entry) = self.0.entry_from(index) {
            index = entry.index + entry.pages;
            let fits = entry.order() == 0 && entry.destination == 0;
            let is_hole = entry.source == Source::Hole;
            if !fits || is_hole || !wanted(&entry) {
                continue;
            }
            if let Some(dst) = self.0.batch.dst.get_mut(entry.index) {
                *dst = usize::MAX;
                any = true;
            }
        }
        // It may hold what must not be held over an allocation.
        drop(wanted);
        if any {
            let vma = vma.map_or(ptr::null_mut(), |vma| vma.as_ptr());
            // SAFETY: The array is that long; `vma` is null or valid, with its mmap lock held.
            unsafe {
                bindings::rust_hmm_fill_marked(vma, self.0.batch.dst.as_mut_ptr(), self.0.pages)
            };
        }
    }

    /// Asks `choose` for the destination of each entry. An entry without one stays where it is.
    ///
    /// A destination whose order is not the entry's is dropped. Entries that have one are not asked for
    /// again. What is not copied to a destination is not what the process finds there later.
    pub fn fill(&mut self, mut choose: impl FnMut(&Entry) -> Option<LockedFolio>) {
        let mut index = 0;
        while index < self.0.pages {
            let Some(entry) = self.0.entry(index) else {
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
            self.0.chosen = true;
            if let Some(dst) = self.0.batch.dst.get_mut(entry.index) {
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
        let entry = self.0.entry(index)?;
        let Source::Page(pfn) = entry.source else {
            return None;
        };
        if !self.0.cpu_sources {
            return None;
        }
        // SAFETY: The page is isolated: it stays alive as long as `self`. The core gives what was selected.
        Some(unsafe { CpuPages::new(pfn, entry.pages) })
    }

    /// The pages that the entry at `index` goes to; `None` if it has none, and for memory that the
    /// CPU cannot address.
    #[inline]
    pub fn destination(&self, index: usize) -> Option<CpuPagesMut<'_>> {
        let entry = self.0.entry(index)?;
        if !self.0.is_addressable(&entry) {
            return None;
        }
        // SAFETY: The destination is a folio of ours, alive as long as it is not abandoned, for
        // which `self` would have to be borrowed mutably.
        Some(unsafe { CpuPagesMut::new(entry.destination, entry.pages) })
    }

    /// Takes the destination of the entry at `index` back: it could not be filled.
    pub fn abandon(&mut self, index: usize) {
        if let Some(dst) = self.0.batch.dst.get_mut(index) {
            let raw = core::mem::take(dst);
            if raw != 0 {
                let order = if raw & COMPOUND != 0 { PMD_ORDER } else { 0 };
                // SAFETY: It was put there by `fill`, with its lock and reference.
                drop(unsafe { LockedFolio::from_raw(raw >> SHIFT, order) });
            }
        }
    }

    /// Moves the pages whose destination is filled. CPU faults on them still wait.
    pub fn migrate(self) -> Migrated<'a> {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used again and not dropped.
        let mut inner = unsafe { ptr::read(&this.0) };
        inner.pages();
        Migrated(inner)
    }
}

impl Drop for Isolated<'_> {
    fn drop(&mut self) {
        // Destinations that were never migrated into have no mapping; finalizing with them would
        // lose the pages. So they go first.
        for index in 0..self.0.pages {
            self.abandon(index);
        }
        self.0.finalize();
    }
}

/// Pages that have moved, or stay. [`Self::finalize`] maps them for the CPU again, and so does a drop,
/// for the case that no device has an entry.
pub struct Migrated<'a>(Inner<'a>);

impl Migrated<'_> {
    /// The entries that moved to their destination.
    #[inline]
    pub fn moved(&self) -> impl Iterator<Item = Entry> + '_ {
        self.0.entries().filter(|entry| entry.destination != 0)
    }

    /// Whether the CPU can address what `entry` has moved to.
    #[inline]
    pub fn is_addressable(&self, entry: &Entry) -> bool {
        self.0.is_addressable(entry)
    }

    /// As [`Self::moved_at`], of a small page that moved to new system memory: its page frame, and whether the CPU
    /// may write it.
    #[inline]
    pub(crate) fn small_at(&self, index: usize) -> Option<(usize, bool)> {
        self.0.small(index)
    }

    /// The entry that moved page `index` of the range.
    #[inline]
    pub fn moved_at(&self, index: usize) -> Option<Entry> {
        // A huge one begins with the range.
        let huge = || self.0.entry(0).filter(|entry| entry.pages > index);
        let entry = self.0.entry(index).or_else(huge)?;
        (entry.destination != 0).then_some(entry)
    }

    /// Maps the pages for the CPU again, and frees their sources: no device uses these any more.
    pub fn finalize(self, _proof: &Flushed) {}
}

impl Drop for Migrated<'_> {
    fn drop(&mut self) {
        self.0.finalize();
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

// SPDX-License-Identifier: GPL-2.0

//! Page migration in two states: [`Isolated`], where destinations are chosen and filled, and
//! [`Migrated`], where the outcome is read. Dropping either always finalizes, so that an early
//! return restores the pages that have not moved.
//!
//! Paths on which the kernel breaks are closed here: merged (KSM) pages get no destination, and a
//! huge source only gets a huge destination.
//!
//! C header: [`include/linux/migrate.h`](srctree/include/linux/migrate.h)

use super::{
    addr::{PageRange, PMD_ORDER, PMD_PAGES},
    device_pages::{CpuFault, DevicePageOps, DevicePages, DeviceRange},
    notifier::Cookie,
    page::{mark_dirty, CpuPages, CpuPagesMut, LockedFolio},
    space::Vma, //
};
use crate::{
    bindings,
    inject::{fails, Point},
    pgtable::Flushed, //
};
use core::{marker::PhantomData, mem::ManuallyDrop, ptr};
use kernel::{error::to_result, mm::virt::flags, prelude::*};

const VALID: usize = bindings::MIGRATE_PFN_VALID as usize;
const MIGRATE: usize = bindings::MIGRATE_PFN_MIGRATE as usize;
const WRITE: usize = bindings::MIGRATE_PFN_WRITE as usize;
const COMPOUND: usize = bindings::MIGRATE_PFN_COMPOUND as usize;
const SHIFT: u32 = bindings::MIGRATE_PFN_SHIFT;

/// Room for one migration of up to [`PMD_PAGES`] pages. Reuse it.
pub struct Batch(KBox<Arrays>);

struct Arrays {
    src: [usize; PMD_PAGES],
    dst: [usize; PMD_PAGES],
}

impl Batch {
    /// Allocates a batch. Context: may sleep.
    pub fn new() -> Result<Self> {
        let arrays = Arrays {
            src: [0; PMD_PAGES],
            dst: [0; PMD_PAGES],
        };
        Ok(Self(KBox::new(arrays, GFP_KERNEL)?))
    }
}

/// Which pages of a range to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// Those in system memory, and holes of anonymous mappings.
    System,
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

/// State common to both phases.
///
/// # Invariants
///
/// `batch` holds what setup and the calls since then have left there. With `vma`, `raw` describes
/// it and the mmap lock is held for `'a`.
struct Inner<'a> {
    raw: bindings::migrate_vma,
    /// By virtual address, or by physical page (`migrate_device_*`).
    by_vma: bool,
    batch: &'a mut Arrays,
    pages: usize,
    _borrow: PhantomData<Vma<'a>>,
}

impl Inner<'_> {
    fn entry(&self, index: usize) -> Option<Entry> {
        let src = *self.batch.src.get(..self.pages)?.get(index)?;
        let pages = if src & COMPOUND != 0 { PMD_PAGES } else { 1 };
        (src & MIGRATE != 0).then_some(Entry {
            index,
            pages,
            source: if src & VALID != 0 {
                Source::Page(src >> SHIFT)
            } else {
                Source::Hole
            },
            writable: src & WRITE != 0,
            destination: self.batch.dst.get(index).map_or(0, |dst| *dst >> SHIFT),
        })
    }

    /// The first entry at or after page `index`.
    fn entry_from(&self, index: usize) -> Option<Entry> {
        (index..self.pages).find_map(|index| self.entry(index))
    }

    fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let mut next = 0;
        core::iter::from_fn(move || {
            let found = self.entry_from(next)?;
            next = found.index + found.pages;
            Some(found)
        })
    }

    fn pages(&mut self) {
        // SAFETY: Set up by the type invariant; every destination is a locked new folio.
        unsafe {
            if self.by_vma {
                bindings::migrate_vma_pages(&mut self.raw);
            } else {
                bindings::migrate_device_pages(
                    self.batch.src.as_mut_ptr(),
                    self.batch.dst.as_mut_ptr(),
                    self.pages,
                );
            }
        }
    }

    fn finalize(&mut self) {
        // SAFETY: As above.
        unsafe {
            if self.by_vma {
                bindings::migrate_vma_finalize(&mut self.raw);
            } else {
                bindings::migrate_device_finalize(
                    self.batch.src.as_mut_ptr(),
                    self.batch.dst.as_mut_ptr(),
                    self.pages,
                );
            }
        }
    }
}

/// Pages that are unmapped from all CPUs and locked. CPU faults on them wait.
#[must_use = "dropping it puts the pages back"]
pub struct Isolated<'a>(Inner<'a>);

impl<'a> Isolated<'a> {
    /// Isolates the pages of `range` that can migrate, best effort.
    ///
    /// `range` must lie in `vma` and within 2 MiB. `cookie` names the transaction to notifiers; to
    /// take device pages it must be their owner. `compound` takes a huge page as one entry, else
    /// it is split. `fault` is the CPU fault being handled, if any.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `range` is not so, or the mapping is special or hugetlb, or system memory that KSM may
    /// merge. Context: may sleep;
    /// calls notifiers, so that no lock which one of them takes can be held.
    pub fn new(
        vma: Vma<'a>,
        range: PageRange,
        select: Select,
        compound: bool,
        cookie: Cookie,
        fault: Option<&CpuFault<'a>>,
        batch: &'a mut Batch,
    ) -> Result<Self> {
        let pages = range.pages();
        if pages > PMD_PAGES || range.start() < vma.start() || range.end() > vma.end() {
            return Err(EINVAL);
        }
        // A page that KSM has just merged is not in its reverse mapping yet: the core would isolate it
        // and never find its way back.
        if select == Select::System && vma.flags() & flags::MERGEABLE != 0 {
            return Err(EINVAL);
        }
        if fails(Point::Isolate) {
            return Err(ENOMEM);
        }
        let batch = &mut *batch.0;
        batch.src.fill(0);
        batch.dst.fill(0);
        let select = match select {
            Select::System => bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_SYSTEM,
            Select::Private => bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_DEVICE_PRIVATE,
            Select::Coherent => bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_DEVICE_COHERENT,
        };
        let compound = if compound {
            bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_COMPOUND
        } else {
            0
        };
        let mut raw = bindings::migrate_vma {
            vma: vma.as_ptr(),
            src: batch.src.as_mut_ptr(),
            dst: batch.dst.as_mut_ptr(),
            start: range.start(),
            end: range.end(),
            pgmap_owner: cookie.as_ptr(),
            flags: (select | compound) as usize,
            fault_page: fault.map_or(ptr::null_mut(), |fault| fault.page()),
            ..Default::default()
        };
        // SAFETY: The mmap lock is held for `'a`, the arrays are as long as the range.
        to_result(unsafe { bindings::migrate_vma_setup(&mut raw) })?;
        // INVARIANT: Just set up.
        Ok(Self(Inner {
            raw,
            by_vma: true,
            batch,
            pages,
            _borrow: PhantomData,
        }))
    }

    /// Isolates device pages by their numbers, wherever they are mapped. Best effort: pages that
    /// are locked or referenced are left out.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range is longer than [`PMD_PAGES`] or not there. Context: as [`Self::new`].
    pub fn from_device<T: DevicePageOps>(
        memory: &'a DevicePages<T>,
        range: DeviceRange,
        batch: &'a mut Batch,
    ) -> Result<Self> {
        if range.count == 0 || range.count > PMD_PAGES {
            return Err(EINVAL);
        }
        let first = memory.pfn(range.first).ok_or(EINVAL)?;
        let last = range.first.checked_add(range.count - 1);
        let last = last.and_then(|last| memory.pfn(last)).ok_or(EINVAL)?;
        if last.checked_sub(first) != Some(range.count - 1) {
            return Err(EINVAL);
        }
        if fails(Point::Isolate) {
            return Err(ENOMEM);
        }
        let batch = &mut *batch.0;
        batch.src.fill(0);
        batch.dst.fill(0);
        // SAFETY: The frames are of a live piece, and the array is long enough.
        to_result(unsafe {
            bindings::migrate_device_range(batch.src.as_mut_ptr(), first, range.count)
        })?;
        for src in batch.src.iter_mut().take(range.count) {
            if *src & (VALID | MIGRATE) != VALID | MIGRATE {
                continue;
            }
            // SAFETY: Isolated just now: locked, with a reference of ours.
            if unsafe { bindings::rust_hmm_drop_moved_folio(*src >> SHIFT) } {
                *src = 0;
            }
        }
        // INVARIANT: Just set up.
        Ok(Self(Inner {
            raw: bindings::migrate_vma::default(),
            by_vma: false,
            batch,
            pages: range.count,
            _borrow: PhantomData,
        }))
    }

    /// The entries that can migrate.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.0.entries()
    }

    /// The first entry at or after page `index` of the range.
    pub fn entry_from(&self, index: usize) -> Option<Entry> {
        self.0.entry_from(index)
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
            if let Source::Page(pfn) = entry.source {
                // SAFETY: The page is isolated, so it is alive.
                if unsafe { bindings::rust_hmm_pfn_is_ksm(pfn) } {
                    continue;
                }
            }
            let Some(folio) = choose(&entry).filter(|folio| folio.order() == entry.order()) else {
                continue;
            };
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
    pub fn source(&self, index: usize) -> Option<CpuPages<'_>> {
        let entry = self.0.entry(index)?;
        let Source::Page(pfn) = entry.source else {
            return None;
        };
        // SAFETY: The page is isolated: it stays alive as long as `self`.
        unsafe {
            (!bindings::rust_hmm_pfn_is_private(pfn)).then(|| CpuPages::new(pfn, entry.pages))
        }
    }

    /// The pages that the entry at `index` goes to; `None` if it has none, and for memory that the
    /// CPU cannot address.
    pub fn destination(&self, index: usize) -> Option<CpuPagesMut<'_>> {
        let entry = self.0.entry(index).filter(|entry| entry.destination != 0)?;
        let pfn = entry.destination;
        // SAFETY: The destination is a folio of ours, alive as long as it is not abandoned, for
        // which `self` would have to be borrowed mutably.
        unsafe {
            (!bindings::rust_hmm_pfn_is_private(pfn)).then(|| CpuPagesMut::new(pfn, entry.pages))
        }
    }

    /// Marks the destination of the entry at `index` dirty, if it is system memory: what comes from
    /// a device may be newer than what reclaim thinks it can drop (`MADV_FREE`).
    pub fn dirty_destination(&self, index: usize) {
        if let Some(pages) = self.destination(index) {
            // SAFETY: A locked new folio of ours.
            unsafe { mark_dirty(pages.first_pfn()) };
        }
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
    pub fn moved(&self) -> impl Iterator<Item = Entry> + '_ {
        self.0.entries().filter(|entry| entry.destination != 0)
    }

    /// Whether the CPU can address what `entry` has moved to.
    pub fn is_addressable(&self, entry: &Entry) -> bool {
        // SAFETY: Where something has moved to, is alive.
        entry.destination != 0 && !unsafe { bindings::rust_hmm_pfn_is_private(entry.destination) }
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

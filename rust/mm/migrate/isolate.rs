// SPDX-License-Identifier: GPL-2.0

//! Classifies pages for a migration, and isolates pages of system memory.
//!
//! A migration isolates only pages that it can move. [`Vma::uniform_prefix`] reports all other
//! pages before anything is unmapped. Pages that KSM has merged, or may merge, must not be
//! isolated: the core isolates the pages that it finds in a page table, and restores the mappings
//! that it finds in the reverse mapping. A merged page is only found through the VMA in which KSM
//! merged it, and only while that VMA keeps its reverse mapping. If it is not found, the migration
//! entry remains for ever and refers to a freed page.

use super::{
    Batch,
    Isolated, //
};
use crate::{
    bindings,
    kernel::identity::{
        MemoryId,
        MigrationId, //
    },
    mm::{
        addr::PageRange,
        vma::Vma, //
    }, //
};
use kernel::prelude::*;

/// Class of pages with regard to a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageClass {
    /// Anonymous system memory, or holes of an anonymous VMA. They can move to a device.
    System,
    /// Pages in the requested device memory.
    Device,
    /// Pages that another task is migrating.
    Busy,
    /// Pages with extra references, short-lived or long-lived.
    Held,
    /// Pages that cannot move: file-backed, shared, pinned, swapped out, owned by another device,
    /// or merged by KSM now or soon.
    Stay,
}

/// Pages of system memory, or holes of an anonymous VMA, that can move to a device.
///
/// # Invariants
///
/// The pages lie in `vma` and within a block. When they were classified, the mmap lock was held
/// that is held for `'a`, KSM had merged none of them, and no VMA that maps them was mergeable.
/// Therefore none becomes a merged page while the lock is held, unless a VMA of another process
/// that maps it becomes mergeable, and KSM scans a page twice before it merges it.
pub(crate) struct SystemPages<'a> {
    vma: Vma<'a>,
    range: PageRange,
    folios: FolioSizes,
}

/// Sizes of the folios of a range.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FolioSizes {
    /// Small folios only, and no hole that a CPU fault may fill with a large folio.
    Small,
    /// One huge page, mapped by a PMD.
    Huge,
    /// Large folios, or holes that a CPU fault may fill with large folios.
    Large,
}

impl<'a> SystemPages<'a> {
    /// Returns the VMA.
    pub(crate) fn vma(&self) -> Vma<'a> {
        self.vma
    }

    /// Whether [`Self::isolate`] may split large folios, and thus wait for their locks. `compound`
    /// is the argument of that call.
    pub(crate) fn may_split(&self, compound: bool) -> bool {
        match self.folios {
            FolioSizes::Small => false,
            FolioSizes::Huge => !compound,
            FolioSizes::Large => true,
        }
    }

    /// Isolates the pages, best effort. `id` identifies the migration to notifiers. With
    /// `compound` a huge page is isolated whole, otherwise it is split.
    ///
    /// # Errors
    ///
    /// As for [`Isolated::new`].
    ///
    /// # Context
    ///
    /// As for [`Isolated::new`].
    pub(crate) fn isolate(
        self,
        compound: bool,
        id: MigrationId,
        batch: &'a mut Batch,
    ) -> Result<Isolated<'a>> {
        Isolated::check(self.vma, self.range)?;
        let select = bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_SYSTEM;
        let in_one = if compound {
            bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_COMPOUND
        } else {
            0
        };
        Isolated::set_up(
            self.vma,
            self.range,
            select | in_one,
            id.into(),
            None,
            None,
            batch,
        )
    }
}

/// Result for the first pages of a range, as far as they are of the same class.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::kernel::identity::MigrationId;
/// use rust_hmm::mm::addr::PageRange;
/// use rust_hmm::mm::migrate::Batch;
/// use rust_hmm::mm::migrate::Isolated;
/// use rust_hmm::mm::migrate::System;
/// use rust_hmm::mm::vma::Vma;
///
/// /// Isolates the first pages of `range`, and returns how far that got.
/// fn isolate_first(
///     vma: Vma<'_>,
///     range: PageRange,
///     id: MigrationId,
///     batch: &mut Batch,
/// ) -> Result<PageRange> {
///     match Isolated::of_system(vma, range, true, id, batch)? {
///         System::Isolated(isolated, part) => {
///             drop(isolated.migrate());
///             Ok(part)
///         }
///         System::Stay(part) | System::Busy(part) => Ok(part),
///     }
/// }
/// ```
pub enum System<'a> {
    /// The pages were isolated, as far as possible.
    Isolated(Isolated<'a>, PageRange),
    /// The pages cannot move to a device and were left alone.
    Stay(PageRange),
    /// Other tasks migrate the pages or have references to them. They were left alone and may be
    /// tried again later.
    Busy(PageRange),
}

impl<'a> Vma<'a> {
    /// Whether pages of the VMA can migrate: it has, or may get, anonymous pages. Otherwise no page
    /// of the VMA can move, whatever its page table contains.
    pub(crate) fn may_migrate(&self) -> bool {
        // SAFETY: The VMA is valid as long as `self` exists.
        unsafe { bindings::rust_hmm_vma_may_migrate(self.as_ptr()) }
    }

    /// Returns the class of the first pages of `range`, and the range of the pages of that class.
    /// The result may become stale at any time.
    ///
    /// `range` must lie in the VMA and within a block. `tile` identifies the device memory.
    ///
    /// # Errors
    ///
    /// * `EINVAL`: the range does not meet these conditions, or the VMA is special or hugetlb.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn uniform_prefix(
        &self,
        range: PageRange,
        tile: MemoryId,
    ) -> Result<(PageClass, PageRange)> {
        let (kind, range, _) = self.classify(range, tile, false)?;
        Ok((kind, range))
    }

    /// Classifies pages for a migration of system memory: pages that KSM may merge are
    /// [`PageClass::Stay`]. See [`Self::uniform_prefix`]. The third value is `Some` if the pages
    /// are [`PageClass::System`].
    ///
    /// # Errors
    ///
    /// As for [`Self::uniform_prefix`].
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn alike_system(
        self,
        range: PageRange,
        tile: MemoryId,
    ) -> Result<(PageClass, PageRange, Option<SystemPages<'a>>)> {
        let (kind, range, folios) = self.classify(range, tile, true)?;
        // INVARIANT: `classify` found the pages to be so, and the mmap lock is held for `'a`.
        let pages = (kind == PageClass::System).then_some(SystemPages {
            vma: self,
            range,
            folios,
        });
        Ok((kind, range, pages))
    }

    /// Returns the contiguous pages of `range` around `addr` that are in device memory `tile`.
    /// Returns `None` if the page at `addr` is not, or if `range` is not in the VMA and one block.
    ///
    /// # Context
    ///
    /// The mmap lock is held, as the lifetime ensures. Does not sleep.
    pub(crate) fn device_run(
        &self,
        range: PageRange,
        addr: usize,
        tile: MemoryId,
    ) -> Option<PageRange> {
        let is_inside = range.pmd_pieces().nth(1).is_none()
            && range.start() >= self.start()
            && range.end() <= self.end();
        if !is_inside || range.index_of(addr).is_none() {
            return None;
        }
        let mut start = range.start();
        let mut end = range.end();
        // SAFETY: The VMA is valid and contains the range, which has `addr`, and which one page
        // table covers. The mmap lock is held.
        let is_found = unsafe {
            bindings::rust_hmm_vma_device_run(
                self.as_ptr(),
                addr,
                tile.as_ptr(),
                &mut start,
                &mut end,
            )
        };
        PageRange::new(start, end).ok().filter(|_| is_found)
    }

    fn classify(
        &self,
        range: PageRange,
        tile: MemoryId,
        system: bool,
    ) -> Result<(PageClass, PageRange, FolioSizes)> {
        if range.pmd_pieces().nth(1).is_some()
            || range.start() < self.start()
            || range.end() > self.end()
        {
            return Err(EINVAL);
        }
        let mut kind = 0;
        let mut folios = 0;
        // SAFETY: The VMA is valid and contains the range, which one page table covers. The mmap
        // lock is held.
        let pages = unsafe {
            bindings::rust_hmm_vma_alike(
                self.as_ptr(),
                range.start(),
                range.end(),
                tile.as_ptr(),
                system,
                &mut kind,
                &mut folios,
            )
        };
        let kind = match kind {
            bindings::rust_hmm_pages_RUST_HMM_PAGES_SYSTEM => PageClass::System,
            bindings::rust_hmm_pages_RUST_HMM_PAGES_DEVICE => PageClass::Device,
            bindings::rust_hmm_pages_RUST_HMM_PAGES_BUSY => PageClass::Busy,
            bindings::rust_hmm_pages_RUST_HMM_PAGES_HELD => PageClass::Held,
            bindings::rust_hmm_pages_RUST_HMM_PAGES_STAY => PageClass::Stay,
            _ => return Err(EINVAL),
        };
        let part = PageRange::from_pages(range.start(), pages)?;
        let folios = match folios {
            bindings::rust_hmm_folios_RUST_HMM_FOLIOS_SMALL => FolioSizes::Small,
            bindings::rust_hmm_folios_RUST_HMM_FOLIOS_HUGE => FolioSizes::Huge,
            _ => FolioSizes::Large,
        };
        Ok((kind, part, folios))
    }
}

impl<'a> Isolated<'a> {
    /// Isolates the first pages of `range`, best effort: those of the same class, if they are in
    /// system memory or holes of an anonymous VMA. See [`System`]. The caller repeats the call for
    /// the rest of `range`.
    ///
    /// `range` must lie in `vma` and within a block. `id` identifies the migration to notifiers.
    /// With `compound` a huge page is isolated whole, otherwise it is split.
    ///
    /// # Errors
    ///
    /// - Those of [`Self::new`].
    ///
    /// # Context
    ///
    /// As for [`Self::new`].
    pub fn of_system(
        vma: Vma<'a>,
        range: PageRange,
        compound: bool,
        id: MigrationId,
        batch: &'a mut Batch,
    ) -> Result<System<'a>> {
        // `MemoryId::NONE`: device memory of any owner stays.
        Ok(match vma.alike_system(range, MemoryId::NONE)? {
            (_, part, Some(pages)) => System::Isolated(pages.isolate(compound, id, batch)?, part),
            (PageClass::Busy | PageClass::Held, part, None) => System::Busy(part),
            (_, part, None) => System::Stay(part),
        })
    }
}

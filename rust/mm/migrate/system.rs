// SPDX-License-Identifier: GPL-2.0

//! What pages are to a migration, and isolating those of system memory.
//!
//! A migration isolates only what it can move: [`Vma::alike`] reports the rest before anything is
//! unmapped. Pages that the kernel's page merging (KSM) has, or may get, must not be isolated at
//! all: the core isolates what it finds in a page table, and restores what the reverse mapping
//! leads to. A merged page has the reverse mapping of the mapping that had it merged, and only as
//! long as that one wants it. Where the way back is not found, the entry stays one of a migration
//! for ever, of a page that is free.

use super::{Batch, Isolated};
use crate::{
    bindings,
    mm::{addr::PageRange, notifier::Cookie, space::Vma},
};
use kernel::prelude::*;

/// What pages are to a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// Anonymous system memory, or holes of an anonymous mapping: they can move to a device.
    System,
    /// Pages in the device memory asked for.
    Device,
    /// Pages that another task migrates.
    Busy,
    /// Pages to which somebody has a reference, for a moment or for long.
    Held,
    /// Pages that cannot move: of a file, shared memory, pinned, merged or about to be, swapped
    /// out, of another owner.
    Stay,
}

/// Pages of system memory, or holes of an anonymous mapping, that can move to a device.
///
/// # Invariants
///
/// They lie in `vma` and within 2 MiB. When they were looked at, the mmap lock was held that is
/// held for `'a`, none was one that the kernel had merged, and no mapping let it merge them. So
/// none becomes a merged one as long as the lock is held, but by a mapping of another process that
/// becomes mergeable, at which KSM has to look twice first.
pub(crate) struct SystemPages<'a> {
    vma: Vma<'a>,
    range: PageRange,
    folios: Folios,
}

/// Folios of pages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Folios {
    /// Small ones only, and no hole that a CPU fault may fill with a large one.
    Small,
    /// One huge page, which is mapped by a PMD.
    Huge,
    /// Large ones, or holes for them.
    Large,
}

impl<'a> SystemPages<'a> {
    /// The mapping.
    pub(crate) fn vma(&self) -> Vma<'a> {
        self.vma
    }

    /// Whether [`Self::isolate`] may split large folios, for whose locks it then waits. `compound`
    /// is its argument.
    pub(crate) fn may_split(&self, compound: bool) -> bool {
        match self.folios {
            Folios::Small => false,
            Folios::Huge => !compound,
            Folios::Large => true,
        }
    }

    /// Isolates them, best effort. `cookie` names the transaction to notifiers. `compound` takes a
    /// huge page as one entry, else it is split.
    ///
    /// # Errors
    ///
    /// As [`Isolated::new`]. Context: as [`Isolated::new`].
    pub(crate) fn isolate(
        self,
        compound: bool,
        cookie: Cookie,
        batch: &'a mut Batch,
    ) -> Result<Isolated<'a>> {
        Isolated::check(self.vma, self.range)?;
        let select = bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_SYSTEM;
        let in_one = match compound {
            true => bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_COMPOUND,
            false => 0,
        };
        Isolated::set_up(
            self.vma,
            self.range,
            select | in_one,
            cookie,
            None,
            None,
            batch,
        )
    }
}

/// The first pages of a range, as far as they are alike.
pub enum System<'a> {
    /// They are isolated, as far as they can be.
    Isolated(Isolated<'a>, PageRange),
    /// They cannot move to a device. They stay.
    Stay(PageRange),
    /// Others migrate them, or have references to them. They stay, for now.
    Busy(PageRange),
}

impl<'a> Vma<'a> {
    /// Whether pages of the mapping can migrate: some are anonymous, or may become so. Without it
    /// nothing of the mapping can move, whatever is in its page table.
    pub(crate) fn may_migrate(&self) -> bool {
        // SAFETY: The mapping is valid.
        unsafe { bindings::rust_hmm_vma_may_migrate(self.as_ptr()) }
    }

    /// What the first pages of `range` are, and how many are alike. They may change at any time.
    ///
    /// `range` must lie in the mapping and within 2 MiB. `tile` names the device memory.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range is not so, or the mapping is special or hugetlb. Context: may sleep.
    pub(crate) fn alike(&self, range: PageRange, tile: Cookie) -> Result<(Pages, PageRange)> {
        let (kind, range, _) = self.classify(range, tile, false)?;
        Ok((kind, range))
    }

    /// As [`Self::alike`], for a migration that takes system memory: pages that KSM may merge are
    /// [`Pages::Stay`]. The third value is there if the pages are [`Pages::System`].
    ///
    /// # Errors
    ///
    /// As [`Self::alike`]. Context: may sleep.
    pub(crate) fn alike_system(
        self,
        range: PageRange,
        tile: Cookie,
    ) -> Result<(Pages, PageRange, Option<SystemPages<'a>>)> {
        let (kind, range, folios) = self.classify(range, tile, true)?;
        // INVARIANT: They were found to be so, and the mmap lock is held for `'a`.
        let pages = (kind == Pages::System).then_some(SystemPages {
            vma: self,
            range,
            folios,
        });
        Ok((kind, range, pages))
    }

    fn classify(
        &self,
        range: PageRange,
        tile: Cookie,
        system: bool,
    ) -> Result<(Pages, PageRange, Folios)> {
        if range.pmd_pieces().nth(1).is_some()
            || range.start() < self.start()
            || range.end() > self.end()
        {
            return Err(EINVAL);
        }
        let (mut kind, mut folios) = (0, 0);
        // SAFETY: The mapping is valid and has the range, which is in one table; the mmap lock is
        // held.
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
            bindings::rust_hmm_pages_RUST_HMM_PAGES_SYSTEM => Pages::System,
            bindings::rust_hmm_pages_RUST_HMM_PAGES_DEVICE => Pages::Device,
            bindings::rust_hmm_pages_RUST_HMM_PAGES_BUSY => Pages::Busy,
            bindings::rust_hmm_pages_RUST_HMM_PAGES_HELD => Pages::Held,
            bindings::rust_hmm_pages_RUST_HMM_PAGES_STAY => Pages::Stay,
            _ => return Err(EINVAL),
        };
        let part = PageRange::from_pages(range.start(), pages)?;
        let folios = match folios {
            bindings::rust_hmm_folios_RUST_HMM_FOLIOS_SMALL => Folios::Small,
            bindings::rust_hmm_folios_RUST_HMM_FOLIOS_HUGE => Folios::Huge,
            _ => Folios::Large,
        };
        Ok((kind, part, folios))
    }
}

impl<'a> Isolated<'a> {
    /// Isolates the first pages of `range`, which are in system memory or holes of an anonymous
    /// mapping, best effort: up to those of another kind, see [`System`]. What is left of `range`
    /// is to be asked for again.
    ///
    /// `range` must lie in `vma` and within 2 MiB. `cookie` names the transaction to notifiers.
    /// `compound` takes a huge page as one entry, else it is split.
    ///
    /// # Errors
    ///
    /// As [`Self::new`]. Context: as [`Self::new`].
    pub fn of_system(
        vma: Vma<'a>,
        range: PageRange,
        compound: bool,
        cookie: Cookie,
        batch: &'a mut Batch,
    ) -> Result<System<'a>> {
        // Device memory of any owner stays.
        Ok(match vma.alike_system(range, Cookie::NONE)? {
            (_, part, Some(pages)) => {
                System::Isolated(pages.isolate(compound, cookie, batch)?, part)
            }
            (Pages::Busy | Pages::Held, part, None) => System::Busy(part),
            (_, part, None) => System::Stay(part),
        })
    }
}

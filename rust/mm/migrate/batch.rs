// SPDX-License-Identifier: GPL-2.0

//! The arrays of one migration, and what they say of each page.

use super::{whole::Whole, Entry, Source, COMPOUND, MIGRATE, SHIFT, VALID, WRITE};
use crate::{bindings, mm::addr::PMD_PAGES};
use kernel::prelude::*;

/// Room for one migration. Reuse it.
pub struct Batch {
    pub(super) src: KVec<usize>,
    pub(super) dst: KVec<usize>,
}

impl Batch {
    /// Allocates a batch for up to [`PMD_PAGES`] pages. Context: may sleep.
    pub fn new() -> Result<Self> {
        Self::with_room(PMD_PAGES)
    }

    /// Allocates a batch for up to `pages` pages. Context: may sleep.
    pub fn with_room(pages: usize) -> Result<Self> {
        Ok(Self {
            src: KVec::from_elem(0, pages, GFP_KERNEL)?,
            dst: KVec::from_elem(0, pages, GFP_KERNEL)?,
        })
    }

    /// Makes the places of `pages` pages empty. `EINVAL` if there is not so much room.
    pub(super) fn clear(&mut self, pages: usize) -> Result {
        self.src.get_mut(..pages).ok_or(EINVAL)?.fill(0);
        self.dst.get_mut(..pages).ok_or(EINVAL)?.fill(0);
        Ok(())
    }
}

/// State common to both phases.
///
/// # Invariants
///
/// `batch` holds what setup and the calls since then have left there. With `vma`, `raw` describes
/// it and the mmap lock is held for `'a`. Without `chosen` all destinations are new system memory.
pub(super) struct Inner<'a> {
    pub(super) raw: bindings::migrate_vma,
    /// Whether the sources are memory that the CPU can address.
    pub(super) cpu_sources: bool,
    /// Whether others chose some of the destinations.
    pub(super) chosen: bool,
    pub(super) batch: &'a mut Batch,
    pub(super) pages: usize,
    /// The page that is isolated whole, if it is of private device memory. To go last.
    pub(super) whole: Option<Whole<'a>>,
}

impl Inner<'_> {
    #[inline]
    pub(super) fn entry(&self, index: usize) -> Option<Entry> {
        let src = *self.batch.src.get(..self.pages)?.get(index)?;
        self.entry_of(index, src)
    }

    /// What `src` at `index` says.
    #[inline]
    fn entry_of(&self, index: usize, src: usize) -> Option<Entry> {
        let pages = if src & COMPOUND != 0 { PMD_PAGES } else { 1 };
        (src & MIGRATE != 0).then(|| Entry {
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

    /// Page frame of the new system memory of the small entry at `index`, and whether the CPU may write it; `None` also
    /// if others chose destinations.
    #[inline]
    pub(super) fn small(&self, index: usize) -> Option<(usize, bool)> {
        let src = *self.batch.src.get(index)?;
        let pfn = *self.batch.dst.get(index)? >> SHIFT;
        let found = index < self.pages && !self.chosen && src & (MIGRATE | COMPOUND) == MIGRATE;
        (found && pfn != 0).then_some((pfn, src & WRITE != 0))
    }

    /// The first entry at or after page `index`.
    #[inline]
    pub(super) fn entry_from(&self, index: usize) -> Option<Entry> {
        let rest = self.batch.src.get(index..self.pages)?;
        let found = rest.iter().position(|src| src & MIGRATE != 0)?;
        self.entry_of(index + found, *rest.get(found)?)
    }

    #[inline]
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let mut next = 0;
        core::iter::from_fn(move || {
            let found = self.entry_from(next)?;
            next = found.index + found.pages;
            Some(found)
        })
    }

    /// Whether `entry` has a destination, and that is memory which the CPU can address.
    #[inline]
    pub(super) fn is_addressable(&self, entry: &Entry) -> bool {
        // SAFETY: Only called if there is a destination, which is a folio that is alive: ours, or moved to.
        let is_private = || unsafe { bindings::rust_hmm_pfn_is_private(entry.destination) };
        entry.destination != 0 && !(self.chosen && is_private())
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
        // SAFETY: As above.
        unsafe { bindings::migrate_vma_finalize(&mut self.raw) };
    }
}

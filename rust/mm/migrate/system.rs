// SPDX-License-Identifier: GPL-2.0

//! Isolating pages of system memory, but for those that the kernel's page merging (KSM) has, or may get.
//!
//! The core isolates what it finds in a page table, and restores what the reverse mapping leads to. For a merged page
//! these are not the same: it has the reverse mapping of who had it merged, and only as long as that one wants it. Where
//! the way back is not found, the entry stays one of a migration for ever, of a page that is free.

use super::{Batch, Isolated};
use crate::{
    bindings,
    mm::{addr::PageRange, notifier::Cookie, space::Vma},
};
use kernel::prelude::*;

/// The first pages of a range, as far as they are alike.
pub enum System<'a> {
    /// They are isolated, as far as they can be.
    Isolated(Isolated<'a>, PageRange),
    /// They are merged, or swapped out while they may have been, or somebody lets them be merged. They stay.
    Merged(PageRange),
    /// Others migrate them. They stay, for now.
    Busy(PageRange),
}

impl<'a> Isolated<'a> {
    /// Isolates the first pages of `range`, which are in system memory or holes of an anonymous mapping, best effort:
    /// up to those of another kind, see [`System`]. What is left of `range` is to be asked for again.
    ///
    /// `range` must lie in `vma` and within 2 MiB. `cookie` names the transaction to notifiers. `compound` takes a huge
    /// page as one entry, else it is split.
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
        Self::check(vma, range)?;
        let mut kind = 0;
        // SAFETY: The mapping is valid and has the range, which is in one table; the mmap lock is held.
        let pages = unsafe {
            bindings::rust_hmm_vma_alike(vma.as_ptr(), range.start(), range.end(), &mut kind)
        };
        let part = PageRange::from_pages(range.start(), pages)?;
        Ok(match kind {
            bindings::rust_hmm_pages_RUST_HMM_PAGES_OWN => {
                let select = bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_SYSTEM;
                let in_one = match compound {
                    true => bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_COMPOUND,
                    false => 0,
                };
                let flags = select | in_one;
                let isolated = Self::set_up(vma, part, flags, cookie, None, None, batch)?;
                System::Isolated(isolated, part)
            }
            bindings::rust_hmm_pages_RUST_HMM_PAGES_BUSY => System::Busy(part),
            _ => System::Merged(part),
        })
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Copies of pages that stay where they are.
//!
//! A copy is right as long as nobody can write its page without an event. In a private anonymous mapping without
//! write access that is so, with two exceptions, which are closed here. Who may write nevertheless (`ptrace`,
//! `/proc/PID/mem`) does so in place if the page is exclusive to the mapping; so it is made one that may be shared
//! ([`Vma::share`]). And a write to a page that may be shared, but has no other user, makes it exclusive again instead
//! of copying it; so a copy holds a reference of its page. Either write is a copy then, of which an event tells.
//! Who has pinned the page before, or holds it otherwise, has it not isolated.

use super::{Isolated, Source, SHIFT};
use crate::{
    bindings,
    mm::{addr::PageRange, space::Vma},
};
use kernel::prelude::*;

/// A page of device memory that has the contents of a page that CPUs map. Dropping it gives both back.
///
/// # Invariants
///
/// We own a reference of the folio of order 0 that begins at `copy`, and one of the page `source`.
pub struct Replica {
    copy: usize,
    source: usize,
    /// For a list of those that are to go.
    pub(crate) next: Option<KBox<Replica>>,
}

impl Replica {
    /// Page frame of the copy.
    pub(crate) fn pfn(&self) -> usize {
        self.copy
    }

    /// Whether the page can be written in place, so that the copy may be wrong. If not, it stays so.
    pub fn is_writable(&self) -> bool {
        // SAFETY: We own a reference by the type invariant.
        unsafe { bindings::rust_hmm_pfn_is_exclusive(self.source) }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // Not one within the other: a list may be long.
        let mut next = self.next.take();
        while let Some(mut replica) = next {
            next = replica.next.take();
        }
        // SAFETY: We own both by the type invariant.
        unsafe {
            bindings::rust_hmm_pfn_put(self.copy);
            bindings::rust_hmm_pfn_put(self.source);
        }
    }
}

impl Isolated<'_> {
    /// Takes the destination of the entry at `index`, a small page with contents, as a copy of it: the entry
    /// will stay where it is. `Ok(None)`: it is none, or has no destination. `ENOMEM`: the destination is taken back.
    pub fn take_copy(&mut self, index: usize) -> Result<Option<KBox<Replica>>> {
        let Some(entry) = self.0.entry(index) else {
            return Ok(None);
        };
        let Source::Page(source) = entry.source else {
            return Ok(None);
        };
        if entry.pages != 1 || entry.destination == 0 {
            return Ok(None);
        }
        let room = match KBox::<Replica>::new_uninit(GFP_KERNEL) {
            Ok(room) => room,
            Err(error) => {
                self.abandon(index);
                return Err(error.into());
            }
        };
        let Some(dst) = self.0.batch.dst.get_mut(index) else {
            return Ok(None);
        };
        let copy = core::mem::take(dst) >> SHIFT;
        // SAFETY: The destination was put there by `fill`, with its lock and reference. The source is isolated, so it
        // is alive.
        unsafe {
            bindings::rust_hmm_pfn_unlock(copy);
            bindings::rust_hmm_pfn_get(source);
        }
        // INVARIANT: The reference of the destination is ours now, and so is the one just taken.
        Ok(Some(KBox::write(
            room,
            Replica {
                copy,
                source,
                next: None,
            },
        )))
    }
}

impl Vma<'_> {
    /// Whether it is private and anonymous, and gives no write access.
    pub fn is_constant(&self) -> bool {
        // SAFETY: The mapping is valid.
        unsafe { bindings::rust_hmm_vma_is_constant(self.as_ptr()) }
    }

    /// Makes the small pages of `range` ones that may be shared, as fork does: to write them is to copy them, also for
    /// who may write although the mapping may not. Returns how many are so now; 0 if the mapping
    /// [may be written](Self::is_constant).
    pub fn share(&self, range: PageRange) -> usize {
        if !self.is_constant() || range.start() < self.start() || range.end() > self.end() {
            return 0;
        }
        // SAFETY: The mapping is valid, has the range, and the mmap lock is held, so that it stays without write access.
        unsafe { bindings::rust_hmm_vma_share(self.as_ptr(), range.start(), range.end()) }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Copies of pages that stay where they are.
//!
//! A copy is right as long as nobody can write its page without an event. In a private anonymous mapping without
//! write access that is so, with two exceptions, which are closed here. Who may write nevertheless (`ptrace`,
//! `/proc/PID/mem`) does so in place if the page is exclusive to the mapping; so it is made one that may be shared
//! ([`Vma::share`]). And a write to a page that may be shared, but has no other user, makes it exclusive again instead
//! of copying it; so a copy holds a reference of its page. Either write is a copy then, of which an event tells.
//! Who has pinned the page before, or holds it otherwise, so that he may write it, has it not isolated. For more copies
//! of the same page that was seen to already.

use super::{Isolated, Source, SHIFT};
use crate::{
    bindings,
    mm::{
        page::{CpuPages, LockedFolio},
        space::Vma,
    },
};
use kernel::{error::to_result, prelude::*};

/// A page of which a copy is, or will be made. Dropping it ends that.
///
/// # Invariants
///
/// The page frame is counted among the sources, of which each has a reference.
pub struct Constant(usize);

impl Constant {
    /// The page, to be copied.
    pub fn page(&self) -> CpuPages<'_> {
        // SAFETY: Alive by the type invariant, and system memory.
        unsafe { CpuPages::new(self.0, 1) }
    }

    /// Whether the page can be written in place, so that a copy may be wrong. If not, it stays so.
    fn is_writable(&self) -> bool {
        // SAFETY: Alive by the type invariant.
        unsafe { bindings::rust_hmm_pfn_is_exclusive(self.0) }
    }
}

impl Drop for Constant {
    fn drop(&mut self) {
        // SAFETY: Counted by the type invariant.
        unsafe { bindings::rust_hmm_source_put(self.0) };
    }
}

/// A page of device memory that has the contents of a page that CPUs map. Dropping it gives both back.
///
/// # Invariants
///
/// We own a reference of the folio of order 0 that begins at `copy`.
pub struct Replica {
    copy: usize,
    source: Constant,
    /// For a list of those that are to go.
    pub(crate) next: Option<KBox<Replica>>,
}

impl Replica {
    /// `folio`, of order 0, has the contents of `source`. `ENOMEM`; `EINVAL` if it is large.
    pub fn new(folio: LockedFolio, source: Constant) -> Result<KBox<Self>> {
        if folio.order() != 0 {
            return Err(EINVAL);
        }
        let room = KBox::<Self>::new_uninit(GFP_KERNEL)?;
        let (copy, _) = folio.into_raw();
        // SAFETY: The lock was the folio's, and is ours to release.
        unsafe { bindings::rust_hmm_pfn_unlock(copy) };
        // INVARIANT: The reference was the folio's, and is ours now.
        Ok(KBox::write(
            room,
            Self {
                copy,
                source,
                next: None,
            },
        ))
    }

    /// Page frame of the copy.
    pub(crate) fn pfn(&self) -> usize {
        self.copy
    }

    /// Whether the page can be written in place, so that the copy may be wrong. If not, it stays so.
    pub fn is_writable(&self) -> bool {
        self.source.is_writable()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // Not one within the other: a list may be long.
        let mut next = self.next.take();
        while let Some(mut replica) = next {
            next = replica.next.take();
        }
        // SAFETY: Ours by the type invariant.
        unsafe { bindings::rust_hmm_pfn_put(self.copy) };
    }
}

impl<R> Isolated<'_, R> {
    /// Takes the destination of the entry at `index`, a small page with contents, as a copy of it: the entry
    /// will stay where it is. `None`: it is none, or has no destination, or that was not filled; or there is
    /// no memory, so that the destination is taken back.
    pub fn take_copy(&mut self, index: usize) -> Option<KBox<Replica>> {
        let entry = self.pages.0.entry(index)?;
        let Source::Page(source) = entry.source else {
            return None;
        };
        if entry.pages != 1 || entry.destination == 0 || !self.pages.0.batch.filled.has(index) {
            return None;
        }
        let dst = self.pages.0.batch.dst.get_mut(index)?;
        // SAFETY: The destination was put there by `fill`, with its lock and reference.
        let folio = unsafe { LockedFolio::from_raw(core::mem::take(dst) >> SHIFT, 0) };
        // SAFETY: The source is isolated, so it is alive.
        to_result(unsafe { bindings::rust_hmm_source_add(source) }).ok()?;
        // INVARIANT: Just counted.
        Replica::new(folio, Constant(source)).ok()
    }
}

impl Vma<'_> {
    /// Whether it is private and anonymous, and gives no write access.
    pub fn is_constant(&self) -> bool {
        // SAFETY: The mapping is valid.
        unsafe { bindings::rust_hmm_vma_is_constant(self.as_ptr()) }
    }

    /// Makes the small page at `addr` one that may be shared, as fork does: to write it is to copy it, also for
    /// who may write although the mapping may not. Returns whether it is so now; it is not if there is none, or the mapping
    /// [may be written](Self::is_constant).
    pub fn share(&self, addr: usize) -> bool {
        if !self.is_constant() || addr < self.start() || addr >= self.end() {
            return false;
        }
        // SAFETY: The mapping is valid, has the address, and the mmap lock is held, so that it stays without write
        // access.
        unsafe { bindings::rust_hmm_vma_share(self.as_ptr(), addr) }
    }

    /// The page at `addr`, if there is a copy of it already, as of one that another device reads.
    pub fn constant(&self, addr: usize) -> Option<Constant> {
        if !self.is_constant() || addr < self.start() || addr >= self.end() {
            return None;
        }
        // SAFETY: The mapping is valid, has the address, and the mmap lock is held.
        let pfn = unsafe { bindings::rust_hmm_source_join(self.as_ptr(), addr) };
        // INVARIANT: Just counted.
        (pfn != 0).then_some(Constant(pfn))
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Huge device pages, where they are mapped: to be isolated whole, or to become small ones.
//!
//! By physical page the core gives a huge page only huge memory (`migrate_device_pages()`), and nobody may drop it
//! meanwhile (see `migrate/whole.rs`). By virtual address it is isolated whole, or split for who did not ask for
//! huge ones. So the page's reverse mapping says who maps it, and where; that need not be a process that has a
//! mirror.

use super::{
    super::{
        addr::{PageRange, PMD_ORDER, PMD_PAGES, PMD_SIZE},
        migrate::{Batch, Entry, Isolated, Select, Source},
        space::MmapGuard,
    },
    DevicePageOps, DevicePages, Kind, PIECE_PAGES,
};
use crate::bindings;
use core::{ops::Range, ptr::NonNull};
use kernel::{
    mm::{MmWithUser, MmWithUserAsync},
    prelude::*,
    sync::aref::ARef,
};

/// Address spaces that are looked at for one page: those of a process and of what it has forked.
const SPACES: u32 = 4096;

/// What a huge folio is looked for by.
struct Place {
    /// Its offset in the mappings that may have it.
    offset: usize,
    /// Its page frames.
    frames: Range<usize>,
}

impl<T: DevicePageOps> DevicePages<T> {
    /// Whether a huge folio in use begins at device page `number`. It may be freed or split at any time.
    pub fn is_huge(&self, number: usize) -> bool {
        let Some(looker) = self.look(number) else {
            return false;
        };
        let pfn = looker.frames().start + number % PIECE_PAGES;
        // SAFETY: The frame is there as long as `looker` is.
        let order = unsafe { bindings::rust_hmm_pfn_order(pfn) };
        order == PMD_ORDER && self.used_in_block(number) == PMD_PAGES
    }

    /// Splits the huge folio that begins at device page `number`: whoever maps it then maps small pages, with the
    /// same contents, of the same memory. Returns whether it is not huge any more.
    ///
    /// Context: may sleep; calls notifiers, so that no lock which one of them takes can be held.
    pub fn split(&self, number: usize, batch: &mut Batch) -> bool {
        let _: Option<()> = self.visit(number, false, batch, |isolated| {
            drop(isolated);
            None
        });
        !self.is_huge(number)
    }

    /// Isolates the huge folio that begins at device page `number`, whole if nobody else maps it, and calls `take`
    /// with it, or with its pages. `None` if it is not huge, or cannot be had now.
    ///
    /// Context: may sleep; calls notifiers, so that no lock which one of them takes can be held. `take` is called with
    /// an mmap lock held, which need not be that of the current task.
    pub fn isolate_huge<R>(
        &self,
        number: usize,
        batch: &mut Batch,
        take: impl FnOnce(Isolated<'_>) -> R,
    ) -> Option<R> {
        let mut take = Some(take);
        self.visit(number, true, batch, |isolated| {
            take.take().map(|take| take(isolated))
        })
    }

    /// Isolates the huge folio wherever it is mapped, until `take` has an answer or it is not huge any more.
    fn visit<R>(
        &self,
        number: usize,
        compound: bool,
        batch: &mut Batch,
        mut take: impl FnMut(Isolated<'_>) -> Option<R>,
    ) -> Option<R> {
        for nth in 0..SPACES {
            if !self.is_huge(number) {
                break;
            }
            let (mm, place) = self.user(number, nth)?;
            // A process that holds its mmap lock for long, or none: the next one may do.
            if let Ok(Some(answer)) = self.visit_in(&mm, &place, compound, batch, &mut take) {
                return Some(answer);
            }
        }
        None
    }

    /// Address space of number `nth` that maps the folio, and what it is looked for by.
    fn user(&self, number: usize, nth: u32) -> Option<(ARef<MmWithUserAsync>, Place)> {
        let looker = self.look(number)?;
        let pfn = looker.frames().start + number % PIECE_PAGES;
        let mut offset = 0;
        // SAFETY: The frame is there as long as `looker` is; the offset may be written.
        let mm = unsafe { bindings::rust_hmm_pfn_user(pfn, nth, &mut offset) };
        let mm = NonNull::new(mm)?.cast::<MmWithUser>();
        // SAFETY: The helper has taken a reference to a user of the address space for us. The type is a wrapper
        // of the kernel's.
        let mm = unsafe { ARef::from_raw(mm) };
        let frames = pfn..pfn + PMD_PAGES;
        // To tear it down may need locks that somebody holds who waits for us.
        Some((MmWithUser::into_mmput_async(mm), Place { offset, frames }))
    }

    /// Isolates what `mm` has of the folio at `place`, once for each mapping, until `take` has an answer.
    fn visit_in<R>(
        &self,
        mm: &MmWithUser,
        place: &Place,
        compound: bool,
        batch: &mut Batch,
        take: &mut impl FnMut(Isolated<'_>) -> Option<R>,
    ) -> Result<Option<R>> {
        let select = match self.kind() {
            Kind::Private => Select::Private,
            Kind::Coherent { .. } => Select::Coherent,
        };
        // Not for writing: who waits for the page may hold it until it has the page.
        let mmap = MmapGuard::lock(mm)?;
        let mut from = 0;
        while let Some(vma) = mmap.vma_of_offset(from, place.offset) {
            let all = PageRange::new(vma.start(), vma.end())?;
            let block = all.address(place.offset - vma.offset()) & !(PMD_SIZE - 1);
            let block = PageRange::new(block, block.checked_add(PMD_SIZE).ok_or(EINVAL)?)?;
            let range = all.intersect(&block).ok_or(EINVAL)?;
            let isolated = Isolated::new(vma, range, select, compound, self.owner(), None, batch)?;
            let is_here = |entry: Entry| match entry.source {
                Source::Page(pfn) => place.frames.contains(&pfn),
                Source::Hole => false,
            };
            let found = isolated.entries().any(is_here);
            if found {
                if let Some(answer) = take(isolated) {
                    return Ok(Some(answer));
                }
            } else {
                drop(isolated);
            }
            from = vma.end();
        }
        Ok(None)
    }
}

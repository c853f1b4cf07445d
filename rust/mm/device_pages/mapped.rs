// SPDX-License-Identifier: GPL-2.0

//! Device pages, where they are mapped: to be isolated by who does not know that, and huge ones to become small
//! ones. The page's reverse mapping says who maps it, and where; that need not be a process that has a mirror.
//!
//! The core can isolate by physical page, too (`migrate_device_range()`). But then nothing keeps the reverse mapping
//! there: a page that is isolated has no mapping that would, and who unmaps its memory frees it before it is walked to
//! put the page back. By virtual address the mmap lock keeps it. Besides, by physical page a huge page only gets huge
//! memory, and nobody may drop it meanwhile (see `migrate/whole.rs`).

use super::{
    super::{
        addr::{PageRange, PMD_ORDER, PMD_PAGES, PMD_SIZE},
        migrate::{Batch, Entry, Isolated, Select, Source},
        space::{MmapGuard, Vma},
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

/// What a folio is looked for by.
struct Place {
    /// Its offset in the mappings that may have it.
    offset: usize,
    /// The page frames of its block.
    frames: Range<usize>,
}

/// Pages of a block, a bit each.
type Pages = [usize; PMD_PAGES / usize::BITS as usize];

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

    /// Isolates the small folios of the block of 512 with device page `first`, as many at once as one
    /// mapping has side by side, and calls `take` with them. Best effort: one that is locked or referenced is left out,
    /// and so is one that only a process maps which is ending.
    ///
    /// Context: as [`Self::isolate_huge`].
    pub fn isolate_small(
        &self,
        first: usize,
        batch: &mut Batch,
        mut take: impl FnMut(Isolated<'_>),
    ) {
        let first = first - first % PMD_PAGES;
        let mut seen = Pages::default();
        for index in 0..PMD_PAGES {
            let number = first.saturating_add(index);
            let word = seen.get(index / usize::BITS as usize);
            let is_seen = word.is_some_and(|word| word >> (index % usize::BITS as usize) & 1 != 0);
            if is_seen || !self.is_used(number) {
                continue;
            }
            for nth in 0..SPACES {
                let Some((mm, place)) = self.user(number, nth) else {
                    break;
                };
                if let Ok(true) = self.isolate_run(&mm, &place, &mut seen, batch, &mut take) {
                    break;
                }
            }
        }
    }

    /// Isolates what a mapping of `mm` has at `place`, with its neighbours of the same block, if one has it.
    fn isolate_run(
        &self,
        mm: &MmWithUser,
        place: &Place,
        seen: &mut Pages,
        batch: &mut Batch,
        take: &mut impl FnMut(Isolated<'_>),
    ) -> Result<bool> {
        let select = self.select();
        let found = place.in_mappings(mm, |vma, _, addr| {
            let Some(run) = vma.run(addr, &place.frames, seen) else {
                return Ok(None);
            };
            let isolated = Isolated::new(vma, run, select, false, self.owner(), None, batch)?;
            take(isolated);
            Ok(Some(()))
        })?;
        Ok(found.is_some())
    }

    /// Whether device page `number` is in use.
    fn is_used(&self, number: usize) -> bool {
        let piece = self.pieces.get(number / PIECE_PAGES);
        let piece = piece.and_then(|piece| piece.as_ref());
        piece.is_some_and(|piece| piece.free.is_used(number % PIECE_PAGES))
    }

    /// How its pages are selected for a migration.
    pub(crate) fn select(&self) -> Select {
        match self.kind() {
            Kind::Private => Select::Private,
            Kind::Coherent { .. } => Select::Coherent,
        }
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
        let first = pfn - number % PMD_PAGES;
        let frames = first..first + PMD_PAGES;
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
        let select = self.select();
        place.in_mappings(mm, |vma, all, addr| {
            let block = addr & !(PMD_SIZE - 1);
            let block = PageRange::new(block, block.checked_add(PMD_SIZE).ok_or(EINVAL)?)?;
            let range = all.intersect(&block).ok_or(EINVAL)?;
            let isolated = Isolated::new(vma, range, select, compound, self.owner(), None, batch)?;
            let is_here = |entry: Entry| match entry.source {
                Source::Page(pfn) => place.frames.contains(&pfn),
                Source::Hole => false,
            };
            let found = isolated.entries().any(is_here);
            Ok(if found { take(isolated) } else { None })
        })
    }
}

impl Place {
    /// Calls `look` with each mapping of `mm` that may have the folio, its range, and the address where that would
    /// be, until it has an answer. The mmap lock is held.
    fn in_mappings<R>(
        &self,
        mm: &MmWithUser,
        mut look: impl FnMut(Vma<'_>, PageRange, usize) -> Result<Option<R>>,
    ) -> Result<Option<R>> {
        // Not for writing: who waits for the page may hold it until it has the page.
        let mmap = MmapGuard::lock(mm)?;
        let mut from = 0;
        while let Some(vma) = mmap.vma_of_offset(from, self.offset) {
            let all = PageRange::new(vma.start(), vma.end())?;
            let addr = all.address(self.offset - vma.offset());
            if let Some(answer) = look(vma, all, addr)? {
                return Ok(Some(answer));
            }
            from = vma.end();
        }
        Ok(None)
    }
}

impl Vma<'_> {
    /// The pages around `addr` that map `frames`, at most 512 of them; `None` if `addr` does not. `seen` gets the
    /// index of each.
    fn run(&self, addr: usize, frames: &Range<usize>, seen: &mut Pages) -> Option<PageRange> {
        let (mut start, mut end) = (0, 0);
        let last = frames.end.min(frames.start + PMD_PAGES);
        // SAFETY: The mapping is valid and has `addr`, the mmap lock is held, and `seen` has a bit for each frame.
        let found = unsafe {
            bindings::rust_hmm_vma_run(
                self.as_ptr(),
                addr,
                frames.start,
                last,
                seen.as_mut_ptr(),
                &mut start,
                &mut end,
            )
        };
        found.then(|| PageRange::new(start, end).ok())?
    }
}

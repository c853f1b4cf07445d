// SPDX-License-Identifier: GPL-2.0

//! Huge device pages that have to become small ones where they are.
//!
//! By physical page the core gives a huge page only huge memory (`migrate_device_pages()`). What it does split
//! is a page that it isolates by virtual address for who did not ask for huge ones. So the page's reverse
//! mapping says who maps it, and where; that need not be a process that has a mirror.

use super::{
    super::{
        addr::{PageRange, PMD_ORDER, PMD_PAGES, PMD_SIZE},
        migrate::{Batch, Isolated, Select, Source},
        space::MmapGuard,
    },
    DevicePageOps, DevicePages, Kind, PIECE_PAGES,
};
use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    mm::{MmWithUser, MmWithUserAsync},
    prelude::*,
    sync::aref::ARef,
};

/// Address spaces that are looked at for one page: those of a process and of what it has forked.
const SPACES: u32 = 64;

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
        for nth in 0..SPACES {
            if !self.is_huge(number) {
                return true;
            }
            let Some((mm, offset)) = self.user(number, nth) else {
                return false;
            };
            // A process that holds its mmap lock for long, or none: the next one may do.
            let _ = self.split_in(&mm, offset, batch);
        }
        !self.is_huge(number)
    }

    /// Address space of number `nth` that maps the folio, and the folio's offset.
    fn user(&self, number: usize, nth: u32) -> Option<(ARef<MmWithUserAsync>, usize)> {
        let looker = self.look(number)?;
        let pfn = looker.frames().start + number % PIECE_PAGES;
        let mut offset = 0;
        // SAFETY: The frame is there as long as `looker` is; the offset may be written.
        let mm = unsafe { bindings::rust_hmm_pfn_user(pfn, nth, &mut offset) };
        let mm = NonNull::new(mm)?.cast::<MmWithUser>();
        // SAFETY: The helper has taken a reference to a user of the address space for us. The type is a wrapper
        // of the kernel's.
        let mm = unsafe { ARef::from_raw(mm) };
        // To tear it down may need locks that somebody holds who waits for us.
        Some((MmWithUser::into_mmput_async(mm), offset))
    }

    /// Isolates what `mm` has of the page at `offset`, so that the core splits it, and puts it back.
    fn split_in(&self, mm: &MmWithUser, offset: usize, batch: &mut Batch) -> Result {
        let select = match self.kind() {
            Kind::Private => Select::Private,
            Kind::Coherent { .. } => Select::Coherent,
        };
        let mmap = MmapGuard::lock(mm)?;
        let mut from = 0;
        while let Some(vma) = mmap.vma_of_offset(from, offset) {
            let all = PageRange::new(vma.start(), vma.end())?;
            let block = all.address(offset - vma.offset()) & !(PMD_SIZE - 1);
            let block = PageRange::new(block, block.checked_add(PMD_SIZE).ok_or(EINVAL)?)?;
            let range = all.intersect(&block).ok_or(EINVAL)?;
            let isolated = Isolated::new(vma, range, select, false, self.owner(), None, batch)?;
            if isolated.entries().any(|entry| entry.source != Source::Hole) {
                break;
            }
            drop(isolated);
            from = vma.end();
        }
        Ok(())
    }
}
